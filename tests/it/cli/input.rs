//! Bad input: each message says what is wrong, where, and what to do; nothing panics; `check` and
//! `run` agree.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::command::{Ended, config, end, start, tidegate, with_config};
use crate::ports::free_port;

/// Runs `check` and `run` on the same file; both must refuse it with the same words. Returns those
/// words.
fn refused(text: &str) -> String {
    let (_folder, path) = config(text);
    let [check, run] = ["check", "run"].map(|what| end(with_config(what, &path)));
    assert_eq!((check.code, run.code), (Some(78), Some(78)), "{text}\n{}\n{}", check.err, run.err);
    assert_eq!(check.err, run.err, "check and run agree");
    assert!(check.out.is_empty(), "{}", check.out);
    unpanicked(&check);
    check.err.replace(&path.display().to_string(), "FILE")
}

fn unpanicked(ended: &Ended) {
    assert!(!ended.err.contains("panicked"), "{}", ended.err);
}

/// The line that contains all of these.
fn line<'a>(said: &'a str, parts: &[&str]) -> &'a str {
    let found = said.lines().find(|line| parts.iter().all(|part| line.contains(part)));
    found.unwrap_or_else(|| panic!("no line has all of {parts:?}:\n{said}"))
}

const GATE: &str = "[gates.api]\nkind = \"http\"\nupstream = \"http://127.0.0.1:9\"\n";

#[test]
fn an_unknown_key_is_placed_and_the_near_one_named() {
    let said = refused(&format!("{GATE}bukcet = {{ rate = 1, burst = 1 }}\n"));
    line(&said, &["FILE:4:1:", "gates.api.bukcet", "bucket"]);
}

/// A self-signed certificate and its key in files, and the lines of `tls` that name them.
fn files(folder: &std::path::Path, cert: &str, key: &str) -> String {
    let (cert_file, key_file) = (folder.join("tls.crt"), folder.join("tls.key"));
    std::fs::write(&cert_file, cert).expect("it can be written");
    std::fs::write(&key_file, key).expect("it can be written");
    format!(
        "tls = {{ mode = \"files\", cert = {:?}, key = {:?} }}\n",
        cert_file.display().to_string(),
        key_file.display().to_string()
    )
}

#[test]
fn a_key_of_another_certificate_is_one_placed_problem() {
    let folder = tempfile::tempdir().expect("a folder");
    let tls = files(folder.path(), &certificate().cert.pem(), &certificate().signing_key.serialize_pem());
    let said = refused(&format!("{GATE}rewrite_links = true\n{tls}"));
    assert_eq!(said.matches("the private key belongs to another certificate").count(), 1, "{said}");
    line(&said, &["FILE:5:1: gates.api.tls: the certificate in "]);
    assert!(!said.contains("KeyMismatch"), "{said}");
}

#[test]
fn a_certificate_out_of_its_time_is_placed_and_dated() {
    for (from, to, what) in
        [(2001, 2002, "has expired at Tue, 01 Jan 2002"), (2090, 2091, "is not valid before Sun, 01 Jan 2090")]
    {
        let folder = tempfile::tempdir().expect("a folder");
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(from, 1, 1), rcgen::date_time_ymd(to, 1, 1));
        let cert = params.self_signed(&key).expect("a certificate");
        let tls = files(folder.path(), &cert.pem(), &key.serialize_pem());
        let (_folder, path) = config(&format!("{GATE}rewrite_links = true\n{tls}"));
        let place = format!("{}:5:", path.display());
        let check = end(with_config("check", &path));
        assert_eq!(check.code, Some(0), "it can be renewed while the gate runs: {}", check.err);
        line(&check.err, &["warning", &place, "gates.api.tls.cert", what]);
        let doctor = end(with_config("doctor", &path));
        assert_eq!(doctor.code, Some(1));
        line(&doctor.out, &["WRONG  configuration: ", &place, what]);
    }
}

#[test]
fn a_wrong_type_is_placed_and_the_right_one_named() {
    let said = refused(&format!("{GATE}[gates.api.bucket]\nrate = \"fast\"\nburst = 3\n"));
    line(&said, &["FILE:5:", "gates.api.bucket.rate", "number"]);
}

#[test]
fn a_burst_of_zero_is_no_burst() {
    let said = refused(&format!("{GATE}bucket = {{ rate = 5, burst = 0 }}\n"));
    line(&said, &["FILE:4:", "gates.api.bucket.burst", "1"]);
}

#[test]
fn a_burst_needs_a_rate_where_no_preset_has_one() {
    let said = refused(&format!("{GATE}preset = \"none\"\nbucket = {{ burst = 5 }}\n"));
    line(&said, &["FILE:5:", "gates.api.bucket", "rate"]);
}

