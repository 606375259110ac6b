//! A pod of one's own: a test runs again in namespaces where it has the folders, names and
//! addresses that a pod has, and nothing else can be reached.

use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::fetched::say;
use crate::live::is_required;

/// The address of the API, which is not one of this pod.
pub(crate) const API: &str = "10.20.0.1";
/// The address of the API server of Kubernetes.
pub(crate) const IN_CLUSTER: &str = "10.96.0.1";

/// Runs the calling test again in a pod. True if this is that second run; only then must the test
/// go on.
pub(crate) fn is_in_pod(test: &str) -> bool {
    if std::env::var_os(IN_POD).is_some_and(|pod| pod == test) {
        return true;
    }
    let may = Command::new("unshare").args(NAMESPACES).arg("true").output();
    if !may.as_ref().is_ok_and(|may| may.status.success()) {
        assert!(!is_required(), "{test} needs `unshare {}`: {may:?}", NAMESPACES.join(" "));
        say(format_args!("SKIPPED {test}: this user may not `unshare {}`", NAMESPACES.join(" ")));
        return false;
    }
    let this = std::env::current_exe().expect("a test knows itself");
    let mut again = Command::new("unshare");
    again.args(NAMESPACES).arg(this).args(["--exact", test, "--nocapture"]).env(IN_POD, test);
    let done = again.output().expect("unshare was there a moment ago");
    let said = String::from_utf8_lossy(&done.stdout);
    said.lines().filter_map(|line| line.strip_prefix("tests: ")).for_each(say);
    assert!(done.status.success() && said.contains("1 passed"), "{said}\n{}", String::from_utf8_lossy(&done.stderr));
    false
}

/// Makes the pod: addresses, a hosts file with these names, an empty `/run`, and the system's roots,
/// of which there is one. Returns how servers with a certificate of that root speak TLS.
pub(crate) fn make(dir: &Path, names: &[(&str, String)]) -> ServerConfig {
    must("ip", ["link", "set", "lo", "up"]);
    for address in [API, IN_CLUSTER] {
        must("ip", ["address", "add", &format!("{address}/32"), "dev", "lo"]);
    }
    let lines: Vec<String> = names.iter().map(|(address, name)| format!("{address} {name}\n")).collect();
    let (hosts, roots) = (dir.join("hosts"), dir.join("roots"));
    fs::write(&hosts, format!("127.0.0.1 localhost\n{}", lines.concat())).expect("the folder is ours");
    fs::create_dir(&roots).expect("the folder is ours");
    let tls = servers(&roots, names);
    let bind = |from: &Path, to: &str| must("mount", [OsStr::new("--bind"), from.as_os_str(), OsStr::new(to)]);
    bind(&hosts, "/etc/hosts");
    bind(&roots, "/etc/ssl/certs");
    must("mount", ["-t", "tmpfs", "tmpfs", "/run"]);
    tls
}

/// Writes a root as a system has it, and returns how a server of all names speaks TLS.
fn servers(roots: &Path, names: &[(&str, String)]) -> ServerConfig {
    let (root_key, key) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
    let mut root = CertificateParams::new(Vec::new()).expect("no names");
    root.distinguished_name.push(DnType::CommonName, "a public root");
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    root.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = root.self_signed(&root_key).expect("a certificate");
    let file = roots.join("ca-certificates.crt");
    fs::write(&file, certificate.pem()).expect("the folder is ours");
    // As `update-ca-certificates` leaves it.
    let hash = Command::new("openssl").args(["x509", "-noout", "-hash", "-in"]).arg(&file).output();
    let hash = hash.expect("openssl runs").stdout;
    fs::copy(&file, roots.join(format!("{}.0", String::from_utf8_lossy(&hash).trim()))).expect("the folder is ours");

    let known = [API, IN_CLUSTER, "127.0.0.1"].map(str::to_owned);
    let all: Vec<String> = names.iter().map(|(_, name)| name.clone()).chain(known).collect();
    let mut leaf = CertificateParams::new(all).expect("names");
    leaf.use_authority_key_identifier_extension = true;
    let leaf = leaf.signed_by(&key, &Issuer::new(root, root_key)).expect("signed").der().clone();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![leaf], key)
        .expect("a key that fits")
}

/// The addresses at which a server of the pod is everyone.
pub(crate) fn addresses() -> [SocketAddr; 3] {
    [format!("{API}:443"), format!("{IN_CLUSTER}:443"), LOOPBACK.to_owned()].map(|text| text.parse().expect("one"))
}

/// Runs a command that must succeed.
pub(crate) fn must(program: &str, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) {
    must_run(Command::new(program).args(arguments));
}

pub(crate) fn must_run(command: &mut Command) {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// The same server on the pod's loopback, where port 443 is the gate's.
pub(crate) const LOOPBACK: &str = "127.0.0.1:8443";
const NAMESPACES: [&str; 4] = ["--user", "--map-root-user", "--net", "--mount"];
const IN_POD: &str = "TIDEGATE_TEST_IN_POD";
