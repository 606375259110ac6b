//! The directory of hosts: the gate of each listed host, and the rules for others.

use std::sync::Arc;

use super::reason::{EgressRefusal, Why};
use super::target::{Host, Origin};
use crate::spec::{Egress, HostFate, HostPattern, Hosts, PlainHttp, Settings};

/// The hosts of all gates, and the rules for others.
#[derive(Clone, Debug)]
pub struct Directory {
    pub(super) egress: Egress,
    /// In the order of the file.
    gates: Vec<(Arc<str>, Hosts)>,
}

/// The fate of a tunnel or a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate<'a> {
    /// The call goes through the gate of this name, over TLS; this pattern lists its host.
    Gate(&'a Arc<str>, &'a HostPattern),
    /// TLS of the tunnel is opened, and its calls go through the gate of this name.
    Intercepted(&'a Arc<str>, &'a HostPattern),
    /// Passed on unread, or in clear; this gate lists the host, and its limits do not hold.
    Passed(Option<&'a Arc<str>>),
}

/// A tunnel with readable calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inside {
    pub(super) origin: Origin,
    pub(super) is_tls: bool,
}

// === impl Directory ===

impl Directory {
    /// Reads the directory from the settings; `None` if there is no listener.
    pub fn new(settings: &Settings) -> Option<Self> {
        let egress = settings.egress.clone()?;
        let mut gates: Vec<_> =
            settings.gates.values().filter_map(|gate| Some((Arc::clone(&gate.name), gate.hosts.clone()?))).collect();
        gates.sort_by_key(|(_, hosts)| hosts.place);
        Some(Self { egress, gates })
    }

    /// Returns the hosts of a gate.
    pub(super) fn hosts(&self, gate: &str) -> Option<&Hosts> {
        self.gates.iter().find(|(name, _)| **name == *gate).map(|(_, hosts)| hosts)
    }

    /// Returns the gates with interception.
    pub(super) fn intercepting(&self) -> impl Iterator<Item = &Arc<str>> {
        self.gates.iter().filter(|(_, hosts)| hosts.intercept).map(|(gate, _)| gate)
    }

    /// Returns the gate and the pattern for a host at a port.
    fn listed(&self, origin: &Origin, is_port: impl Fn(u16) -> bool) -> Option<(&Arc<str>, &Hosts, &HostPattern)> {
        let Host::Name(name) = &origin.host else { return None };
        if !is_port(origin.port) || self.is_passed(name) {
            return None;
        }
        self.gates.iter().find_map(|(gate, hosts)| Some((gate, hosts, hosts.find(name)?)))
    }

    /// Decides on a tunnel. One of a listed host to port 80 carries plain HTTP.
    pub(super) fn tunnel(&self, origin: &Origin) -> Result<Fate<'_>, EgressRefusal> {
        check_port(origin)?;
        if let Some((gate, hosts, pattern)) = self.listed(origin, |port| port == PLAIN) {
            return plain(origin, hosts).map(|()| Fate::Gate(gate, pattern));
        }
        match self.listed(origin, |port| self.egress.ports.contains(&port)) {
            Some((gate, hosts, pattern)) if hosts.intercept => Ok(Fate::Intercepted(gate, pattern)),
            Some((gate, ..)) => Ok(Fate::Passed(Some(gate))),
            None => self.other(origin),
        }
    }

    /// Decides on a call in a readable tunnel. The rules may have changed since it began.
    pub(super) fn inside(&self, Inside { origin, is_tls }: &Inside) -> Result<&Arc<str>, EgressRefusal> {
        match self.listed(origin, |port| self.is_read(port)) {
            Some((gate, hosts, _)) if *is_tls && hosts.intercept => Ok(gate),
            Some((gate, hosts, _)) if !is_tls => plain(origin, hosts).map(|()| gate),
            _ => Err(EgressRefusal::new(
                Why::NotListed,
                format!("{} is no longer read here; connect again", origin.host),
            )),
        }
    }

    /// Decides on a call for a URL. With `http` and the port of `https` it is for the same origin.
    /// To a listed host nothing leaves in clear, whatever the port.
    pub(super) fn call(&self, origin: &Origin) -> Result<Fate<'_>, EgressRefusal> {
        check_port(origin)?;
        match self.listed(origin, |_| true) {
            Some((gate, hosts, pattern)) if self.is_read(origin.port) => {
                plain(origin, hosts).map(|()| Fate::Gate(gate, pattern))
            }
            Some(_) => Err(EgressRefusal::new(
                Why::PlainHttp,
                format!("{origin} would be called in clear; use https://, or list it in egress.tunnel"),
            )),
            None => self.other(origin),
        }
    }

    /// Decides on what no gate lists.
    fn other(&self, origin: &Origin) -> Result<Fate<'_>, EgressRefusal> {
        let is_named = matches!(&origin.host, Host::Name(name) if self.is_passed(name));
        match self.egress.others {
            HostFate::Refuse if !is_named => {
                Err(EgressRefusal::new(Why::NotListed, format!("{} is not listed in [egress]", origin.host)))
            }
            _ => Ok(Fate::Passed(None)),
        }
    }

    /// True if listed hosts are limited at this port.
    fn is_read(&self, port: u16) -> bool {
        port == PLAIN || self.egress.ports.contains(&port)
    }

    /// True if a host is passed on whatever a gate lists.
    fn is_passed(&self, name: &str) -> bool {
        self.egress.tunnel.iter().any(|pattern| pattern.matches(name))
    }

    /// Says in a sentence what becomes of a CONNECT, or of a call for a URL.
    ///
    /// # Errors
    /// The target is none, or it is refused.
    pub fn explain(&self, is_tunnel: bool, authority: &str) -> Result<Fate<'_>, String> {
        let usual = (!is_tunnel).then_some(80);
        let origin = Origin::read(authority, usual).map_err(|error| error.to_string())?;
        let fate = if is_tunnel { self.tunnel(&origin) } else { self.call(&origin) };
        let fate = fate.map_err(|refused| refused.to_string())?;
        match (&origin.host, &fate) {
            (Host::Address(address), Fate::Passed(_)) => {
                self.judge()(*address).map(|()| fate).map_err(|why| format!("{address} is {why}"))
            }
            _ => Ok(fate),
        }
    }

    /// Returns the judge of addresses for clients' dials.
    pub fn judge(&self) -> crate::upstream::Judge {
        match self.egress.metadata {
            HostFate::Refuse => super::address::judge,
            HostFate::Tunnel => super::address::judge_but_metadata,
        }
    }
}

fn plain(origin: &Origin, hosts: &Hosts) -> Result<(), EgressRefusal> {
    match hosts.plain {
        PlainHttp::Upgrade => Ok(()),
        PlainHttp::Refuse => Err(EgressRefusal::new(
            Why::PlainHttp,
            format!("plain HTTP to {} is refused here; use https://", origin.host),
        )),
    }
}

/// Mail relays have always been reached through proxies.
fn check_port(origin: &Origin) -> Result<(), EgressRefusal> {
    match origin.port {
        25 | 465 | 587 => Err(EgressRefusal::new(Why::Port, format!("port {} is that of a mail server", origin.port))),
        _ => Ok(()),
    }
}

/// The port of plain HTTP.
const PLAIN: u16 = 80;
