//! Pinned keys: besides being trusted, an upstream's certificate must be for one of a few public
//! keys, or lead to a CA that has one.
//!
//! What a server shows besides its own certificate proves nothing: anyone can add a CA's. So a key
//! of a CA counts only if the certificate verifies with that CA as the one that is trusted.

use std::sync::Arc;

use ring::digest::{SHA256, digest};
use rustls::client::danger::ServerCertVerified;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, OtherError, RootCertStore};

use super::judged::CertificateJudge;
use super::own_certificate::RootsAndServers;

/// The SHA-256 of a public key with its algorithm (`subjectPublicKeyInfo`).
pub type Pin = [u8; 32];

/// The certificate is trusted, but none of the pinned keys is in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("none of the pinned keys is in the chain of its certificate")]
pub struct NotPinned;

/// Accepts certificates that are trusted and pinned.
#[derive(Debug)]
pub(super) struct PinnedKeys {
    usual: RootsAndServers,
    /// The trusted roots whose keys are pinned.
    roots: RootCertStore,
    pins: Vec<Pin>,
}

// === impl PinnedKeys ===

impl PinnedKeys {
    /// Accepts what `usual` accepts by these roots, if one of these keys is in its chain.
    pub(super) fn new(usual: RootsAndServers, roots: RootCertStore, pins: &[Pin]) -> Self {
        let is_pinned = |info: &[u8]| pins.contains(&hash(&sequence(info)));
        let pinned = roots.roots.into_iter().filter(|root| is_pinned(&root.subject_public_key_info)).collect();
        Self { usual, roots: RootCertStore { roots: pinned }, pins: pins.to_vec() }
    }

    fn is_pinned(&self, certificate: &CertificateDer<'_>) -> bool {
        let parsed = ParsedCertificate::try_from(certificate);
        parsed.is_ok_and(|parsed| self.pins.contains(&hash(&parsed.subject_public_key_info())))
    }
}

impl CertificateJudge for PinnedKeys {
    fn judge(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.usual.judge(end_entity, intermediates, server_name, now)?;
        if self.is_pinned(end_entity) {
            return Ok(verified);
        }
        let mut anchors = self.roots.clone();
        for intermediate in intermediates.iter().filter(|intermediate| self.is_pinned(intermediate)) {
            anchors.add(intermediate.clone().into_owned())?;
        }
        let leads_there = !anchors.is_empty()
            && RootsAndServers::new(anchors, Vec::new())
                .is_ok_and(|verifier| verifier.judge(end_entity, intermediates, server_name, now).is_ok());
        let not_pinned = || Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(NotPinned))));
        leads_there.then_some(verified).ok_or_else(not_pinned)
    }
}

// === helpers ===

fn hash(info: &[u8]) -> Pin {
    digest(&SHA256, info).as_ref().try_into().unwrap_or_default()
}

/// Wraps the content of a DER sequence, as trust anchors have it.
fn sequence(content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let length: Vec<u8> = length.into_iter().skip_while(|byte| *byte == 0).collect();
    let mut der = vec![0x30];
    if content.len() >= 0x80 {
        der.push(0x80 | u8::try_from(length.len()).unwrap_or_default());
    }
    der.extend(length);
    der.extend_from_slice(content);
    der
}

#[cfg(test)]
mod tests {
    use rcgen::{Issuer, KeyPair, PublicKeyData as _};
    use rustls::pki_types::pem::PemObject as _;

    use super::super::authority::{ca_params, leaf_params};
    use super::*;
    use crate::tls::wall;

    struct Chain {
        root: CertificateDer<'static>,
        between: CertificateDer<'static>,
        end: CertificateDer<'static>,
        keys: [Pin; 3],
    }

    fn chain() -> Chain {
        let [root_key, between_key, key] = [(); 3].map(|()| KeyPair::generate().expect("a key"));
        let keys = [&root_key, &between_key, &key].map(|key| hash(&key.subject_public_key_info()));
        let root = ca_params("root", 1).expect("a CA");
        let root_certificate = root.self_signed(&root_key).expect("signed").der().clone();
        let between = ca_params("between", 0).expect("a CA");
        let issuer = Issuer::new(root, root_key);
        let between_certificate = between.signed_by(&between_key, &issuer).expect("signed").der().clone();
        let issuer = Issuer::new(between, between_key);
        let end = leaf_params(vec!["a.example".to_owned()], wall()).expect("a name");
        let end = end.signed_by(&key, &issuer).expect("signed").der().clone();
        Chain { root: root_certificate, between: between_certificate, end, keys }
    }

    /// The verdict on a chain, which is shown with `more`.
    fn verdict(chain: &Chain, more: &[CertificateDer<'static>], pins: &[Pin]) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        roots.add(chain.root.clone()).expect("a root");
        let usual = RootsAndServers::new(roots.clone(), Vec::new()).expect("a verifier");
        let verifier = PinnedKeys::new(usual, roots, pins);
        let name = ServerName::try_from("a.example").expect("a name");
        let now = wall().duration_since(std::time::SystemTime::UNIX_EPOCH).expect("after 1970");
        let shown = [std::slice::from_ref(&chain.between), more].concat();
        verifier.judge(&chain.end, &shown, &name, UnixTime::since_unix_epoch(now)).map(drop)
    }

    #[test]
    fn each_key_of_a_chain_can_be_pinned_and_a_ca_that_is_merely_shown_counts_for_nothing() {
        let (chain, other) = (chain(), chain());
        for key in chain.keys {
            assert_eq!(verdict(&chain, &[], &[[0; 32], key]), Ok(()));
        }
        let refused = |verdict: Result<(), Error>| {
            let Err(Error::InvalidCertificate(CertificateError::Other(OtherError(why)))) = verdict else {
                return false;
            };
            why.is::<NotPinned>()
        };
        assert!(refused(verdict(&chain, &[], &[[0; 32]])));
        let added = [other.between.clone(), other.root.clone(), other.end.clone()];
        assert!(refused(verdict(&chain, &added, &other.keys)), "the keys of certificates that nothing leads to");
        let untrusted = Chain { root: other.root.clone(), ..chain };
        assert!(verdict(&untrusted, &[], &untrusted.keys).is_err(), "a pin does not make trusted");
    }

    #[test]
    fn a_pin_is_what_openssl_and_curl_make_of_a_key() {
        // openssl x509 -pubkey | openssl pkey -pubin -outform der | openssl dgst -sha256
        let folder = tempfile::tempdir().expect("a folder");
        let (chain, path) = (chain(), folder.path().join("a.pem"));
        std::fs::write(&path, crate::tls::pem::armoured(&chain.end)).expect("written");
        let made = std::process::Command::new("openssl").args(["x509", "-noout", "-pubkey", "-in"]).arg(&path).output();
        let Ok(made) = made else { return eprintln!("skipped: there is no openssl here") };
        let key = rustls::pki_types::SubjectPublicKeyInfoDer::from_pem_slice(&made.stdout).expect("a key");
        assert_eq!(hash(&key), chain.keys[2]);
    }
}
