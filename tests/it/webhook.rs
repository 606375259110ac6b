//! `tidegate webhook` with a certificate from files: a client that trusts it has its review answered
//! over HTTP/1.1 and HTTP/2, and anything else is told what is expected.

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tidegate::tls::{self, Pem, Roots};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::cli::input::certificate;
use crate::command::{Running, end, start, tidegate};
use crate::faults::memory::Group;

mod policies;

/// A webhook's address, and what its clients trust.
struct Client {
    address: SocketAddr,
    roots: Roots,
}

/// A webhook that runs.
struct Webhook {
    process: Running,
    client: Client,
    _folder: tempfile::TempDir,
}

fn webhook() -> Webhook {
    limited("nofile=1024").0
}

/// A webhook under a limit of `prlimit`, and under 128 MiB where there can be a control group.
fn limited(limit: &str) -> (Webhook, Option<Group>) {
    let folder = tempfile::tempdir().expect("a folder");
    let made = certificate();
    let (cert, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    fs::write(&cert, made.cert.pem()).expect("written");
    fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let (cert, key) = (cert.display().to_string(), key.display().to_string());
    let webhook = tidegate([
        "webhook",
        "--listen",
        "127.0.0.1:0",
        "--cert",
        &cert,
        "--key",
        &key,
        "--image",
        "registry.example/tidegate:1",
        "--failure-policy",
        "fail",
    ]);
    let mut command = Command::new("prlimit");
    command.arg(format!("--{limit}")).arg(webhook.get_program()).args(webhook.get_args());
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    let mut process = start(command);
    let group = Group::limited("webhook", MEMORY);
    if let Some(group) = &group {
        group.take(process.id());
    }
    let line: Value = serde_json::from_str(&process.line("the webhook is listening")).expect("JSON");
    let address = line["listen"].as_str().expect("an address").parse().expect("an address");
    let roots = Roots::Only(Pem::new(made.cert.pem().into_bytes(), "the test"));
    (Webhook { process, client: Client { address, roots }, _folder: folder }, group)
}

/// The limit of the manifests.
const MEMORY: u64 = 128 << 20;

impl std::ops::Deref for Webhook {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Client {
    async fn connect(&self, http2: bool) -> TlsStream<TcpStream> {
        let mut config = (*tls::client(&self.roots, None).expect("a configuration")).clone();
        config.alpn_protocols = if http2 { vec![b"h2".to_vec()] } else { Vec::new() };
        let stream = TcpStream::connect(self.address).await.expect("it listens");
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("its certificate is trusted")
    }

    async fn ask(&self, http2: bool, method: &str, path: &str, body: &str) -> (StatusCode, String) {
        let stream = TokioIo::new(self.connect(http2).await);
        let uri = if http2 { format!("https://127.0.0.1{path}") } else { path.to_owned() };
        let request = Request::builder().method(method).uri(uri).header("host", "127.0.0.1");
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).expect("a request");
        let answer = if http2 {
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP/2");
            tokio::spawn(connection);
            sender.send_request(request).await
        } else {
            let (mut sender, connection) = http1::handshake(stream).await.expect("HTTP/1.1");
            tokio::spawn(connection);
            sender.send_request(request).await
        };
        let answer = answer.expect("an answer");
        let status = answer.status();
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }
}

fn request(annotations: &Value) -> String {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": annotations},
                     "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u-1", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE", "namespace": "app",
        "object": pod}})
    .to_string()
}

#[tokio::test]
async fn a_review_is_answered_over_tls_in_both_versions_of_http() {
    let webhook = webhook();
    for http2 in [false, true] {
        let (status, answer) = webhook.ask(http2, "POST", "/inject", &request(&json!({}))).await;
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        let response = &answer["response"];
        assert_eq!((status, &response["uid"], &response["allowed"]), (StatusCode::OK, &json!("u-1"), &json!(true)));
        assert_eq!(response["patchType"], "JSONPatch");
        // A limit of an annotation is checked as strictly as a configuration.
        let wrong = request(&json!({"tidegate.io/set": "bucket.rate=many"}));
        let (_, answer) = webhook.ask(http2, "POST", "/inject", &wrong).await;
        assert!(answer.contains("\"allowed\":false") && answer.contains("--set bucket.rate=many"), "{answer}");
    }
    for (method, path, body, status, says) in [
        ("GET", "/readyz", "", 200, "ok"),
        ("GET", "/livez", "", 200, "ok"),
        ("GET", "/inject", "", 404, "POST /inject"),
        ("POST", "/inject", "{}", 400, "AdmissionReview"),
        ("POST", "/inject", "not JSON", 400, "not JSON"),
    ] {
        let (found, said) = webhook.ask(false, method, path, body).await;
        assert!(found.as_u16() == status && said.contains(says), "{method} {path}: {found} {said}");
    }
}

