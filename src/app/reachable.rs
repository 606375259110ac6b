//! The addresses of listeners, as seen from this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::spec::Listen;

/// Returns the addresses of the TCP listeners, as seen from this machine.
pub(crate) fn tcp_addresses(listen: &[Listen]) -> impl Iterator<Item = SocketAddr> {
    listen.iter().filter_map(Listen::tcp).map(reachable)
}

/// Returns the address at which this machine reaches a listener: loopback for a listener on all
/// addresses.
pub(crate) fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}
