//! An egress CA from files, such as cert-manager's, instead of a generated one.

use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{Issuer, KeyPair, PublicKeyData as _};
use rustls::pki_types::CertificateDer;

use super::{CaEnd, Interception};
use crate::tls::certificate::CertificateFields;
use crate::tls::{Pem, TlsError};

/// The contents of a CA's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenCa {
    cert: Pem,
    key: Pem,
    root: Pem,
}

/// An error in the files of a CA.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct GivenCaError {
    /// The configuration key of the file, below `egress`.
    pub key: &'static str,
    /// What is wrong, and what was expected instead.
    pub why: String,
}

// === impl GivenCa ===

impl GivenCa {
    /// Reads the files: the signing CA's chain, its key, and the root for clients to trust.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn read(cert: &Path, key: &Path, root: &Path) -> Result<Self, GivenCaError> {
        let read = |name, path: &Path| Pem::read(path).map_err(|error| GivenCaError::of(name, &error));
        Ok(Self { cert: read(CERT, cert)?, key: read(KEY, key)?, root: read(ROOT, root)? })
    }

    /// Creates the CA from the files. It must be able to sign for these names and all names below
    /// them.
    ///
    /// # Errors
    /// Which file is wrong, and why.
    pub fn interception(&self, names: &[String], wall: SystemTime) -> Result<Interception, GivenCaError> {
        let chain = self.cert.certificates().map_err(|error| GivenCaError::of(CERT, &error))?;
        let mut roots = self.root.certificates().map_err(|error| GivenCaError::of(ROOT, &error))?;
        let (Some(root), true) = (roots.pop(), roots.is_empty()) else {
            return Err(self.root.unfit(ROOT, "holds several certificates, expected the root alone"));
        };
        let ca = Self::checked(&self.cert, CERT, chain.first(), wall)?;
        let of_root = Self::checked(&self.root, ROOT, Some(&root), wall)?;
        if !of_root.is_root() {
            let why = "is signed by another CA, and not every client takes such a one; expected the root above it";
            return Err(self.root.unfit(ROOT, why));
        }
        let permitted = ca.permitted().ok_or_else(|| {
            let why = "may sign for any host: it has no name constraints that permit some; expected a CA with critical name constraints for the hosts of gates with intercept = true, as `tidegate ca --new` makes one";
            self.cert.unfit(CERT, why)
        })?;
        let issuer = self.issuer(&ca, chain.first())?;
        let end = end(&ca).earlier(end(&of_root));
        // The root is with the clients.
        let above: Vec<_> = chain.into_iter().filter(|certificate| *certificate != root).collect();
        let made =
            Interception::with(root, above, issuer, &permitted).map_err(|error| GivenCaError::of(CERT, &error))?;
        let made = Interception { end: Some(end), ..made };
        for name in names {
            if !made.permits(name) {
                let why = format!(
                    "may not sign for {name}: its name constraints permit {}; expected one for all hosts of gates with intercept = true",
                    permitted.join(", ")
                );
                return Err(self.cert.unfit(CERT, &why));
            }
            if let Err(error) = made.verifies(name, wall) {
                let why =
                    format!("is not signed by egress.ca.root: clients that trust it would refuse {name} ({error})");
                return Err(self.cert.unfit(CERT, &why));
            }
        }
        Ok(made)
    }

    /// Reads the certificate of a CA and checks it.
    fn checked<'a>(
        from: &Pem,
        name: &'static str,
        certificate: Option<&'a CertificateDer<'_>>,
        wall: SystemTime,
    ) -> Result<CertificateFields<'a>, GivenCaError> {
        let ca = certificate.and_then(CertificateFields::read);
        let ca = ca.ok_or_else(|| from.unfit(name, "holds a certificate that cannot be read"))?;
        if !ca.is_ca() {
            return Err(from.unfit(name, "holds no CA that may sign; expected isCA: true, as cert-manager calls it"));
        }
        let date = |time: SystemTime| httpdate::fmt_http_date(time.max(SystemTime::UNIX_EPOCH));
        if ca.ends() <= wall {
            return Err(from.unfit(name, &format!("expired at {}; expected one that is valid", date(ca.ends()))));
        }
        if ca.begins() > wall {
            return Err(from.unfit(name, &format!("begins only at {}; is the clock right?", date(ca.begins()))));
        }
        Ok(ca)
    }

    fn issuer(
        &self,
        ca: &CertificateFields<'_>,
        certificate: Option<&CertificateDer<'_>>,
    ) -> Result<Issuer<'static, KeyPair>, GivenCaError> {
        let text = String::from_utf8_lossy(&self.key.text);
        let key = KeyPair::from_pem(&text).map_err(|error| {
            let why = format!("holds a private key that cannot be used ({error}); expected one in PKCS#8, which begins with \"BEGIN PRIVATE KEY\" (cert-manager: privateKey.encoding: PKCS8)");
            self.key.unfit(KEY, &why)
        })?;
        if key.subject_public_key_info() != ca.public_key() {
            let why = format!("is not the key of the first certificate in {}", self.cert.from);
            return Err(self.key.unfit(KEY, &why));
        }
        let issuer = certificate.filter(|_| ca.has_plain_subject());
        issuer.and_then(|ca| Issuer::from_ca_cert_der(ca, key).ok()).ok_or_else(|| {
            self.cert
                .unfit(CERT, "has a subject of an unusual form; expected one value of each kind, such as CN=egress")
        })
    }
}

