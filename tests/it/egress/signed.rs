//! P22: what a client has signed is what the API gets, over HTTP/1.1 and HTTP/2, through TLS that
//! the gate has opened. Signer and verifier know AWS's rules from its documents, and nothing of the
//! gate: the verifier works on what the API saw.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::{FutureExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use tidegate::tls;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::client::TlsStream;

use super::intercept::{ca, speak_tls};
use super::tunnels::tunnel;
use super::{Around, Listener, listener};
use crate::support::{status, within};

const S3: &str = "s3.eu-central-1.amazonaws.com";

/// A request as one side knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Signed {
    method: String,
    /// The path and the query, as they stand in the request.
    target: String,
    /// The fields in their order, with the host.
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    trailers: Vec<(String, String)>,
}

// === impl Signed ===

impl Signed {
    /// The signature over these fields: AWS Signature Version 4 of S3, whose paths are signed as they
    /// are sent.
    fn signature(&self, names: &[String]) -> String {
        let (path, query) = self.target.split_once('?').unwrap_or((&self.target, ""));
        let mut query: Vec<String> = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| if pair.contains('=') { pair.to_owned() } else { format!("{pair}=") })
            .collect();
        query.sort();
        let mut fields = String::new();
        for name in names {
            let values = self.fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
            let values: Vec<String> =
                values.map(|(_, value)| value.split_ascii_whitespace().collect::<Vec<_>>().join(" ")).collect();
            writeln!(fields, "{name}:{}", values.join(",")).expect("memory");
        }
        let body = hex(ring::digest::digest(&ring::digest::SHA256, &self.body).as_ref());
        let request = format!("{}\n{path}\n{}\n{fields}\n{}\n{body}", self.method, query.join("&"), names.join(";"));
        let request = hex(ring::digest::digest(&ring::digest::SHA256, request.as_bytes()).as_ref());
        let text = format!("AWS4-HMAC-SHA256\n20261123T000000Z\n20261123/eu-central-1/s3/aws4_request\n{request}");
        let keyed = |key: &[u8], text: &str| {
            let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key);
            ring::hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
        };
        let key = ["20261123", "eu-central-1", "s3", "aws4_request", &text];
        hex(&key.iter().fold(b"AWS4secret".to_vec(), |key, text| keyed(&key, text)))
    }

    /// Signs some of the fields, and the host always.
    fn sign(&mut self, which: &[bool]) {
        let mut names: Vec<String> = self.fields.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
        names.sort();
        names.dedup();
        let names: Vec<String> = names
            .into_iter()
            .enumerate()
            .filter(|(at, name)| name == "host" || which.get(*at).copied().unwrap_or(true))
            .map(|(_, name)| name)
            .collect();
        let credential = "Credential=AKIDEXAMPLE/20261123/eu-central-1/s3/aws4_request";
        let (signed, signature) = (names.join(";"), self.signature(&names));
        let value = format!("AWS4-HMAC-SHA256 {credential}, SignedHeaders={signed}, Signature={signature}");
        self.fields.push(("Authorization".to_owned(), value));
    }

    /// True if its signature is good.
    fn is_good(&self) -> bool {
        let shown = self.fields.iter().find(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        let part = |name: &str| Some(shown?.1.split_once(name)?.1.split(',').next().unwrap_or_default().to_owned());
        let (Some(names), Some(signature)) = (part("SignedHeaders="), part("Signature=")) else { return false };
        let names: Vec<String> = names.split(';').map(str::to_owned).collect();
        names.iter().any(|name| name == "host") && self.signature(&names) == signature
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("memory");
        text
    })
}

/// An API over TLS that keeps what it saw.
struct Api {
    address: SocketAddr,
    ca: String,
    seen: Arc<Mutex<Vec<Signed>>>,
}

impl Api {
    /// Each answer takes one of these permits.
    async fn start(protocol: &str, answers: Arc<Semaphore>) -> Self {
        let made = tls::self_signed(&[S3.to_owned()], &[], None).expect("a certificate");
        let mut config = (*made.config()).clone();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let api =
            Self { address: listener.local_addr().expect("bound"), ca: made.ca().to_string(), seen: Arc::default() };
        let (seen, http2) = (Arc::clone(&api.seen), protocol == "h2");
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, seen, answers) = (acceptor.clone(), Arc::clone(&seen), Arc::clone(&answers));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request| {
                        let (seen, answers) = (Arc::clone(&seen), Arc::clone(&answers));
                        async move {
                            see(request, &seen).await?;
                            answers.acquire().await.expect("open").forget();
                            Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from("ok"))))
                        }
                    });
                    let stream = TokioIo::new(stream);
                    if http2 {
                        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        server.serve_connection(stream, service).await.ok();
                    } else {
                        hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await.ok();
                    }
                });
            }
        });
        api
    }

    fn take(&self) -> Vec<Signed> {
        std::mem::take(&mut *self.seen.lock().expect("no panic"))
    }
}

