//! PEM text and where it came from: what comes from a file can be read again. Shows nothing of itself but the place.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};

use super::{TlsError, provider};

/// PEM text and where it came from. Shows only the latter.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    text: Vec<u8>,
    from: String,
    /// `None` for text that did not come from a file.
    path: Option<PathBuf>,
}

/// A certificate chain and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Leaf first.
    pub chain: Pem,
    /// Its private key.
    pub key: Pem,
}

// === impl Pem ===

impl Pem {
    /// Text that did not come from a file; `from` names it in errors.
    #[must_use]
    pub fn new(text: Vec<u8>, from: impl Into<String>) -> Self {
        Self { text, from: from.into(), path: None }
    }

    /// The content of a file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(path: &Path) -> Result<Self, TlsError> {
        let text = std::fs::read(path).map_err(|source| TlsError::Unreadable { path: path.to_owned(), source })?;
        Ok(Self { text, from: path.display().to_string(), path: Some(path.to_owned()) })
    }

    /// What its file holds now; text that came from none is as it was.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn again(&self) -> Result<Self, TlsError> {
        self.path.as_deref().map_or_else(|| Ok(self.clone()), Self::read)
    }

    pub(super) fn from(&self) -> &str {
        &self.from
    }

    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.text).collect();
        match found {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            Ok(_) | Err(_) => Err(TlsError::NotPem { from: self.from.clone(), expected: "certificate" }),
        }
    }

    pub(super) fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.text)
            .map_err(|_| TlsError::NotPem { from: self.from.clone(), expected: "private key" })
    }

    pub(super) fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut store = RootCertStore::empty();
        for certificate in self.certificates()? {
            store.add(certificate).map_err(|source| TlsError::Certificate { from: self.from.clone(), source })?;
        }
        Ok(store)
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PEM of {}", self.from)
    }
}

// === impl Identity ===

impl Identity {
    /// Chain and key from files.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn read(chain: &Path, key: &Path) -> Result<Self, TlsError> {
        Ok(Self { chain: Pem::read(chain)?, key: Pem::read(key)? })
    }

    /// What the files hold now.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn again(&self) -> Result<Self, TlsError> {
        Ok(Self { chain: self.chain.again()?, key: self.key.again()? })
    }

    pub(super) fn certified(&self) -> Result<CertifiedKey, TlsError> {
        CertifiedKey::from_der(self.chain.certificates()?, self.key.key()?, &provider())
            .map_err(|source| TlsError::Certificate { from: self.chain.from.clone(), source })
    }
}
