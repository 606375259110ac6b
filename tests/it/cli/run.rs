//! The output of `run` when it starts and when it ends, and the kubeconfig that points at it.

use std::path::Path;

use crate::cli::input::get;
use crate::command::{config, end, start, with_config};
use crate::ports::free_port;

fn plain(port: u16, more: &str) -> String {
    format!(
        "[admin]\nlisten = \"off\"\n{more}[gates.kubernetes]\nupstream = \"http://127.0.0.1:9\"\nlisten = \"127.0.0.1:{port}\"\n"
    )
}

#[test]
fn a_plain_gate_says_once_what_becomes_of_credentials() {
    let (_folder, path) = config(&plain(free_port(), ""));
    let mut gate = start(with_config("run", &path));
    gate.ready();
    let said = gate.end();
    let about: Vec<_> = said.iter().filter(|line| line.contains("Go clients")).collect();
    assert_eq!(about.len(), 1, "{said:#?}");
    assert!(about[0].contains("gates.kubernetes.credentials"), "what to do: {}", about[0]);
    let open = said.iter().find(|line| line.contains("gate open")).expect("it says that it is open");
    assert!(open.contains("pass_through") && open.contains("http://127.0.0.1:9"), "{open}");
}

#[test]
fn a_kubeconfig_s_identity_is_injected_on_loopback_and_said_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, KUBECONFIG).expect("it can be written");
    let path = folder.path().join("tidegate.toml");
    let text = format!(
        "[admin]\nlisten = \"off\"\n[gates.k]\nupstream = \"kubeconfig\"\nlisten = \"127.0.0.1:{}\"\n",
        free_port()
    );
    std::fs::write(&path, text).expect("it can be written");
    let mut command = with_config("run", &path);
    command.env("KUBECONFIG", &kubeconfig);
    let mut gate = start(command);
    gate.ready();
    let said = gate.end().join("\n");
    assert!(said.contains("credentials=\"inject\""), "{said}");
    assert!(
        said.contains("\\\"auto\\\" became \\\"inject\\\"") || said.contains("\"auto\" became \"inject\""),
        "{said}"
    );
    assert!(!said.contains("hunter2"), "no secret in the log\n{said}");
}

#[test]
fn a_kubeconfig_without_verification_is_warned_of() {
    let (folder, path) = config(&format!(
        "[admin]\nlisten = \"off\"\n[gates.k]\nupstream = \"kubeconfig\"\nlisten = \"127.0.0.1:{}\"\n",
        free_port()
    ));
    let kubeconfig = folder.path().join("kubeconfig");
    let text = KUBECONFIG.replace("'http://127.0.0.1:9'", "'https://127.0.0.1:9', insecure-skip-tls-verify: true");
    std::fs::write(&kubeconfig, text).expect("it can be written");
    let with = |what| {
        let mut command = with_config(what, &path);
        command.env("KUBECONFIG", &kubeconfig);
        command
    };
    let mut gate = start(with("run"));
    let line = gate.line("the kubeconfig turns TLS verification of 127.0.0.1:9 OFF");
    assert!(line.contains("WARN"), "{line}");
    gate.ready();
    gate.kill();
    for what in ["check", "doctor"] {
        let ended = end(with(what));
        let said = format!("{}{}", ended.out, ended.err);
        assert!(said.contains("TLS verification of 127.0.0.1:9 OFF"), "{what}: {said}");
    }
}

const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
current-context: c
contexts: [{ name: c, context: { cluster: c, user: u } }]
clusters: [{ name: c, cluster: { server: 'http://127.0.0.1:9' } }]
users: [{ name: u, user: { token: hunter2 } }]
";

#[test]
fn a_config_for_a_pod_can_be_checked_outside_of_it() {
    let (_folder, path) = config("[gates.kubernetes]\nupstream = \"in_cluster\"\n");
    let environment = |what| {
        let mut command = with_config(what, &path);
        command.env_remove("KUBERNETES_SERVICE_HOST");
        end(command)
    };
    let check = environment("check");
    assert_eq!(check.code, Some(0), "{}", check.err);
    assert!(check.err.contains("warning") && check.err.contains("KUBERNETES_SERVICE_HOST"), "{}", check.err);
    let run = environment("run");
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert!(run.err.contains("KUBERNETES_SERVICE_HOST"), "{}", run.err);
}