#[test]
fn two_gates_cannot_share_a_port() {
    let said = refused(
        "[gates.a]\nupstream = \"http://127.0.0.1:9\"\nlisten = \"127.0.0.1:18001\"\n\
         [gates.b]\nupstream = \"http://127.0.0.1:9\"\nlisten = \"127.0.0.1:18001\"\n",
    );
    line(&said, &["FILE:6:", "gates.b.listen", "127.0.0.1:18001"]);
}

#[test]
fn an_unreadable_ca_is_named() {
    let said = refused(
        "[gates.api]\nkind = \"http\"\nupstream = \"https://127.0.0.1:9\"\nupstream_tls = { ca = \"/nowhere/ca.crt\" }\n",
    );
    line(&said, &["gates.api.upstream_tls.ca", "/nowhere/ca.crt"]);
}

#[test]
fn a_ca_without_certificates_is_named() {
    let (folder, _) = config("");
    let ca = folder.path().join("ca.crt");
    std::fs::write(&ca, "this is no certificate\n").expect("it can be written");
    let text = format!(
        "[gates.api]\nkind = \"http\"\nupstream = \"https://127.0.0.1:9\"\nupstream_tls = {{ ca = {:?} }}\n",
        ca.display().to_string()
    );
    line(&refused(&text), &["gates.api.upstream_tls.ca", "ca.crt"]);
}

#[test]
fn malformed_toml_is_placed() {
    let said = refused("[gates.api\nupstream = \"x\"\n");
    line(&said, &["FILE:1:"]);
}

#[test]
fn all_problems_are_listed_at_once() {
    let said = refused(&format!("{GATE}colour = \"blue\"\n[gates.api.bucket]\nrate = -1\nburst = 0\n"));
    for parts in [["FILE:4:", "colour"], ["FILE:6:", "rate"], ["FILE:7:", "burst"]] {
        line(&said, &parts);
    }
    line(&said, &["3 problems"]);
}

#[test]
fn a_variable_that_is_not_text_is_named() {
    use std::os::unix::ffi::OsStrExt as _;
    let (_folder, path) = config(GATE);
    let mut command = with_config("check", &path);
    command.env("TIDEGATE__GATES__API__BUCKET__RATE", std::ffi::OsStr::from_bytes(b"5\xff"));
    let ended = end(command);
    assert_eq!(ended.code, Some(78), "{}", ended.err);
    line(&ended.err, &["TIDEGATE__GATES__API__BUCKET__RATE: gates.api.bucket.rate: is not UTF-8 text"]);
}

#[test]
fn a_bad_variable_is_named() {
    let (_folder, path) = config(GATE);
    for (name, value) in [("TIDEGATE__GATES__API__BUCKET__RATE", "fast"), ("TIDEGATE__GATES__API__BUKCET__RATE", "5")] {
        let [check, run] = ["check", "run"].map(|what| {
            let mut command = with_config(what, &path);
            command.env(name, value);
            end(command)
        });
        assert_eq!((check.code, run.code), (Some(78), Some(78)), "{}\n{}", check.err, run.err);
        assert_eq!(check.err, run.err);
        line(&check.err, &[name]);
        unpanicked(&check);
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let ended = end(tidegate(["run", "--config", "/nowhere/tidegate.toml"]));
    assert_eq!(ended.code, Some(78), "{}", ended.err);
    line(&ended.err, &["/nowhere/tidegate.toml"]);
}

#[test]
fn check_takes_a_file_and_every_example_passes_anywhere() {
    for file in ["config/example.toml", "config/github.toml", "config/crossplane.toml"] {
        let mut command = tidegate(["check", file]);
        command.current_dir(env!("CARGO_MANIFEST_DIR")).env_remove("KUBERNETES_SERVICE_HOST").env("HOME", "/nowhere");
        let ended = end(command);
        assert_eq!(ended.code, Some(0), "{file}\n{}", ended.err);
        assert!(ended.out.starts_with("# gate ") && ended.out.contains("\n\n[admin]\n"), "{}", ended.out);
        assert!(ended.err.lines().all(|line| line.starts_with("warning: missing on this machine: ")), "{}", ended.err);
    }
    let ended = end(tidegate(["check", "/nowhere/tidegate.toml"]));
    assert!(ended.code == Some(78) && ended.err.starts_with("/nowhere/tidegate.toml: cannot be read"), "{}", ended.err);
    let ended = end(tidegate(["check", "a.toml", "--config", "b.toml"]));
    assert!(ended.code == Some(64) && ended.err.contains("cannot be used with"), "{}", ended.err);
}

#[test]
fn without_cluster_and_kubeconfig_it_says_what_is_missing() {
    let mut command = tidegate(["run"]);
    command.env("HOME", "/nowhere").env_remove("KUBERNETES_SERVICE_HOST");
    let ended = end(command);
    assert_ne!(ended.code, Some(0));
    assert!(ended.err.contains("kubeconfig"), "{}", ended.err);
    unpanicked(&ended);
}

#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    let address = taken.local_addr().expect("it is bound").to_string();
    let (_folder, path) = config(&format!("[admin]\nlisten = \"off\"\n{GATE}listen = \"{address}\"\n"));
    let ended = end(with_config("run", &path));
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    line(&ended.err, &["api", &address, "in use"]);
}

