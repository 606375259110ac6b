//! The egress CA: it signs certificates for the hosts of gates with TLS decryption (interception),
//! and for no others.
//!
//! It has two certificates. The root's key signs the intermediate and is then deleted; the
//! intermediate signs the certificates presented to clients. Both have critical name constraints,
//! because some clients (Java) check only those of an intermediate. All certificates presented to
//! clients share one key, which is not the CA's. A CA from files (`given`) can replace the
//! generated one.

mod given;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, CidrSubnet, ExtendedKeyUsagePurpose, GeneralSubtree, Issuer, KeyPair, NameConstraints,
    SerialNumber,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ResolvesServerCertUsingSni};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};

pub use self::given::{GivenCa, GivenCaError};
use super::authority::{LeafCertificate, ca_params, leaf_params};
use super::pem::armoured;
use super::{TlsError, provider};
use crate::{Current, lock};

/// The CA for decrypting TLS, with the certificates it has signed.
#[derive(derive_more::Debug)]
#[debug("Interception for {permitted:?}")]
pub struct Interception {
    root: CertificateDer<'static>,
    /// The intermediate certificates, the signing one first.
    chain: Vec<CertificateDer<'static>>,
    issuer: Issuer<'static, KeyPair>,
    permitted: Vec<String>,
    /// The key shared by all certificates presented to clients.
    leaf_key: KeyPair,
    /// The TLS configuration of all handshakes, still without a certificate.
    base: ServerConfig,
    leaves: Mutex<HashMap<String, Leaf>>,
    /// When a CA from files expires; `None` for a generated CA.
    end: Option<CaEnd>,
}

/// When a CA expires, and when to begin to warn about it.
#[derive(Clone, Copy, Debug)]
struct CaEnd {
    at: SystemTime,
    near_from: SystemTime,
}

/// The CA in use. It can be replaced at run time.
pub type CurrentCa = Current<Interception>;

/// A certificate for one host name, with its TLS configurations.
struct Leaf {
    certificate: LeafCertificate,
    http1: Arc<ServerConfig>,
    any: Arc<ServerConfig>,
}

// === impl Interception ===

impl Interception {
    /// Creates a CA for these names and all names below them.
    ///
    /// # Errors
    /// A name cannot be in a certificate.
    pub fn new(permitted: &[String]) -> Result<Self, TlsError> {
        let root_key = KeyPair::generate()?;
        let key = KeyPair::generate()?;
        let mut root = ca_params(ROOT, 1)?;
        root.name_constraints = Some(constraints(permitted)?);
        let root_certificate = root.self_signed(&root_key)?;
        let mut params = intermediate_params()?;
        params.name_constraints = Some(constraints(permitted)?);
        let intermediate = params.signed_by(&key, &Issuer::new(root, root_key))?;
        let root = root_certificate.der().clone();
        let chain = vec![intermediate.der().clone()];
        Self::with(root, chain, Issuer::new(intermediate_params()?, key), permitted)
    }

