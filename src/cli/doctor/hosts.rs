//! Checks the full host names of gates behind the egress listener: the listener opens a tunnel to each,
//! and the certificate of the host verifies as the gate verifies it.
//!
//! No call is made: tunnels are closed at once, and connections to hosts after the TLS handshake.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use http::uri::{Authority, Scheme};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use super::{Finding, connect};
use crate::app::gate::{PreparedGate, prepare_gate};
use crate::clock::Clock;
use crate::credentials::{Environment, Proxy, Secret, Target};
use crate::proxy::{Directory, Fate};
use crate::spec::{Egress, Gate, HostPattern, Hosts, Listen, Settings};
use crate::status::text::count;
use crate::tls::{self, Roots};
use crate::upstream::{self, Dns};

/// A gate with hosts.
struct GateHosts<'a> {
    about: &'a str,
    hosts: &'a Hosts,
    prepared: &'a PreparedGate,
}

/// The settings of the check.
struct HostCheck<'a> {
    directory: &'a Directory,
    settings: &'a Egress,
    /// The listener, if it can be asked.
    listener: Option<&'a Listen>,
    clock: Clock,
}

/// Checks the hosts of all gates; `listens` is true if the listener accepts connections.
pub(super) async fn findings(settings: &Settings, listens: bool, around: &Environment, clock: Clock) -> Vec<Finding> {
    let (Some(directory), Some(egress)) = (Directory::new(settings), &settings.egress) else { return Vec::new() };
    // Doctor is no client that the listener knows. It sends no token over TLS that it does not
    // verify.
    let can_ask = egress.clients.is_none() && (egress.tls.is_none() || egress.token_file.is_none());
    let listener = egress.listen.as_ref().filter(|_| listens && can_ask);
    let check = HostCheck { directory: &directory, settings: egress, listener, clock };
    let mut findings = Vec::new();
    for gate in settings.gates.values() {
        findings.extend(check.gate(gate, around).await);
    }
    findings
}

// === impl HostCheck ===

impl HostCheck<'_> {
    async fn gate(&self, gate: &Gate, around: &Environment) -> Vec<Finding> {
        let names = self.names(gate);
        let (Some(hosts), false) = (&gate.hosts, names.is_empty()) else { return Vec::new() };
        let about = format!("hosts of {}", gate.name);
        let prepared = match prepare_gate(gate.clone(), around, Duration::ZERO, self.clock) {
            Ok(prepared) => prepared,
            Err(trouble) => return vec![Finding::of_trouble(&about, trouble, &format!("gates.{}", gate.name))],
        };
        let (names, left) = names.split_at(names.len().min(MOST));
        let of = GateHosts { about: &about, hosts, prepared: &prepared };
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

    /// Returns the gate's own hosts with full names.
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

    /// Checks one host.
    async fn host(&self, of: &GateHosts<'_>, name: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Some(listen) = self.listener {
            let asked = tokio::time::timeout(PATIENCE, self.ask(listen, name)).await;
            findings.extend(judge(of.about, name, asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))));
        }
        let says = match self.upstream(of, name) {
            Some(options) => upstream::try_out(&options, self.clock).await.err().map(|error| error.to_string()),
            None => Some("its address is none that can be called; correct connect_to, or egress.via".to_owned()),
        };
        let advice = "check the name, and network policies";
        findings.extend(says.map(|says| Finding::of_error(of.about, &format!("{name}: "), &says, advice)));
        findings
    }

    /// Returns the way from the gate to a host.
    fn upstream(&self, of: &GateHosts<'_>, name: &str) -> Option<upstream::Options> {
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
        // As in the gate, any address that the operator sets may be dialled.
        let judge = connect_to.is_none().then(|| self.directory.judge());
        let dns = Dns { judge, ..of.prepared.options.upstream.dns.clone() };
        Some(upstream::Options { target, dns, ..of.prepared.options.upstream.clone() })
    }

    /// Asks the listener for a tunnel to a host, and returns the first line of the answer.
    async fn ask(&self, listen: &Listen, name: &str) -> io::Result<String> {
        let mut stream = connect(listen).await?;
        if self.settings.tls.is_some() {
            // Nothing secret is sent, so the certificate need not verify.
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

    /// Returns the token for clients.
    fn token(&self) -> Option<String> {
        Secret::file(self.settings.token_file.as_deref()?).ok()?.reveal(self.clock.now())
    }
}

/// Checks an answer to a CONNECT.
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

/// The most checked hosts of a gate.
const MOST: usize = 100;
/// The most concurrent checks.
const AT_ONCE: usize = 8;
/// The timeout of the listener: it connects to the host before it answers.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most bytes of a status line.
const LONGEST: usize = 4096;