#[test]
fn the_reason_of_a_failed_bind_is_the_kernels() {
    let failed = |admin: &str, listen: &str| {
        let text = format!(
            "[admin]\nlisten = {admin:?}\nsocket = \"off\"\n[gates.k]\nupstream = \"http://127.0.0.1:9\"\nlisten = {listen:?}\n"
        );
        let (_folder, path) = config(&text);
        let ended = end(with_config("run", &path));
        assert_eq!(ended.code, Some(1), "{}", ended.err);
        ended.err
    };
    // An address of documentation (RFC 5737), which no machine has.
    let said = failed("off", "192.0.2.1:8001");
    assert!(said.contains("no network interface of this machine has that address: Cannot assign"), "{said}");
    let said = failed("192.0.2.1:9464", "127.0.0.1:0");
    assert!(said.contains("the admin port cannot listen on 192.0.2.1:9464; no network interface"), "{said}");
    let folder = tempfile::tempdir().expect("a folder");
    let said = failed("off", &format!("unix:{}/none/x.sock", folder.path().display()));
    assert!(said.contains("/none/x.sock; its folder does not exist: No such file"), "{said}");
}

#[test]
fn an_upstream_that_is_not_there_is_a_502_with_a_status_and_one_line_in_the_log() {
    let (port, nobody) = (free_port(), free_port());
    let (_folder, path) = config(&format!(
        "[admin]\nlisten = \"off\"\n[gates.api]\nupstream = \"http://127.0.0.1:{nobody}\"\nlisten = \"127.0.0.1:{port}\"\n"
    ));
    let mut gate = start(with_config("run", &path));
    gate.ready();
    for _ in 0..3 {
        let answer = get(port, "/api/v1/namespaces/default/pods/web");
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        assert!(answer.contains("\"kind\":\"Status\""), "{answer}");
    }
    let reason = gate.line(&nobody.to_string());
    assert!(reason.contains("refused"), "the log says why\n{reason}");
    let seen_before = gate.seen.len();
    let said = gate.end();
    let again = said[seen_before..].iter().filter(|line| line.contains(&nobody.to_string())).count();
    assert_eq!(again, 0, "once is enough\n{}", said.join("\n"));
}

/// One GET by hand.
pub(crate) fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the gate listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it is answered");
    answer
}

#[test]
fn an_upstream_with_a_wrong_certificate_is_a_502_and_the_log_says_why() {
    let (folder, path) = config("");
    let (ours, theirs) = (certificate(), certificate());
    let ca = folder.path().join("ca.crt");
    std::fs::write(&ca, ours.cert.pem()).expect("it can be written");
    let (upstream, port) = (tls_server(&theirs), free_port());
    let text = format!(
        "[admin]\nlisten = \"off\"\n[gates.api]\nupstream = \"https://127.0.0.1:{upstream}\"\nlisten = \"127.0.0.1:{port}\"\n\
         upstream_tls = {{ ca = {:?} }}\n",
        ca.display().to_string()
    );
    std::fs::write(&path, text).expect("it can be written");
    let mut gate = start(with_config("run", &path));
    gate.ready();
    let answer = get(port, "/api/v1/nodes/n");
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    let reason = gate.line(&upstream.to_string());
    assert!(reason.contains("certificate"), "the log says why\n{reason}");
    assert_eq!(gate.terminate(), Some(0));
}

pub(crate) fn certificate() -> rcgen::CertifiedKey<rcgen::KeyPair> {
    rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate")
}

/// Accepts TLS with this certificate until the test process ends. Returns the port.
pub(crate) fn tls_server(identity: &rcgen::CertifiedKey<rcgen::KeyPair>) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    let port = listener.local_addr().expect("it is bound").port();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(identity.signing_key.serialize_der()).into();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring speaks them")
        .with_no_client_auth()
        .with_single_cert(vec![identity.cert.der().clone()], key)
        .expect("certificate and key go together");
    let config = std::sync::Arc::new(config);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut session = rustls::ServerConnection::new(config.clone()).expect("the configuration was checked");
            // The gate is expected to hang up.
            drop(session.complete_io(&mut stream));
        }
    });
    port
}
