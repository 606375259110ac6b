//! The fields of a certificate: subject, validity, key, and extensions.

use std::time::SystemTime;

use rcgen::{DistinguishedName, DnType, DnValue};
use rustls::pki_types::CertificateDer;
use yasna::models::{GeneralizedTime, ObjectIdentifier, TaggedDerValue, UTCTime};
use yasna::tags::{
    TAG_BOOLEAN, TAG_GENERALIZEDTIME, TAG_IA5STRING, TAG_PRINTABLESTRING, TAG_SEQUENCE, TAG_UTCTIME, TAG_UTF8STRING,
};
use yasna::{PCBit, Tag, construct_der, parse_der};

/// What was read from a certificate.
#[derive(Debug)]
pub(super) struct CertificateFields {
    /// True if the certificate has signed itself.
    pub(super) is_root: bool,
    /// The subject: sets of attributes.
    pub(super) subject: Vec<Vec<NameAttribute>>,
    pub(super) begins: SystemTime,
    pub(super) ends: SystemTime,
    /// The public key with its algorithm (`subjectPublicKeyInfo`).
    pub(super) public_key: Vec<u8>,
    extensions: Vec<Extension>,
}

/// An attribute of a name, such as its common name.
#[derive(Debug)]
pub(super) struct NameAttribute {
    pub(super) kind: ObjectIdentifier,
    pub(super) value: TaggedDerValue,
}

#[derive(Debug)]
struct Extension {
    kind: ObjectIdentifier,
    value: Vec<u8>,
}

// === impl CertificateFields ===

impl CertificateFields {
    /// Reads a certificate; `None` if it is malformed.
    pub(super) fn read(certificate: &CertificateDer<'_>) -> Option<Self> {
        let signed = elements(items(certificate)?.first()?.value())?;
        let mut fields = signed.iter().filter(|field| field.tag() != Tag::context(VERSION)).skip(SERIAL_AND_SIGNATURE);
        let issuer = fields.next()?;
        let [begins, ends] = &elements(fields.next()?.value())?[..] else { return None };
        let subject = fields.next()?;
        let public_key = fields.next()?;
        let extensions = match fields.find(|field| field.tag() == Tag::context(EXTENSIONS)) {
            Some(list) => items(list.value())?.iter().map(extension).collect::<Option<_>>()?,
            None => Vec::new(),
        };
        let attributes = |set: &TaggedDerValue| elements(set.value())?.iter().map(attribute).collect();
        Some(Self {
            is_root: issuer == subject,
            subject: elements(subject.value())?.iter().map(attributes).collect::<Option<_>>()?,
            begins: time(begins)?,
            ends: time(ends)?,
            public_key: sequence(public_key.value()),
            extensions,
        })
    }

    /// Returns true for a CA permitted to sign certificates.
    pub(super) fn is_ca(&self) -> bool {
        let constraints = self.extension(&BASIC_CONSTRAINTS).and_then(items).unwrap_or_default();
        let says_so = constraints.first().is_some_and(|ca| ca.tag() == TAG_BOOLEAN && ca.value() == [0xff]);
        let may_sign = |usage: &[u8]| {
            // The first byte of a bit string is the number of unused bits.
            let bits = elements(usage).and_then(|usage| usage.first()?.value().get(1).copied());
            bits.is_some_and(|bits| bits & KEY_CERT_SIGN != 0)
        };
        says_so && self.extension(&KEY_USAGE).is_none_or(may_sign)
    }

    /// Returns true if a server may use the certificate as its own.
    pub(super) fn may_serve(&self) -> bool {
        let serves = |usage: &ObjectIdentifier| [&SERVER_AUTH[..], &ANY_USAGE].contains(&&usage.components()[..]);
        let usages = self.extension(&EXTENDED_KEY_USAGE).map(|usages| items(usages).unwrap_or_default());
        usages.is_none_or(|usages| usages.iter().filter_map(identifier).any(|usage| serves(&usage)))
    }

    /// Returns the names allowed by the CA's name constraints; `None` if it may sign for any name.
    pub(super) fn permitted(&self) -> Option<Vec<String>> {
        let constraints = items(self.extension(&NAME_CONSTRAINTS)?)?;
        let permitted = constraints.iter().find(|subtrees| subtrees.tag() == Tag::context(PERMITTED))?;
        let mut names = Vec::new();
        for subtree in elements(permitted.value())? {
            let subtree = elements(subtree.value())?;
            if let Some(base) = subtree.first().filter(|base| base.tag() == Tag::context(DNS_NAME)) {
                let name = String::from_utf8(base.value().to_vec()).ok()?;
                names.push(name.trim_start_matches('.').to_ascii_lowercase());
            }
        }
        // Without a name in the list, any name is permitted; with an empty one, too.
        (!names.is_empty() && names.iter().all(|name| !name.is_empty())).then_some(names)
    }

    /// Returns the identifier of the certificate's key, repeated by the certificates it signs;
    /// empty if it has none.
    pub(super) fn key_identifier(&self) -> Vec<u8> {
        let identifier = self.extension(&SUBJECT_KEY_IDENTIFIER).and_then(elements).unwrap_or_default();
        identifier.first().map(|identifier| identifier.value().to_vec()).unwrap_or_default()
    }

