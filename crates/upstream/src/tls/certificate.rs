//! The fields of a certificate: what its extensions allow, and its validity.

use std::time::SystemTime;

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::time::ASN1Time;

/// The parsed fields of a certificate.
#[derive(Debug)]
pub(super) struct CertificateFields<'a>(X509Certificate<'a>);

// === impl CertificateFields ===

impl<'a> CertificateFields<'a> {
    /// Reads a certificate; `None` if it is malformed.
    pub(super) fn read(certificate: &'a CertificateDer<'_>) -> Option<Self> {
        let (rest, read) = x509_parser::parse_x509_certificate(certificate).ok()?;
        rest.is_empty().then_some(Self(read))
    }

    /// Returns true if the certificate has signed itself.
    pub(super) fn is_root(&self) -> bool {
        self.0.issuer().as_raw() == self.0.subject().as_raw()
    }

    pub(super) fn begins(&self) -> SystemTime {
        time(self.0.validity().not_before)
    }

    pub(super) fn ends(&self) -> SystemTime {
        time(self.0.validity().not_after)
    }

    /// Returns the public key with its algorithm (`subjectPublicKeyInfo`).
    pub(super) fn public_key(&self) -> &[u8] {
        self.0.public_key().raw
    }

    /// Returns the last common name of the subject, if it is text.
    pub(super) fn common_name(&self) -> Option<&str> {
        self.0.subject().iter_common_name().last()?.as_str().ok()
    }

    /// Returns true if the subject has one value of each kind.
    pub(super) fn has_plain_subject(&self) -> bool {
        let kinds: Vec<_> = self.0.subject().iter_attributes().map(|attribute| attribute.attr_type()).collect();
        (1..kinds.len()).all(|at| !kinds[at..].contains(&kinds[at - 1]))
    }

    /// Returns true for a CA permitted to sign certificates.
    pub(super) fn is_ca(&self) -> bool {
        let may_sign = match self.0.key_usage() {
            Ok(usage) => usage.is_none_or(|usage| usage.value.key_cert_sign()),
            Err(_) => false,
        };
        self.0.is_ca() && may_sign
    }

    /// Returns true if the certificate may be used by a server.
    pub(super) fn may_serve(&self) -> bool {
        match self.0.extended_key_usage() {
            Ok(usage) => usage.is_none_or(|usage| usage.value.any || usage.value.server_auth),
            Err(_) => false,
        }
    }

    /// Returns the names allowed by the CA's name constraints; `None` if it may sign for any name.
    pub(super) fn permitted(&self) -> Option<Vec<String>> {
        let constraints = self.0.name_constraints().ok()??;
        let subtrees = constraints.value.permitted_subtrees.iter().flatten();
        let names = subtrees.filter_map(|subtree| match &subtree.base {
            GeneralName::DNSName(name) => Some(name.trim_start_matches('.').to_ascii_lowercase()),
            _ => None,
        });
        let names: Vec<String> = names.collect();
        // Without a name in the list, any name is permitted; with an empty one, too.
        (!names.is_empty() && names.iter().all(|name| !name.is_empty())).then_some(names)
    }
}

fn time(time: ASN1Time) -> SystemTime {
    time.to_datetime().into()
}

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
                let der = der.into();
                if let Some(read) = CertificateFields::read(&der) {
                    let told = (read.is_ca(), read.permitted(), read.common_name(), read.has_plain_subject(), read.begins());
                    prop_assert!(told.2.is_none_or(|name| name.len() < 2_000));
                }
            }
        }
    }
}
