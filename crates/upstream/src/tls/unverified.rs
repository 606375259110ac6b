//! `insecure = true`: accepts any certificate. The code that resolves the settings logs a loud
//! warning about it.

use rustls::Error;
use rustls::client::danger::ServerCertVerified;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

use super::judged::CertificateJudge;

/// Accepts any certificate.
#[derive(Debug)]
pub(super) struct NoVerification;

impl CertificateJudge for NoVerification {
    fn judge(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }
}
