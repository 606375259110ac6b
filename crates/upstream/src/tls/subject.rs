//! The name of a client, as kube-apiserver reads it from the client's certificate: the common name
//! of the subject, the last one if there are several.

use std::sync::Arc;

use rustls::ServerConnection;
use rustls::pki_types::CertificateDer;

use super::certificate::CertificateFields;

/// Returns the common name in a certificate with an already verified signature. `None` without a
/// printable common name.
pub fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let fields = CertificateFields::read(certificate)?;
    let name = fields.common_name()?;
    (!name.is_empty() && name.len() <= LONGEST && !name.chars().any(char::is_control)).then(|| name.to_owned())
}

/// Returns the name in a client's certificate, empty if it has no name; `None` without a
/// certificate.
pub fn client_name(session: &ServerConnection) -> Option<Arc<str>> {
    let shown = session.peer_certificates()?.first()?;
    Some(common_name(shown).unwrap_or_default().into())
}

/// The longest name to accept; X.509's own limit is 64.
const LONGEST: usize = 256;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    use super::*;

    fn certificate(parts: Vec<(DnType, DnValue)>) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        parts.into_iter().for_each(|(kind, value)| params.distinguished_name.push(kind, value));
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("signed").der().clone()
    }

    fn named(name: &str) -> CertificateDer<'static> {
        let group = DnValue::Utf8String("system:masters".into());
        certificate(vec![
            (DnType::OrganizationName, group),
            (DnType::CommonName, DnValue::Utf8String(name.into())),
            (DnType::CountryName, DnValue::PrintableString("CH".try_into().expect("printable"))),
        ])
    }

    #[test]
    fn the_name_is_the_common_name_of_the_subject() {
        for name in ["system:serviceaccount:prod:controller", "jane", "Zoë"] {
            assert_eq!(common_name(&named(name)).as_deref(), Some(name));
        }
        let printable = DnValue::PrintableString("robot".try_into().expect("printable"));
        assert_eq!(common_name(&certificate(vec![(DnType::CommonName, printable)])).as_deref(), Some("robot"));
    }

    #[test]
    fn a_subject_without_a_name_that_can_be_shown_has_none() {
        let group = DnValue::Utf8String("dev".into());
        for parts in [vec![], vec![(DnType::OrganizationName, group)]] {
            assert_eq!(common_name(&certificate(parts)), None);
        }
        for name in ["", "a\nb", "a\0b"] {
            assert_eq!(common_name(&named(name)), None, "{name:?}");
        }
        assert_eq!(common_name(&named(&"x".repeat(LONGEST + 1))), None);
        let wide = DnValue::BmpString("robot".try_into().expect("it fits"));
        assert_eq!(common_name(&certificate(vec![(DnType::CommonName, wide)])), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(cut in 0_usize..2_000, at in 0_usize..2_000, byte: u8, noise: Vec<u8>) {
            let mut der = named("controller").to_vec();
            let at = at % der.len();
            der[at] = byte;
            der.truncate(cut);
            common_name(&der.into());
            common_name(&noise.into());
        }
    }
}