// === impl CaEnd ===

impl CaEnd {
    fn earlier(self, other: Self) -> Self {
        Self { at: self.at.min(other.at), near_from: self.near_from.min(other.near_from) }
    }
}

// === impl Pem, GivenCaError ===

impl Pem {
    fn unfit(&self, key: &'static str, why: &str) -> GivenCaError {
        GivenCaError { key, why: format!("{} {why}", self.from) }
    }
}

impl GivenCaError {
    fn of(key: &'static str, error: &TlsError) -> Self {
        Self { key, why: error.to_string() }
    }
}

/// Returns when a CA expires and from when to warn. Certificates are renewed with a third of their
/// life left, or more, so half of that is late. A long life is near its end only in the last month.
fn end(ca: &CertificateFields<'_>) -> CaEnd {
    let begins = ca.begins();
    let at = ca.ends();
    let near = (at.duration_since(begins).unwrap_or_default() / 6).min(MONTH);
    CaEnd { at, near_from: at.checked_sub(near).unwrap_or(begins) }
}

const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);
const CERT: &str = "ca.cert";
const KEY: &str = "ca.key";
const ROOT: &str = "ca.root";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use rcgen::{CertificateParams, DnType, KeyIdMethod, KeyUsagePurpose, NameConstraints};

    use super::*;
    use crate::tls::authority::ca_params;
    use crate::tls::interception::constraints;
    use crate::tls::pem::armoured;
    use crate::tls::wall;

    /// A root with its key.
    struct Root {
        key: KeyPair,
        params: CertificateParams,
        pem: String,
    }

    fn root() -> Root {
        let key = KeyPair::generate().expect("a key");
        let params = ca_params("company root", 2).expect("a name");
        let pem = params.self_signed(&key).expect("signed").pem();
        Root { key, params, pem }
    }

    /// The CA below it, made as by another program: its key identifier is not the one that we would
    /// give it.
    fn below(names: Option<NameConstraints>) -> CertificateParams {
        let mut params = ca_params("company egress", 0).expect("a name");
        params.distinguished_name.push(DnType::OrganizationName, "Company");
        params.name_constraints = names;
        params.key_identifier_method = KeyIdMethod::PreSpecified(vec![7; 20]);
        params.use_authority_key_identifier_extension = true;
        params
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Puts files together, and makes the CA of them for `a.example`.
    fn given(cert: &str, key: &str, root: &str) -> Result<Interception, GivenCaError> {
        let folder = tempfile::tempdir().expect("a folder");
        let [cert, key, root] = [("tls.crt", cert), ("tls.key", key), ("ca.crt", root)].map(|(name, text)| {
            fs::write(folder.path().join(name), text).expect("written");
            folder.path().join(name)
        });
        GivenCa::read(&cert, &key, &root)?.interception(&names(&["a.example"]), wall())
    }

    fn signed(params: &CertificateParams, key: &KeyPair, by: &Root) -> String {
        params.signed_by(key, &Issuer::from_params(&by.params, &by.key)).expect("signed").pem()
    }

    #[test]
    fn a_ca_by_another_program_signs_and_openssl_accepts_it_by_its_strict_checks() {
        let root = root();
        let key = KeyPair::generate().expect("a key");
        let cert = signed(&below(Some(constraints(&names(&["a.example", "b.example"])).expect("names"))), &key, &root);
        // cert-manager writes the chain with the root at its end.
        let ca = given(&(cert.clone() + &root.pem), &key.serialize_pem(), &root.pem).expect("it fits");
        assert_eq!(ca.permitted(), ["a.example", "b.example"]);
        assert!(ca.permits("x.b.example") && !ca.permits("c.example") && ca.ends_soon(wall()).is_none());
        assert_eq!(ca.published().replace("\r\n", "\n"), root.pem.replace("\r\n", "\n"));
        let leaf = ca.leaf("x.a.example", wall()).expect("made");
        assert_eq!(leaf.certificate.key.cert.len(), 2, "the root is with the clients");
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).expect("written");
            folder.path().join(name)
        };
        let mut openssl = Command::new("openssl");
        openssl.args(["verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", "x.a.example"]);
        openssl.arg("-CAfile").arg(file("ca.crt", &root.pem)).arg("-untrusted").arg(file("tls.crt", &cert));
        let Ok(verified) = openssl.arg(file("leaf.crt", &armoured(&leaf.certificate.key.cert[0]))).output() else {
            return eprintln!("skipped: there is no openssl here");
        };
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    }

    #[test]
    fn what_tidegate_ca_makes_can_be_given() {
        let made = Interception::new(&names(&["a.example"])).expect("a CA");
        let [cert, key, root] = made.files();
        let again = given(&cert, &key, &root).expect("it fits");
        assert_eq!((again.root(), again.permitted()), (made.root(), made.permitted()));
    }

    #[test]
    fn files_that_do_not_fit_are_refused_with_the_reason() {
        let [root, other] = [root(), root()];
        let key = KeyPair::generate().expect("a key");
        let wrong = KeyPair::generate().expect("a key");
        let permitted = || Some(constraints(&names(&["a.example"])).expect("names"));
        let make = |change: &dyn Fn(&mut CertificateParams)| {
            let mut params = below(permitted());
            change(&mut params);
            signed(&params, &key, &root)
        };
        let good = make(&|_| {});
        let years = |from, to| {
            make(&move |params: &mut CertificateParams| {
                params.not_before = rcgen::date_time_ymd(from, 1, 1);
                params.not_after = rcgen::date_time_ymd(to, 1, 1);
            })
        };
        let leaf = make(&|params| (params.is_ca, params.name_constraints) = (rcgen::IsCa::ExplicitNoCa, None));
        let may_not_sign = make(&|params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]);
        let open = make(&|params| params.name_constraints = None);
        let elsewhere = make(&|params| {
            params.name_constraints = Some(constraints(&names(&["b.example"])).expect("names"));
        });
        let key_text = key.serialize_pem();
        for (cert, key, root, at, says) in [
            (&good, &wrong.serialize_pem(), &root.pem, "ca.key", "is not the key of the first certificate in"),
            (&good, &"nothing".to_owned(), &root.pem, "ca.key", "expected one in PKCS#8"),
            (&"nothing".to_owned(), &key_text, &root.pem, "ca.cert", "holds no certificate in PEM form"),
            (&leaf, &key_text, &root.pem, "ca.cert", "holds no CA that may sign"),
            (&may_not_sign, &key_text, &root.pem, "ca.cert", "holds no CA that may sign"),
            (&open, &key_text, &root.pem, "ca.cert", "may sign for any host: it has no name constraints"),
            (
                &elsewhere,
                &key_text,
                &root.pem,
                "ca.cert",
                "may not sign for a.example: its name constraints permit b.example",
            ),
            (&years(2020, 2021), &key_text, &root.pem, "ca.cert", "expired at Fri, 01 Jan 2021"),
            (&years(2048, 2049), &key_text, &root.pem, "ca.cert", "begins only at Wed, 01 Jan 2048"),
            (&good, &key_text, &other.pem, "ca.cert", "is not signed by egress.ca.root"),
            (&good, &key_text, &good, "ca.root", "is signed by another CA"),
            (&good, &key_text, &leaf, "ca.root", "holds no CA that may sign"),
            (&good, &key_text, &format!("{}{}", root.pem, other.pem), "ca.root", "holds several certificates"),
        ] {
            let unfit = given(cert, key, root).expect_err(says);
            assert_eq!((unfit.key, unfit.why.contains(says)), (at, true), "{says}: {unfit}");
        }
    }

    #[test]
    fn a_ca_is_near_its_end_in_the_last_sixth_of_its_life_and_never_before_the_last_month() {
        let root = root();
        let key = KeyPair::generate().expect("a key");
        let day = Duration::from_secs(24 * 3600);
        for (days, left, is_near) in [(6, 2, false), (12, 1, true), (3_000, 40, false), (3_000, 29, true)] {
            let mut params = below(Some(constraints(&names(&["a.example"])).expect("names")));
            params.not_before = (wall() + day * left - day * days).into();
            params.not_after = (wall() + day * left).into();
            let ca = given(&signed(&params, &key, &root), &key.serialize_pem(), &root.pem).expect("it fits");
            assert_eq!(ca.ends_soon(wall()).is_some(), is_near, "{left} of {days} days are left");
        }
    }
}
