//! TLS on both sides: rustls with ring, said outright, so that no other provider that may be compiled in is ever picked.
//!
//! Certificates and CAs can be replaced while connections stay open, on the listener ([`Listener`]) and towards the upstream ([`Client`]): whoever
//! owns one calls its `tend` now and then. Keys and client certificates never appear in a `Debug` text; errors name the file and say what was
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

/// A TLS configuration that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{from} holds no {expected} in PEM form")]
    NotPem {
        /// Which.
        from: String,
        /// What was expected.
        expected: &'static str,
    },
    /// A certificate is unusable.
    #[error("the certificate in {from} cannot be used: {source}")]
    Certificate {
        /// Which.
        from: String,
        /// Why.
        source: rustls::Error,
    },
    /// The system has no roots, as in an image from scratch.
    #[error("the system has no trusted CA certificates ({0}); set upstream_tls.ca, or SSL_CERT_FILE, to a CA file")]
    NoRoots(String),
    /// A name that a certificate cannot be for.
    #[error("`{name}` cannot be a name in a certificate; expected a host name or an IP address")]
    Name {
        /// Which.
        name: String,
    },
    /// Making the pod-local CA failed.
    #[error("cannot make a certificate: {0}")]
    Authority(#[from] rcgen::Error),
    /// The system has no randomness to give.
    #[error("the system has no randomness to give")]
    Randomness,
    /// The pieces do not go together.
    #[error("these TLS settings do not go together: {0}")]
    Rustls(#[from] rustls::Error),
}

/// What is wrong, said once and not at every look.
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

/// 256 bits of randomness as text that can stand in a header.
///
/// # Errors
/// The system has none to give.
pub fn random_text() -> Result<String, TlsError> {
    let mut bytes = [0_u8; 32];
    provider().secure_random.fill(&mut bytes).map_err(|_| TlsError::Randomness)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// The one provider.
fn provider() -> Arc<CryptoProvider> {
    static RING: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(RING.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())))
}
