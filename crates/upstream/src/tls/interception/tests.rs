//! The CA as clients see it: rustls, OpenSSL with its strict checks, and Java.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use proptest::prelude::*;
use rustls::pki_types::IpAddr;

use super::*;
use crate::tls::{Trust, wall};

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn ca(permitted: &[&str]) -> Interception {
    Interception::new(&names(permitted)).expect("a CA")
}

/// A certificate that who has the intermediate's key could make, whatever the gate would sign.
fn stolen(ca: &Interception, name: &str) -> CertificateDer<'static> {
    let params = leaf_params(vec![name.to_owned()], wall()).expect("a name");
    params.signed_by(&ca.leaf_key, &ca.issuer).expect("signed").der().clone()
}

/// True if a verifier that knows the root and nothing else accepts the certificate for the name.
fn is_accepted(ca: &Interception, end: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add(ca.root.clone()).expect("a root");
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build().expect("roots");
    let now = wall().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let now = UnixTime::since_unix_epoch(now);
    verifier.verify_server_cert(end, &ca.chain, name, &[], now).is_ok()
}

fn shown(ca: &Interception, name: &str) -> CertificateDer<'static> {
    ca.config(name, true, wall()).expect("a listed name");
    let leaves = ca.leaves.lock().expect("no panic");
    leaves[name].certificate.key.cert[0].clone()
}

/// Runs a program; `None` if it is not here.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    let run = Command::new(program).args(arguments).output();
    if run.is_err() {
        eprintln!("skipped: there is no {program} here");
    }
    run.ok()
}

