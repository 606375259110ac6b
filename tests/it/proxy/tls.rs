//! A gate with TLS: Go clients send credentials, and speak HTTP/2, over TLS only.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tidegate::api::Group;
use tidegate::tls::{self, Identity, Pem, Roots};
use tidegate::upstream::OutgoingBody;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::pool::support::{Caller, Server, options, text};
use crate::support::{Backend, Proxy, ProxyBuilder, status, within};

/// A gate with its own certificate, and a client that trusts it and offers these protocols.
async fn gate(backend: &Backend) -> (Proxy, impl AsyncFn(&[&str]) -> TlsStream<TcpStream>) {
    let (proxy, connector) = start(Proxy::before(backend.address).bucket(0.000_001, 3)).await;
    let address = proxy.address;
    let connect = async move |protocols: &[&str]| {
        let stream = TcpStream::connect(address).await.expect("connects");
        within(connector(protocols).connect(localhost(), stream)).await.expect("trusts")
    };
    (proxy, connect)
}

/// Starts a gate with its own certificate; the other part gives clients that trust it.
async fn start(builder: ProxyBuilder) -> (Proxy, impl Fn(&[&str]) -> TlsConnector) {
    let listener = Arc::new(tls::self_signed(&[], &[[127, 0, 0, 1].into()], None).expect("made"));
    let config = Arc::clone(&listener);
    let proxy = builder.with(|options| options.tls = Some(config)).start().await;
    let mut roots = RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(listener.ca().as_bytes()) {
        roots.add(ca.expect("PEM")).expect("a CA");
    }
    let connector = move |protocols: &[&str]| {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = versions.expect("TLS").with_root_certificates(roots.clone()).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        TlsConnector::from(Arc::new(config))
    };
    (proxy, connector)
}

fn localhost() -> ServerName<'static> {
    ServerName::try_from("localhost").expect("a name")
}

