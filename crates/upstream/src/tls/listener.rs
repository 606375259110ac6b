//! TLS of a listener. Its certificate, and the CA of its clients, can be replaced while connections
//! are open.

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use rcgen::KeyPair;
use rustls::ServerConfig;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;

use super::authority::{Authority, LeafCertificate};
use super::{FileFault, Identity, Pem, TlsError, provider};
use crate::{Current, lock};

/// The TLS of a listener, with the certificate for clients to trust.
#[derive(derive_more::Debug)]
#[debug("Listener")]
pub struct Listener {
    current: Current<ListenerConfig>,
    fault: Mutex<FileFault>,
}

/// The configuration of the next handshake, and the sources of its certificates.
struct ListenerConfig {
    source: CertificateSource,
    clients: Option<Pem>,
    /// True if client certificates are optional, because clients can authenticate in other ways.
    may_come_without: bool,
    config: Arc<ServerConfig>,
    ca: Arc<str>,
}

#[derive(Clone)]
enum CertificateSource {
    /// The pod-local CA, and the latest certificate issued by it.
    Own(Arc<Authority>, LeafCertificate),
    Files(Identity),
}

/// Creates a listener with a certificate from a new CA.
///
/// The certificate is for the loopback addresses, the in-cluster names of an API server, `names`,
/// and `addresses`.
///
/// # Errors
/// A name cannot be in a certificate, or the client CA cannot be used.
pub fn self_signed(names: &[String], addresses: &[IpAddr], client_ca: Option<&Path>) -> Result<Listener, TlsError> {
    self_signed_by(&KeyPair::generate()?.serialize_pem(), names, addresses, client_ca)
}

/// Creates a listener with a certificate from an existing CA, given by its key
/// ([`Listener::ca_key`]). Clients with trust in this CA trust the listener.
///
/// # Errors
/// The key is not valid, a name cannot be in a certificate, or the client CA cannot be used.
pub fn self_signed_by(
    key: &str,
    names: &[String],
    addresses: &[IpAddr],
    client_ca: Option<&Path>,
) -> Result<Listener, TlsError> {
    let authority = Authority::new(names, addresses, key)?;
    let leaf = authority.issue(wall())?;
    Listener::new(CertificateSource::Own(Arc::new(authority), leaf), client_ca)
}

/// Creates a listener with a certificate from files.
///
/// # Errors
/// A file cannot be read or used.
pub fn from_files(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Listener, TlsError> {
    Listener::new(CertificateSource::Files(Identity::read(cert, key)?), client_ca)
}

/// Returns the current time of day, to compare with the validity of certificates.
#[expect(clippy::disallowed_methods, reason = "certificates are valid by wall time")]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

// === impl Listener ===

impl Listener {
    fn new(source: CertificateSource, client_ca: Option<&Path>) -> Result<Self, TlsError> {
        let current = ListenerConfig::new(source, client_ca.map(Pem::read).transpose()?, false)?;
        Ok(Self { current: Current::new(current), fault: Mutex::default() })
    }

    /// Makes client certificates optional. A certificate must still be signed by the client CA.
    ///
    /// # Errors
    /// The client CA cannot be used.
    pub fn with_optional_certificates(self) -> Result<Self, TlsError> {
        let current = self.current.get();
        let current = ListenerConfig::new(current.source.clone(), current.clients.clone(), true)?;
        Ok(Self { current: Current::new(current), ..self })
    }

    /// Returns the TLS configuration of the next handshake, for `tokio_rustls::TlsAcceptor`. It
    /// offers HTTP/2 and HTTP/1.1.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.get().config)
    }

    /// Returns the TLS configuration of the next handshake with HTTP/1.1 only, as for clients of a
    /// forward proxy.
    pub fn http1_config(&self) -> Arc<ServerConfig> {
        let mut config = (*self.config()).clone();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }

    /// Returns the certificates for clients to trust, as PEM: the pod-local CA, or the chain from
    /// the files.
    pub fn ca(&self) -> Arc<str> {
        Arc::clone(&self.current.get().ca)
    }

    /// Returns the secret key of the pod-local CA, as PEM; `None` if the certificate comes from
    /// files.
    pub fn ca_key(&self) -> Option<String> {
        match &self.current.get().source {
            CertificateSource::Own(authority, _) => Some(authority.issuer.key().serialize_pem()),
            CertificateSource::Files(_) => None,
        }
    }

    /// Replaces the certificate if it will expire soon or its files have changed. Call it every few
    /// seconds.
    ///
    /// Unusable files are logged once, and the last good ones stay in use. Connections stay open.
    pub fn refresh(&self, wall: SystemTime) {
        let mut fault = lock(&self.fault);
        let current = self.current.get();
        // Two files are not swapped at one moment: a pair that does not match may do so on a second
        // look.
        let renewed = current.renewed(wall).or_else(|_| current.renewed(wall));
        if let Some(Some(next)) = fault.report(renewed, "the listener's last good certificate stays in use") {
            let certificate = match &next.source {
                CertificateSource::Own(..) => "self_signed",
                CertificateSource::Files(identity) => identity.chain.from.as_str(),
            };
            tracing::info!(certificate, "the listener's certificate was renewed; open connections stay");
            self.current.set(next);
        }
    }
}

// === impl ListenerConfig ===

impl ListenerConfig {
    /// Creates a configuration from these certificates. Because it is new, no TLS session from an
    /// earlier configuration is resumed.
    fn new(source: CertificateSource, clients: Option<Pem>, may_come_without: bool) -> Result<Self, TlsError> {
        let verifier: Arc<dyn ClientCertVerifier> = match &clients {
            None => Arc::new(NoClientAuth),
            Some(pem) => {
                let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(pem.roots()?), provider());
                let builder = if may_come_without { builder.allow_unauthenticated() } else { builder };
                builder.build().map_err(|error| pem.unusable(rustls::Error::General(error.to_string())))?
            }
        };
        let (key, ca) = match &source {
            CertificateSource::Own(authority, leaf) => (Arc::clone(&leaf.key), authority.pem.as_str().into()),
            CertificateSource::Files(files) => {
                (Arc::new(files.certified()?), String::from_utf8_lossy(&files.chain.text).into())
            }
        };
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { source, clients, may_come_without, config: Arc::new(config), ca })
    }

    /// Returns a new configuration if a certificate or CA has changed.
    fn renewed(&self, wall: SystemTime) -> Result<Option<Self>, TlsError> {
        let clients = self.clients.as_ref().map(Pem::again).transpose()?;
        let source = match &self.source {
            CertificateSource::Own(authority, leaf) if leaf.is_due(wall) => {
                Some(CertificateSource::Own(Arc::clone(authority), authority.issue(wall)?))
            }
            CertificateSource::Own(..) => None,
            CertificateSource::Files(files) => {
                Some(files.again()?).filter(|again| again != files).map(CertificateSource::Files)
            }
        };
        if source.is_none() && clients == self.clients {
            return Ok(None);
        }
        Self::new(source.unwrap_or_else(|| self.source.clone()), clients, self.may_come_without).map(Some)
    }
}