    /// Returns the certificate's subject in the form for the issuer of certificates it signs;
    /// `None` if it cannot be repeated byte for byte.
    pub(super) fn issuer_name(&self) -> Option<DistinguishedName> {
        let mut name = DistinguishedName::new();
        for attributes in &self.subject {
            let [NameAttribute { kind, value }] = &attributes[..] else { return None };
            let kind = DnType::from_oid(kind.components());
            let text = String::from_utf8(value.value().to_vec()).ok()?;
            let value = match value.tag() {
                TAG_UTF8STRING => DnValue::Utf8String(text),
                TAG_PRINTABLESTRING => DnValue::PrintableString(text.try_into().ok()?),
                TAG_IA5STRING => DnValue::Ia5String(text.try_into().ok()?),
                _ => return None,
            };
            if name.get(&kind).is_some() {
                return None; // it would replace the one that is there
            }
            name.push(kind, value);
        }
        Some(name)
    }

    fn extension(&self, kind: &[u64]) -> Option<&[u8]> {
        let extension = self.extensions.iter().find(|extension| extension.kind.components() == kind)?;
        Some(&extension.value)
    }
}

// === helpers ===

/// Wraps the content of a DER sequence.
fn sequence(content: &[u8]) -> Vec<u8> {
    let value = TaggedDerValue::from_tag_pc_and_bytes(TAG_SEQUENCE, PCBit::Constructed, content.to_vec());
    construct_der(|writer| writer.write_tagged_der(&value))
}

/// Returns the values in the content of a sequence or set.
fn elements(content: &[u8]) -> Option<Vec<TaggedDerValue>> {
    parse_der(&sequence(content), |reader| reader.collect_sequence_of(|value| value.read_tagged_der())).ok()
}

/// Returns the values of a sequence.
fn items(der: &[u8]) -> Option<Vec<TaggedDerValue>> {
    let [value] = &elements(der)?[..] else { return None };
    elements(value.value()).filter(|_| value.tag() == TAG_SEQUENCE)
}

fn identifier(value: &TaggedDerValue) -> Option<ObjectIdentifier> {
    parse_der(&construct_der(|writer| writer.write_tagged_der(value)), |reader| reader.read_oid()).ok()
}

fn attribute(of: &TaggedDerValue) -> Option<NameAttribute> {
    let [kind, value] = <[_; 2]>::try_from(elements(of.value())?).ok()?;
    Some(NameAttribute { kind: identifier(&kind)?, value })
}

/// Reads an extension: its kind, an optional flag, and its value.
fn extension(of: &TaggedDerValue) -> Option<Extension> {
    let parts = elements(of.value())?;
    Some(Extension { kind: identifier(parts.first()?)?, value: parts.last()?.value().to_vec() })
}

fn time(value: &TaggedDerValue) -> Option<SystemTime> {
    match value.tag() {
        TAG_UTCTIME => UTCTime::parse(value.value()).map(|time| (*time.datetime()).into()),
        TAG_GENERALIZEDTIME => GeneralizedTime::parse(value.value()).map(|time| (*time.datetime()).into()),
        _ => None,
    }
}

const SUBJECT_KEY_IDENTIFIER: [u64; 4] = [2, 5, 29, 14];
const KEY_USAGE: [u64; 4] = [2, 5, 29, 15];
const BASIC_CONSTRAINTS: [u64; 4] = [2, 5, 29, 19];
const NAME_CONSTRAINTS: [u64; 4] = [2, 5, 29, 30];
const EXTENDED_KEY_USAGE: [u64; 4] = [2, 5, 29, 37];
const ANY_USAGE: [u64; 5] = [2, 5, 29, 37, 0];
const SERVER_AUTH: [u64; 9] = [1, 3, 6, 1, 5, 5, 7, 3, 1];
/// The bit for signing certificates, in the first byte of the key usages.
const KEY_CERT_SIGN: u8 = 0b100;
/// The number of fields between version and issuer.
const SERIAL_AND_SIGNATURE: usize = 2;
/// DER tags: of a version, of permitted subtrees, of a host name, and of extensions.
const VERSION: u64 = 0;
const PERMITTED: u64 = 0;
const DNS_NAME: u64 = 2;
const EXTENSIONS: u64 = 3;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tls::Interception;

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(cut in 0_usize..2_000, at in 0_usize..2_000, byte: u8, noise: Vec<u8>) {
            let ca = Interception::new(&["a.example".to_owned()]).expect("a CA");
            let mut der = ca.root().to_vec();
            let at = at % der.len();
            der[at] = byte;
            der.truncate(cut);
            for der in [der, noise] {
                if let Some(read) = CertificateFields::read(&der.into()) {
                    let told = (read.is_ca(), read.permitted(), read.key_identifier(), read.issuer_name());
                    prop_assert!(told.2.len() < 2_000);
                }
            }
        }
    }
}