/// A client that reads only after it has written everything loses an answer that comes before, with
/// its connection.
#[tokio::test]
async fn a_body_that_is_too_long_is_read_to_its_end_before_it_is_answered() {
    let webhook = webhook();
    let mut stream = webhook.connect(false).await;
    let length: usize = 24 << 20;
    let answer = send(&mut stream, "/inject", length, &vec![b' '; length]).await;
    assert!(answer.starts_with("HTTP/1.1 413 Payload Too Large"), "{answer}");
}

#[tokio::test]
async fn a_body_elsewhere_is_not_read() {
    let webhook = webhook();
    let mut stream = webhook.connect(false).await;
    let answer = send(&mut stream, "/elsewhere", 1 << 20, b"").await;
    assert!(answer.starts_with("HTTP/1.1 404 Not Found"), "{answer}");
}

/// Sends a body, and returns the beginning of the answer.
async fn send(stream: &mut TlsStream<TcpStream>, target: &str, length: usize, body: &[u8]) -> String {
    let head = format!("POST {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("a head");
    stream.write_all(body).await.expect("the body is read");
    stream.flush().await.expect("all of it");
    let mut answer = vec![0; 4096];
    let read = stream.read(&mut answer).await.expect("an answer");
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

/// Each kind at once: silent clients, bodies that lack a byte, and JSON that is large in memory.
#[tokio::test]
async fn a_flood_leaves_the_webhook_to_the_api_server() {
    crate::floods::more_files();
    let (webhook, _group) = limited("nofile=256");
    let served = async || {
        let (status, _) = webhook.ask(true, "POST", "/inject", &request(&json!({}))).await;
        assert_eq!((status, webhook.ask(false, "GET", "/readyz", "").await.0), (StatusCode::OK, StatusCode::OK));
    };
    let mut silent = Vec::new();
    for _ in 0..400 {
        silent.push(TcpStream::connect(webhook.address).await.expect("it listens"));
    }
    served().await;
    let mut bodies = Vec::new();
    for size in [1 << 20, 3 << 20].into_iter().cycle().take(40) {
        let mut stream = webhook.connect(false).await;
        let head = format!("POST /inject HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n", size + 1);
        // The largest are given up meanwhile.
        drop(stream.write_all(&[head.into_bytes(), vec![b' '; size]].concat()).await);
        bodies.push(stream);
        if bodies.len() % 10 == 0 {
            served().await;
        }
    }
    drop((bodies, silent));
    for value in ["{},", "[],", "{\"\":0},", "0,", "\"\","] {
        // What is just small enough is read, what is too large is refused.
        for length in [20 << 10, 80 << 10, 3 << 20] {
            let pod = format!("[{}0]", value.repeat(length / value.len()));
            let review = request(&json!({})).replace("\"p\"", &pod);
            let (status, said) = webhook.ask(false, "POST", "/inject", &review).await;
            assert!([200, 413].contains(&status.as_u16()), "{value} {length}: {status} {said}");
        }
    }
    served().await;
    let status = fs::read_to_string(format!("/proc/{}/status", webhook.process.id())).expect("it lives");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).map(str::trim).expect("Linux says so");
    println!("at most {most} resident");
    let kib: u64 = most.trim_end_matches(" kB").parse().expect("a number");
    assert!(kib << 10 < MEMORY, "{most}");
}

#[test]
fn what_the_webhook_cannot_work_with_is_named() {
    for (arguments, code, says) in [
        (&["--cert", "/nowhere/tls.crt", "--key", "/nowhere/tls.key"][..], 1, "/nowhere/tls.crt"),
        (&["--cert", "/nowhere/tls.crt"], 64, "--key"),
        (&["--set", "bucket.rate=many"], 78, "--set bucket.rate=many"),
        (&["--name", "a/b"], 1, "--name"),
        (&["--policies", "/nowhere/policies.toml"], 1, "cannot read /nowhere/policies.toml"),
        (&["--explain", "/nowhere/pod.yaml"], 64, "--policies"),
        (&[], 1, "KUBERNETES_SERVICE_HOST"),
    ] {
        let mut command = tidegate(["webhook"].iter().chain(arguments));
        command.env_remove("KUBERNETES_SERVICE_HOST");
        let ended = end(command);
        assert!(ended.code == Some(code) && ended.err.contains(says), "{arguments:?}: {:?} {}", ended.code, ended.err);
    }
}
