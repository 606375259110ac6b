//! From a name to a connection: DNS on every dial, TCP, TLS, and which HTTP the other side chose.
//!
//! Every socket gets `TCP_NODELAY` (without it a small window costs 40 ms a turn) and TCP keepalive.

use std::{
    error::Error as StdError,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use http::uri::Scheme;
use rustls::{AlertDescription, CertificateError, ClientConfig, pki_types::ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::either::Either;

use super::{
    Target,
    error::{DialError, DialFailure},
    names::Names,
    race,
    through::{self, Wire},
    windows::Windows,
};
use crate::{
    credentials::{Injector, Proxy},
    moment::Moment,
    tls,
};

/// Dials one upstream.
#[derive(Debug)]
pub(super) struct Dialer {
    host: String,
    port: u16,
    /// Of the upstream, or of its proxy.
    names: Names,
    server_name: Option<ServerName<'static>>,
    proxy: Option<Proxy>,
    tls: Option<Arc<tls::Client>>,
    injector: Arc<Injector>,
    /// In nanoseconds: a reload may change it.
    timeout: AtomicU64,
    /// The last connection speaks HTTP/2.
    lower_case: Arc<AtomicBool>,
    windows: Windows,
}

/// A connected byte stream: as it is, or with TLS to the upstream.
pub(super) type Socket = Either<Wire, Box<TlsStream<Wire>>>;

impl Dialer {
    /// `names` makes what looks up a host and port: the upstream's, or its proxy's.
    pub(super) fn new(
        target: &Target,
        tls: Option<Arc<tls::Client>>,
        injector: Arc<Injector>,
        timeout: Duration,
        names: impl FnOnce(String, u16) -> Names,
    ) -> Self {
        let host = target.authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = target.authority.port_u16().unwrap_or(if target.scheme == Scheme::HTTPS { 443 } else { 80 });
        let name = target.server_name.clone().unwrap_or_else(|| host.clone());
        let (server_name, proxy) = (ServerName::try_from(name).ok(), target.proxy.clone());
        let dialled =
            proxy.as_ref().map_or_else(|| (host.clone(), port), |proxy| (proxy.host().to_owned(), proxy.port()));
        let names = names(dialled.0, dialled.1);
        let timeout = AtomicU64::new(nanos(timeout));
        Self {
            host,
            port,
            names,
            server_name,
            proxy,
            tls,
            injector,
            timeout,
            lower_case: Arc::default(),
            windows: Windows::default(),
        }
    }

    pub(super) fn set_timeout(&self, timeout: Duration) {
        self.timeout.store(nanos(timeout), Ordering::Relaxed);
    }

    fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout.load(Ordering::Relaxed))
    }

    /// To be called before a dial: waits for credentials that the handshake may need, and reads TLS files again when it is time to. Not part
    /// of the connect timeout: an exec plugin takes what it takes. Tells under which TLS settings the dial is made.
    pub(super) async fn prepare(&self, now: Moment) -> Result<u64, DialFailure> {
        self.injector.ready().await.map_err(DialFailure::Credentials)?;
        if let Some(tls) = &self.tls {
            tls.refresh(now);
        }
        Ok(self.tls_changes())
    }

    /// How often the TLS settings have changed.
    pub(super) fn tls_changes(&self) -> u64 {
        self.tls.as_ref().map_or(0, |tls| tls.changes())
    }

    pub(super) fn tls(&self) -> Option<&tls::Client> {
        self.tls.as_deref()
    }

    /// Everything up to the connected socket, and whether it speaks h2.
    pub(super) async fn connect(&self) -> Result<(Socket, bool), DialFailure> {
        let connected = self.within(self.establish(self.tls.as_ref().map(|tls| tls.config()))).await;
        if let Ok((_, h2)) = &connected {
            self.lower_case.store(*h2, Ordering::Relaxed);
        }
        connected
    }

    /// Whether the names of fields lose their case on the way, as far as the last connection tells.
    pub(super) fn lower_case(&self) -> &Arc<AtomicBool> {
        &self.lower_case
    }

    /// The same for a connection that must speak HTTP/1.1.
    pub(super) async fn connect_http1(&self) -> Result<Socket, DialFailure> {
        Ok(self.within(self.establish(self.tls.as_ref().map(|tls| tls.http1_config()))).await?.0)
    }

    /// Bounds a dial, or any part of it, by the connect timeout.
    pub(super) async fn within<T>(&self, dial: impl Future<Output = Result<T, DialFailure>>) -> Result<T, DialFailure> {
        let timeout = self.timeout();
        tokio::time::timeout(timeout, dial).await.unwrap_or(Err(DialFailure::Timeout(timeout)))
    }

    /// What the HTTP/2 connections may be sent unread.
    pub(super) fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Names the address in a failure.
    pub(super) fn failure(&self, what: DialFailure) -> DialError {
        let (host, port) = (&self.host, self.port);
        DialError { at: if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }, what }
    }

    async fn establish(&self, tls: Option<Arc<ClientConfig>>) -> Result<(Socket, bool), DialFailure> {
        let wire = match &self.proxy {
            None => Wire::Left(self.tcp().await?),
            Some(proxy) => {
                let tcp = self.tcp().await.map_err(|failure| through::proxy_failure(&failure))?;
                through::proxy(proxy, tcp, self.tls(), (&self.host, self.port)).await?
            }
        };
        let Some(config) = tls else { return Ok((Socket::Left(wire), false)) };
        let Some(name) = self.server_name.clone() else {
            let text = format!("`{}` is not a name a certificate can be for; set upstream_tls.server_name", self.host);
            return Err(DialFailure::Tls(io::Error::other(text)));
        };
        let stream = TlsConnector::from(config).connect(name, wire).await.map_err(|error| {
            if let Some(tls) = &self.tls {
                tls.invalidate(); // a new certificate may be by a CA that we have on file by now
            }
            tls_failure(error)
        })?;
        let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok((Socket::Right(Box::new(stream)), h2))
    }

    /// To the upstream, or to its proxy.
    async fn tcp(&self) -> Result<TcpStream, DialFailure> {
        race::connect(self.names.addresses(self.timeout()).await?, self.names.clock()).await
    }
}

/// Sorts TLS failures by what the operator has to do.
fn tls_failure(error: io::Error) -> DialFailure {
    if let Some(alert) = certificate_alert(&error) {
        return DialFailure::ClientCertificate(alert);
    }
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

/// What the other side says of our certificate, if that is why it ended the connection: in TLS 1.3 it says so only after the handshake.
pub(super) fn certificate_alert(error: &(dyn StdError + 'static)) -> Option<AlertDescription> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // an io::Error's own source is that of what it wraps, and h2 keeps no more than the words of that
        if let Some(inner) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            let said = inner.to_string();
            let is = |alert: &&AlertDescription| rustls::Error::AlertReceived(**alert).to_string() == said;
            return ABOUT_CERTIFICATES.iter().find(is).copied();
        }
        cause = error.source();
    }
    None
}

/// Alerts by which a server refuses a client's certificate, or the lack of one.
const ABOUT_CERTIFICATES: [AlertDescription; 9] = [
    AlertDescription::AccessDenied,
    AlertDescription::BadCertificate,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateRequired,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateUnknown,
    AlertDescription::DecryptError, // by a CA of the right name and another key
    AlertDescription::UnknownCA,
    AlertDescription::UnsupportedCertificate,
];

/// Saturating; nobody waits 584 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
