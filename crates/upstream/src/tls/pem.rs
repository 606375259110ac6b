//! PEM text with its source. Text from a file can be read again. `Debug` shows only the source.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::{TlsError, provider};

/// PEM text with its source. `Debug` shows only the source.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("PEM of {from}")]
pub struct Pem {
    pub(super) text: Vec<u8>,
    /// The name of the source, for errors.
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
    /// Wraps a text from another source than a file; `from` names the source in errors.
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

    /// Reads the file again; text from another source is returned unchanged.
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

    /// Returns the certificates in the text. As in Go, unreadable ones are skipped.
    pub(super) fn readable(&self) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(&self.text).flatten().collect()
    }

    /// Returns the certificates in the text as trusted CAs; unreadable ones are skipped.
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
    /// Reads a certificate chain and its key from files.
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

    /// Returns an error about the wrong file: that of the chain or that of the key.
    pub(super) fn unusable(&self, error: rustls::Error) -> TlsError {
        match error {
            rustls::Error::General(why) => TlsError::Key(self.key.from.clone(), why), // it is of another kind
            other => self.chain.unusable(other),
        }
    }
}

/// Encodes a certificate as PEM.
pub(super) fn armoured(certificate: &CertificateDer<'_>) -> String {
    let text = STANDARD.encode(certificate);
    let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect::<Vec<_>>();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}
