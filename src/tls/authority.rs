//! The pod-local CA: made at start, signs one certificate, and its key is gone before the function returns.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::{
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
    sign::CertifiedKey,
};

use super::{TlsError, provider};

/// A certificate with its key, and the CA that signed it.
pub(super) struct Made {
    pub(super) key: CertifiedKey,
    /// PEM.
    pub(super) ca: String,
}

/// Makes a CA and a certificate by it.
pub(super) fn issue(names: &[String], addresses: &[IpAddr]) -> Result<Made, TlsError> {
    let ca_key = KeyPair::generate()?;
    let mut ca = params("tidegate pod-local CA", &[])?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_certificate = ca.self_signed(&ca_key)?;

    let mut all: Vec<String> = ALWAYS.iter().map(|name| (*name).to_owned()).collect();
    // an unspecified address is no address that a client can have dialled
    all.extend(addresses.iter().filter(|address| !address.is_unspecified()).map(ToString::to_string));
    all.extend(names.iter().cloned());
    all.sort();
    all.dedup();
    let leaf_key = KeyPair::generate()?;
    let mut leaf = params("tidegate", &all)?;
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.use_authority_key_identifier_extension = true;
    let leaf_certificate = leaf.signed_by(&leaf_key, &Issuer::new(ca, ca_key))?;

    let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf_key.serialize_der()));
    let key = CertifiedKey::from_der(vec![leaf_certificate.der().clone()], der, &provider())?;
    Ok(Made { key, ca: ca_certificate.pem() })
}

fn params(common_name: &str, names: &[String]) -> Result<CertificateParams, TlsError> {
    for name in names {
        // rcgen takes any ASCII; what no client could ask for is a mistake in the configuration
        ServerName::try_from(name.strip_prefix("*.").unwrap_or(name))
            .map_err(|_| TlsError::Name { name: name.clone() })?;
    }
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name.push(DnType::CommonName, common_name);
    // It ends with the process that made it. Fixed dates, so that no clock can be wrong about it; before 2050 every parser reads them.
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2049, 12, 31);
    Ok(params)
}

/// What in-pod clients call an API server.
const ALWAYS: [&str; 7] = [
    "127.0.0.1",
    "::1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];
