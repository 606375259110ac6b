//! A server whose own certificate is trusted, as Go trusts it: `openssl req -x509` makes one that
//! is a CA's and a server's at once, and a leaf can be trusted without the CA that has signed it.
//! Name, dates and purpose are checked as ever.

use std::sync::Arc;

use rustls::client::danger::{ServerCertVerified, ServerCertVerifier as _};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

use super::ca_certificate::CaCertificate;
use super::judged::CertificateJudge;
use super::{TlsError, provider};

/// Accepts certificates that lead to a root, and those that are one.
#[derive(Debug)]
pub(super) struct RootsAndServers {
    usual: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

/// True if a certificate was refused as one of a CA.
pub fn is_ca_itself(error: &CertificateError) -> bool {
    // The type of this error is not rustls's own; it says no more than its name.
    matches!(error, CertificateError::Other(other) if other.0.to_string() == "CaUsedAsEndEntity")
}

// === impl RootsAndServers ===

impl RootsAndServers {
    /// Trusts these roots, and servers that show one of these certificates.
    pub(super) fn new(roots: RootCertStore, trusted: Vec<CertificateDer<'static>>) -> Result<Self, TlsError> {
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
        let usual = usual.map_err(|error| TlsError::Rustls(Error::General(error.to_string())))?;
        Ok(Self { usual, trusted })
    }
}

impl CertificateJudge for RootsAndServers {
    fn judge(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let error = match self.usual.verify_server_cert(end_entity, intermediates, server_name, &[], now) {
            Ok(verified) => return Ok(verified),
            Err(error) => error,
        };
        // webpki looks at the dates before it looks for an issuer, and at whose certificate it is
        let only_issuer = match &error {
            Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => true,
            Error::InvalidCertificate(other) => is_ca_itself(other),
            _ => false,
        };
        if !only_issuer || !self.trusted.contains(end_entity) {
            return Err(error);
        }
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        if !CaCertificate::read(end_entity).is_some_and(|certificate| certificate.may_serve()) {
            return Err(Error::InvalidCertificate(CertificateError::InvalidPurpose));
        }
        Ok(ServerCertVerified::assertion())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use rcgen::{Certificate, CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair};

    use super::super::authority::{ca_params, leaf_params};
    use super::*;
    use crate::tls::wall;

    /// The certificate of a server that signs itself and is a CA, as `openssl req -x509` makes it.
    fn own(change: impl FnOnce(&mut CertificateParams)) -> Certificate {
        let mut params = ca_params("a.example", 0).expect("a CA");
        params.subject_alt_names = leaf_params(vec!["a.example".to_owned()], wall()).expect("a name").subject_alt_names;
        change(&mut params);
        params.self_signed(&KeyPair::generate().expect("a key")).expect("signed")
    }

    fn verdict(trusted: &Certificate, shown: &Certificate, name: &str, at: SystemTime) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.der().clone()).expect("a root");
        let verifier = RootsAndServers::new(roots, vec![trusted.der().clone()]).expect("a verifier");
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let at = UnixTime::since_unix_epoch(at.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970"));
        verifier.judge(shown.der(), &[], &name, at).map(drop)
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
}