async fn see(request: Request<Incoming>, seen: &Mutex<Vec<Signed>>) -> Result<(), hyper::Error> {
    let (parts, body) = request.into_parts();
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let mut fields: Vec<_> = parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    if let Some(authority) = parts.uri.authority() {
        fields.push(("host".to_owned(), authority.to_string()));
    }
    let collected = body.collect().await?;
    let trailers = collected.trailers().cloned().unwrap_or_default();
    let trailers = trailers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let body = collected.to_bytes().to_vec();
    seen.lock().expect("no panic").push(Signed { method: parts.method.to_string(), target, fields, body, trailers });
    Ok(())
}

/// A listener before an API, whose calls wait for a moment each but the first.
async fn intercepting(api: &Api, limits: &str) -> Listener {
    let text = format!(
        "[gates.aws]\nhosts = [{S3:?}]\ndialect = \"aws\"\npreset = \"none\"\nintercept = true\n{limits}\n\
         connect_to = {{ {S3:?} = \"{}\" }}\n",
        api.address
    );
    listener(&text, Around { ca: Some(api.ca.clone()), ..Around::default() }).await
}

async fn client(listener: &Listener, protocol: &str) -> TlsStream<TcpStream> {
    let stream = tunnel(listener, &format!("{S3}:443")).await;
    speak_tls(stream, &ca(listener), S3, &[protocol]).await.expect("it trusts the CA")
}

/// Sends a request over HTTP/1.1, byte for byte as it is. Returns the status.
async fn send_http1(mut stream: TlsStream<TcpStream>, request: &Signed) -> u16 {
    let mut text = format!("{} {} HTTP/1.1\r\n", request.method, request.target);
    for (name, value) in &request.fields {
        write!(text, "{name}:{value}\r\n").expect("memory");
    }
    let mut bytes = (text + "Connection: close\r\n\r\n").into_bytes();
    if request.trailers.is_empty() {
        bytes.extend(&request.body);
    } else {
        for piece in request.body.chunks(700) {
            bytes.extend(format!("{:x}\r\n", piece.len()).bytes());
            bytes.extend(piece);
            bytes.extend(b"\r\n");
        }
        bytes.extend(b"0\r\n");
        for (name, value) in &request.trailers {
            bytes.extend(format!("{name}: {value}\r\n").bytes());
        }
        bytes.extend(b"\r\n");
    }
    stream.write_all(&bytes).await.expect("sent");
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.ok();
    status(&String::from_utf8_lossy(&answer))
}

/// Sends it over HTTP/2, as far as that has the same words. Returns the status.
async fn send_http2(stream: TlsStream<TcpStream>, request: &Signed) -> u16 {
    let (mut send, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("h2");
    tokio::spawn(connection);
    let fields = |fields: &[(String, String)]| {
        let known = |(name, value): &(String, String)| {
            let name = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes()).expect("a name");
            (name, HeaderValue::from_str(value.trim()).expect("a value"))
        };
        fields.iter().map(known).collect::<HeaderMap>()
    };
    let mut made = Request::new(());
    *made.method_mut() = request.method.parse::<Method>().expect("a method");
    *made.uri_mut() = format!("https://{S3}{}", request.target).parse().expect("a target");
    for (name, value) in &fields(&request.fields) {
        if !["host", "transfer-encoding", "trailer"].contains(&name.as_str()) {
            made.headers_mut().append(name, value.clone());
        }
    }
    let mut frames = vec![Ok::<_, std::io::Error>(Frame::data(Bytes::from(request.body.clone())))];
    if !request.trailers.is_empty() {
        frames.push(Ok(Frame::trailers(fields(&request.trailers))));
    }
    let body = if request.body.is_empty() && request.trailers.is_empty() {
        Full::default().map_err(|never| match never {}).boxed()
    } else {
        StreamBody::new(stream::iter(frames)).boxed()
    };
    within(send.send_request(made.map(|()| body))).await.expect("answered").status().as_u16()
}

