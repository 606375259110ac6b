//! Through a proxy on the way to the upstream: HTTP CONNECT, over TLS or not, and SOCKS5.

use std::error::Error as StdError;
use std::io;

use http::{HeaderValue, Uri};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tower::Service;

use super::error::DialFailure;
use crate::credentials::{Proxy, ProxyKind};
use crate::tls;

/// A connection to the upstream's own port: a TCP connection, or TLS to a proxy that goes on from
/// there.
pub(crate) type Wire = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Asks the proxy at the other end of `tcp` for a connection to `target`, whose name the proxy is
/// to look up itself.
pub(super) async fn proxy(
    proxy: &Proxy,
    tcp: TcpStream,
    tls: Option<&tls::Client>,
    (host, port): (&str, u16),
) -> Result<Wire, DialFailure> {
    let wire = match proxy.kind {
        ProxyKind::Http | ProxyKind::Socks5 => Wire::Left(tcp),
        ProxyKind::Https => Wire::Right(Box::new(encrypt(proxy, tcp, tls).await?)),
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let target: Uri = format!("https://{host}:{port}").parse().map_err(|_| failed("the upstream is not a host"))?;
    let mut wire = Some(TokioIo::new(wire));
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
    Ok(wire.into_inner())
}

/// Begins TLS with the proxy. As with Go's client, the roots that are trusted for the upstream are
/// trusted for the proxy before it.
async fn encrypt(
    proxy: &Proxy,
    tcp: TcpStream,
    tls: Option<&tls::Client>,
) -> Result<TlsStream<TcpStream>, DialFailure> {
    let config = match tls {
        Some(tls) => tls.http1_config(),
        None => tls::client(&tls::Roots::System, None).map_err(failed)?,
    };
    let name = ServerName::try_from(proxy.host.clone()).map_err(|_| failed("its name cannot be verified"))?;
    TlsConnector::from(config).connect(name, tcp).await.map_err(failed)
}

#[expect(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn failed(why: impl ToString) -> DialFailure {
    DialFailure::Proxy(why.to_string())
}
