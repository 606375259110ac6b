//! The host names accepted in requests to a gate.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::uri::Authority;

/// The host names accepted in requests to a gate.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// The names in lower case. There are few, so each is compared: a hash table would have to hash
    /// the host of every request.
    names: Vec<Box<str>>,
    /// The length of the upstream's base path, put in front of each target.
    pub(crate) base_path: usize,
}

impl Hosts {
    /// Collects the loopback names, the names in the certificate and the configured ones.
    /// `base_path` is the upstream's.
    pub(crate) fn new<'a>(more: impl IntoIterator<Item = &'a str>, base_path: &str) -> Self {
        let names = more.into_iter().chain(["localhost"]).map(|name| name.to_ascii_lowercase().into()).collect();
        Self { names, base_path: base_path.len() }
    }

    /// Returns true if `authority` names this gate; `local` is the address the client
    /// connected to. The port is not checked: it may be mapped.
    pub(crate) fn allow(&self, authority: &Authority, local: Option<IpAddr>) -> bool {
        let host = authority.host();
        let Some((bare, address)) = address_in(host) else {
            return self.names.iter().any(|name| name.eq_ignore_ascii_case(host));
        };
        // The two addresses that a client uses for "this machine"; the rest of 127.0.0.0/8 is
        // allowed where the client connected to it.
        let address = address.to_canonical();
        [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].contains(&address)
            || local.is_some_and(|local| local.to_canonical() == address)
            || self.names.iter().any(|name| **name == *bare)
    }
}

/// Returns a host without brackets and its IP address, if it is one.
fn address_in(host: &str) -> Option<(&str, IpAddr)> {
    if !host.starts_with(|first: char| first == '[' || first.is_ascii_digit()) {
        return None;
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse().ok().map(|address| (bare, address))
}
