//! The least that a pass-through made of hyper can cost: no limits, no checks, no metrics, no
//! retries; only connections of its own.
//!
//! `floor LISTEN UPSTREAM [CA.pem [CERT.pem KEY.pem]]`: with a certificate it listens with TLS and
//! speaks HTTP/2 there, else HTTP/1.1. To `http://IP:PORT` it speaks HTTP/1.1, to `https://IP:PORT`
//! HTTP/2. It has one thread, as tidegate has, and one pool.
//!
//! It leaves out everything that tidegate is for, and checks that no proxy in production may leave
//! out: it trusts its clients and its upstream.

mod pool;

use std::{
    error::Error,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http_body::{Body, Frame, SizeHint};
use hyper::{
    Request, Response, Uri, Version,
    body::{Bytes, Incoming},
    header::{CONNECTION, HOST, HeaderValue},
    http::uri::{Authority, Scheme},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use pool::{Lease, Pool};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(serve(&arguments))
}

async fn serve(arguments: &[String]) -> Result<()> {
    let (listen, upstream, files) = match arguments {
        [listen, upstream, files @ ..] => (listen, upstream.parse()?, files),
        _ => return Err("usage: floor LISTEN UPSTREAM [CA.pem [CERT.pem KEY.pem]]".into()),
    };
    let acceptor = match files {
        [_, certificate, key] => Some(acceptor(certificate, key)?),
        _ => None,
    };
    // This lives as long as the process: a reference costs nothing to pass on.
    let gate: &'static Gate = Box::leak(Box::new(Gate::new(&upstream, files.first().map(String::as_str))?));
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let acceptor = acceptor.clone();
        // A client that breaks off ends its own connection; there is no one to answer.
        tokio::spawn(async move { drop(connection(gate, stream, acceptor).await) });
    }
}

async fn connection(gate: &'static Gate, stream: TcpStream, acceptor: Option<TlsAcceptor>) -> Result<()> {
    let service = service_fn(move |request| gate.pass(request));
    match acceptor {
        None => http1::Builder::new().serve_connection(TokioIo::new(stream), service).await?,
        Some(acceptor) => {
            let stream = TokioIo::new(acceptor.accept(stream).await?);
            http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await?;
        }
    }
    Ok(())
}

/// The upstream of all calls, with the connections to it.
struct Gate {
    pool: Pool,
    authority: Authority,
    host: HeaderValue,
    over_h2: bool,
}

impl Gate {
    fn new(upstream: &Uri, ca: Option<&str>) -> Result<Self> {
        let authority = upstream.authority().ok_or("the upstream has no address")?.clone();
        let address: SocketAddr = authority.as_str().parse()?;
        let over_h2 = upstream.scheme() == Some(&Scheme::HTTPS);
        let connector = if over_h2 { Some(connector(ca.ok_or("a CA is needed")?)?) } else { None };
        let host = HeaderValue::from_str(authority.as_str())?;
        Ok(Self { pool: Pool::new(address, connector), authority, host, over_h2 })
    }

    async fn pass(&self, mut request: Request<Incoming>) -> Result<Response<Passing>> {
        let from_h2 = request.version() == Version::HTTP_2;
        request.headers_mut().remove(CONNECTION);
        let (mut response, lease) = if self.over_h2 {
            request.headers_mut().remove(HOST);
            let mut parts = std::mem::take(request.uri_mut()).into_parts();
            parts.scheme = Some(Scheme::HTTPS);
            parts.authority = Some(self.authority.clone());
            *request.uri_mut() = Uri::from_parts(parts)?;
            *request.version_mut() = Version::HTTP_2;
            self.pool.send_over_h2(request).await?
        } else {
            request.headers_mut().insert(HOST, self.host.clone());
            self.pool.send_over_h1(request).await?
        };
        response.headers_mut().remove(CONNECTION);
        *response.version_mut() = if from_h2 { Version::HTTP_2 } else { Version::HTTP_11 };
        Ok(response.map(|body| Passing { body, lease: Some(lease) }))
    }
}

/// A response body that gives its connection back when it ends.
struct Passing {
    body: Incoming,
    lease: Option<Lease>,
}

impl Body for Passing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if self.body.is_end_stream() || matches!(frame, Poll::Ready(None)) {
            self.lease = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn acceptor(certificate: &str, key: &str) -> Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config).into())
}

fn connector(ca: &str) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca)? {
        roots.add(certificate?)?;
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config).into())
}
