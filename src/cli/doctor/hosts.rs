//! Checks the hosts that gates behind the egress listener name in full: that the listener opens a
//! tunnel to each, and that the certificate of the host itself verifies, as the gate verifies it.
//!
//! No call is made: tunnels are closed before a word is said in them, and connections to the hosts
//! once TLS has been spoken.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use http::uri::{Authority, Scheme};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::Finding;
use crate::app::gate::{PreparedGate, Trouble, prepare_gate};
use crate::app::reachable::reachable;
use crate::clock::Clock;
use crate::credentials::{Environment, Proxy, Secret, Target};
use crate::proxy::{Directory, Fate};
use crate::spec::{Egress, Gate, HostPattern, Hosts, Listen, Settings};
use crate::status::text::count;
use crate::tls::{self, Roots};
use crate::upstream::{self, Dns};

/// A byte stream to the listener.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// The gate whose hosts are looked at.
struct Looked<'a> {
    about: &'a str,
    hosts: &'a Hosts,
    prepared: &'a PreparedGate,
}

/// The way by which hosts are looked at.
struct Look<'a> {
    directory: &'a Directory,
    settings: &'a Egress,
    /// The listener, if it can be asked.
    listener: Option<&'a Listen>,
    clock: Clock,
}

/// Reports on the hosts of all gates; `listens` says if the listener can be connected to.
pub(super) async fn findings(settings: &Settings, listens: bool, around: &Environment, clock: Clock) -> Vec<Finding> {
    let (Some(directory), Some(egress)) = (Directory::new(settings), &settings.egress) else { return Vec::new() };
    // One that asks its clients who they are has no answer for doctor, which is none of them. Over
    // TLS, whose certificate is not verified here, no token is shown.
    let can_ask = egress.clients.is_none() && (egress.tls.is_none() || egress.token_file.is_none());
    let listener = egress.listen.as_ref().filter(|_| listens && can_ask);
    let look = Look { directory: &directory, settings: egress, listener, clock };
    let mut findings = Vec::new();
    for gate in settings.gates.values() {
        findings.extend(look.gate(gate, around).await);
    }
    findings
}

// === impl Look ===

