//! Making connections: name lookup for each, TCP, TLS, and negotiation of the HTTP version.
//!
//! Every socket gets `TCP_NODELAY` (without it, a small window costs 40 ms per round trip) and TCP
//! keepalive.

use std::error::Error as StdError;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::uri::Scheme;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::dns::Dns;
use super::error::{DialError, DialFailure};
use super::names::NameLookup;
use super::through::{self, Wire};
use super::windows::Windows;
use super::{Meters, Options, lock, race};
use crate::api::Group;
use crate::clock::Clock;
use crate::credentials::{Injector, Proxy};
use crate::moment::Moment;
use crate::telemetry::UpstreamMeters;
use crate::tls;

/// Makes connections to one upstream.
#[derive(Debug)]
pub(super) struct Dialer {
    host: String,
    port: u16,
    /// Looks up the addresses of the upstream, or of the proxy before it.
    names: NameLookup,
    server_name: Option<ServerName<'static>>,
    proxy: Option<Proxy>,
    pub(super) tls: Option<Arc<tls::Client>>,
    injector: Arc<Injector>,
    /// The timeout of a connection attempt; it changes when the configuration is reloaded.
    timeout: Mutex<Duration>,
    /// The flow-control windows of the HTTP/2 connections.
    pub(super) windows: Windows,
    /// The metrics to record in, once they are set.
    pub(super) meters: Meters,
}

/// A connected byte stream to the upstream: plain, or with TLS.
pub(super) type Socket = Either<Wire, Box<TlsStream<Wire>>>;

impl Dialer {
    pub(super) fn new(options: &Options, clock: Clock) -> Self {
        let Options { target, tls, injector, own, dns, .. } = options;
        let host = target.authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = target.authority.port_u16().unwrap_or(if target.scheme == Scheme::HTTPS { 443 } else { 80 });
        let name = target.server_name.as_ref().unwrap_or(&host).clone();
        let (next_host, next_port) = match &target.proxy {
            Some(proxy) => (proxy.host.clone(), proxy.port),
            None => (host.clone(), port),
        };
        // A proxy is where the operator says, and looks the upstream's name up itself.
        let judge = dns.judge.filter(|_| target.proxy.is_none());
        Self {
            host,
            port,
            names: NameLookup::new(next_host, next_port, own.clone(), Dns { judge, ..dns.clone() }, clock),
            server_name: ServerName::try_from(name).ok(),
            proxy: target.proxy.clone(),
            tls: tls.clone(),
            injector: Arc::clone(injector),
            timeout: Mutex::new(options.connect_timeout),
            windows: Windows::default(),
            meters: Meters::default(),
        }
    }

    pub(super) fn set_timeout(&self, timeout: Duration) {
        *lock(&self.timeout) = timeout;
    }

    /// Returns the name of the gate, for the log.
    pub(super) fn gate(&self) -> &str {
        self.meters.get().map_or("", UpstreamMeters::gate)
    }

    fn timeout(&self) -> Duration {
        *lock(&self.timeout)
    }

    /// Runs `connect` within the connect timeout. Also returns how often the TLS settings had
    /// changed before it.
    ///
    /// First waits for credentials that the handshake may need, and reads TLS files again if that
    /// is due. This is not part of the timeout, because an exec plugin may be slow.
    pub(super) async fn dial<T>(
        &self,
        group: Group,
        now: Moment,
        connect: impl Future<Output = Result<T, DialFailure>>,
    ) -> Result<(T, u64), Arc<DialError>> {
        let dialled = async {
            self.injector.ready(group == Group::Exempt).await.map_err(DialFailure::Credentials)?;
            if let Some(tls) = &self.tls {
                tls.refresh(now);
            }
            let changes = self.tls_changes();
            let timeout = self.timeout();
            let connected = tokio::time::timeout(timeout, connect).await.unwrap_or(Err(DialFailure::Timeout(timeout)));
            connected.map(|connected| (connected, changes))
        };
        dialled.await.map_err(|what| {
            if let Some(meters) = self.meters.get() {
                meters.dial_failed(group);
            }
            Arc::new(self.failure(what))
        })
    }

