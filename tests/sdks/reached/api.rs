//! A stand-in for an API over TLS, with HTTP/2, HTTP/1.1 and gRPC, under any name. It notes what
//! came.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::upstream::answer;
use crate::wire::Head;

/// A call as it came.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) host: String,
    /// The length of its body.
    pub(crate) length: usize,
}

/// The server; it lives as long as the process.
#[derive(Clone)]
pub(crate) struct Api {
    calls: Arc<Mutex<Vec<Call>>>,
    /// The folder of the repositories that it has for git.
    repositories: Arc<PathBuf>,
}

type Answer = Response<http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>>;

// === impl Api ===

impl Api {
    /// Starts one at these addresses.
    pub(crate) fn start(tls: rustls::ServerConfig, addresses: &[SocketAddr], repositories: &Path) -> Self {
        let api = Self { calls: Arc::default(), repositories: Arc::new(repositories.to_owned()) };
        let mut tls = tls;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        for address in addresses {
            let listener = std::net::TcpListener::bind(address).expect("the address is ours");
            listener.set_nonblocking(true).expect("a socket");
            let (api, acceptor) = (api.clone(), acceptor.clone());
            thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(api.listen(listener, acceptor));
            });
        }
        api
    }

    /// The calls to a host that came.
    pub(crate) fn came(&self, host: &str) -> Vec<Call> {
        let calls = self.calls.lock().expect("no panic");
        calls.iter().filter(|call| call.host == host).cloned().collect()
    }

    async fn listen(self, listener: std::net::TcpListener, acceptor: TlsAcceptor) {
        let listener = TcpListener::from_std(listener).expect("a socket");
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let (api, acceptor) = (self.clone(), acceptor.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let service = service_fn(move |request| api.clone().serve(request));
                // A client ends its connection as it likes.
                if http2 {
                    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    drop(server.serve_connection(TokioIo::new(stream), service).await);
                } else {
                    let server = hyper::server::conn::http1::Builder::new();
                    drop(server.serve_connection(TokioIo::new(stream), service).await);
                }
            });
        }
    }

    async fn serve(self, request: Request<Incoming>) -> Result<Answer, Infallible> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let named = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()).map(str::to_owned);
        let host = parts.uri.authority().map(ToString::to_string).or(named).unwrap_or_default();
        let host = host.split(':').next().unwrap_or_default().to_owned();
        self.calls.lock().expect("no panic").push(Call { host, length: body.len() });
        let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.starts_with("application/grpc") {
            return Ok(grpc());
        }
        if parts.uri.path().contains(".git/") {
            let repositories = Arc::clone(&self.repositories);
            let made = tokio::task::spawn_blocking(move || git(&repositories, &parts, &body)).await;
            return Ok(made.expect("no panic"));
        }
        let mut head = Head { line: format!("{} {}", parts.method, parts.uri.path()), ..Head::default() };
        for (name, value) in &parts.headers {
            head.fields.push((name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
        }
        let text = String::from_utf8_lossy(&body[..body.len().min(4096)]).into_owned();
        let (kind, text) = answer(&head, &text);
        let answer = Response::builder().header(header::CONTENT_TYPE, kind);
        Ok(answer.body(Full::from(text).boxed_unsync()).expect("a kind"))
    }
}

/// The answer to any call of gRPC: an empty message.
fn grpc() -> Answer {
    let trailers =
        HeaderMap::from_iter([(header::HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
    let message = Full::from(&[0_u8; 5][..]).with_trailers(async { Some(Ok(trailers)) });
    let answer = Response::builder().header(header::CONTENT_TYPE, "application/grpc");
    answer.body(message.boxed_unsync()).expect("a kind")
}

/// git's own server, a CGI program.
fn git(repositories: &Path, parts: &http::request::Parts, body: &[u8]) -> Answer {
    let field = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut command = Command::new("git");
    command.arg("http-backend").env("GIT_PROJECT_ROOT", repositories).env("GIT_HTTP_EXPORT_ALL", "1");
    command.env("PATH_INFO", parts.uri.path()).env("QUERY_STRING", parts.uri.query().unwrap_or_default());
    command.env("REQUEST_METHOD", parts.method.as_str()).env("CONTENT_TYPE", field("content-type"));
    command.env("HTTP_CONTENT_ENCODING", field("content-encoding")).env("GIT_PROTOCOL", field("git-protocol"));
    command.env("REMOTE_USER", "tests").env("CONTENT_LENGTH", body.len().to_string());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("git was found before");
    let (mut stdin, body) = (child.stdin.take().expect("piped"), body.to_vec());
    let writing = thread::spawn(move || drop(stdin.write_all(&body))); // it may not want all of it
    let out = child.wait_with_output().expect("it ends").stdout;
    writing.join().expect("no panic");
    let end = out.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(out.len());
    let head = String::from_utf8_lossy(&out[..end]).into_owned();
    let fields: HashMap<_, _> = head.lines().filter_map(|line| line.split_once(": ")).collect();
    let status = fields.get("Status").and_then(|status| status.get(..3)).unwrap_or("200");
    let kind = fields.get("Content-Type").copied().unwrap_or("text/plain");
    let content = Bytes::copy_from_slice(out.get(end + 4..).unwrap_or_default());
    let answer = Response::builder().status(status).header(header::CONTENT_TYPE, kind);
    answer.body(Full::new(content).boxed_unsync()).expect("a status")
}
