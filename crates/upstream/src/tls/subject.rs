//! The name of a client, as kube-apiserver reads it of the client's certificate: the common name of
//! the subject, the last one if there are several.

use std::sync::Arc;

use rustls::ServerConnection;
use rustls::pki_types::CertificateDer;
use yasna::models::{ObjectIdentifier, TaggedDerValue};
use yasna::tags::{TAG_IA5STRING, TAG_PRINTABLESTRING, TAG_UTF8STRING};
use yasna::{ASN1Result, BERReader, BERReaderSeq, Tag, parse_der};

/// Returns the common name of a certificate whose signature was checked; `None` if it has none that
/// can be shown.
pub fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let subject = parse_der(certificate, |reader| {
        reader.read_sequence(|certificate| {
            let subject = certificate.next().read_sequence(of_signed)?;
            rest(certificate)?;
            Ok(subject)
        })
    });
    let common = ObjectIdentifier::from_slice(&COMMON_NAME);
    let name = subject.ok()?.into_iter().rfind(|(kind, _)| *kind == common)?.1;
    let is_text = [TAG_UTF8STRING, TAG_PRINTABLESTRING, TAG_IA5STRING].contains(&name.tag());
    let name = String::from_utf8(name.value().to_vec()).ok().filter(|_| is_text)?;
    (!name.is_empty() && name.len() <= LONGEST && !name.chars().any(char::is_control)).then_some(name)
}

/// Returns the name in the certificate that a client has shown: an empty one if it has none, and
/// `None` if the client showed no certificate.
pub fn client_name(session: &ServerConnection) -> Option<Arc<str>> {
    let shown = session.peer_certificates()?.first()?;
    Some(common_name(shown).unwrap_or_default().into())
}

/// A part of a name: its kind and its value.
pub(super) type Part = (ObjectIdentifier, TaggedDerValue);

/// Reads the part that is signed, up to the subject.
fn of_signed(signed: &mut BERReaderSeq<'_, '_>) -> ASN1Result<Vec<Part>> {
    signed.read_optional(|version| version.read_tagged(Tag::context(0), |version| version.read_der()))?;
    for _ in ["serial number", "signature", "issuer", "validity"] {
        signed.next().read_der()?;
    }
    let parts = signed.next().collect_sequence_of(|part| part.collect_set_of(of_part))?;
    rest(signed)?;
    Ok(parts.into_iter().flatten().collect())
}

pub(super) fn of_part(part: BERReader<'_, '_>) -> ASN1Result<Part> {
    part.read_sequence(|part| Ok((part.next().read_oid()?, part.next().read_tagged_der()?)))
}

/// Reads over what is left.
pub(super) fn rest(reader: &mut BERReaderSeq<'_, '_>) -> ASN1Result<()> {
    while reader.read_optional(|part| part.read_der())?.is_some() {}
    Ok(())
}

const COMMON_NAME: [u64; 4] = [2, 5, 4, 3];
/// More than X.509's own limit of 64.
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
