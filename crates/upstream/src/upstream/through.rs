//! Connections through a proxy: HTTP CONNECT, over TLS or not, and SOCKS5.

use std::error::Error as StdError;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderValue, Uri};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tower::Service;

use super::error::DialFailure;
use crate::credentials::{Proxy, ProxyKind};
use crate::tls;

/// A connection to the upstream's own port: plain TCP, or through a proxy over TLS.
pub type Wire = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// A connection to a proxy, read byte by byte until the proxy's response has ended.
///
/// hyper-util drops any bytes that it reads after the response. These bytes are already the
/// upstream's if the upstream sends first (SSH, SMTP, MySQL; RFC 9110, section 9.3.6).
struct OneByteReader<S>(S);

/// Requests a connection to `address` from the proxy at the other end of `tcp`. The proxy looks up
/// the name.
pub(super) async fn proxy(
    proxy: &Proxy,
    tcp: TcpStream,
    tls: Option<&tls::Client>,
    address: &str,
) -> Result<Wire, DialFailure> {
    let wire = match proxy.kind {
        ProxyKind::Http | ProxyKind::Socks5 => Wire::Left(tcp),
        ProxyKind::Https => Wire::Right(Box::new(encrypt(proxy, tcp, tls).await?)),
    };
    ask(proxy, wire, address).await
}

async fn ask<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    proxy: &Proxy,
    wire: S,
    address: &str,
) -> Result<S, DialFailure> {
    let target: Uri = format!("https://{address}").parse().map_err(|_| failed("the upstream is not a host name"))?;
    let (read, write) = tokio::io::split(wire);
    let mut wire = Some(TokioIo::new(tokio::io::join(OneByteReader(read), write)));
    let connected = tower::service_fn(move |_: Uri| {
        let wire = wire.take().ok_or_else(|| io::Error::other("it is asked once"));
        async move { wire }
    });
    let nowhere = Uri::from_static("http://connected.already");
    let wire = if proxy.kind == ProxyKind::Socks5 {
        let mut socks = SocksV5::new(nowhere, connected);
        if let Some((user, password)) = proxy.login.clone() {
            socks = socks.with_auth(user, password);
        }
        socks.call(target).await.map_err(failed)?
    } else {
        let mut tunnel = Tunnel::new(nowhere, connected);
        if let Some(login) = proxy.basic().and_then(|basic| HeaderValue::try_from(basic).ok()) {
            tunnel = tunnel.with_auth(login);
        }
        tunnel.call(target).await.map_err(|error| match error.source() {
            Some(cause) => failed(format!("{error}: {cause}")),
            None => failed(error),
        })?
    };
    let (read, write) = wire.into_inner().into_inner();
    Ok(read.0.unsplit(write))
}

/// Starts TLS with the proxy. As in Go's client, the upstream's CAs are also trusted for the proxy.
async fn encrypt(
    proxy: &Proxy,
    tcp: TcpStream,
    tls: Option<&tls::Client>,
) -> Result<TlsStream<TcpStream>, DialFailure> {
    let config = match tls {
        Some(tls) => tls.http1_config(),
        None => tls::client(&tls::Roots::System, None).map_err(failed)?,
    };
    let name = ServerName::try_from(proxy.host.clone()).map_err(|_| failed("its name cannot be in a certificate"))?;
    TlsConnector::from(config).connect(name, tcp).await.map_err(failed)
}

#[expect(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn failed(why: impl ToString) -> DialFailure {
    DialFailure::Proxy(why.to_string())
}

// === impl OneByteReader ===

impl<S: AsyncRead + Unpin> AsyncRead for OneByteReader<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut byte = [0];
        let mut sip = ReadBuf::new(&mut byte);
        if buf.remaining() > 0 {
            ready!(Pin::new(&mut self.0).poll_read(cx, &mut sip))?;
            buf.put_slice(sip.filled());
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const BANNER: &[u8] = b"SSH-2.0-OpenSSH_9.6\r\n";

    /// Asks a proxy that says all of `says`, `size` bytes at a time, and reads on in the tunnel.
    async fn read_on(proxy: &str, says: &[u8], size: usize) -> Vec<u8> {
        let proxy = Proxy::parse(proxy).expect("a proxy");
        let (gate, theirs) = tokio::io::duplex(size);
        let (mut asked, mut answers) = tokio::io::split(theirs);
        let says = says.to_vec();
        let length = BANNER.len();
        // What it is asked is nothing to it.
        tokio::spawn(async move { tokio::io::copy(&mut asked, &mut tokio::io::sink()).await });
        tokio::spawn(async move { answers.write_all(&says).await });
        let mut tunnel = ask(&proxy, gate, "git.example:22").await.expect("the proxy agrees");
        let mut read = vec![0; length];
        tunnel.read_exact(&mut read).await.expect("the banner");
        read
    }

    #[tokio::test]
    async fn what_comes_behind_a_proxy_s_answer_is_the_upstream_s() {
        let ways: [(&str, &[u8]); 5] = [
            ("http://proxy:3128", b"HTTP/1.1 200 OK\r\n\r\n"),
            ("http://me:secret@proxy:3128", b"HTTP/1.1 200 Connection established\r\nVia: 1.1 proxy\r\n\r\n"),
            ("socks5://proxy", b"\x05\x00\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"),
            ("socks5://proxy", b"\x05\x00\x05\x00\x00\x03\x05proxy\x00\x16"),
            ("socks5://me:secret@proxy", b"\x05\x02\x01\x00\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"),
        ];
        for (proxy, answer) in ways {
            let says = [answer, BANNER].concat();
            for size in 1..=says.len() {
                let read = read_on(proxy, &says, size).await;
                assert_eq!(String::from_utf8_lossy(&read), String::from_utf8_lossy(BANNER), "{proxy}, cut at {size}");
            }
        }
    }
}
