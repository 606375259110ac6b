//! The files by which clients trust the CA of interception, in every form that they read.
//!
//! Most clients can only replace the roots that they have, so the bundle and the Java store hold
//! the system's too.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::ca_certificate::CaCertificate;
use super::interception::Interception;
use super::keystore::keystore;
use super::pem::armoured;
use super::{Pem, TlsError};

/// The files of a folder that a client reads.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("Trust")]
pub struct Trust {
    /// The CA alone, as PEM.
    pub ca: String,
    /// The CA, further roots and the system's, as PEM.
    pub bundle: String,
    /// The same as a Java trust store.
    pub keystore: Vec<u8>,
}

// === impl Trust ===

impl Trust {
    /// The name under which OpenSSL looks for the CA in a folder: the hash of its subject, which
    /// is always the same.
    pub const HASHED: &str = "0fd89f02.0";

    /// Collects the roots of the system, further ones, and the CA.
    #[must_use]
    pub fn new(ca: &Interception, extra: &[CertificateDer<'static>]) -> Self {
        let mut roots = vec![ca.root().clone()];
        roots.extend_from_slice(extra);
        roots.extend(rustls_native_certs::load_native_certs().certs);
        // A client has no use for what cannot be read, and Java would refuse the whole store.
        roots.retain(|root| rustls::server::ParsedCertificate::try_from(root).is_ok());
        Self { ca: armoured(ca.root()), bundle: roots.iter().map(armoured).collect(), keystore: keystore(&roots) }
    }
}

/// A short name of a CA, by which two sides tell that they mean the same one.
#[must_use]
pub fn fingerprint(ca: &CertificateDer<'_>) -> String {
    STANDARD.encode(digest(&SHA256, ca))
}

/// Reads the first certificate of a text.
#[must_use]
pub fn first_certificate(text: &[u8]) -> Option<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(text).next()?.ok()
}

/// Returns the times between which each certificate of a text is valid.
#[must_use]
pub fn lives(text: &[u8]) -> Vec<RangeInclusive<SystemTime>> {
    let certificates = CertificateDer::pem_slice_iter(text).filter_map(Result::ok);
    let read = certificates.filter_map(|certificate| CaCertificate::read(&certificate));
    read.map(|read| read.begins..=read.ends).collect()
}

/// True if a certificate is among those of a text, or of a Java trust store.
#[must_use]
pub fn holds(content: &[u8], ca: &CertificateDer<'_>) -> bool {
    CertificateDer::pem_slice_iter(content).any(|found| found.is_ok_and(|found| found == *ca))
        || memchr::memmem::find(content, ca).is_some()
}

/// Reads roots from a file.
///
/// # Errors
/// It cannot be read, or holds none.
pub fn extra_roots(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    Pem::read(path)?.certificates()
}
