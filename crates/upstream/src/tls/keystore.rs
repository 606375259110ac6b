//! A trust store for Java (JKS). Every version of Java can read it, also without its password.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use rustls::pki_types::CertificateDer;

/// Encodes certificates as a trust store.
pub(super) fn keystore(certificates: &[CertificateDer<'_>]) -> Vec<u8> {
    let mut store = Vec::new();
    store.extend(MAGIC);
    store.extend(VERSION.to_be_bytes());
    store.extend(length(certificates.len()));
    for (number, certificate) in certificates.iter().enumerate() {
        store.extend(TRUSTED.to_be_bytes());
        text(&mut store, &format!("tidegate-{number}"));
        store.extend(ADDED.to_be_bytes());
        text(&mut store, "X.509");
        store.extend(length(certificate.len()));
        store.extend_from_slice(certificate);
    }
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    for unit in PASSWORD.encode_utf16() {
        digest.update(&unit.to_be_bytes());
    }
    digest.update(b"Mighty Aphrodite");
    digest.update(&store);
    store.extend(digest.finish().as_ref());
    store
}

/// Appends text as Java's `DataOutput` does: UTF-8 for all text here.
fn text(store: &mut Vec<u8>, text: &str) {
    store.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    store.extend(text.as_bytes());
}

fn length(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

const MAGIC: [u8; 4] = [0xfe, 0xed, 0xfe, 0xed];
const VERSION: u32 = 2;
const TRUSTED: u32 = 2;
/// The date of each certificate in the store: the start of 2020 in milliseconds. It is fixed, so
/// that the same CAs always give the same store.
const ADDED: u64 = 1_577_836_800_000;
/// The password of the store: Java's own default. It protects nothing here.
const PASSWORD: &str = "changeit";
