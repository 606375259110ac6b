//! Verification of an upstream's certificate: by roots, as a certificate trusted itself, and by
//! pinned keys.
//!
//! A server's own certificate can be trusted, as by Go: `openssl req -x509` makes one that is a CA's
//! and a server's at once, and a leaf can be trusted without its CA. Name, dates and purpose are
//! checked as ever.
//!
//! A pinned key must be in the verified chain. A server can send any CA certificate along with its
//! own, so a pinned CA key counts only if the chain verifies with that CA as its root.

use std::sync::Arc;

use ring::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};

use super::certificate::{CertificateFields, sequence};
use super::{TlsError, provider};

/// The SHA-256 of a public key with its algorithm (`subjectPublicKeyInfo`).
pub type Pin = [u8; 32];

/// An upstream has a trusted certificate, but none of the pinned keys is in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("none of the pinned keys is in the chain of its certificate")]
pub struct PinMismatch;

/// Verifies servers' certificates.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    /// `None` accepts any certificate (`insecure = true`). Resolving the settings warns about it.
    trust: Option<TrustedKeys>,
}

/// The keys to trust a server by.
#[derive(Debug)]
struct TrustedKeys {
    roots: Arc<WebPkiServerVerifier>,
    /// Certificates of servers, trusted themselves.
    servers: Vec<CertificateDer<'static>>,
    /// One of these must be in the chain; empty for any.
    pins: Vec<Pin>,
    /// The trusted roots with pinned keys.
    pinned_roots: RootCertStore,
}

/// True if a certificate was refused as one of a CA.
pub fn is_ca_itself(error: &CertificateError) -> bool {
    // The type of this error is not rustls's own; it says no more than its name.
    matches!(error, CertificateError::Other(other) if other.0.to_string() == "CaUsedAsEndEntity")
}

// === impl ServerVerifier ===

impl ServerVerifier {
    /// Trusts these roots, and servers with one of these certificates. If there are pins, one of
    /// them must be in the chain.
    pub(super) fn new(
        roots: RootCertStore,
        servers: Vec<CertificateDer<'static>>,
        pins: &[Pin],
    ) -> Result<Self, TlsError> {
        // A trust anchor has the content of the sequence alone.
        let is_pinned = |info: &[u8]| pins.contains(&hash(&sequence(info)));
        let pinned = roots.roots.iter().filter(|root| is_pinned(&root.subject_public_key_info)).cloned().collect();
        let pinned_roots = RootCertStore { roots: pinned };
        let roots = webpki(roots).map_err(TlsError::Rustls)?;
        Ok(Self { trust: Some(TrustedKeys { roots, servers, pins: pins.to_vec(), pinned_roots }) })
    }

    /// Accepts any certificate.
    pub(super) const fn insecure() -> Self {
        Self { trust: None }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(trust) = &self.trust {
            trust.verify_chain(end_entity, intermediates, server_name, now)?;
            trust.verify_pins(end_entity, intermediates, server_name, now)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

// === impl TrustedKeys ===

impl TrustedKeys {
    fn verify_chain(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let Err(error) = self.roots.verify_server_cert(end_entity, intermediates, server_name, &[], now) else {
            return Ok(());
        };
        // webpki checks the dates and whose certificate it is before it looks for an issuer
        let only_issuer = match &error {
            Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => true,
            Error::InvalidCertificate(other) => is_ca_itself(other),
            _ => false,
        };
        if !only_issuer || !self.servers.contains(end_entity) {
            return Err(error);
        }
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        if !CertificateFields::read(end_entity).is_some_and(|certificate| certificate.may_serve()) {
            return Err(Error::InvalidCertificate(CertificateError::InvalidPurpose));
        }
        Ok(())
    }

    fn verify_pins(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        if self.pins.is_empty() || self.is_pinned(end_entity) {
            return Ok(());
        }
        let mut anchors = self.pinned_roots.clone();
        for intermediate in intermediates.iter().filter(|intermediate| self.is_pinned(intermediate)) {
            anchors.add(intermediate.clone().into_owned())?;
        }
        let leads_there = webpki(anchors).is_ok_and(|verifier| {
            verifier.verify_server_cert(end_entity, intermediates, server_name, &[], now).is_ok()
        });
        let mismatch = || Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(PinMismatch))));
        leads_there.then_some(()).ok_or_else(mismatch)
    }

    fn is_pinned(&self, certificate: &CertificateDer<'_>) -> bool {
        let parsed = ParsedCertificate::try_from(certificate);
        parsed.is_ok_and(|parsed| self.pins.contains(&hash(&parsed.subject_public_key_info())))
    }
}

// === helpers ===

/// Returns a verifier by these roots; an error without any.
fn webpki(roots: RootCertStore) -> Result<Arc<WebPkiServerVerifier>, Error> {
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
    verifier.map_err(|error| Error::General(error.to_string()))
}

