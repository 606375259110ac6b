//! TCP connections to several addresses at once (RFC 8305 in short).
//!
//! Each address is tried some time after the one before it. The first connection wins.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use super::error::DialFailure;
use super::names::NameLookup;

/// Connects to the first address to answer, unless it is the gate's own. Returns the last error if
/// all fail.
pub(super) async fn connect(addresses: Vec<SocketAddr>, names: &NameLookup) -> Result<TcpStream, DialFailure> {
    let mut rest = addresses.into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut last = DialFailure::Name(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    loop {
        match rest.next() {
            Some(address) => attempts.push(attempt(address, names)),
            None if attempts.is_empty() => return Err(last),
            None => {}
        }
        let others_wait = rest.len() > 0;
        tokio::select! {
            Some(ended) = attempts.next() => match ended {
                Ok(stream) => return Ok(stream),
                Err(failure) => last = failure,
            },
            () = names.clock.sleep(HEAD_START), if others_wait => {}
        }
    }
}

async fn attempt(address: SocketAddr, names: &NameLookup) -> Result<TcpStream, DialFailure> {
    let stream = TcpStream::connect(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => DialFailure::Refused,
        _ => DialFailure::Network(error),
    })?;
    let local = stream.local_addr();
    let peer = stream.peer_addr();
    if names.is_own_connection(local.map_err(DialFailure::Network)?, peer.map_err(DialFailure::Network)?) {
        return Err(DialFailure::Itself);
    }
    stream.set_nodelay(true).map_err(DialFailure::Network)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive).map_err(DialFailure::Network)?;
    Ok(stream)
}

/// The time between the attempts at two addresses: the "connection attempt delay" of RFC 8305.
const HEAD_START: Duration = Duration::from_millis(250);
/// The interval of TCP keepalive, the same as Go's.
const KEEPALIVE: Duration = Duration::from_secs(30);