#[test]
fn an_upstream_name_that_nobody_knows_is_said_and_ends_nothing() {
    let (port, line) = (free_port(), "upstream = \"http://api.invalid:1\"\n");
    let (_folder, path) = config(&format!(
        "[admin]\nlisten = \"off\"\n[gates.api]\nkind = \"http\"\n{line}listen = \"127.0.0.1:{port}\"\n"
    ));
    let mut gate = start(with_config("run", &path));
    let said = gate.line("cannot be resolved");
    assert!(said.contains("api.invalid"), "{said}");
    if !gate.seen.iter().any(|line| line.contains("ready")) {
        gate.ready();
    }
    assert_eq!(gate.terminate(), Some(0));
}

#[test]
fn behind_a_proxy_only_the_proxy_s_name_is_looked_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, kubeconfig) = (folder.path().join("tidegate.toml"), folder.path().join("kubeconfig"));
    let cluster = "{ server: 'https://api.invalid', proxy-url: 'http://proxy.invalid:3128' }";
    std::fs::write(&kubeconfig, KUBECONFIG.replace("{ server: 'http://127.0.0.1:9' }", cluster))
        .expect("it can be written");
    let listen = format!("listen = \"127.0.0.1:{}\"\n", free_port());
    std::fs::write(&path, format!("[admin]\nlisten = \"off\"\n[gates.k]\nupstream = \"kubeconfig\"\n{listen}"))
        .expect("it can be written");
    let mut command = with_config("run", &path);
    command.env("KUBECONFIG", &kubeconfig);
    let mut gate = start(command);
    let said = gate.line("cannot be resolved");
    assert!(said.contains("the host name of the proxy") && said.contains("proxy.invalid"), "{said}");
    assert!(!gate.end().iter().any(|line| line.contains("name of the upstream")), "the proxy looks that up");
}

#[test]
fn a_plain_gate_before_a_cluster_warns_of_anonymous_calls() {
    for credentials in ["credentials = \"pass_through\"\n", ""] {
        let listen = format!("127.0.0.1:{}", free_port());
        let (_folder, path) = config(&format!(
            "[admin]\nlisten = \"off\"\n[gates.k]\nupstream = \"https://127.0.0.1:9\"\nlisten = {listen:?}\n{credentials}"
        ));
        let place =
            format!("{}:{}: gates.k.credentials: ", path.display(), if credentials.is_empty() { "3:8" } else { "6:1" });
        let check = end(with_config("check", &path));
        let warning =
            check.err.lines().find(|line| line.contains("anonymous")).unwrap_or_else(|| panic!("{}", check.err));
        assert!(warning.contains(&place) && warning.contains("gates.k.tls"), "{warning}");
        let mut gate = start(with_config("run", &path));
        let line = gate.line("anonymous");
        assert!(line.contains("WARN") && line.contains(&place), "{line}");
        let doctor = end(with_config("doctor", &path));
        let note =
            doctor.out.lines().find(|line| line.contains("anonymous")).unwrap_or_else(|| panic!("{}", doctor.out));
        assert!(note.starts_with("note") && note.contains(&place), "{note}");
    }
}

#[test]
fn a_gate_with_tls_or_without_a_cluster_warns_of_nothing() {
    for gate in [
        "upstream = \"https://127.0.0.1:9\"\ntls = { write_to = \"/nowhere/tls\" }\n",
        "upstream = \"http://127.0.0.1:9\"\n",
        "upstream = \"https://127.0.0.1:9\"\nkind = \"http\"\nrewrite_links = true\n",
    ] {
        let (_folder, path) = config(&format!("[gates.k]\n{gate}"));
        let check = end(with_config("check", &path));
        assert_eq!((check.code, check.err.as_str()), (Some(0), ""), "{gate}");
    }
}

#[test]
fn an_upstream_without_a_connection_is_logged_with_its_gate() {
    let port = free_port();
    let (_folder, path) = config(&plain(port, ""));
    let mut gate = start(with_config("run", &path));
    gate.ready();
    assert!(get(port, "/api").starts_with("HTTP/1.1 502"));
    let said = gate.line("the upstream cannot be reached");
    assert!(said.contains("gate=\"kubernetes\""), "{said}");
}

