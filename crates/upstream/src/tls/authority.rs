//! The pod-local CA: it issues the listener's certificates, for clients in the same pod.
//!
//! It stays the same as long as its key exists, so that clients can continue to trust it. The key
//! is created at the start, or taken over from the gate that ran here before. Certificates are
//! valid for a day, and renewed after two thirds of it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::sign::CertifiedKey;

use super::{TlsError, provider};

/// The pod-local CA.
pub(super) struct Authority {
    pub(super) issuer: Issuer<'static, KeyPair>,
    /// The CA's certificate, for clients to trust.
    pub(super) pem: String,
    /// The names in the certificates issued by the CA.
    names: Vec<String>,
}

/// A certificate issued by the CA, with its key.
#[derive(Clone)]
pub(super) struct LeafCertificate {
    pub(super) key: Arc<CertifiedKey>,
    begins: SystemTime,
    renew_at: SystemTime,
}

// === impl Authority ===

impl Authority {
    /// Creates a CA with this key (PEM). Its certificates are for these names and addresses, and
    /// for the usual names of an API server in a pod.
    pub(super) fn new(names: &[String], addresses: &[IpAddr], key: &str) -> Result<Self, TlsError> {
        let mut all: Vec<String> = ALWAYS.split(' ').map(str::to_owned).collect();
        // A client cannot have connected to an unspecified address.
        all.extend(addresses.iter().filter(|address| !address.is_unspecified()).map(ToString::to_string));
        all.extend(names.iter().cloned());
        all.sort();
        all.dedup();
        for name in &all {
            // rcgen takes any ASCII; a name that no client could ask for is a mistake in the
            // configuration.
            ServerName::try_from(name.strip_prefix("*.").unwrap_or(name)).map_err(|_| TlsError::Name(name.clone()))?;
        }
        let key = KeyPair::from_pem(key)?;
        let params = ca_params("tidegate pod-local CA", 0)?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem, names: all })
    }

    /// Issues a certificate with a new key, valid for a day.
    pub(super) fn issue(&self, wall: SystemTime) -> Result<LeafCertificate, TlsError> {
        let key = KeyPair::generate()?;
        let certificate = leaf_params(self.names.clone(), wall)?.signed_by(&key, &self.issuer)?;
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = CertifiedKey::from_der(vec![certificate.der().clone()], der, &provider())?;
        Ok(LeafCertificate::issued(key, wall))
    }
}

// === impl LeafCertificate ===

impl LeafCertificate {
    /// Wraps a certificate just issued.
    pub(super) fn issued(key: CertifiedKey, wall: SystemTime) -> Self {
        Self { key: Arc::new(key), begins: begins(wall), renew_at: wall + LIFE * 2 / 3 }
    }

    /// Returns true if the certificate must be renewed: its time has come, or the clock was set
    /// back to before its start.
    pub(super) fn is_due(&self, wall: SystemTime) -> bool {
        wall >= self.renew_at || wall < self.begins
    }
}

// === helpers ===

/// Returns the parameters of a CA certificate, with at most `others` further CAs between it and a
/// server's certificate.
pub(super) fn ca_params(name: &str, others: u8) -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(others));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // The CA ends with the pod. The dates are fixed, so that no clock can be wrong about it; before
    // 2050 every parser reads them.
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2049, 12, 31);
    Ok(params)
}

/// Returns the parameters of a server certificate for these names, valid for a day from now.
pub(super) fn leaf_params(names: Vec<String>, wall: SystemTime) -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, "tidegate");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params.not_before = begins(wall).into();
    params.not_after = (wall + LIFE).into();
    Ok(params)
}

fn begins(wall: SystemTime) -> SystemTime {
    wall.checked_sub(EARLIER).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The names in every certificate: loopback, and the usual names of an API server in a pod.
const ALWAYS: &str = "127.0.0.1 ::1 localhost kubernetes kubernetes.default kubernetes.default.svc \
                      kubernetes.default.svc.cluster.local";
/// The validity of a certificate. A machine may use an expired one only after a long suspension,
/// and only until the next check.
const LIFE: Duration = Duration::from_secs(24 * 3600);
/// How far in the past the validity begins. Clients in the pod have the same clock, but it may be
/// set back while they run.
const EARLIER: Duration = Duration::from_secs(3600);
