//! Files with the egress CA, in the formats of all clients.
//!
//! Most clients can only replace their trusted CAs, so the bundle and the Java store also contain
//! the system's CAs.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::certificate::CertificateFields;
use super::interception::Interception;
use super::keystore::keystore;
use super::pem::armoured;
use super::{Pem, TlsError};

/// The egress CA for clients to trust, in several formats.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("Trust")]
pub struct Trust {
    /// The CA alone, as PEM.
    pub ca: String,
    /// The egress CA, further CAs and the system's CAs, as PEM.
    pub bundle: String,
    /// The CAs of the bundle as a Java trust store.
    pub keystore: Vec<u8>,
}

// === impl Trust ===

impl Trust {
    /// The file name of the CA in a folder for OpenSSL: a hash of its subject, always the same.
    pub const HASHED: &str = "0fd89f02.0";

    /// Collects the egress CA, the CAs in `extra` and those of the system.
    pub fn new(ca: &Interception, extra: &[CertificateDer<'static>]) -> Self {
        let mut roots = vec![ca.root().clone()];
        roots.extend_from_slice(extra);
        roots.extend(rustls_native_certs::load_native_certs().certs);
        // A client has no use for what cannot be read, and Java would refuse the whole store.
        roots.retain(|root| rustls::server::ParsedCertificate::try_from(root).is_ok());
        Self { ca: armoured(ca.root()), bundle: roots.iter().map(armoured).collect(), keystore: keystore(&roots) }
    }
}

/// Returns a short fingerprint of a CA, to compare it with others.
pub fn fingerprint(ca: &CertificateDer<'_>) -> String {
    STANDARD.encode(digest(&SHA256, ca))
}

/// Returns the first certificate in a PEM text.
pub fn first_certificate(text: &[u8]) -> Option<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(text).next()?.ok()
}

/// Returns the validity of each certificate in a PEM text.
pub fn lives(text: &[u8]) -> Vec<RangeInclusive<SystemTime>> {
    let certificates = CertificateDer::pem_slice_iter(text).filter_map(Result::ok);
    let life = |certificate| CertificateFields::read(&certificate).map(|read| read.begins()..=read.ends());
    certificates.filter_map(life).collect()
}

/// Returns true if a PEM text or a Java trust store contains a certificate.
pub fn holds(content: &[u8], ca: &CertificateDer<'_>) -> bool {
    CertificateDer::pem_slice_iter(content).any(|found| found.is_ok_and(|found| found == *ca))
        || memchr::memmem::find(content, ca).is_some()
}

/// Reads CA certificates from a file.
///
/// # Errors
/// The file cannot be read, or contains none.
pub fn extra_roots(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    Pem::read(path)?.certificates()
}
