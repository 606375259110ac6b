//! TLS handshakes with clients. Failures that concern certificates are logged, at most once a
//! minute.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError, Error, ServerConfig};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::stream::Stream;
use crate::moment::Moment;
use crate::places::Warnings;

/// The TLS handshakes of a listener.
#[derive(Debug, Default)]
pub(crate) struct Handshakes(Warnings);

// === impl Handshakes ===

impl Handshakes {
    /// Does the TLS handshake with a client. Logs a failure, and returns `None`.
    pub(crate) async fn accept(
        &self,
        config: Arc<ServerConfig>,
        stream: Box<dyn Stream>,
        gate: &str,
        now: impl Fn() -> Moment,
    ) -> Option<TlsStream<Box<dyn Stream>>> {
        match tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => self.failed(gate, &error, now()),
            Err(_) => tracing::debug!(gate, "a client's TLS handshake took too long"),
        }
        None
    }

    /// Logs a failed handshake: at most once a minute if a certificate is the cause, otherwise at
    /// the debug level.
    fn failed(&self, gate: &str, error: &io::Error, now: Moment) {
        let Some(what) = error.get_ref().and_then(|inner| inner.downcast_ref()).and_then(about_certificates) else {
            tracing::debug!(gate, %error, "a client's TLS handshake failed");
            return;
        };
        if self.0.is_due("handshake", now) {
            tracing::warn!(gate, %error, "a client's TLS handshake failed: {what}");
        }
    }
}

/// Returns what is wrong with a certificate, if a handshake failed for that reason.
fn about_certificates(error: &Error) -> Option<&'static str> {
    match error {
        Error::NoCertificatesPresented => Some("it sent no certificate, and tls.client_ca requires one"),
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            Some("its certificate is signed by an unknown authority, not by tls.client_ca")
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            Some("its certificate has expired")
        }
        Error::InvalidCertificate(_) => Some("its certificate cannot be used"),
        Error::AlertReceived(
            AlertDescription::UnknownCA | AlertDescription::BadCertificate | AlertDescription::CertificateUnknown,
        ) => Some("it does not trust this gate's certificate; does it use the gate's present ca.crt?"),
        Error::AlertReceived(AlertDescription::CertificateExpired) => {
            Some("it says that this gate's certificate has expired; do the clocks agree?")
        }
        _ => None,
    }
}

/// The time for a handshake: as long as Go's and kube-apiserver's.
const HANDSHAKE: Duration = Duration::from_secs(10);
