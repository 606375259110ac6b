//! A client whose connections the test controls: one connection, one protocol, no retries.

use std::fs;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::control_plane::User;
use super::gate::Way;

/// The protocol that a connection asks for by ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// The content type of a body: a PATCH with a field manager is an apply, and one with a list a JSON patch.
fn content_type(method: &Method, path: &str, body: &str) -> &'static str {
    match (method.as_str(), body.as_bytes()) {
        ("PATCH", _) if path.contains("fieldManager=") => "application/apply-patch+yaml",
        ("PATCH", [b'[', ..]) => "application/json-patch+json",
        ("PATCH", _) => "application/merge-patch+json",
        _ => "application/json",
    }
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// One connection of one user. Dropping it closes it.
pub(crate) struct Connection {
    sender: Sender,
    driver: tokio::task::JoinHandle<()>,
    token: String,
    agent: String,
    port: u16,
    base: String,
}

/// A TLS stream to the API server or the gate, with nothing sent yet.
pub(crate) async fn dial(way: Way<'_>, protocol: Protocol) -> TlsStream<TcpStream> {
    let pem = fs::read(way.ca_file()).expect("the CA is written before anyone connects");
    let mut roots = RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(&pem) {
        roots.add(cert.expect("a PEM certificate")).expect("a CA certificate");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![match protocol {
        Protocol::Http1 => b"http/1.1".to_vec(),
        Protocol::Http2 => b"h2".to_vec(),
    }];
    let stream = TcpStream::connect(("127.0.0.1", way.port())).await.expect("somebody listens");
    stream.set_nodelay(true).expect("a TCP socket");
    let name = ServerName::try_from("127.0.0.1").expect("a valid name");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("TLS is agreed on")
}

impl Connection {
    pub(crate) async fn open(way: Way<'_>, user: &User, protocol: Protocol) -> Self {
        let io = TokioIo::new(dial(way, protocol).await);
        let (sender, driver) = match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(io).await.expect("HTTP/1.1");
                (Sender::Http1(sender), tokio::spawn(async move { drop(connection.await) }))
            }
            Protocol::Http2 => {
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(1 << 20)
                    .initial_connection_window_size(1 << 26)
                    .handshake(io)
                    .await
                    .expect("h2");
                (Sender::Http2(sender), tokio::spawn(async move { drop(connection.await) }))
            }
        };
        let [token, base] = [user.token.clone(), way.base().to_owned()];
        Self { sender, driver, token, agent: String::new(), port: way.port(), base }
    }

    /// From now on sends this user agent.
    pub(crate) fn with_agent(mut self, agent: &str) -> Self {
        agent.clone_into(&mut self.agent);
        self
    }

    /// Sends a request, and returns the answer as soon as its head has come.
    pub(crate) async fn send(&mut self, method: Method, path: &str, body: &str) -> hyper::Result<Response<Incoming>> {
        let h2 = matches!(self.sender, Sender::Http2(_));
        let kind = content_type(&method, path, body);
        let path = format!("{}{path}", self.base);
        let uri = if h2 { format!("https://127.0.0.1:{}{path}", self.port) } else { path };
        let mut request =
            Request::builder().method(method).uri(uri).header("authorization", format!("Bearer {}", self.token));
        if !self.agent.is_empty() {
            request = request.header("user-agent", &self.agent);
        }
        if !h2 {
            request = request.header("host", format!("127.0.0.1:{}", self.port));
        }
        if !body.is_empty() {
            request = request.header("content-type", kind);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).expect("a valid request");
        match &mut self.sender {
            // The connection may need a moment after the last body before it takes another request.
            Sender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Sender::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    /// Sends a request and reads the whole answer: its status and body.
    pub(crate) async fn call(&mut self, method: Method, path: &str, body: &str) -> (u16, String) {
        let answer = self.send(method, path, body).await.expect("an answer");
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.expect("the whole body").to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    /// A GET that has to succeed.
    pub(crate) async fn get(&mut self, path: &str) -> String {
        let (status, body) = self.call(Method::GET, path, "").await;
        assert_eq!(status, 200, "GET {path}: {body}");
        body
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
