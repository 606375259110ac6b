//! PEM text, and where it came from. Text from a file can be read again. `Debug` shows only the
//! source.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::{TlsError, provider};

/// PEM text, and where it came from. `Debug` shows only the source.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("PEM of {from}")]
pub struct Pem {
    pub(super) text: Vec<u8>,
    /// The source to name in errors.
    pub(super) from: String,
    /// The file; `None` for text from another source.
    path: Option<PathBuf>,
}

/// A certificate chain and its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificates, leaf first.
    pub chain: Pem,
    /// The private key of the certificate.
    pub key: Pem,
}

// === impl Pem ===

impl Pem {
    /// Wraps text from another source than a file; `from` names it in errors.
    pub fn new(text: Vec<u8>, from: impl Into<String>) -> Self {
        Self { text, from: from.into(), path: None }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(path: &Path) -> Result<Self, TlsError> {
        let text = std::fs::read(path).map_err(|error| TlsError::Unreadable(path.to_owned(), error))?;
        Ok(Self { text, from: path.display().to_string(), path: Some(path.to_owned()) })
    }

    /// Reads the file again; text from another source stays as it was.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn again(&self) -> Result<Self, TlsError> {
        self.path.as_deref().map_or_else(|| Ok(self.clone()), Self::read)
    }

    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let found = CertificateDer::pem_slice_iter(&self.text).collect::<Result<Vec<_>, _>>();
        let found = found.ok().filter(|certificates| !certificates.is_empty());
        found.ok_or_else(|| TlsError::NotPem(self.from.clone(), "certificate"))
    }

    pub(super) fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.text).map_err(|_| TlsError::NotPem(self.from.clone(), "private key"))
    }

    /// Returns the parsable certificates; skips others, as Go does.
    pub(super) fn readable(&self) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(&self.text).flatten().collect()
    }

    /// Returns the parsable certificates, as trusted CAs.
    pub(super) fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut store = RootCertStore::empty();
        let mut wrong = None;
        for certificate in self.readable() {
            wrong = store.add(certificate).err().or(wrong);
        }
        match wrong {
            _ if !store.is_empty() => Ok(store),
            Some(error) => Err(self.unusable(error)),
            None => Err(TlsError::NotPem(self.from.clone(), "certificate")),
        }
    }

    pub(super) fn unusable(&self, error: rustls::Error) -> TlsError {
        TlsError::Certificate(self.from.clone(), error)
    }
}

// === impl Identity ===

impl Identity {
    /// Reads chain and key from files.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn read(chain: &Path, key: &Path) -> Result<Self, TlsError> {
        Ok(Self { chain: Pem::read(chain)?, key: Pem::read(key)? })
    }

    /// Reads the files again.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn again(&self) -> Result<Self, TlsError> {
        Ok(Self { chain: self.chain.again()?, key: self.key.again()? })
    }

    pub(super) fn certified(&self) -> Result<CertifiedKey, TlsError> {
        CertifiedKey::from_der(self.chain.certificates()?, self.key.key()?, &provider())
            .map_err(|error| self.unusable(error))
    }

    /// Returns an error naming the file at fault: chain or key.
    pub(super) fn unusable(&self, error: rustls::Error) -> TlsError {
        match error {
            rustls::Error::General(why) => TlsError::Key(self.key.from.clone(), why), // it is of another kind
            other => self.chain.unusable(other),
        }
    }
}

/// Returns a certificate as PEM.
pub(super) fn armoured(certificate: &CertificateDer<'_>) -> String {
    let text = STANDARD.encode(certificate);
    let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect::<Vec<_>>();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}
