//! Servers before the judge that do not take a call at first, so that the gate sends it again.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::wire::Head;

/// Passes the first call of each connection on, and closes the connection when the second comes, as
/// a server does that has given up on an idle connection. Returns its port.
pub(crate) fn closing(to: u16) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
    let port = listener.local_addr().expect("it listens").port();
    thread::spawn(move || {
        for gate in listener.incoming().flatten() {
            thread::spawn(move || once(&gate, to));
        }
    });
    port
}

fn once(mut gate: &TcpStream, to: u16) -> Option<()> {
    let mut judge = TcpStream::connect(("127.0.0.1", to)).ok()?;
    let mut from_gate = BufReader::new(gate);
    let request = Head::read(&mut from_gate)?;
    judge.write_all(&request.bytes).ok()?;
    request.request_body(&mut from_gate, &mut |piece| drop(judge.write_all(piece)))?;
    let mut from_judge = BufReader::new(judge.try_clone().ok()?);
    let answer = Head::read(&mut from_judge)?;
    gate.write_all(&answer.bytes).ok()?;
    answer.response_body(request.target().0, &mut from_judge, &mut |piece| drop(gate.write_all(piece)))?;
    from_gate.fill_buf().ok().map(drop)
}

/// Resets the first stream of each call over TLS and HTTP/2 with `REFUSED_STREAM`, as a server does
/// that is about to go, and passes the next one on. Returns its port.
pub(crate) fn refusing(to: u16, certificate: &Path, key: &Path) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
    let port = listener.local_addr().expect("it listens").port();
    let chain = vec![CertificateDer::from_pem_file(certificate).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_file(key).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.expect("versions").with_no_client_auth().with_single_cert(chain, key);
    let mut config = config.expect("they belong together");
    config.alpn_protocols = vec![b"h2".to_vec()];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    thread::spawn(move || runtime.block_on(refuse(listener, TlsAcceptor::from(Arc::new(config)), to)));
    port
}

async fn refuse(listener: TcpListener, tls: TlsAcceptor, to: u16) {
    listener.set_nonblocking(true).expect("a socket");
    let listener = tokio::net::TcpListener::from_std(listener).expect("a runtime");
    let refused: Arc<Mutex<HashSet<String>>> = Arc::default();
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, refused) = (tls.clone(), Arc::clone(&refused));
        tokio::spawn(async move {
            let stream = TokioIo::new(tls.accept(stream).await.ok()?);
            let service = service_fn(move |request| attempt(request, Arc::clone(&refused), to));
            http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await.ok()
        });
    }
}

async fn attempt(
    request: Request<Incoming>,
    refused: Arc<Mutex<HashSet<String>>>,
    to: u16,
) -> Result<Response<Full<Bytes>>, h2::Error> {
    let (mut head, body) = request.into_parts();
    let host = head.uri.authority().expect("HTTP/2 has one").to_string();
    let call = format!("{} {} {:?}", head.method, head.uri, head.headers.get(header::AUTHORIZATION));
    let body = body.collect().await.expect("the gate sends all of it").to_bytes();
    if refused.lock().expect("no panic").insert(call) {
        return Err(h2::Reason::REFUSED_STREAM.into());
    }
    head.uri = head.uri.path_and_query().expect("a path").as_str().parse().expect("it was one");
    head.headers.insert(header::HOST, HeaderValue::from_str(&host).expect("it was one"));
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", to)).await.expect("the judge listens");
    let (mut judge, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP/1.1");
    tokio::spawn(connection);
    let (mut head, body) =
        judge.send_request(Request::from_parts(head, Full::new(body))).await.expect("an answer").into_parts();
    for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
        head.headers.remove(name);
    }
    Ok(Response::from_parts(head, Full::new(body.collect().await.expect("all of it").to_bytes())))
}
