//! TLS on both sides: rustls with ring, said outright, so that no other provider that may be compiled in is ever picked.
//!
//! The listener's certificate sits behind [`Serving`], which can be given another while connections stay open. Keys and client
//! certificates never appear in a `Debug` text; errors name the file and say what was expected.

mod authority;
mod unverified;

use std::{
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, PoisonError, RwLock},
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::WebPkiServerVerifier,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, NoClientAuth, ResolvesServerCert, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::CertifiedKey,
};

/// A TLS configuration that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{from} holds no {expected} in PEM form")]
    NotPem {
        /// Which.
        from: String,
        /// What was expected.
        expected: &'static str,
    },
    /// A certificate is unusable.
    #[error("the certificate in {from} cannot be used: {source}")]
    Certificate {
        /// Which.
        from: String,
        /// Why.
        source: rustls::Error,
    },
    /// The system has no roots, as in an image from scratch.
    #[error("the system has no trusted CA certificates ({0}); set upstream_tls.ca, or SSL_CERT_FILE, to a CA file")]
    NoRoots(String),
    /// A name that a certificate cannot be for.
    #[error("`{name}` cannot be a name in a certificate; expected a host name or an IP address")]
    Name {
        /// Which.
        name: String,
    },
    /// Making the pod-local CA failed.
    #[error("cannot make a certificate: {0}")]
    Authority(#[from] rcgen::Error),
    /// The pieces do not go together.
    #[error("these TLS settings do not go together: {0}")]
    Rustls(#[from] rustls::Error),
}

/// PEM text and where it came from. Shows only the latter.
#[derive(Clone)]
pub struct Pem {
    text: Vec<u8>,
    from: String,
}

/// Whom to trust.
#[derive(Clone, Debug)]
pub enum Roots {
    /// The system's roots; `SSL_CERT_FILE` and `SSL_CERT_DIR` are honoured.
    System,
    /// These certificates and no others.
    Only(Pem),
    /// Anybody: no verification at all.
    Anybody,
}

/// A certificate chain and its key.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Leaf first.
    pub chain: Pem,
    /// Its private key.
    pub key: Pem,
}

/// The listener's certificate, which can be replaced under open connections.
pub struct Serving(RwLock<Arc<CertifiedKey>>);

/// What a TLS listener needs, and what its clients need to trust it.
#[derive(Clone)]
pub struct Listener {
    /// For `tokio_rustls::TlsAcceptor`; offers h2 and HTTP/1.1.
    pub config: Arc<ServerConfig>,
    /// The certificate, to replace it.
    pub serving: Arc<Serving>,
    /// PEM of what clients are to trust: the pod-local CA, or the chain from the files.
    pub ca: String,
}

/// The configuration towards an upstream: offers h2 and HTTP/1.1.
///
/// # Errors
/// The roots or the client certificate cannot be used; see [`TlsError`].
pub fn client(roots: &Roots, identity: Option<&Identity>) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match roots {
        Roots::Anybody => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(unverified::Anybody::new(provider())))
        }
        Roots::System => builder.with_webpki_verifier(verifier(system_roots()?, "the system's roots")?),
        Roots::Only(pem) => builder.with_webpki_verifier(verifier(pem.roots()?, &pem.from)?),
    };
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = identity.chain.certificates()?;
            builder
                .with_client_auth_cert(chain, identity.key.key()?)
                .map_err(|source| TlsError::Certificate { from: identity.chain.from.clone(), source })?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A listener with a certificate by a CA made on the spot, whose key never leaves memory: for the loopback addresses, the names an API
/// server has in a cluster, `names`, and `addresses`.
///
/// # Errors
/// A name cannot be in a certificate, or the client CA cannot be used.
pub fn self_signed(names: &[String], addresses: &[IpAddr], client_ca: Option<&Path>) -> Result<Listener, TlsError> {
    let made = authority::issue(names, addresses)?;
    listener(made.key, made.ca, client_ca)
}

/// A listener with a certificate from files.
///
/// # Errors
/// A file cannot be read or used.
pub fn from_files(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Listener, TlsError> {
    let identity = Identity { chain: Pem::read(cert)?, key: Pem::read(key)? };
    let ca = String::from_utf8_lossy(&identity.chain.text).into_owned();
    listener(identity.certified()?, ca, client_ca)
}

fn listener(key: CertifiedKey, ca: String, client_ca: Option<&Path>) -> Result<Listener, TlsError> {
    let serving = Arc::new(Serving(RwLock::new(Arc::new(key))));
    let clients: Arc<dyn ClientCertVerifier> = match client_ca {
        None => Arc::new(NoClientAuth),
        Some(path) => {
            let pem = Pem::read(path)?;
            let roots = Arc::new(pem.roots()?);
            WebPkiClientVerifier::builder_with_provider(roots, provider()).build().map_err(|error| {
                TlsError::Certificate { from: pem.from, source: rustls::Error::General(error.to_string()) }
            })?
        }
    };
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::clone(&serving) as Arc<dyn ResolvesServerCert>);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Listener { config: Arc::new(config), serving, ca })
}

// === impl Pem ===

impl Pem {
    /// Text that did not come from a file; `from` names it in errors.
    #[must_use]
    pub fn new(text: Vec<u8>, from: impl Into<String>) -> Self {
        Self { text, from: from.into() }
    }

    /// The content of a file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(path: &Path) -> Result<Self, TlsError> {
        let text = std::fs::read(path).map_err(|source| TlsError::Unreadable { path: path.to_owned(), source })?;
        Ok(Self { text, from: path.display().to_string() })
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.text).collect();
        match found {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            Ok(_) | Err(_) => Err(TlsError::NotPem { from: self.from.clone(), expected: "certificate" }),
        }
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.text)
            .map_err(|_| TlsError::NotPem { from: self.from.clone(), expected: "private key" })
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
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
    fn certified(&self) -> Result<CertifiedKey, TlsError> {
        CertifiedKey::from_der(self.chain.certificates()?, self.key.key()?, &provider())
            .map_err(|source| TlsError::Certificate { from: self.chain.from.clone(), source })
    }
}

// === impl Listener and Serving ===

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

impl Serving {
    /// Serves another certificate from the next handshake on; connections that are open stay.
    ///
    /// # Errors
    /// Chain and key cannot be used; the old one is kept.
    pub fn replace(&self, identity: &Identity) -> Result<(), TlsError> {
        let key = Arc::new(identity.certified()?);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = key;
        Ok(())
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Serving")
    }
}

// === helpers ===

fn verifier(roots: RootCertStore, from: &str) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build().map_err(|error| {
        TlsError::Certificate { from: from.to_owned(), source: rustls::Error::General(error.to_string()) }
    })
}

fn system_roots() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    let (usable, _) = store.add_parsable_certificates(found.certs);
    if usable == 0 {
        let why = found.errors.first().map_or_else(|| "none was found".to_owned(), ToString::to_string);
        return Err(TlsError::NoRoots(why));
    }
    Ok(store)
}

/// The one provider.
fn provider() -> Arc<CryptoProvider> {
    static RING: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(RING.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())))
}