#[tokio::test]
async fn alpn_decides_between_http2_and_http1() {
    let backend = Backend::replying(200).await;
    let (_proxy, connect) = gate(&backend).await;

    let stream = connect(&["h2", "http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("speaks h2");
    tokio::spawn(connection);
    let request = Request::get("https://localhost/over/h2").body(Full::<Bytes>::default()).expect("valid");
    let response = within(client.send_request(request)).await.expect("answered");
    assert_eq!(within(response.into_body().collect()).await.expect("whole").to_bytes(), "ok");

    for protocols in [&["http/1.1"][..], &[]] {
        let mut stream = connect(protocols).await;
        stream
            .write_all(b"GET /over/h1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .await
            .expect("writes");
        let mut answer = Vec::new();
        // A TLS stream that ends without a goodbye is an error to some clients; the bytes before it
        // count.
        within(stream.read_to_end(&mut answer)).await.ok();
        assert_eq!(status(&String::from_utf8_lossy(&answer)), 200);
    }
    assert_eq!(backend.targets(), ["/over/h2", "/over/h1", "/over/h1"]);
}

/// A stream that counts the records of TLS that are read from it.
struct Records {
    stream: TcpStream,
    count: Arc<AtomicUsize>,
    read: Vec<u8>,
}

impl Records {
    fn of(stream: TcpStream, count: &Arc<AtomicUsize>) -> Self {
        Self { stream, count: Arc::clone(count), read: Vec::new() }
    }
}

impl AsyncRead for Records {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.read.extend_from_slice(&buf.filled()[before..]);
        while let [_, _, _, high, low, rest @ ..] = &self.read[..] {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            let Some(rest) = rest.get(length..) else { break };
            self.read = rest.to_vec();
            self.count.fetch_add(1, Relaxed);
        }
        poll
    }
}

impl AsyncWrite for Records {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

const CALLS: usize = 16;
const SMALL: usize = 1000;

#[tokio::test]
async fn answers_over_http2_that_are_ready_together_share_records() {
    let all = Arc::new(Barrier::new(CALLS));
    let backend = Backend::start(move |_| {
        let all = Arc::clone(&all);
        async move {
            all.wait().await;
            Response::new(Full::from(vec![b'v'; SMALL]).map_err(|never| match never {}).boxed_unsync())
        }
    })
    .await;
    let (proxy, connector) = start(Proxy::before(backend.address)).await;
    let count = Arc::<AtomicUsize>::default();
    let stream = Records::of(proxy.connect().await, &count);
    let stream = within(connector(&["h2"]).connect(localhost(), stream)).await.expect("trusts");
    let (client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("speaks h2");
    tokio::spawn(connection);
    let calls = (0..CALLS).map(|_| {
        let (mut client, request) = (client.clone(), Request::get("https://localhost/").body(Full::<Bytes>::default()));
        async move {
            let answer = client.send_request(request.expect("valid")).await.expect("answered");
            answer.into_body().collect().await.expect("whole").to_bytes().len()
        }
    });
    assert_eq!(within(join_all(calls)).await, [SMALL; CALLS]);
    let count = count.load(Relaxed);
    assert!(count < CALLS, "{count} records for {CALLS} answers, with those of the handshake");
}

#[tokio::test]
async fn bodies_over_http2_that_are_ready_together_share_records() {
    let listener = tls::self_signed(&[], &[], None).expect("made");
    let (acceptor, count) = (TlsAcceptor::from(listener.config()), Arc::<AtomicUsize>::default());
    let counted = Arc::clone(&count);
    let server = Server::plain(move |stream| {
        let accepted = acceptor.accept(Records::of(stream, &counted));
        async move {
            let service = service_fn(async |request: Request<Incoming>| {
                let body = request.into_body().collect().await?.to_bytes();
                Ok::<_, hyper::Error>(Response::new(Full::<Bytes>::from(body.len().to_string())))
            });
            let stream = TokioIo::new(accepted.await.expect("TLS"));
            hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await.ok();
        }
    })
    .await;
    let caller = Caller::start(options(server.address, Some(&listener.ca())));
    let calls = (0..CALLS).map(|_| async {
        let body = OutgoingBody::new(vec![vec![b'v'; SMALL].into()], None, None);
        let request = Request::post("/").header("content-length", SMALL).body(body).expect("valid");
        text(caller.send(Group::Short, request).await.expect("answered")).await
    });
    assert_eq!(within(join_all(calls)).await, ["1000"; CALLS]);
    let count = count.load(Relaxed);
    assert!(count < CALLS, "{count} records for {CALLS} bodies, with those of the handshake");
}

#[tokio::test]
async fn a_client_that_leaves_while_its_call_waits_is_noticed_through_tls() {
    let backend = Backend::replying(200).await;
    let (proxy, connect) = gate(&backend).await;
    for _ in 0..2 {
        let mut spender = connect(&["http/1.1"]).await;
        spender.write_all(b"GET /spend HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("writes");
        let mut answer = Vec::new();
        within(async {
            while !answer.ends_with(b"ok") {
                spender.read_buf(&mut answer).await.expect("reads");
            }
        })
        .await;
    }
    let mut first = connect(&["http/1.1"]).await;
    let request = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n";
    first.write_all(request).await.expect("writes");
    proxy.reaches("tidegate_calls_total", &[], 3.0).await;
    let mut second = connect(&["http/1.1"]).await;
    second.write_all(&request.repeat(3)).await.expect("writes");
    proxy.reaches("tidegate_in_flight", &[], 1.0).await;
    drop(second);
    proxy.reaches("tidegate_hangups_total", &[], 1.0).await;
    assert_eq!(backend.targets().len(), 3);
}

#[tokio::test]
async fn a_gate_listens_on_a_unix_socket_and_clears_away_what_an_earlier_one_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("gate.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("binds"));
    let backend = Backend::replying(200).await;
    let listen = tidegate::proxy::Listen::Unix(path.clone());
    let proxy = Proxy::before(backend.address).with(|options| options.gate.listen.push(listen)).start().await;
    let mut stream = tokio::net::UnixStream::connect(&path).await.expect("listens");
    stream.write_all(b"GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.expect("writes");
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.expect("reads");
    assert_eq!(status(&String::from_utf8_lossy(&answer)), 200);
    let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o660, "the gate's user and group");
    proxy.stop.cancel();
    within(proxy.gate.finished()).await;
    assert!(!path.exists(), "the gate takes its socket along");
}

#[tokio::test]
async fn a_gate_takes_no_socket_from_the_living_and_removes_none_but_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("gate.sock");
    let backend = Backend::replying(200).await;
    let listen = || {
        let listen = tidegate::proxy::Listen::Unix(path.clone());
        Proxy::before(backend.address).with(|options| options.gate.listen.push(listen))
    };
    let first = listen().start().await;
    let error = listen().try_start().await.err().expect("somebody is there").to_string();
    assert!(error.contains("gate.sock") && error.contains("another process listens there"), "{error}");
    tokio::net::UnixStream::connect(&path).await.expect("the first one listens on");

    // the file is removed, and another gate takes the path
    std::fs::remove_file(&path).expect("removed");
    let second = listen().start().await;
    first.stop.cancel();
    within(first.gate.finished()).await;
    tokio::net::UnixStream::connect(&path).await.expect("the second one's socket is not the first one's to remove");
    second.stop.cancel();
    within(second.gate.finished()).await;
    std::fs::write(&path, "precious").expect("written");
    assert!(listen().try_start().await.is_err());
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "precious");
}

/// A certificate for us by its own CA, in files.
fn client_identity(folder: &Path, expired: bool) -> Identity {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(vec!["client".to_owned()]).expect("a name");
    params.distinguished_name.push(rcgen::DnType::CommonName, folder.display().to_string());
    if expired {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    }
    std::fs::write(folder.join("client.crt"), params.self_signed(&key).expect("made").pem()).expect("written");
    std::fs::write(folder.join("client.key"), key.serialize_pem()).expect("written");
    Identity::read(&folder.join("client.crt"), &folder.join("client.key")).expect("readable")
}

#[tokio::test]
async fn an_upstream_that_refuses_our_certificate_is_said_to() {
    let folder = tempfile::tempdir().expect("a folder");
    client_identity(folder.path(), false);
    let wanted = tls::self_signed(&[], &[], Some(&folder.path().join("client.crt"))).expect("made");
    let ca = Pem::new(wanted.ca().as_bytes().to_vec(), "its CA");
    let other = tempfile::tempdir().expect("a folder");
    let strange = client_identity(other.path(), false);
    for protocols in [&["h2"][..], &["http/1.1"]] {
        let mut config = (*wanted.config()).clone();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let server = Server::plain(move |socket| {
            let acceptor = acceptor.clone();
            async move { drop(acceptor.accept(socket).await) }
        })
        .await;
        for shown in [None, Some(strange.clone())] {
            let client = tls::Client::new(Roots::Only(ca.clone()), shown).expect("TLS");
            let proxy = Proxy::before(server.address)
                .with(|options| {
                    options.upstream.target.scheme = http::uri::Scheme::HTTPS;
                    options.upstream.tls = Some(Arc::new(client));
                })
                .start()
                .await;
            let (status, answer) = proxy.get("/api/v1/nodes/n").await;
            assert_eq!(status, 502, "{answer}");
            assert!(
                answer.contains("refuses the gate's client certificate, or requires one"),
                "{protocols:?} {answer}"
            );
        }
    }
}

#[tokio::test]
async fn a_client_whose_certificate_does_not_do_is_turned_away_by_the_handshake() {
    let folder = tempfile::tempdir().expect("a folder");
    let right = client_identity(folder.path(), false);
    let listener = Arc::new(tls::self_signed(&[], &[], Some(&folder.path().join("client.crt"))).expect("made"));
    let backend = Backend::replying(200).await;
    let config = Arc::clone(&listener);
    let proxy = Proxy::before(backend.address).with(|options| options.tls = Some(config)).start().await;
    let ca = Pem::new(listener.ca().as_bytes().to_vec(), "the gate's CA");
    let ask = async |shown: Option<&Identity>| -> io::Result<String> {
        let client = tls::client(&Roots::Only(ca.clone()), shown).expect("TLS");
        let stream = proxy.connect().await;
        let name = ServerName::try_from("localhost").expect("a name");
        let mut config = (*client).clone();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut stream = within(TlsConnector::from(Arc::new(config)).connect(name, stream)).await?;
        stream.write_all(b"GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        within(stream.read_to_string(&mut answer)).await.map(|_| answer)
    };
    let answer = ask(Some(&right)).await.expect("let in");
    assert_eq!(status(&answer), 200);
    let other = tempfile::tempdir().expect("a folder");
    for (shown, expected) in [
        (None, "CertificateRequired"),
        (Some(client_identity(other.path(), false)), "UnknownCA"),
        (Some(client_identity(other.path(), true)), "CertificateExpired"),
    ] {
        let error = ask(shown.as_ref()).await.expect_err("turned away").to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(backend.targets(), ["/x"]);
}