fn hash(info: &[u8]) -> Pin {
    digest(&SHA256, info).as_ref().try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use rcgen::{Certificate, CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, PublicKeyData as _};
    use rustls::pki_types::pem::PemObject as _;

    use super::super::authority::{ca_params, leaf_params};
    use super::*;
    use crate::tls::wall;

    /// A self-signed server certificate of a CA, as by `openssl req -x509`.
    fn own(change: impl FnOnce(&mut CertificateParams)) -> Certificate {
        let mut params = ca_params("a.example", 0).expect("a CA");
        params.subject_alt_names = leaf_params(vec!["a.example".to_owned()], wall()).expect("a name").subject_alt_names;
        change(&mut params);
        params.self_signed(&KeyPair::generate().expect("a key")).expect("signed")
    }

    fn verdict(trusted: &Certificate, shown: &Certificate, name: &str, at: SystemTime) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.der().clone()).expect("a root");
        let verifier = ServerVerifier::new(roots, vec![trusted.der().clone()], &[]).expect("a verifier");
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let at = UnixTime::since_unix_epoch(at.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970"));
        verifier.verify_server_cert(shown.der(), &[], &name, &[], at).map(drop)
    }

    #[test]
    fn a_server_that_is_its_own_ca_is_trusted() {
        let own = own(|_| {});
        assert_eq!(verdict(&own, &own, "a.example", wall()), Ok(()));
    }

    #[test]
    fn a_server_that_is_its_own_ca_must_be_for_servers() {
        let for_use = |usages: &[ExtendedKeyUsagePurpose]| own(|params| params.extended_key_usages = usages.to_vec());
        let invalid = Err(Error::InvalidCertificate(CertificateError::InvalidPurpose));
        for (usages, expected) in [
            (&[ExtendedKeyUsagePurpose::ClientAuth][..], invalid),
            (&[ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth], Ok(())),
            (&[ExtendedKeyUsagePurpose::Any], Ok(())),
        ] {
            let own = for_use(usages);
            assert_eq!(verdict(&own, &own, "a.example", wall()), expected, "{usages:?}");
        }
    }

    #[test]
    fn a_leaf_is_trusted_without_its_ca() {
        let (ca_key, key) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
        let issuer = Issuer::new(ca_params("ca", 0).expect("a CA"), ca_key);
        let leaf = leaf_params(vec!["a.example".to_owned()], wall()).expect("a name");
        let leaf = leaf.signed_by(&key, &issuer).expect("signed");
        assert_eq!(verdict(&leaf, &leaf, "a.example", wall()), Ok(()));
    }

    #[test]
    fn name_and_dates_are_checked() {
        let own = own(|params| {
            params.not_before = (wall() - Duration::from_secs(3600)).into();
            params.not_after = (wall() + Duration::from_secs(3600)).into();
        });
        let invalid = |verdict: Result<(), Error>| match verdict {
            Err(Error::InvalidCertificate(error)) => format!("{error:?}"),
            other => panic!("not refused: {other:?}"),
        };
        assert!(invalid(verdict(&own, &own, "b.example", wall())).starts_with("NotValidForName"));
        let day = Duration::from_secs(86_400);
        assert!(invalid(verdict(&own, &own, "a.example", wall() + day)).starts_with("Expired"));
        assert!(invalid(verdict(&own, &own, "a.example", wall() - day)).starts_with("NotValidYet"));
    }

    #[test]
    fn another_certificate_of_that_name_is_not_trusted() {
        let (trusted, other) = (own(|_| {}), own(|_| {}));
        assert!(verdict(&trusted, &other, "a.example", wall()).is_err());
    }

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

    /// The verdict on a chain, sent with `more`.
    fn pinned_verdict(chain: &Chain, more: &[CertificateDer<'static>], pins: &[Pin]) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        roots.add(chain.root.clone()).expect("a root");
        let verifier = ServerVerifier::new(roots, Vec::new(), pins).expect("a verifier");
        let name = ServerName::try_from("a.example").expect("a name");
        let now = wall().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        let shown = [std::slice::from_ref(&chain.between), more].concat();
        verifier.verify_server_cert(&chain.end, &shown, &name, &[], UnixTime::since_unix_epoch(now)).map(drop)
    }

    #[test]
    fn each_key_of_a_chain_can_be_pinned_and_a_ca_that_is_merely_shown_counts_for_nothing() {
        let (chain, other) = (chain(), chain());
        for key in chain.keys {
            assert_eq!(pinned_verdict(&chain, &[], &[[0; 32], key]), Ok(()));
        }
        let refused = |verdict: Result<(), Error>| {
            let Err(Error::InvalidCertificate(CertificateError::Other(OtherError(why)))) = verdict else {
                return false;
            };
            why.is::<PinMismatch>()
        };
        assert!(refused(pinned_verdict(&chain, &[], &[[0; 32]])));
        let added = [other.between.clone(), other.root.clone(), other.end.clone()];
        assert!(refused(pinned_verdict(&chain, &added, &other.keys)), "the keys of certificates that nothing leads to");
        let untrusted = Chain { root: other.root.clone(), ..chain };
        assert!(pinned_verdict(&untrusted, &[], &untrusted.keys).is_err(), "a pin does not make trusted");
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