    /// Restores the CA of an earlier process from the text [`kept`](Self::kept), if it may sign for
    /// all of these names.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn again(kept: &str, permitted: &[String], wall: SystemTime) -> Result<Self, &'static str> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(kept.as_bytes()).collect();
        let certificates = certificates.map_err(|_| "its file does not hold one key and two certificates")?;
        let ([intermediate, root], Ok(key)) = (&certificates[..], KeyPair::from_pem(kept)) else {
            return Err("its file does not hold one key and two certificates");
        };
        let made = intermediate_params().and_then(|params| {
            Self::with(root.clone(), vec![intermediate.clone()], Issuer::new(params, key), permitted)
        });
        let again = made.map_err(|_| "its certificates cannot be used")?;
        let covers = permitted.iter().all(|name| again.verifies(name, wall).is_ok());
        if covers { Ok(again) } else { Err("it may not sign for all hosts of gates with intercept = true") }
    }

    fn with(
        root: CertificateDer<'static>,
        chain: Vec<CertificateDer<'static>>,
        issuer: Issuer<'static, KeyPair>,
        permitted: &[String],
    ) -> Result<Self, TlsError> {
        let mut base = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
        // A session that goes on would skip the check of its name.
        base.session_storage = Arc::new(NoServerSessionStorage {});
        base.send_tls13_tickets = 0;
        let leaf_key = KeyPair::generate()?;
        let permitted = permitted.to_vec();
        Ok(Self { root, chain, issuer, permitted, leaf_key, base, leaves: Mutex::default(), end: None })
    }

    /// Returns the names permitted to the CA; names below them are permitted too.
    pub fn permitted(&self) -> &[String] {
        &self.permitted
    }

    /// Returns true if the CA may sign for a name.
    pub fn permits(&self, name: &str) -> bool {
        self.permitted.iter().any(|permitted| is_below(name, permitted))
    }

    /// Returns the TLS configuration of a handshake, with a certificate for this lower-case name.
    /// It offers HTTP/1.1, and before it HTTP/2 if `http2`.
    ///
    /// # Errors
    /// The CA may not sign for this name.
    pub fn config(&self, name: &str, http2: bool, wall: SystemTime) -> Result<Arc<ServerConfig>, TlsError> {
        if !self.permits(name) {
            return Err(TlsError::NotPermitted(name.to_owned()));
        }
        let mut leaves = lock(&self.leaves);
        if let Some(leaf) = leaves.get(name).filter(|leaf| !leaf.certificate.is_due(wall)) {
            return Ok(leaf.config(http2));
        }
        let leaf = self.leaf(name, wall)?;
        if leaves.len() >= LEAVES {
            leaves.clear(); // they are signed again when they are needed
        }
        let config = leaf.config(http2);
        leaves.insert(name.to_owned(), leaf);
        Ok(config)
    }

    /// Signs a certificate for a name.
    fn leaf(&self, name: &str, wall: SystemTime) -> Result<Leaf, TlsError> {
        let mut params = leaf_params(vec![name.to_owned()], wall)?;
        // rcgen makes it of the key, which all of them share.
        params.serial_number = Some(SerialNumber::from_slice(&serial(&provider())?));
        let certificate = params.signed_by(&self.leaf_key, &self.issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.leaf_key.serialize_der()));
        let chain = [certificate.der()].into_iter().chain(&self.chain).cloned().collect();
        let certificate = LeafCertificate::issued(CertifiedKey::from_der(chain, key, &provider())?, wall);
        let mut http1 = self.base.clone();
        http1.cert_resolver = Arc::new(SingleCertAndKey::from(Arc::clone(&certificate.key)));
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut any = http1.clone();
        any.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Leaf { certificate, http1: Arc::new(http1), any: Arc::new(any) })
    }

    /// Checks whether a client with only the root would accept a certificate for this name.
    fn verifies(&self, name: &str, wall: SystemTime) -> Result<(), TlsError> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
        let verifier = verifier.map_err(|error| rustls::Error::General(error.to_string()))?;
        let leaf = self.leaf(name, wall)?;
        let server = ServerName::try_from(name).map_err(|_| TlsError::Name(name.to_owned()))?;
        let now = UnixTime::since_unix_epoch(wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO));
        let [end, intermediates @ ..] = &leaf.certificate.key.cert[..] else { return Ok(()) };
        verifier.verify_server_cert(end, intermediates, &server, &[], now)?;
        Ok(())
    }

    /// Returns the CA with its secret key as PEM, to be restored after a restart.
    pub fn kept(&self) -> String {
        let [certificate, key, root] = self.files();
        key + &certificate + &root
    }

    /// Returns the CA as three files for other processes: the signing certificate, its secret key,
    /// and the root.
    pub fn files(&self) -> [String; 3] {
        [self.chain.iter().map(armoured).collect(), self.issuer.key().serialize_pem(), armoured(&self.root)]
    }

    /// Returns when the CA expires, if this is soon; `None` for a generated CA, as it outlives its
    /// pod.
    pub fn ends_soon(&self, wall: SystemTime) -> Option<SystemTime> {
        self.end.filter(|end| end.near_from <= wall).map(|end| end.at)
    }

    /// Returns the root certificate as PEM, for clients to trust.
    pub fn published(&self) -> String {
        armoured(&self.root)
    }

    /// Returns the root certificate, for clients to trust.
    pub fn root(&self) -> &CertificateDer<'static> {
        &self.root
    }
}

// === impl Leaf ===

impl Leaf {
    fn config(&self, http2: bool) -> Arc<ServerConfig> {
        Arc::clone(if http2 { &self.any } else { &self.http1 })
    }
}

// === helpers ===

/// Returns true if a name equals `permitted` or is below it, as in name constraints.
fn is_below(name: &str, permitted: &str) -> bool {
    name.strip_suffix(permitted).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn intermediate_params() -> Result<CertificateParams, TlsError> {
    let mut params = ca_params(INTERMEDIATE, 0)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// Returns name constraints to these names and all names below them; no address is permitted.
fn constraints(permitted: &[String]) -> Result<NameConstraints, TlsError> {
    for name in permitted {
        ServerName::try_from(name.as_str()).map_err(|_| TlsError::Name(name.clone()))?;
    }
    let every_address = [CidrSubnet::V4([0; 4], [0; 4]), CidrSubnet::V6([0; 16], [0; 16])];
    Ok(NameConstraints {
        permitted_subtrees: permitted.iter().cloned().map(GeneralSubtree::DnsName).collect(),
        excluded_subtrees: every_address.map(GeneralSubtree::IpAddress).to_vec(),
    })
}

/// Returns a serial number: random, positive, and of a fixed length.
fn serial(provider: &CryptoProvider) -> Result<[u8; 16], TlsError> {
    let mut bytes = [0; 16];
    provider.secure_random.fill(&mut bytes).map_err(|_| TlsError::Randomness)?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(bytes)
}

/// The subject name of the root. OpenSSL clients find the root by a hash of this name; see
/// [`super::trust`].
const ROOT: &str = "tidegate egress root";
const INTERMEDIATE: &str = "tidegate egress";
/// The most certificates kept for reuse.
const LEAVES: usize = 256;

#[cfg(test)]
mod tests;