impl Look<'_> {
    async fn gate(&self, gate: &Gate, around: &Environment) -> Vec<Finding> {
        let names = self.names(gate);
        let (Some(hosts), false) = (&gate.hosts, names.is_empty()) else { return Vec::new() };
        let about = format!("hosts of {}", gate.name);
        let prepared = match prepare_gate(gate.clone(), around, Duration::ZERO, self.clock) {
            Ok(prepared) => prepared,
            Err(Trouble::Missing(what)) => {
                return vec![Finding::wrong(&about, format!("{what:#}"), "run doctor where the gate runs")];
            }
            Err(Trouble::Wrong { key, what }) => {
                let advice = format!("correct gates.{}.{key}", gate.name);
                return vec![Finding::wrong(&about, format!("{what:#}"), advice)];
            }
        };
        let (names, left) = names.split_at(names.len().min(MOST));
        let of = Looked { about: &about, hosts, prepared: &prepared };
        let each = names.iter().map(|name| self.host(&of, name));
        let found: Vec<Vec<Finding>> = stream::iter(each).buffered(AT_ONCE).collect().await;
        let mut findings: Vec<Finding> = found.into_iter().flatten().collect();
        if findings.is_empty() {
            let found = count(names.len(), "host is", "hosts are");
            let says = match self.listener {
                Some(_) => format!("{found} reached, with certificates that verify, and the listener opens tunnels"),
                None => format!("{found} reached, with certificates that verify"),
            };
            findings.push(Finding::fine(&about, says));
        }
        if !left.is_empty() {
            let says = format!("{} that it names were not looked at", count(left.len(), "more host", "more hosts"));
            findings.push(Finding::note(&about, says, ""));
        }
        findings
    }

    /// Returns the hosts that the gate names in full, and that no other entry takes from it.
    fn names(&self, gate: &Gate) -> Vec<String> {
        let named = gate.hosts.iter().flat_map(|hosts| &hosts.patterns).flat_map(HostPattern::full_names);
        let names: BTreeSet<&str> = named.collect();
        let is_of_gate = |name: &&str| match self.directory.explain(true, &format!("{name}:{}", self.port())) {
            Ok(Fate::Gate(of, _) | Fate::Intercepted(of, _) | Fate::Passed(Some(of))) => **of == *gate.name,
            _ => false,
        };
        names.into_iter().filter(is_of_gate).map(str::to_owned).collect()
    }

    fn port(&self) -> u16 {
        self.settings.ports.first().copied().unwrap_or(443)
    }

    /// Returns what is wrong with one host.
    async fn host(&self, of: &Looked<'_>, name: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Some(listen) = self.listener {
            let asked = tokio::time::timeout(PATIENCE, self.ask(listen, name)).await;
            findings.extend(judge(of.about, name, asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))));
        }
        let says = match self.upstream(of, name) {
            Some(options) => upstream::try_out(&options, self.clock).await.err().map(|error| error.to_string()),
            None => Some("its address is none that can be called; correct connect_to, or egress.via".to_owned()),
        };
        if let Some(says) = says {
            // In the message, the advice comes after a semicolon.
            let (says, remedy) = says.split_once("; ").unwrap_or((&says, "check the name, and network policies"));
            findings.push(Finding::wrong(of.about, format!("{name}: {says}"), remedy));
        }
        findings
    }

    /// Returns the way from the gate to a host.
    fn upstream(&self, of: &Looked<'_>, name: &str) -> Option<upstream::Options> {
        let connect_to = of.hosts.connect_to.get(name);
        let authority: Authority = match connect_to {
            Some(own) => own.parse().ok()?,
            None => format!("{name}:{}", self.port()).parse().ok()?,
        };
        let via = &self.settings.via;
        let proxy = if via.is_empty() { None } else { Some(Proxy::parse(via)?) };
        let server_name = Some(name.to_owned());
        let scheme = Scheme::HTTPS;
        let base_path = String::new();
        let target = Target { scheme, authority, base_path, server_name, proxy, unused_proxy: None };
        // As in the gate, the operator's own address is not judged.
        let judge = connect_to.is_none().then(|| self.directory.judge());
        let dns = Dns { judge, ..of.prepared.options.upstream.dns.clone() };
        Some(upstream::Options { target, dns, ..of.prepared.options.upstream.clone() })
    }

    /// Asks the listener for a tunnel to a host, and returns the first line of the answer.
    async fn ask(&self, listen: &Listen, name: &str) -> io::Result<String> {
        let mut stream: Box<dyn Stream> = match listen {
            Listen::Tcp(address) => Box::new(TcpStream::connect(reachable(*address)).await?),
            Listen::Unix(path) => Box::new(UnixStream::connect(path).await?),
        };
        if self.settings.tls.is_some() {
            // Nothing secret is said, so that it need not be known whose certificate it is.
            let config = tls::client(&Roots::Unverified, None).map_err(io::Error::other)?;
            let to = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
            stream = Box::new(TlsConnector::from(config).connect(to, stream).await?);
        }
        let to = format!("{name}:{}", self.port());
        let shown = self.token().map_or_else(String::new, |token| format!("Proxy-Authorization: Bearer {token}\r\n"));
        let request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nUser-Agent: tidegate-doctor\r\n{shown}\r\n");
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n") && answer.len() < LONGEST {
            match stream.read_u8().await {
                Ok(byte) => answer.push(byte),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            }
        }
        Ok(String::from_utf8_lossy(&answer).trim_end().to_owned())
    }

    /// Returns the token that clients must show.
    fn token(&self) -> Option<String> {
        Secret::file(self.settings.token_file.as_deref()?).ok()?.reveal(self.clock.now())
    }
}

/// Returns what is wrong with an answer to a CONNECT.
fn judge(about: &str, name: &str, answer: io::Result<String>) -> Option<Finding> {
    match answer {
        Ok(line) if line.split(' ').nth(1) == Some("200") => None,
        Ok(line) => {
            let says = format!("{name}: the listener refuses a tunnel: {:?}", line.trim_start_matches("HTTP/1.1 "));
            let remedy = "the reason says what to do; if the file has changed, tidegate reload";
            Some(Finding::wrong(about, says, remedy))
        }
        Err(error) => {
            let says = format!("{name}: the listener does not answer: {error}");
            Some(Finding::wrong(about, says, "look at the gate's log"))
        }
    }
}

/// The most hosts of a gate that are looked at, and those at once.
const MOST: usize = 100;
const AT_ONCE: usize = 8;
/// The time for an answer of the listener, which connects to the host first.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most bytes of an answer's first line.
const LONGEST: usize = 4096;
