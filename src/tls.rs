//! TLS on both sides: rustls with ring, chosen explicitly, so that no other compiled-in provider is
//! ever picked.
//!
//! Certificates and CAs can be replaced while connections stay open, on the listener ([`Listener`])
//! and towards the upstream ([`Client`]): the owner of one calls its `refresh` now and then. Keys
//! and client certificates never appear in a `Debug` text; errors name the file and say what was
//! expected.

mod authority;
mod client;
mod listener;
mod pem;
mod unverified;

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rustls::crypto::CryptoProvider;

pub use self::{
    client::{Client, Roots, client},
    listener::{Listener, from_files, self_signed, self_signed_by, wall},
    pem::{Identity, Pem},
};

/// The reason why a TLS configuration cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file does not have the expected content.
    #[error("{from} holds no {expected} in PEM form")]
    NotPem {
        /// The file.
        from: String,
        /// The expected content.
        expected: &'static str,
    },
    /// A certificate is unusable.
    #[error("the certificate in {from} cannot be used: {source}")]
    Certificate {
        /// The certificate.
        from: String,
        /// The cause.
        source: rustls::Error,
    },
    /// The system has no roots, as in an image from scratch.
    #[error("the system has no trusted CA certificates ({0}); set upstream_tls.ca, or SSL_CERT_FILE, to a CA file")]
    NoRoots(String),
    /// The name cannot be in a certificate.
    #[error("`{name}` cannot be a name in a certificate; expected a host name or an IP address")]
    Name {
        /// The name.
        name: String,
    },
    /// Making the pod-local CA failed.
    #[error("cannot make a certificate: {0}")]
    Authority(#[from] rcgen::Error),
    /// The system has no randomness to offer.
    #[error("the system has no randomness to give")]
    Randomness,
    /// The parts do not fit together.
    #[error("these TLS settings do not go together: {0}")]
    Rustls(#[from] rustls::Error),
}

/// A problem that is logged once and not at every look.
#[derive(Default)]
struct Complaint(Option<String>);

// === impl Complaint ===

impl Complaint {
    fn say(&mut self, error: &TlsError, consequence: &str) {
        let text = error.to_string();
        if self.0.as_ref() != Some(&text) {
            tracing::warn!(%error, "{consequence}");
            self.0 = Some(text);
        }
    }

    fn settle(&mut self) {
        if self.0.take().is_some() {
            tracing::info!("what was wrong with the TLS files is mended");
        }
    }
}

/// Returns 256 bits of randomness as text that can stand in a header.
///
/// # Errors
/// The system has no randomness to offer.
pub fn random_text() -> Result<String, TlsError> {
    let mut bytes = [0_u8; 32];
    provider().secure_random.fill(&mut bytes).map_err(|_| TlsError::Randomness)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// Returns the one provider.
fn provider() -> Arc<CryptoProvider> {
    static RING: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(RING.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())))
}