/// The value of a field, with white space that is signed as if it were less.
fn value() -> impl Strategy<Value = String> {
    "[ \\t]{0,3}[A-Za-z0-9;=/+.,:\"-]{1,12}([ ]{1,4}[A-Za-z0-9;=/+.,:\"-]{1,8}){0,2}[ \\t]{0,2}"
}

/// Any request that a signer makes. S3's keys are paths of any form.
fn request() -> impl Strategy<Value = Signed> {
    let piece = select(vec![
        "/",
        "a",
        "..",
        ".",
        "%2F",
        "%25",
        "%20",
        "//",
        "+",
        "=",
        "~",
        "%E2%98%83",
        "key",
        ":",
        "@",
        "!",
        "*",
        "(",
        ")",
        "'",
        ";",
        ",",
    ]);
    let path = vec(piece, 0..9).prop_map(|pieces| format!("/{}", pieces.concat()));
    let pair = "[a-z-]{1,8}(=[A-Za-z0-9%][A-Za-z0-9_.~-]{0,6})?".prop_map(|pair| pair.replace('%', "%2F"));
    let query = vec(pair, 0..4)
        .prop_map(|pairs| if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) });
    let name = select(vec![
        "Accept-Encoding",
        "amz-sdk-invocation-id",
        "amz-sdk-request",
        "Cache-Control",
        "Content-Type",
        "If-None-Match",
        "Range",
        "User-Agent",
        "X-Amz-Date",
        "x-amz-meta-Odd",
        "X-AMZ-META-b",
        "x-amz-user-agent",
    ]);
    let fields = vec((name, value()), 0..9);
    let method = select(vec!["GET", "PUT", "POST", "DELETE"]);
    (method, path, query, fields, vec(any::<u8>(), 0..3_000), any::<bool>()).prop_map(
        |(method, path, query, fields, body, has_trailers)| {
            let mut fields: Vec<_> = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            fields.push(("Host".to_owned(), S3.to_owned()));
            let (mut body, mut trailers) = (body, Vec::new());
            if method == "GET" || method == "DELETE" {
                body.clear();
            } else if has_trailers {
                fields.push(("Transfer-Encoding".to_owned(), "chunked".to_owned()));
                fields.push(("Trailer".to_owned(), "x-amz-checksum-crc32c".to_owned()));
                trailers.push(("x-amz-checksum-crc32c".to_owned(), "sOO8/Q==".to_owned()));
            } else {
                fields.push(("Content-Length".to_owned(), body.len().to_string()));
            }
            Signed { method: method.to_owned(), target: format!("{path}{query}"), fields, body, trailers }
        },
    )
}

#[test]
fn what_was_signed_is_good_behind_tls_that_was_opened() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for (of_client, of_api) in [("http/1.1", "http/1.1"), ("http/1.1", "h2"), ("h2", "h2")] {
        let (api, listener) = runtime.block_on(async {
            let api = Api::start(of_api, Arc::new(Semaphore::new(Semaphore::MAX_PERMITS))).await;
            let listener = intercepting(&api, "bucket = { rate = 500, burst = 1 }\nqueue.max_wait = \"30s\"").await;
            (api, listener)
        });
        let mut runner = TestRunner::new(Config { cases: 60, failure_persistence: None, ..Config::default() });
        let passed = runner.run(&(request(), vec(any::<bool>(), 12)), |(mut request, which)| {
            let framing = ["transfer-encoding", "trailer"];
            let mut signing = Signed { fields: Vec::new(), ..request.clone() };
            // How a body is framed is between two hops, and no signer signs it.
            signing.fields = request.fields.clone();
            signing.fields.retain(|(name, _)| !framing.contains(&name.to_ascii_lowercase().as_str()));
            signing.sign(&which);
            request.fields.extend(signing.fields.pop());
            prop_assert!(request.is_good(), "the signer and the verifier are of one mind: {request:?}");
            let status = runtime.block_on(async {
                let stream = client(&listener, of_client).await;
                if of_client == "h2" { send_http2(stream, &request).await } else { send_http1(stream, &request).await }
            });
            let seen = api.take();
            prop_assert_eq!(status, 200, "{} to {}: {:?} {:?}", of_client, of_api, request, seen);
            prop_assert_eq!(seen.len(), 1);
            let mut seen = seen.into_iter().next().expect("one");
            prop_assert!(seen.is_good(), "{of_client} to {of_api}: {request:?} came as {seen:?}");
            prop_assert_eq!(&seen.trailers, &request.trailers);
            seen.body.push(b'x');
            prop_assert!(!seen.is_good(), "the verifier looks at the body");
            Ok(())
        });
        passed.unwrap_or_else(|error| panic!("{of_client} to {of_api}: {error}"));
    }
}

