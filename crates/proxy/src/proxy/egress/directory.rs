//! The directory of hosts: which gate lists a host, and the rules for hosts of no gate.

use std::sync::Arc;

use super::reason::{EgressRefusal, Why};
use super::target::{Host, Origin};
use crate::spec::{Egress, HostFate, HostPattern, Hosts, PlainHttp, Settings};

/// The hosts gates list, and the rules for all others.
#[derive(Clone, Debug)]
pub struct Directory {
    pub(super) egress: Egress,
    /// The gates with their hosts, in the order of the configuration file.
    gates: Vec<(Arc<str>, Hosts)>,
}

/// What the egress listener does with a tunnel (a CONNECT) or a call (a request for a URL).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate<'a> {
    /// Its calls go through the gate of this name, over TLS. The pattern is the entry in the gate's
    /// hosts that matched.
    Gate(&'a Arc<str>, &'a HostPattern),
    /// The tunnel's TLS is decrypted, and the calls in it go through the gate of this name. The
    /// pattern is the entry in the gate's hosts that matched.
    Intercepted(&'a Arc<str>, &'a HostPattern),
    /// The tunnel or call passes without limits: a tunnel unread, a call unencrypted. A gate is
    /// named if it lists the host but cannot limit the calls, because their TLS is not decrypted.
    Passed(Option<&'a Arc<str>>),
}

/// A tunnel with calls that the gate reads: plain HTTP or decrypted TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inside {
    pub(super) origin: Origin,
    pub(super) is_tls: bool,
}

// === impl Directory ===

impl Directory {
    /// Builds the directory from the settings; `None` if there is no egress listener.
    pub fn new(settings: &Settings) -> Option<Self> {
        let egress = settings.egress.clone()?;
        let mut gates: Vec<_> =
            settings.gates.values().filter_map(|gate| Some((Arc::clone(&gate.name), gate.hosts.clone()?))).collect();
        gates.sort_by_key(|(_, hosts)| hosts.place);
        Some(Self { egress, gates })
    }

    /// Returns the hosts a gate lists.
    pub(super) fn hosts(&self, gate: &str) -> Option<&Hosts> {
        self.gates.iter().find(|(name, _)| **name == *gate).map(|(_, hosts)| hosts)
    }

    /// Returns the gates decrypting TLS.
    pub(super) fn intercepting(&self) -> impl Iterator<Item = &Arc<str>> {
        self.gates.iter().filter(|(_, hosts)| hosts.intercept).map(|(gate, _)| gate)
    }

    /// Returns the gate that lists a host, its settings of hosts, and the matching pattern. `None`
    /// if no gate does, if the port is not one of `is_port`, or if the host is exempt in
    /// `egress.tunnel`.
    fn listed(&self, origin: &Origin, is_port: impl Fn(u16) -> bool) -> Option<(&Arc<str>, &Hosts, &HostPattern)> {
        let Host::Name(name) = &origin.host else { return None };
        if !is_port(origin.port) || self.is_passed(name) {
            return None;
        }
        self.gates.iter().find_map(|(gate, hosts)| Some((gate, hosts, hosts.find(name)?)))
    }

    /// Decides what happens to a tunnel. A tunnel to port 80 of a listed host is read as plain
    /// HTTP.
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

    /// Returns the gate for a call in a tunnel that is read, or a refusal: a reload may have
    /// changed the rules since the tunnel began.
    pub(super) fn inside(&self, Inside { origin, is_tls }: &Inside) -> Result<&Arc<str>, EgressRefusal> {
        match self.listed(origin, |port| self.is_read(port)) {
            Some((gate, hosts, _)) if *is_tls && hosts.intercept => Ok(gate),
            Some((gate, hosts, _)) if !is_tls => plain(origin, hosts).map(|()| gate),
            _ => Err(EgressRefusal::new(
                Why::NotListed,
                format!("the configuration of {} has changed; connect again", origin.host),
            )),
        }
    }

    /// Decides what happens to a call for a URL. Calls to listed hosts are sent over TLS, so only
    /// port 80 and the TLS ports of the settings are allowed: to any other port the call would be
    /// sent unencrypted.
    pub(super) fn call(&self, origin: &Origin) -> Result<Fate<'_>, EgressRefusal> {
        check_port(origin)?;
        match self.listed(origin, |_| true) {
            Some((gate, hosts, pattern)) if self.is_read(origin.port) => {
                plain(origin, hosts).map(|()| Fate::Gate(gate, pattern))
            }
            Some(_) => Err(EgressRefusal::new(
                Why::PlainHttp,
                format!("a call to {origin} would be sent unencrypted; use https://, or list it in egress.tunnel"),
            )),
            None => self.other(origin),
        }
    }

    /// Decides what happens to a tunnel or call to a host of no gate.
    fn other(&self, origin: &Origin) -> Result<Fate<'_>, EgressRefusal> {
        let is_named = matches!(&origin.host, Host::Name(name) if self.is_passed(name));
        match self.egress.others {
            HostFate::Refuse if !is_named => {
                Err(EgressRefusal::new(Why::NotListed, format!("{} is not listed by a gate", origin.host)))
            }
            _ => Ok(Fate::Passed(None)),
        }
    }

    /// Returns true if calls to listed hosts are limited at this port.
    fn is_read(&self, port: u16) -> bool {
        port == PLAIN || self.egress.ports.contains(&port)
    }

    /// Returns true if the settings let a host pass even though a gate lists it.
    fn is_passed(&self, name: &str) -> bool {
        self.egress.tunnel.iter().any(|pattern| pattern.matches(name))
    }

    /// Returns what would happen to a CONNECT, or to a call for a URL.
    ///
    /// # Errors
    /// The host and port are invalid or refused; the text says why.
    pub fn explain(&self, is_tunnel: bool, authority: &str) -> Result<Fate<'_>, String> {
        let usual = (!is_tunnel).then_some(80);
        let origin = Origin::read(authority, usual).map_err(|error| error.to_string())?;
        let fate = if is_tunnel { self.tunnel(&origin) } else { self.call(&origin) };
        let fate = fate.map_err(|refused| refused.to_string())?;
        match (&origin.host, &fate) {
            (Host::Address(address), Fate::Passed(_)) => {
                self.judge()(*address).map(|()| fate).map_err(|why| format!("{address}: {why}"))
            }
            _ => Ok(fate),
        }
    }

    /// Returns the check of an address before the egress listener connects to it.
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

/// Refuses the ports of mail servers, because mail relays have always been abused through proxies.
fn check_port(origin: &Origin) -> Result<(), EgressRefusal> {
    match origin.port {
        25 | 465 | 587 => Err(EgressRefusal::new(Why::Port, format!("port {} is a mail server's port", origin.port))),
        _ => Ok(()),
    }
}

/// The port of plain HTTP.
const PLAIN: u16 = 80;
