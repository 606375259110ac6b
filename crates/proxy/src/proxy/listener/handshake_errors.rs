//! TLS handshakes that failed over certificates: the operator wants to know of them, but not once
//! per attempt.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustls::{AlertDescription, CertificateError, Error};

use crate::moment::Moment;

/// Handshakes that failed.
#[derive(Debug, Default)]
pub(crate) struct HandshakeErrors {
    /// The time of the last log line, and the number of failures since.
    logged: Mutex<Option<(Moment, u64)>>,
}

impl HandshakeErrors {
    /// Logs a handshake that failed: at most once a minute if a certificate is to blame, the rest
    /// for debugging.
    pub(crate) fn note(&self, gate: &str, error: &io::Error, now: Moment) {
        let Some(what) = error.get_ref().and_then(|inner| inner.downcast_ref()).and_then(about_certificates) else {
            tracing::debug!(gate, %error, "a TLS handshake failed");
            return;
        };
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *logged {
            Some((at, more)) if now.since(*at) < AGAIN => *more += 1,
            other => {
                let more = other.replace((now, 0)).map_or(0, |(_, more)| more);
                tracing::warn!(gate, more, %error, "a client was turned away: {what}");
            }
        }
    }
}

/// The sentence about the certificate that a handshake's error is about.
fn about_certificates(error: &Error) -> Option<&'static str> {
    match error {
        Error::NoCertificatesPresented => Some("it showed no certificate, and tls.client_ca asks for one"),
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            Some("its certificate is signed by an unknown authority, not by tls.client_ca")
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            Some("its certificate has expired")
        }
        Error::InvalidCertificate(_) => Some("its certificate cannot be used"),
        Error::AlertReceived(
            AlertDescription::UnknownCA | AlertDescription::BadCertificate | AlertDescription::CertificateUnknown,
        ) => Some("it does not trust this gate's certificate; does it use the gate's ca.crt as it is now?"),
        Error::AlertReceived(AlertDescription::CertificateExpired) => {
            Some("it takes this gate's certificate for expired; do the clocks agree?")
        }
        _ => None,
    }
}

/// A client that tries again and again is one line a minute.
const AGAIN: Duration = Duration::from_secs(60);
