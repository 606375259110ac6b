//! Servers on loopback that note what each request showed them, and a proxy in front of them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use tidegate::tls;

/// The head of one request, and the connection that it came on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The lines of the head that name the caller or the server, sorted.
    lines: Vec<String>,
    /// The name in the client's certificate.
    certificate: Option<String>,
    sni: Option<String>,
    /// What the proxy on the way was asked.
    proxy: Vec<String>,
}

/// What came since the last look.
#[derive(Clone, Default)]
pub(crate) struct Record(Arc<Mutex<Events>>);

#[derive(Default)]
struct Events {
    seen: Vec<Seen>,
    proxied: Vec<String>,
}

/// A CA, and what is signed by it.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

// === impl Record ===

impl Record {
    /// Takes the last request to `/version`, if one came.
    pub(crate) fn take(&self) -> Option<Seen> {
        let mut record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let proxied = std::mem::take(&mut record.proxied);
        let seen = std::mem::take(&mut record.seen).pop();
        seen.map(|seen| Seen { proxy: proxied.into_iter().take(1).collect(), ..seen })
    }

    fn change(&self, change: impl FnOnce(&mut Events)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Starts a server that shows this certificate; a plain one without.
    pub(crate) fn serve(&self, pair: Option<&Pair>, clients: &Authority) -> SocketAddr {
        let config = pair.map(|pair| Arc::new(config(pair, clients)));
        let record = self.clone();
        listen(move |stream| record.answer(stream, config.clone()))
    }

    fn answer(&self, stream: TcpStream, config: Option<Arc<ServerConfig>>) -> Option<()> {
        let Some(config) = config else {
            let mut stream = stream;
            let lines = lines(&head(&mut stream)?)?;
            self.change(|events| events.seen.push(Seen { lines, ..Seen::default() }));
            return stream.write_all(ANSWER.as_bytes()).ok();
        };
        let mut stream = StreamOwned::new(ServerConnection::new(config).ok()?, stream);
        loop {
            let lines = lines(&head(&mut stream)?)?;
            let shown = stream.conn.peer_certificates().and_then(|chain| tls::common_name(chain.first()?));
            let sni = stream.conn.server_name().map(str::to_owned);
            // before the answer, which a client may not outlive
            self.change(|events| events.seen.push(Seen { lines, certificate: shown, sni, proxy: Vec::new() }));
            stream.write_all(ANSWER.as_bytes()).and_then(|()| stream.flush()).ok()?;
        }
    }

    /// Starts an HTTP proxy that leads every CONNECT to one server.
    pub(crate) fn proxy(&self, to: SocketAddr) -> SocketAddr {
        let record = self.clone();
        listen(move |mut client| {
            let head = head(&mut client)?;
            let login = head.lines().find(|line| line.to_ascii_lowercase().starts_with("proxy-authorization:"));
            let login = login.map(str::to_ascii_lowercase).unwrap_or_default();
            record.change(|record| record.proxied.push(format!("{} {login}", head.lines().next().unwrap_or_default())));
            client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").ok()?;
            let mut server = TcpStream::connect(to).ok()?;
            let (mut from, mut back) = (client.try_clone().ok()?, server.try_clone().ok()?);
            thread::spawn(move || std::io::copy(&mut from, &mut back));
            std::io::copy(&mut server, &mut client).ok().map(drop)
        })
    }
}

const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

/// Answers each connection to a new port in a thread of its own.
fn listen(answer: impl Fn(TcpStream) -> Option<()> + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            drop(stream.set_read_timeout(Some(Duration::from_secs(60))));
            thread::spawn(move || answer(stream));
        }
    });
    address
}

/// Reads a head, with the empty line at its end.
fn head(stream: &mut impl Read) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

/// Returns the lines of a head that matter here.
fn lines(head: &str) -> Option<Vec<String>> {
    let mut lines: Vec<String> = head.lines().skip(1).filter_map(named).collect();
    lines.sort();
    let target = head.split(' ').nth(1)?.split('?').next()?;
    lines.push(format!("at {target}"));
    Some(lines)
}

fn named(line: &str) -> Option<String> {
    let (name, value) = line.split_once(':')?;
    let name = name.to_ascii_lowercase();
    let is_named = name == "authorization" || name == "host" || name.starts_with("impersonate-");
    is_named.then(|| format!("{name}: {}", value.trim()))
}

fn config(pair: &Pair, clients: &Authority) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(clients.0.der().clone()).expect("a root");
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).map(|one| one.expect("PEM")).collect();
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("a key");
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier.allow_unauthenticated().build().expect("a verifier"))
        .with_single_cert(chain, key)
        .expect("they fit")
}

// === impl Authority ===

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a CA"))
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Signs a certificate for a name; `change` makes it another than usual.
    pub(crate) fn sign(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let (params, key) = params(name, change);
        let certificate = params.signed_by(&key, &self.0).expect("signed").pem();
        Pair { certificate, key: key.serialize_pem() }
    }
}

/// Makes a certificate that is signed by its own key.
pub(crate) fn self_signed(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Pair {
    let (params, key) = params(name, change);
    Pair { certificate: params.self_signed(&key).expect("signed").pem(), key: key.serialize_pem() }
}

fn params(name: &str, change: impl FnOnce(&mut CertificateParams)) -> (CertificateParams, KeyPair) {
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
    params.distinguished_name.push(DnType::CommonName, name);
    change(&mut params);
    (params, KeyPair::generate().expect("a key"))
}
