//! No credential shows anywhere: the binary runs at its most verbose log level with every form of
//! credential, gets correct and wrong calls, and then the test searches all its output.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tidegate::tls::{self, Pem, Roots};
use tokio_rustls::TlsConnector;

use crate::command::{start, with_config};
use crate::pool::support::{Server, answer};
use crate::ports::free_port;
use crate::support::{Backend, reply, within};

/// A text in every secret of this test.
const CANARY: &str = "canary-hunter2";

/// The kubeconfig's users, by name, as YAML.
fn users(folder: &Path, key: &str, cert: &str) -> Vec<(&'static str, String)> {
    let exec = |script: &str| {
        format!(
            "exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, args: [-c, '{script}', {CANARY}-argument], \
             env: [{{name: SECRET, value: {CANARY}-variable}}], interactiveMode: Never}}"
        )
    };
    let answer = format!(
        r#"echo "{{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{{\"token\":\"{CANARY}-exec\"}}}}""#
    );
    fs::write(folder.join("token"), format!("{CANARY}-file")).expect("written");
    vec![
        ("token", format!("token: {CANARY}-token, as: robot")),
        ("file", "tokenFile: token".to_owned()),
        ("basic", format!("username: admin, password: {CANARY}-password")),
        ("exec", exec(&answer)),
        ("broken", exec(&format!("echo {CANARY}-said; echo no login >&2; exit 1"))),
        ("garbled", exec(&format!("echo {CANARY}-garbled"))),
        ("certificate", format!("client-certificate-data: {cert}, client-key-data: {key}")),
    ]
}

/// Gates `plain_NAME` and `tls_NAME` for each user, and some more.
fn configuration(folder: &Path, names: &[&str], port: impl Fn(&str) -> u16, admin: u16, plain: &str) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    let mut text =
        format!("[admin]\nlisten = \"127.0.0.1:{admin}\"\n[log]\nlevel = \"trace\"\ncalls = {:?}\n", at("calls.jsonl"));
    for name in names {
        for cluster in ["plain", "tls"] {
            let gate = format!("{cluster}_{name}");
            text.push_str(&format!(
                "[gates.{gate}]\nupstream = \"kubeconfig:{gate}\"\nlisten = \"127.0.0.1:{}\"\n",
                port(&gate)
            ));
        }
    }
    text.push_str(&format!(
        "[gates.proxied]\nupstream = \"kubeconfig:proxied\"\nlisten = \"127.0.0.1:{}\"\n\
         [gates.passing]\nupstream = \"http://{plain}\"\nlisten = \"127.0.0.1:{}\"\n\
         [gates.lending]\nupstream = \"kubeconfig:tls_token\"\ncredentials = \"inject\"\nlisten = \"0.0.0.0:{}\"\n\
         tls.write_to = {:?}\n\
         [gates.http]\nkind = \"http\"\nupstream = \"http://{plain}\"\nlisten = \"127.0.0.1:{}\"\n\
         credential = {{ header = \"X-Api-Key\", prefix = \"\", file = {:?} }}\n",
        port("proxied"),
        port("passing"),
        port("lending"),
        at("out"),
        port("http"),
        at("token"),
    ));
    text
}

