//! The fields of a certificate: subject, validity, key, and extensions.

use std::time::SystemTime;

use rcgen::{DistinguishedName, DnType, DnValue};
use rustls::pki_types::CertificateDer;
use yasna::models::{ObjectIdentifier, TaggedDerValue};
use yasna::tags::{TAG_IA5STRING, TAG_PRINTABLESTRING, TAG_UTCTIME, TAG_UTF8STRING};
use yasna::{ASN1Result, BERReader, BERReaderSeq, Tag, parse_der};

/// The fields of a certificate.
#[derive(Debug)]
pub(super) struct CertificateFields {
    /// True if it is its own issuer.
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
        let read = parse_der(certificate, |reader| {
            reader.read_sequence(|certificate| {
                let signed = certificate.next().read_sequence(of_signed)?;
                rest(certificate)?;
                Ok(signed)
            })
        });
        read.ok()
    }

    /// True for a CA with the right to sign certificates.
    pub(super) fn is_ca(&self) -> bool {
        let says_so = self.extension(&BASIC_CONSTRAINTS, |reader| {
            reader.read_sequence(|constraints| {
                let is_ca = constraints.read_default(false, |reader| reader.read_bool())?;
                rest(constraints)?;
                Ok(is_ca)
            })
        });
        let usage = self.extension(&KEY_USAGE, |reader| reader.read_bitvec_bytes());
        let may_sign = usage.is_none_or(|(bits, _)| bits.first().is_some_and(|bits| bits & KEY_CERT_SIGN != 0));
        says_so == Some(true) && may_sign
    }

    /// True if a server may use it as its own.
    pub(super) fn may_serve(&self) -> bool {
        let uses = self.extension(&EXTENDED_KEY_USAGE, |reader| reader.collect_sequence_of(|usage| usage.read_oid()));
        let serves = |usage: &ObjectIdentifier| [&SERVER_AUTH[..], &ANY_USAGE].contains(&&usage.components()[..]);
        uses.is_none_or(|uses| uses.iter().any(serves))
    }

    /// Returns the names of its constraints; `None` if it may sign for any name.
    pub(super) fn permitted(&self) -> Option<Vec<String>> {
        let subtrees = self.extension(&NAME_CONSTRAINTS, |reader| {
            reader.read_sequence(|constraints| {
                let permitted = constraints.read_optional(|permitted| {
                    permitted.read_tagged_implicit(Tag::context(0), |list| {
                        list.collect_sequence_of(|subtree| {
                            subtree.read_sequence(|subtree| {
                                let base = subtree.next().read_tagged_der()?;
                                rest(subtree)?;
                                Ok(base)
                            })
                        })
                    })
                })?;
                rest(constraints)?;
                Ok(permitted.unwrap_or_default())
            })
        })?;
        let names = subtrees.into_iter().filter(|base| base.tag() == Tag::context(DNS_NAME));
        let names = names.filter_map(|base| String::from_utf8(base.value().to_vec()).ok());
        let names: Vec<String> = names.map(|name| name.trim_start_matches('.').to_ascii_lowercase()).collect();
        // Without a name in the list, any name is permitted; with an empty one, too.
        (!names.is_empty() && names.iter().all(|name| !name.is_empty())).then_some(names)
    }

    /// Returns the identifier of its key, repeated by the certificates it signs; empty if it has
    /// none.
    pub(super) fn key_identifier(&self) -> Vec<u8> {
        self.extension(&SUBJECT_KEY_IDENTIFIER, |reader| reader.read_bytes()).unwrap_or_default()
    }

    /// Returns its subject as the issuer of the certificates it signs; `None` if it cannot be
    /// repeated byte for byte.
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

    fn extension<T>(&self, kind: &[u64], read: impl FnOnce(BERReader<'_, '_>) -> ASN1Result<T>) -> Option<T> {
        let extension = self.extensions.iter().find(|extension| extension.kind.components() == kind)?;
        parse_der(&extension.value, read).ok()
    }
}

// === helpers ===

/// Reads the signed part.
fn of_signed(signed: &mut BERReaderSeq<'_, '_>) -> ASN1Result<CertificateFields> {
    signed.read_optional(|version| version.read_tagged(Tag::context(0), |version| version.read_der()))?;
    for _ in ["serial number", "signature"] {
        signed.next().read_der()?;
    }
    let issuer = signed.next().read_der()?;
    let (begins, ends) =
        signed.next().read_sequence(|validity| Ok((of_time(validity.next())?, of_time(validity.next())?)))?;
    let subject_der = signed.next().read_der()?;
    let subject = parse_der(&subject_der, |sets| sets.collect_sequence_of(|set| set.collect_set_of(of_attribute)))?;
    let public_key = signed.next().read_der()?;
    let mut extensions = Vec::new();
    while let Some(part) = signed.read_optional(|part| part.read_tagged_der())? {
        if part.tag() == Tag::context(EXTENSIONS) {
            extensions = parse_der(part.value(), |list| list.collect_sequence_of(of_extension))?;
        }
    }
    Ok(CertificateFields { is_root: issuer == subject_der, subject, begins, ends, public_key, extensions })
}

fn of_attribute(reader: BERReader<'_, '_>) -> ASN1Result<NameAttribute> {
    reader.read_sequence(|attribute| {
        Ok(NameAttribute { kind: attribute.next().read_oid()?, value: attribute.next().read_tagged_der()? })
    })
}

fn of_time(reader: BERReader<'_, '_>) -> ASN1Result<SystemTime> {
    let time = if reader.lookahead_tag()? == TAG_UTCTIME {
        *reader.read_utctime()?.datetime()
    } else {
        *reader.read_generalized_time()?.datetime()
    };
    Ok(time.into())
}

fn of_extension(reader: BERReader<'_, '_>) -> ASN1Result<Extension> {
    reader.read_sequence(|extension| {
        let kind = extension.next().read_oid()?;
        extension.read_default(false, |reader| reader.read_bool())?;
        Ok(Extension { kind, value: extension.next().read_bytes()? })
    })
}

/// Skips what is left.
fn rest(reader: &mut BERReaderSeq<'_, '_>) -> ASN1Result<()> {
    while reader.read_optional(|part| part.read_der())?.is_some() {}
    Ok(())
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
/// The tag of a host name among the kinds of names.
const DNS_NAME: u64 = 2;
/// The tag of the extensions among the parts of a certificate.
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