#[test]
fn a_name_is_signed_for_if_it_is_permitted_or_below_that() {
    let ca = ca(&["amazonaws.com", "api.github.com"]);
    for (name, expected) in [
        ("ec2.eu-central-1.amazonaws.com", true),
        ("amazonaws.com", true),
        ("api.github.com", true),
        ("github.com", false),
        ("evilamazonaws.com", false),
        ("amazonaws.com.evil.test", false),
        ("", false),
    ] {
        let made = ca.config(name, true, wall());
        assert_eq!(made.is_ok(), expected, "{name}");
        if let Err(error) = made {
            assert!(error.to_string().contains("list the name in egress.ca.names from the beginning"), "{error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// P26: a verifier with the root alone rejects every other name, also where the intermediate's
    /// key was stolen.
    #[test]
    fn no_certificate_is_good_for_a_name_that_is_not_permitted(
        name in "([a-z]{1,4}\\.){0,2}(amazonaws\\.com|github\\.com|api\\.github\\.com|xamazonaws\\.com|com)",
    ) {
        let ca = ca(&["amazonaws.com", "api.github.com"]);
        let server = ServerName::try_from(name.clone()).expect("a name");
        prop_assert_eq!(is_accepted(&ca, &stolen(&ca, &name), &server), ca.permits(&name));
    }
}

#[test]
fn no_certificate_is_good_for_an_address() {
    let ca = ca(&["amazonaws.com"]);
    for address in ["10.0.0.1", "2001:db8::1"] {
        let server = ServerName::IpAddress(IpAddr::try_from(address).expect("an address"));
        assert!(!is_accepted(&ca, &stolen(&ca, address), &server), "{address}");
    }
}

#[test]
fn certificates_last_a_day_are_renewed_after_16_hours_and_differ_in_their_serials() {
    let ca = ca(&["a.example"]);
    let now = wall();
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    let same = |one: &Arc<ServerConfig>, other: &Arc<ServerConfig>| Arc::ptr_eq(one, other);
    let first = ca.config("a.example", true, now).expect("made");
    assert_eq!(first.alpn_protocols, [&b"h2"[..], b"http/1.1"]);
    assert_eq!(ca.config("a.example", false, now).expect("made").alpn_protocols, [b"http/1.1"]);
    assert!(same(&first, &ca.config("a.example", true, now + hours(15)).expect("kept")));
    let renewed = ca.config("a.example", true, now + hours(16)).expect("made");
    assert!(!same(&first, &renewed));
    assert!(!same(&renewed, &ca.config("a.example", true, now - hours(2)).expect("the clock was set back")));
    let serials = [ca.leaf("a.example", now), ca.leaf("b.a.example", now)];
    let [one, other] = serials.map(|leaf| leaf.expect("made").certificate.key.cert[0].to_vec());
    // An X.509 certificate begins with its version, and then its serial.
    assert_ne!(one.get(..32), other.get(..32));
}

#[test]
fn the_names_that_are_kept_are_bounded() {
    let ca = ca(&["example.com"]);
    let now = wall();
    for number in 0..LEAVES + 20 {
        let at = now + Duration::from_secs(number as u64);
        ca.config(&format!("n{number}.example.com"), true, at).expect("made");
    }
    let leaves = ca.leaves.lock().expect("no panic");
    assert!(leaves.len() <= LEAVES && !leaves.contains_key("n0.example.com"), "{}", leaves.len());
}

#[test]
fn a_ca_that_was_kept_goes_on_if_it_covers_the_hosts() {
    let first = ca(&["amazonaws.com", "api.github.com"]);
    let kept = first.kept();
    let again = Interception::again(&kept, &names(&["ec2.amazonaws.com", "api.github.com"]), wall());
    let again = again.expect("it covers them");
    assert_eq!((again.root(), again.kept()), (first.root(), kept.clone()));
    let name = "ec2.amazonaws.com";
    assert!(is_accepted(&first, &shown(&again, name), &ServerName::try_from(name).expect("a name")));
    assert!(!again.permits("sts.amazonaws.com"), "it signs for no more than is asked for now");
    for (kept, permitted, expected) in [
        (kept.as_str(), "github.com", "it may not sign for all hosts of gates with intercept = true"),
        ("", "amazonaws.com", "its file does not hold one key and two certificates"),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "x.com", "its file does not hold one key"),
    ] {
        let error = Interception::again(kept, &names(&[permitted]), wall()).expect_err("it is refused");
        assert!(error.starts_with(expected), "{error}");
    }
    // The key of one with the certificates of another.
    let other = ca(&["amazonaws.com", "api.github.com"]).kept();
    let begin = "-----BEGIN CERTIFICATE";
    let key = kept.split_once(begin).expect("there").0;
    let certificates = other.split_once(begin).expect("there").1;
    let mixed = format!("{key}{begin}{certificates}");
    assert!(Interception::again(&mixed, &names(&["amazonaws.com"]), wall()).is_err());
}

#[test]
fn openssl_accepts_the_chain_by_its_strict_checks_for_permitted_names_and_no_others() {
    let ca = ca(&["amazonaws.com", "api.github.com"]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, certificate: &CertificateDer<'_>| {
        let path = folder.path().join(name);
        fs::write(&path, armoured(certificate)).expect("written");
        path.display().to_string()
    };
    let root = file("root.pem", &ca.root);
    let intermediate = file("between.pem", &ca.chain[0]);
    let Some(hash) = run("openssl", &["x509", "-in", &root, "-noout", "-subject_hash"]) else { return };
    assert_eq!(format!("{}.0", String::from_utf8_lossy(&hash.stdout).trim()), Trust::HASHED);
    let name = "ec2.eu-central-1.amazonaws.com";
    let good = file("good.pem", &shown(&ca, name));
    let verify = |leaf: &str, more: &[&str]| {
        let base = ["verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", &root, "-untrusted", &intermediate];
        run("openssl", &[&base[..], more, &[leaf]].concat()).expect("it was here")
    };
    let verified = verify(&good, &["-verify_hostname", name]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    for name in ["github.com", "sts.example.com", "10.0.0.1"] {
        let verified = verify(&file("stolen.pem", &stolen(&ca, name)), &[]);
        let said = String::from_utf8_lossy(&verified.stderr).into_owned();
        assert!(!verified.status.success() && said.contains("subtree violation"), "{name}: {said}");
    }
    // Neither of the two may sign for another CA of the other's.
    let text = run("openssl", &["x509", "-in", &intermediate, "-noout", "-text"]).expect("it was here");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("X509v3 Name Constraints: critical") && text.contains("CA:TRUE, pathlen:0"), "{text}");
}

#[test]
fn java_reads_the_trust_store_with_its_password() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trust.jks");
    let trust = Trust::new(&ca(&["amazonaws.com"]), &[]);
    fs::write(&path, &trust.keystore).expect("written");
    let list = |path: &Path| {
        let path = path.display().to_string();
        run("keytool", &["-list", "-v", "-storetype", "JKS", "-keystore", &path, "-storepass", "changeit"])
    };
    let Some(listed) = list(&path) else { return };
    let said = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.status.success() && said.contains("CN=tidegate egress root"), "{said}");
    let roots = trust.bundle.matches("-----BEGIN CERTIFICATE-----").count();
    assert!(said.contains(&format!("Your keystore contains {roots} entr")), "{said}");
    let mut broken = trust.keystore;
    if let Some(last) = broken.last_mut() {
        *last ^= 1;
    }
    fs::write(&path, broken).expect("written");
    assert!(!list(&path).expect("it was here").status.success(), "the password's digest is checked");
}

#[test]
fn the_key_is_in_nothing_but_what_is_kept() {
    let ca = ca(&["amazonaws.com"]);
    let trust = Trust::new(&ca, &[]);
    let shown = format!("{ca:?} {trust:?} {} {}", trust.ca, trust.bundle);
    assert!(!shown.contains("PRIVATE KEY") && ca.kept().contains("PRIVATE KEY"));
    let key = ca.issuer.key().serialize_der();
    let secret = &key[36..68];
    assert!(!trust.keystore.windows(32).any(|window| window == secret));
}
