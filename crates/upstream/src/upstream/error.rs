//! The errors of calls to the upstream, each with advice for the user.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError};

use crate::credentials::ExecPluginError;

/// Why a connection could not be made. All calls that waited for it share the error.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {at}: {what}")]
pub struct DialError {
    /// The upstream's address, as `host:port`.
    pub at: String,
    /// The reason, with advice for the user.
    pub what: DialFailure,
}

/// Why a connection could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DialFailure {
    /// The name could not be looked up.
    #[error("the name does not resolve ({0}); check the upstream's host and the pod's DNS")]
    Name(std::io::Error),
    /// The address is the gate's own.
    #[error(
        "this address is the gate itself; set the upstream to the address of the API; a name that the hosts file leads to the gate must be known to the name servers"
    )]
    Itself,
    /// Every address of the name is forbidden.
    #[error("{0}")]
    Forbidden(ForbiddenAddress),
    /// No process listens at the address.
    #[error("connection refused; is the upstream running, and is the port right?")]
    Refused,
    /// Another network error.
    #[error("{0}")]
    Network(std::io::Error),
    /// The connection took longer than the connect timeout.
    #[error("no connection within {0:?}; check the address and network policies, or raise timeouts.connect")]
    Timeout(Duration),
    /// The upstream's certificate is not for this name.
    #[error(
        "the server's certificate is for another name; check where the name leads, or, on a gate without `hosts`, set upstream_tls.server_name to the name in the certificate"
    )]
    WrongHost(CertificateError),
    /// The upstream's certificate is not valid now.
    #[error("the server's certificate is expired or not valid yet; renew it, or check the clocks")]
    Expired(CertificateError),
    /// The upstream's certificate is not signed by a trusted authority.
    #[error("the server's certificate is signed by an unknown authority; set upstream_tls.ca to the right CA file")]
    UnknownIssuer(CertificateError),
    /// The upstream's certificate is a CA's.
    #[error(
        "the server's certificate is that of a CA; issue one for the server, with CA:FALSE, or set upstream_tls.ca to that very certificate"
    )]
    CaItself(CertificateError),
    /// A signature in the upstream's certificate chain or handshake cannot be verified.
    #[error(
        "the server's certificate is signed by an unknown authority of a known name, or has a key that the gate does not support; set upstream_tls.ca to \
         the right CA file, and use keys that are {SUPPORTED_KEYS}"
    )]
    Signature(CertificateError),
    /// The two sides have no TLS parameters in common, such as a version or cipher.
    #[error(
        "the server and the gate have no TLS version, cipher or key in common; the gate supports TLS 1.2 and 1.3, and keys that are {SUPPORTED_KEYS}"
    )]
    NothingInCommon(std::io::Error),
    /// The upstream requires a client certificate, or refuses the gate's.
    #[error(
        "the server refuses the gate's client certificate, or requires one ({0:?}); check upstream_tls.cert, or the kubeconfig's user"
    )]
    ClientCertificate(AlertDescription),
    /// The gate's own credentials are not available. Only the log shows the cause.
    #[error("the gate cannot get its own credentials; its log says why")]
    Credentials(#[source] Arc<ExecPluginError>),
    /// The proxy refused the connection.
    #[error("the proxy on the way does not let calls through: {0}; check the kubeconfig's proxy-url, or egress.via")]
    Proxy(String),
    /// Another TLS failure.
    #[error("the TLS handshake failed: {0}")]
    Tls(std::io::Error),
    /// TCP and TLS succeeded, but HTTP failed.
    #[error("TCP and TLS succeeded, but the server does not speak HTTP as expected: {0}")]
    Http(hyper::Error),
    /// The connection closed before it could take a call.
    #[error("the server closed the new connection before it could take a call")]
    ClosedAtOnce,
}

/// Why the gate must not connect to an address requested by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForbiddenAddress {
    /// The address leads back to this pod.
    #[error("the address is loopback, which clients must reach without a proxy")]
    Loopback,
    /// The address leads to the machine's metadata service.
    #[error("the address is a metadata service, which gives out credentials; put it in NO_PROXY")]
    Metadata,
    /// The address is not that of a host (but multicast, for example).
    #[error("the address is reserved, and no host has it")]
    Special,
}

/// The key types ring supports.
const SUPPORTED_KEYS: &str = "RSA of 2048 to 8192 bits, ECDSA P-256 and P-384, and Ed25519";

/// Why a request got no response head.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SendError {
    /// The request was not processed by the upstream.
    #[error("the request was not processed by the upstream: {0}")]
    Unsent(#[source] Arc<dyn StdError + Send + Sync>),
    /// The request was not sent: there was no connection, or no credential.
    #[error("the request was not sent: {0}")]
    Unconnected(#[source] Arc<DialError>),
    /// The request was sent, and then the connection or the stream was lost: the upstream may have
    /// acted on it.
    #[error("the request was sent, but the connection broke before the response: {0}")]
    Lost(#[source] Arc<dyn StdError + Send + Sync>),
    /// The request was sent, and no response began in time.
    #[error("the upstream did not answer within {0:?}")]
    Timeout(Duration),
    /// The client's own body broke off.
    #[error("the client's request body ended too early: {0}")]
    Client(#[source] Arc<dyn StdError + Send + Sync>),
}

// === impl DialError ===

impl DialError {
    /// Returns the underlying error, for the log and not for clients.
    pub fn cause(&self) -> Option<String> {
        match &self.what {
            DialFailure::WrongHost(cause)
            | DialFailure::Expired(cause)
            | DialFailure::UnknownIssuer(cause)
            | DialFailure::Signature(cause)
            | DialFailure::CaItself(cause) => Some(cause.to_string()),
            DialFailure::NothingInCommon(cause) => Some(cause.to_string()),
            DialFailure::Credentials(cause) => Some(cause.to_string()),
            _ => None,
        }
    }
}