/// As S3's SDKs send a stream: chunks with signatures of their own and a checksum at their end, all
/// of it content of a known length.
#[tokio::test]
async fn an_upload_in_signed_chunks_is_content_that_nobody_touches() {
    let mut body = Vec::new();
    for _ in 0..3 {
        body.extend(format!("10000;chunk-signature={}\r\n", "a".repeat(64)).bytes());
        body.extend([b'x'; 0x1_0000]);
        body.extend(b"\r\n");
    }
    body.extend(
        format!(
            "0;chunk-signature={0}\r\nx-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:{0}\r\n\r\n",
            "b".repeat(64)
        )
        .bytes(),
    );
    let fields = [
        ("Host", S3.to_owned()),
        ("Content-Encoding", "aws-chunked".to_owned()),
        ("Content-Length", body.len().to_string()),
        ("X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER".to_owned()),
        ("X-Amz-Decoded-Content-Length", (3 * 0x1_0000).to_string()),
        ("X-Amz-Trailer", "x-amz-checksum-crc32c".to_owned()),
    ];
    let fields = fields.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let mut request =
        Signed { method: "PUT".to_owned(), target: "/bucket/k//..%2F".to_owned(), fields, body, trailers: Vec::new() };
    request.sign(&[]);
    for (of_client, of_api) in [("http/1.1", "http/1.1"), ("http/1.1", "h2"), ("h2", "h2")] {
        let api = Api::start(of_api, Arc::new(Semaphore::new(Semaphore::MAX_PERMITS))).await;
        let listener = intercepting(&api, "").await;
        let stream = client(&listener, of_client).await;
        let status =
            if of_client == "h2" { send_http2(stream, &request).await } else { send_http1(stream, &request).await };
        let seen = api.take();
        assert_eq!((status, seen.len()), (200, 1), "{of_client} to {of_api}");
        assert!(seen[0].is_good() && seen[0].body == request.body, "{of_client} to {of_api}: {:?}", seen[0].fields);
        let length = seen[0].fields.iter().find(|(name, _)| name == "content-length").map(|(_, value)| value.as_str());
        assert_eq!(length, Some(&*request.body.len().to_string()), "a length that is known stays known");
    }
}

async fn has_waiting(listener: &Listener) -> bool {
    let (_, gate) = listener.egress.origins("aws").into_iter().next().expect("it was called");
    gate.status(false).await.waiting > 0
}

#[tokio::test]
async fn a_signed_upload_that_waits_is_not_told_to_send_its_body_before_it_leaves() {
    let answers = Arc::new(Semaphore::new(0));
    let api = Api::start("http/1.1", Arc::clone(&answers)).await;
    let listener = intercepting(&api, "in_flight.max = 1\nqueue.max_wait = \"30s\"").await;
    let mut first = client(&listener, "http/1.1").await;
    first.write_all(format!("GET /first HTTP/1.1\r\nHost: {S3}\r\n\r\n").as_bytes()).await.expect("sent");
    within(async {
        while api.seen.lock().expect("no panic").is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;

    let mut request =
        Signed { method: "PUT".to_owned(), target: "/b/k".to_owned(), body: b"body".to_vec(), ..Signed::default() };
    request.fields = vec![("Host".to_owned(), S3.to_owned()), ("Content-Length".to_owned(), "4".to_owned())];
    request.sign(&[]);
    let mut head = "PUT /b/k HTTP/1.1\r\nExpect: 100-continue\r\nConnection: close\r\n".to_owned();
    for (name, value) in &request.fields {
        write!(head, "{name}: {value}\r\n").expect("memory");
    }
    let mut waits = client(&listener, "http/1.1").await;
    waits.write_all(format!("{head}\r\n").as_bytes()).await.expect("sent");
    within(async {
        while !has_waiting(&listener).await {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(waits.read_u8().now_or_never().is_none(), "nothing is said before the permit");
    answers.add_permits(2);
    let mut told = [0; 25];
    within(waits.read_exact(&mut told)).await.expect("told");
    assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
    waits.write_all(b"body").await.expect("sent");
    let mut answer = Vec::new();
    within(waits.read_to_end(&mut answer)).await.ok();
    assert_eq!(status(&String::from_utf8_lossy(&answer)), 200);
    let seen = api.take();
    assert!(seen[1].is_good() && seen[1].body == b"body", "{seen:?}");
}
