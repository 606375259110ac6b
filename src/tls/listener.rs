//! TLS of a listener: its certificate and its client CA can change under open connections.

use std::{
    fmt,
    net::IpAddr,
    path::Path,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::SystemTime,
};

use rustls::{
    ServerConfig,
    server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
};

use super::{
    Complaint, Identity, Pem, TlsError,
    authority::{Authority, Leaf},
    provider,
};

/// The TLS of a listener, and the certificate that its clients need to trust it.
pub struct Listener {
    current: RwLock<Current>,
    sources: Mutex<Sources>,
}

/// The configuration of the next handshake.
#[derive(Clone)]
struct Current {
    config: Arc<ServerConfig>,
    ca: Arc<str>,
}

/// The sources, as they were when they were last good.
struct Sources {
    source: Source,
    clients: Option<Pem>,
    complaint: Complaint,
}

enum Source {
    /// The pod-local CA, and the certificate by it that is in use.
    Own(Arc<Authority>, Leaf),
    Files(Identity),
}

/// Makes a listener with a certificate by a new CA: for the loopback addresses, the names that an
/// API server has in a cluster, `names`, and `addresses`.
///
/// # Errors
/// A name cannot be in a certificate, or the client CA cannot be used.
pub fn self_signed(names: &[String], addresses: &[IpAddr], client_ca: Option<&Path>) -> Result<Listener, TlsError> {
    own(names, addresses, client_ca, None)
}

/// Does the same with the CA of this key ([`Listener::ca_key`]): clients that trust that CA trust
/// this listener.
///
/// # Errors
/// The key is not valid, a name cannot be in a certificate, or the client CA cannot be used.
pub fn self_signed_by(
    key: &str,
    names: &[String],
    addresses: &[IpAddr],
    client_ca: Option<&Path>,
) -> Result<Listener, TlsError> {
    own(names, addresses, client_ca, Some(key))
}

fn own(
    names: &[String],
    addresses: &[IpAddr],
    client_ca: Option<&Path>,
    key: Option<&str>,
) -> Result<Listener, TlsError> {
    let authority = Authority::new(names, addresses, key)?;
    let leaf = authority.issue(wall())?;
    Listener::new(Source::Own(Arc::new(authority), leaf), client_ca)
}

/// Makes a listener with a certificate from files.
///
/// # Errors
/// A file cannot be read or used.
pub fn from_files(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Listener, TlsError> {
    Listener::new(Source::Files(Identity::read(cert, key)?), client_ca)
}

/// Returns the time of day, against which certificates are checked.
#[expect(clippy::disallowed_methods, reason = "certificates are valid by wall time")]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

// === impl Listener ===

impl Listener {
    fn new(source: Source, client_ca: Option<&Path>) -> Result<Self, TlsError> {
        let clients = client_ca.map(Pem::read).transpose()?;
        let current = Current::new(&source, clients.as_ref())?;
        let sources = Sources { source, clients, complaint: Complaint::default() };
        Ok(Self { current: RwLock::new(current), sources: Mutex::new(sources) })
    }

    /// Returns the configuration of the next handshake, for `tokio_rustls::TlsAcceptor`; it offers
    /// h2 and HTTP/1.1.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).config.clone()
    }

    /// Returns the certificates that clients are to trust, as PEM: the pod-local CA, or the chain
    /// from the files.
    #[must_use]
    pub fn ca(&self) -> Arc<str> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).ca.clone()
    }

    /// Returns the key of the pod-local CA, as PEM: secret.
    #[must_use]
    pub fn ca_key(&self) -> Option<String> {
        match &self.sources.lock().unwrap_or_else(PoisonError::into_inner).source {
            Source::Own(authority, _) => Some(authority.key()),
            Source::Files(_) => None,
        }
    }

    /// Renews a pod-local certificate well before it ends, and takes over files that have changed.
    /// The owner calls this every few seconds. Files that cannot be used are logged once, and the
    /// last good ones are kept. Connections stay open.
    pub fn refresh(&self, wall: SystemTime) {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        // Two files are not swapped at one moment: a pair that does not match may do so on a second
        // look.
        let renewed = sources.renewed(wall).or_else(|_| sources.renewed(wall));
        match renewed {
            Ok(None) => sources.complaint.settle(),
            Ok(Some((current, source, clients))) => {
                sources.complaint.settle();
                tracing::info!(
                    certificate = source.word(),
                    "the listener's certificate was renewed; open connections stay"
                );
                (sources.source, sources.clients) = (source, clients);
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
            }
            Err(error) => sources.complaint.say(&error, "the listener's last good certificate is kept"),
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

// === impl Sources ===

impl Sources {
    /// Returns what to use from now on, if it differs from what is in use.
    fn renewed(&self, wall: SystemTime) -> Result<Option<(Current, Source, Option<Pem>)>, TlsError> {
        let clients = self.clients.as_ref().map(Pem::again).transpose()?;
        let source = match &self.source {
            Source::Own(authority, leaf) if !leaf.is_due(wall) => Source::Own(Arc::clone(authority), leaf.clone()),
            Source::Own(authority, _) => Source::Own(Arc::clone(authority), authority.issue(wall)?),
            Source::Files(identity) => Source::Files(identity.again()?),
        };
        if clients == self.clients && source.is(&self.source) {
            return Ok(None);
        }
        let current = Current::new(&source, clients.as_ref())?;
        Ok(Some((current, source, clients)))
    }
}

// === impl Source and Current ===

impl Source {
    fn word(&self) -> &str {
        match self {
            Self::Own(..) => "self_signed",
            Self::Files(identity) => identity.chain.from(),
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Own(_, leaf), Self::Own(_, other)) => leaf == other,
            (Self::Files(identity), Self::Files(other)) => identity == other,
            _ => false,
        }
    }

    fn certified(&self) -> Result<Arc<CertifiedKey>, TlsError> {
        match self {
            Self::Own(_, leaf) => Ok(Arc::clone(&leaf.key)),
            Self::Files(identity) => identity.certified().map(Arc::new),
        }
    }

    fn ca(&self) -> Arc<str> {
        match self {
            Self::Own(authority, _) => authority.pem().into(),
            Self::Files(identity) => String::from_utf8_lossy(identity.chain.text()).into(),
        }
    }
}

impl Current {
    /// Makes a new configuration each time, so that no session from before a change is resumed
    /// after it.
    fn new(source: &Source, clients: Option<&Pem>) -> Result<Self, TlsError> {
        let verifier: Arc<dyn ClientCertVerifier> = match clients {
            None => Arc::new(NoClientAuth),
            Some(pem) => {
                let roots = Arc::new(pem.roots()?);
                WebPkiClientVerifier::builder_with_provider(roots, provider()).build().map_err(|error| {
                    let source = rustls::Error::General(error.to_string());
                    TlsError::Certificate { from: pem.from().to_owned(), source }
                })?
            }
        };
        let key = source.certified()?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), ca: source.ca() })
    }
}