    /// Returns how often the TLS settings have changed so far.
    pub(super) fn tls_changes(&self) -> u64 {
        self.tls.as_ref().map_or(0, |tls| tls.changes())
    }

    /// Converts a failure to an error with the upstream's address.
    pub(super) fn failure(&self, what: DialFailure) -> DialError {
        DialError { at: self.address(), what }
    }

    /// Returns the upstream's address as `host:port`.
    fn address(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Connects to the upstream's port, without TLS.
    pub(super) async fn connect_bare(&self) -> Result<Wire, DialError> {
        let timeout = self.timeout();
        let connected = tokio::time::timeout(timeout, self.wire()).await;
        connected.unwrap_or(Err(DialFailure::Timeout(timeout))).map_err(|what| self.failure(what))
    }

    async fn wire(&self) -> Result<Wire, DialFailure> {
        match &self.proxy {
            None => Ok(Wire::Left(self.tcp().await?)),
            Some(proxy) => {
                let tcp = self.tcp().await.map_err(|failure| DialFailure::Proxy(failure.to_string()))?;
                through::proxy(proxy, tcp, self.tls.as_deref(), &self.address()).await
            }
        }
    }

    /// Connects a socket. Over TLS it offers HTTP/2 and HTTP/1.1, or only HTTP/1.1 if `only_http1`.
    pub(super) async fn connect(&self, only_http1: bool) -> Result<Socket, DialFailure> {
        let config = |tls: &tls::Client| if only_http1 { tls.http1_config() } else { tls.config() };
        let tls = self.tls.as_ref().map(|tls| (tls, config(tls)));
        let wire = self.wire().await?;
        let Some((tls, config)) = tls else { return Ok(Socket::Left(wire)) };
        let Some(name) = self.server_name.clone() else {
            let text = format!("no certificate can be for the name `{}`; set upstream_tls.server_name", self.host);
            return Err(DialFailure::Tls(io::Error::other(text)));
        };
        let stream = TlsConnector::from(config).connect(name, wire).await.map_err(|error| {
            tls.invalidate(); // the new certificate's CA may be in the file by now
            tls_failure(error)
        })?;
        Ok(Socket::Right(Box::new(stream)))
    }

    /// Connects to the upstream, or to its proxy.
    async fn tcp(&self) -> Result<TcpStream, DialFailure> {
        race::connect(self.names.addresses(self.timeout()).await?, &self.names).await
    }
}

/// Converts a TLS error to a failure with advice for the user.
fn tls_failure(error: io::Error) -> DialFailure {
    if let Some(alert) = certificate_alert(&error) {
        return DialFailure::ClientCertificate(alert);
    }
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let certificate = match inner {
        Some(rustls::Error::InvalidCertificate(certificate)) => certificate,
        Some(rustls::Error::AlertReceived(AlertDescription::HandshakeFailure)) => {
            return DialFailure::NothingInCommon(error);
        }
        _ => return DialFailure::Tls(error),
    };
    let sort = match certificate {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => DialFailure::WrongHost,
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => DialFailure::Expired,
        certificate if tls::is_ca_itself(certificate) => DialFailure::CaItself,
        CertificateError::UnknownIssuer | CertificateError::Other(_) => DialFailure::UnknownIssuer,
        CertificateError::BadSignature
        | CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => DialFailure::Signature,
        _ => return DialFailure::Tls(error),
    };
    sort(certificate.clone())
}

/// Returns the server's TLS alert about the gate's certificate, if the connection ended with one.
///
/// In TLS 1.3 the alert comes only after the handshake.
pub(super) fn certificate_alert(error: &(dyn StdError + 'static)) -> Option<AlertDescription> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // an io::Error's own source is that of what it wraps, and h2 keeps no more than the words
        // of that
        if let Some(inner) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            let text = inner.to_string();
            let is = |alert: &&AlertDescription| rustls::Error::AlertReceived(**alert).to_string() == text;
            return ABOUT_CERTIFICATES.iter().find(is).copied();
        }
        cause = error.source();
    }
    None
}

/// TLS alerts about a client certificate or its absence.
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
