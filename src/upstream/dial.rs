//! From a name to a connection: DNS on every dial, TCP, TLS, and which HTTP the other side chose.
//!
//! Every socket gets `TCP_NODELAY` (without it a small window costs 40 ms a turn) and TCP keepalive.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::uri::Scheme;
use rustls::{CertificateError, ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    Target,
    error::{DialError, DialFailure},
    names::Names,
    race,
};

/// Dials one upstream.
#[derive(Debug)]
pub(super) struct Dialer {
    names: Names,
    server_name: Option<ServerName<'static>>,
    /// Offers h2 and HTTP/1.1.
    any: Option<Arc<ClientConfig>>,
    /// Offers HTTP/1.1 only: for upgrades.
    http1: Option<Arc<ClientConfig>>,
    timeout: Duration,
}

/// A connected byte stream.
#[derive(Debug)]
pub(super) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Dialer {
    /// `names` makes what looks up a host and port.
    pub(super) fn new(
        target: &Target,
        tls: Option<Arc<ClientConfig>>,
        timeout: Duration,
        names: impl FnOnce(String, u16) -> Names,
    ) -> Self {
        let host = target.authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = target.authority.port_u16().unwrap_or(if target.scheme == Scheme::HTTPS { 443 } else { 80 });
        let name = target.server_name.clone().unwrap_or_else(|| host.clone());
        let http1 = tls.as_deref().map(|config| {
            let mut config = config.clone();
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Arc::new(config)
        });
        let names = names(host, port);
        Self { names, server_name: ServerName::try_from(name).ok(), any: tls, http1, timeout }
    }

    /// Everything up to the connected socket, and whether it speaks h2.
    pub(super) async fn connect(&self) -> Result<(Socket, bool), DialFailure> {
        self.within(self.establish(self.any.as_ref())).await
    }

    /// The same for a connection that must speak HTTP/1.1.
    pub(super) async fn connect_http1(&self) -> Result<Socket, DialFailure> {
        Ok(self.within(self.establish(self.http1.as_ref())).await?.0)
    }

    /// Bounds a dial, or any part of it, by the connect timeout.
    pub(super) async fn within<T>(&self, dial: impl Future<Output = Result<T, DialFailure>>) -> Result<T, DialFailure> {
        tokio::time::timeout(self.timeout, dial).await.unwrap_or(Err(DialFailure::Timeout(self.timeout)))
    }

    /// Names the address in a failure.
    pub(super) fn failure(&self, what: DialFailure) -> DialError {
        let (host, port) = (self.names.host(), self.names.port());
        DialError { at: if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }, what }
    }

    async fn establish(&self, tls: Option<&Arc<ClientConfig>>) -> Result<(Socket, bool), DialFailure> {
        let tcp = race::connect(self.names.addresses(self.timeout).await?, self.names.clock()).await?;
        let Some(config) = tls else { return Ok((Socket::Plain(tcp), false)) };
        let Some(name) = self.server_name.clone() else {
            let text =
                format!("`{}` is not a name a certificate can be for; set upstream_tls.server_name", self.names.host());
            return Err(DialFailure::Tls(io::Error::other(text)));
        };
        let stream = TlsConnector::from(Arc::clone(config)).connect(name, tcp).await.map_err(tls_failure)?;
        let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok((Socket::Tls(Box::new(stream)), h2))
    }
}

/// Sorts TLS failures by what the operator has to do.
fn tls_failure(error: io::Error) -> DialFailure {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(certificate)) = inner else { return DialFailure::Tls(error) };
    let certificate = certificate.clone();
    match certificate {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            DialFailure::WrongHost(certificate)
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => DialFailure::Expired(certificate),
        CertificateError::UnknownIssuer | CertificateError::BadSignature => DialFailure::UnknownIssuer(certificate),
        CertificateError::Other(_) => DialFailure::UnknownIssuer(certificate),
        _ => DialFailure::Tls(error),
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
