//! Tunnels: bytes carried between client and host, unread and unchanged.
//!
//! Only if hosts that no gate lists are refused, the first bytes are read: they must be TLS for the
//! host of the tunnel. Otherwise the list of allowed hosts would mean nothing.

use std::sync::atomic::Ordering::Relaxed;

use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite};

use super::tally::OpenTunnel;
use super::target::{Host, Origin};
use crate::places::Busy;
use crate::proxy::listener::Wire;
use crate::proxy::tunnel::{self, Counters};

/// What a client sends first in a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum First {
    /// The beginning of TLS, for this host name if it has one.
    Tls(Option<String>),
    /// The client sent something else.
    Other,
}

/// Carries bytes both ways and counts them, as tunnels through gates do.
pub(super) async fn carry<S>(client: Wire, host: S, open: OpenTunnel, busy: Option<Busy>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let row = &open.row;
    let up = |bytes| {
        row.up.fetch_add(bytes as u64, Relaxed);
        open.up.increment(bytes as u64);
    };
    let down = |bytes| {
        row.down.fetch_add(bytes as u64, Relaxed);
        open.down.increment(bytes as u64);
    };
    match tunnel::carry(client, host, busy, Counters { up: &up, down: &down }).await {
        Ok((up, down)) => tracing::debug!(host = open.host, up, down, "a tunnel ended"),
        Err(error) => tracing::debug!(host = open.host, %error, "a tunnel broke off"),
    }
}

/// Determines what a client sends first; `None` if more bytes must come.
pub fn first(bytes: &[u8]) -> Option<First> {
    match bytes.first() {
        None => return None,
        Some(0x16) => {}
        Some(_) => return Some(First::Other),
    }
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        if acceptor.read_tls(&mut rest).is_err() {
            return Some(First::Other);
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => return Some(First::Tls(accepted.client_hello().server_name().map(str::to_owned))),
            Ok(None) => {}
            Err(_) => return Some(First::Other),
        }
    }
    (bytes.len() > LONGEST_HELLO).then_some(First::Other)
}

/// Returns true if the client's TLS names the host of the tunnel.
pub(super) fn is_for(first: &First, origin: &Origin) -> bool {
    match (first, &origin.host) {
        (First::Tls(Some(name)), Host::Name(host)) => name.strip_suffix('.').unwrap_or(name).eq_ignore_ascii_case(host),
        _ => false,
    }
}

/// The most bytes to wait for until TLS has named its host.
const LONGEST_HELLO: usize = 64 << 10;
