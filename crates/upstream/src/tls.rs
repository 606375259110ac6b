//! TLS on both sides of a gate: rustls with ring, chosen explicitly. So no other provider is used
//! even if one is compiled in.
//!
//! Certificates and CAs can be replaced while connections stay open, on the listener ([`Listener`])
//! and towards the upstream ([`Client`]): the owner calls `refresh` regularly. `Debug` texts never
//! contain keys or client certificates; errors name the file and what was expected.

mod authority;
mod certificate;
mod client;
mod interception;
mod keystore;
mod listener;
mod pem;
mod server_verifier;
mod subject;
mod trust;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::crypto::CryptoProvider;

pub use self::client::{Client, Roots, client};
pub use self::interception::{CurrentCa, GivenCa, GivenCaError, Interception};
pub use self::listener::{Listener, from_files, self_signed, self_signed_by, wall};
pub use self::pem::{Identity, Pem};
pub use self::server_verifier::is_ca_itself;
pub use self::subject::{client_name, common_name};
pub use self::trust::{Trust, extra_roots, fingerprint, first_certificate, holds, lives};

/// Why certificates, keys or CAs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read.
    #[error("cannot read {path}: {1}", path = .0.display())]
    Unreadable(PathBuf, #[source] std::io::Error),
    /// The file does not have the expected content.
    #[error("{0} holds no {1} in PEM form")]
    NotPem(String, &'static str),
    /// The certificate from this file cannot be used.
    #[error("the certificate in {0} cannot be used: {fault}", fault = fault(.1))]
    Certificate(String, #[source] rustls::Error),
    /// The private key from this file cannot be used.
    #[error(
        "the private key in {0} cannot be used: {1}; expected RSA of 2048 to 4096 bits, ECDSA P-256 or P-384, or Ed25519"
    )]
    Key(String, String),
    /// The system has no CA certificates, as in an image from scratch.
    #[error("the system has no trusted CA certificates ({0}); set upstream_tls.ca, or SSL_CERT_FILE, to a CA file")]
    NoRoots(String),
    /// This name cannot be in a certificate.
    #[error("`{0}` cannot be a name in a certificate; expected a host name or an IP address")]
    Name(String),
    /// The egress CA is not permitted to sign a certificate for this name.
    #[error(
        "the egress CA may not sign for `{0}`; restart the pod, or list the name in egress.ca.names from the beginning"
    )]
    NotPermitted(String),
    /// The pod-local CA could not be made.
    #[error("cannot create a TLS certificate: {0}")]
    Authority(#[from] rcgen::Error),
    /// The system gives no random numbers.
    #[error("the operating system gives no random numbers, so no key can be made")]
    Randomness,
    /// The certificates, keys and CAs do not fit together.
    #[error("the certificates, keys and CAs of these TLS settings do not fit together: {fault}", fault = fault(.0))]
    Rustls(#[from] rustls::Error),
}

/// Returns the text of a rustls error, for a user with wrong files.
fn fault(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch) => {
            "the private key belongs to another certificate; expected the two files of one pair".to_owned()
        }
        error => error.to_string(),
    }
}

/// The last error in TLS files, kept so that it is logged once and not at every check.
#[derive(Default)]
struct FileFault(Option<String>);

impl FileFault {
    /// Returns the result of a check of files, if it succeeded.
    ///
    /// Logs a new error with its consequence, and later the return to good files.
    fn report<T>(&mut self, check: Result<T, TlsError>, consequence: &str) -> Option<T> {
        match check {
            Ok(result) => {
                if self.0.take().is_some() {
                    tracing::info!("the TLS files that could not be used are good again");
                }
                Some(result)
            }
            Err(error) => {
                let text = error.to_string();
                if self.0.as_ref() != Some(&text) {
                    tracing::warn!(%error, "{consequence}");
                    self.0 = Some(text);
                }
                None
            }
        }
    }
}

/// Returns 256 random bits as text for a header.
///
/// # Errors
/// The system gives no random numbers.
pub fn random_text() -> Result<String, TlsError> {
    let mut bytes = [0_u8; 32];
    provider().secure_random.fill(&mut bytes).map_err(|_| TlsError::Randomness)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

fn provider() -> Arc<CryptoProvider> {
    static RING: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(RING.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())))
}