#[test]
fn a_client_without_a_certificate_is_said_once_and_not_at_every_attempt() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, ca, port) = (folder.path().join("tidegate.toml"), folder.path().join("clients.crt"), free_port());
    let made = rcgen::generate_simple_self_signed(vec!["client".to_owned()]).expect("a certificate");
    std::fs::write(&ca, made.cert.pem()).expect("it can be written");
    let tls = format!(
        "[gates.kubernetes.tls]\nclient_ca = {:?}\nwrite_to = {:?}\n",
        ca.display().to_string(),
        folder.path().join("out").display().to_string()
    );
    std::fs::write(&path, format!("{}{tls}", plain(port, ""))).expect("it can be written");
    let mut gate = start(with_config("run", &path));
    gate.ready();
    for _ in 0..3 {
        let mut config = (*tidegate::tls::client(&tidegate::tls::Roots::Unverified, None).expect("TLS")).clone();
        config.alpn_protocols.clear();
        let name = rustls::pki_types::ServerName::try_from("localhost").expect("a name");
        let mut session = rustls::ClientConnection::new(config.into(), name).expect("a session");
        let mut socket = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let mut stream = rustls::Stream::new(&mut session, &mut socket);
        let ended = std::io::Read::read(&mut stream, &mut [0]);
        assert!(ended.is_err_and(|error| error.to_string().contains("CertificateRequired")));
    }
    let said = gate.end();
    let about: Vec<_> = said.iter().filter(|line| line.contains("TLS handshake failed")).collect();
    assert_eq!(about.len(), 1, "{said:#?}");
    assert!(about[0].contains("it sent no certificate, and tls.client_ca requires one"), "{}", about[0]);
}

#[test]
fn calls_are_logged_where_the_configuration_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let (calls, port) = (folder.path().join("calls.jsonl"), free_port());
    let path = folder.path().join("tidegate.toml");
    let log = format!("[log]\ncalls = {:?}\n", calls.display().to_string());
    std::fs::write(&path, plain(port, &log)).expect("it can be written");
    let mut gate = start(with_config("run", &path));
    gate.ready();
    get(port, "/api/v1/namespaces/default/pods/web");
    assert_eq!(gate.terminate(), Some(0));
    let lines = std::fs::read_to_string(&calls).expect("it is there");
    assert!(lines.contains("\"pods\""), "{lines}");
}

#[test]
fn a_kubeconfig_points_at_a_plain_gate() {
    let (folder, path) = config(&plain(18473, ""));
    let printed = end(with_config("kubeconfig", &path));
    assert_eq!(printed.code, Some(0), "{}", printed.err);
    assert!(printed.out.contains("server: \"http://127.0.0.1:18473\""), "{}", printed.out);
    let file = folder.path().join("gate.yaml");
    let mut command = with_config("kubeconfig", &path);
    command.arg("--output").arg(&file);
    let written = end(command);
    assert_eq!((written.code, written.out.as_str()), (Some(0), ""), "{}", written.err);
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), printed.out);
}

#[test]
fn a_kubeconfig_that_cannot_work_says_what_to_set() {
    let tls = |write_to: &str| {
        config(&format!(
            "[gates.kubernetes]\nupstream = \"http://127.0.0.1:9\"\n[gates.kubernetes.tls]\nwrite_to = {write_to:?}\n"
        ))
    };
    let refused = |path: &Path, more: &[&str]| {
        let mut command = with_config("kubeconfig", path);
        command.args(more);
        let ended = end(command);
        assert_eq!(ended.code, Some(1), "{}", ended.out);
        ended.err
    };
    let (_folder, path) = tls("");
    assert!(refused(&path, &[]).contains("gates.kubernetes.tls.write_to"));
    let (_folder, path) = tls("/nowhere/tidegate");
    assert!(refused(&path, &[]).contains("/nowhere/tidegate/ca.crt"));
    assert!(refused(&path, &["--gate", "kubernetse"]).contains("the gates are: kubernetes"));
    let (_folder, path) = config("[gates.github]\nkind = \"http\"\nupstream = \"http://127.0.0.1:9\"\n");
    assert!(refused(&path, &[]).contains("github"));
}

#[test]
fn a_tls_gate_writes_what_its_kubeconfig_needs() {
    let folder = tempfile::tempdir().expect("a folder");
    let (shared, path) = (folder.path().join("shared"), folder.path().join("tidegate.toml"));
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, KUBECONFIG).expect("it can be written");
    let text = format!(
        "{}[gates.kubernetes.tls]\nmode = \"self_signed\"\nwrite_to = {:?}\n",
        plain(free_port(), "").replace("\"http://127.0.0.1:9\"", "\"kubeconfig\""),
        shared.display().to_string()
    );
    std::fs::write(&path, text).expect("it can be written");
    let command = |what| {
        let mut command = with_config(what, &path);
        command.env("KUBECONFIG", &kubeconfig);
        command
    };
    let mut gate = start(command("run"));
    gate.ready();
    let printed = end(command("kubeconfig"));
    assert!(printed.out.contains("tokenFile"), "the token is passed through\n{}", printed.out);
    assert_eq!(printed.code, Some(0), "{}", printed.err);
    let written = std::fs::read_to_string(shared.join("kubeconfig")).expect("the gate wrote it");
    assert_eq!(printed.out, written, "both say the same");
    assert_eq!(gate.terminate(), Some(0));
}