/// A call with every secret that a client could send.
fn call(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the gate listens");
    let protocol = STANDARD.encode(format!("{CANARY}-socket"));
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nAuthorization: Bearer {CANARY}-client\r\nCookie: a={CANARY}-cookie\r\n\
         Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.{protocol}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("it is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it is answered");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_credential_shows_at_any_level() {
    let folder = tempfile::tempdir().expect("a folder");
    let backend =
        Backend::start(|seen| async move { reply(if seen.target.contains("deny") { 401 } else { 200 }, "ok") }).await;
    let headers = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&headers);
    let server = Server::http2(100, move |request, _| {
        seen.lock().expect("no panic").push(request.headers().clone());
        async { answer("ok") }.boxed()
    })
    .await;
    let made = rcgen::generate_simple_self_signed(vec!["admin".to_owned()]).expect("a certificate");
    let key = made.signing_key.serialize_pem();
    let users = users(folder.path(), &STANDARD.encode(&key), &STANDARD.encode(made.cert.pem()));
    let names: Vec<&str> = users.iter().map(|(name, _)| *name).collect();
    write_kubeconfig(folder.path(), &backend.address.to_string(), &server, &users);

    let ports = Mutex::new(std::collections::HashMap::new());
    let port = |gate: &str| *ports.lock().expect("no panic").entry(gate.to_owned()).or_insert_with(free_port);
    let admin = free_port();
    let path = folder.path().join("tidegate.toml");
    let text = configuration(folder.path(), &names, port, admin, &backend.address.to_string());
    fs::write(&path, text).expect("written");
    let mut command = with_config("run", &path);
    command.env("KUBECONFIG", folder.path().join("kubeconfig"));
    let mut gate = start(command);
    gate.ready();

    let mut answers = Vec::new();
    for name in &names {
        for gate in [format!("plain_{name}"), format!("tls_{name}")] {
            for path in ["/api/v1/nodes/n", "/api/v1/nodes/deny", "/api/v1/pods?watch=true"] {
                answers.push(call(port(&gate), path));
            }
        }
    }
    for gate in ["proxied", "passing", "http"] {
        answers.push(call(port(gate), "/api/v1/nodes/n"));
    }
    let token = fs::read_to_string(folder.path().join("out/token")).expect("it was written");
    let ca = fs::read_to_string(folder.path().join("out/ca.crt")).expect("it was written");
    for shown in [token.as_str(), &format!("{CANARY}-wrong")] {
        answers.push(over_http2(port("lending"), &ca, shown).await);
    }
    for path in ["/metrics", "/status", "/readyz"] {
        answers.push(call(admin, path));
    }
    let log = gate.end();

    // the right credentials were sent, and no call passed without permission
    let shown = |name: &str| {
        let lists = headers
            .lock()
            .expect("no panic")
            .clone()
            .into_iter()
            .chain(backend.seen().into_iter().map(|seen| seen.headers));
        lists
            .flat_map(|headers| {
                headers.get_all(name).iter().map(|value| value.to_str().expect("text").to_owned()).collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    };
    let basic = STANDARD.encode(format!("admin:{CANARY}-password"));
    for expected in [
        format!("Bearer {CANARY}-token"),
        format!("Bearer {CANARY}-file"),
        format!("Bearer {CANARY}-exec"),
        format!("Bearer {CANARY}-client"),
        format!("Basic {basic}"),
    ] {
        assert!(shown("authorization").contains(&expected), "{expected} was sent");
    }
    assert!(shown("x-api-key").contains(&format!("{CANARY}-file")));
    assert!(!shown("authorization").iter().any(|line| line.contains(&token)), "the pod's token stays here");
    let count = |status: &str| answers.iter().filter(|answer| answer.starts_with(status)).count();
    assert!(count("HTTP/1.1 200") >= 10 && count("HTTP/1.1 401") >= 4 && count("HTTP/1.1 502") >= 9, "{answers:#?}");
    assert_eq!((count("HTTP/2.0 200"), count("HTTP/2.0 401")), (1, 1), "{answers:#?}");

    let key = key.lines().nth(1).expect("a line of a key").to_owned();
    let socket = STANDARD.encode(format!("{CANARY}-socket"));
    let calls = fs::read_to_string(folder.path().join("calls.jsonl")).expect("it was written");
    assert!(log.iter().any(|line| line.contains("TRACE")), "it ran at its most talkative");
    for said in log.iter().chain(&answers).chain([&calls]) {
        for secret in [CANARY, &token, &basic, &socket, &key, &STANDARD.encode(&key)] {
            assert!(!said.contains(secret), "{secret} in\n{said}");
        }
    }
}

fn write_kubeconfig(folder: &Path, plain: &str, server: &Server, users: &[(&str, String)]) {
    let ca = STANDARD.encode(server.ca.as_deref().expect("it speaks TLS"));
    let mut text = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: plain\n  cluster: {{server: 'http://{plain}'}}\n\
         - name: tls\n  cluster: {{server: 'https://{}', certificate-authority-data: {ca}}}\n\
         - name: proxied\n  cluster: {{server: 'http://{plain}', proxy-url: 'http://me:{CANARY}-proxy@127.0.0.1:9'}}\ncontexts:\n\
         - name: proxied\n  context: {{cluster: proxied, user: token}}\n",
        server.address
    );
    for (name, _) in users {
        for cluster in ["plain", "tls"] {
            text.push_str(&format!("- name: {cluster}_{name}\n  context: {{cluster: {cluster}, user: {name}}}\n"));
        }
    }
    text.push_str("users:\n");
    for (name, user) in users {
        text.push_str(&format!("- name: {name}\n  user: {{{user}}}\n"));
    }
    fs::write(folder.join("kubeconfig"), text).expect("written");
}

/// Makes a call over TLS and HTTP/2 with this token; returns status line and body.
async fn over_http2(port: u16, ca: &str, token: &str) -> String {
    let config = tls::client(&Roots::Only(Pem::new(ca.into(), "the gate's CA")), None).expect("a client");
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("the gate listens");
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = within(TlsConnector::from(config).connect(name, stream)).await.expect("trusts");
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("speaks h2");
    tokio::spawn(connection);
    let request = Request::get("https://localhost/api/v1/nodes/n").header("authorization", format!("Bearer {token}"));
    let response = within(client.send_request(request.body(Full::<Bytes>::default()).expect("valid"))).await;
    let (head, body) = response.expect("answered").into_parts();
    let body = within(body.collect()).await.expect("whole").to_bytes();
    format!("{:?} {}\n{}", head.version, head.status, String::from_utf8_lossy(&body))
}
