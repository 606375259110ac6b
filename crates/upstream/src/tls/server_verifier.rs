//! Verification of an upstream's certificate: by trusted CAs, or by trust in this very certificate.
//!
//! As in Go, a server's own certificate can be trusted. `openssl req -x509` makes a certificate of
//! a CA that is also the server's, and a server's certificate can be trusted without its CA. Name,
//! dates and purpose are checked in any case.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::certificate::CertificateFields;
use super::{TlsError, provider};

/// Verifies servers' certificates.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    /// The trusted certificates; `None` accepts any certificate (`insecure = true`). The warning
    /// about that is logged when the settings are read.
    trust: Option<TrustedKeys>,
}

/// The trusted CAs and servers' certificates.
#[derive(Debug)]
struct TrustedKeys {
    roots: Arc<WebPkiServerVerifier>,
    /// Certificates of servers, trusted without a CA.
    servers: Vec<CertificateDer<'static>>,
}

/// Returns true if a server's certificate was refused because it is a CA's.
pub fn is_ca_itself(error: &CertificateError) -> bool {
    // The type of this error is not rustls's own; it says no more than its name.
    matches!(error, CertificateError::Other(other) if other.0.to_string() == "CaUsedAsEndEntity")
}

// === impl ServerVerifier ===

impl ServerVerifier {
    /// Creates a verifier with these trusted CAs, and these trusted certificates of servers.
    pub(super) fn new(roots: RootCertStore, servers: Vec<CertificateDer<'static>>) -> Result<Self, TlsError> {
        let roots = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
        let roots = roots.map_err(|error| TlsError::Rustls(Error::General(error.to_string())))?;
        Ok(Self { trust: Some(TrustedKeys { roots, servers }) })
    }

    /// Creates a verifier without checks of certificates.
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
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use rcgen::{Certificate, CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair};

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
        let verifier = ServerVerifier::new(roots, vec![trusted.der().clone()]).expect("a verifier");
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
        let ca_key = KeyPair::generate().expect("a key");
        let key = KeyPair::generate().expect("a key");
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
        let trusted = own(|_| {});
        let other = own(|_| {});
        assert!(verdict(&trusted, &other, "a.example", wall()).is_err());
    }
}
