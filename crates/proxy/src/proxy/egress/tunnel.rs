//! Blind tunnels: bytes between a client and a host, unread and unchanged.
//!
//! What a client says first is looked at only where the list of hosts would mean nothing otherwise:
//! if others are refused, TLS must be for the host that the tunnel is for.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::tally::{Open, Row};
use super::target::{Host, Origin};
use crate::places::Busy;
use crate::proxy::listener::Wire;
use crate::proxy::tunnel;

/// The host's side of a tunnel, whose bytes are counted.
struct Counted<S> {
    stream: S,
    row: Arc<Row>,
}

/// The beginning of what a client says in a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum First {
    /// TLS, for this name.
    Tls(Option<String>),
    /// Something else.
    Other,
}

/// Carries bytes both ways, as tunnels through gates do, and counts them.
pub(super) async fn carry<S>(client: Wire, host: S, open: Open, busy: Option<Busy>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let host = Counted { stream: host, row: Arc::clone(&open.row) };
    match tunnel::carry(client, host, busy).await {
        Ok((up, down)) => tracing::debug!(host = open.host, up, down, "a tunnel ended"),
        Err(error) => tracing::debug!(host = open.host, %error, "a tunnel broke"),
    }
}

/// Reads the beginning of what a client says; `None` if more must come.
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

/// True if the client's TLS is for the host of the tunnel.
pub(super) fn is_for(first: &First, origin: &Origin) -> bool {
    match (first, &origin.host) {
        (First::Tls(Some(name)), Host::Name(host)) => name.strip_suffix('.').unwrap_or(name).eq_ignore_ascii_case(host),
        _ => false,
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        let bytes = (buf.filled().len() - before) as u64;
        self.row.down.fetch_add(bytes, Relaxed);
        self.row.meters.down.increment(bytes);
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf));
        let bytes = *written.as_ref().unwrap_or(&0) as u64;
        self.row.up.fetch_add(bytes, Relaxed);
        self.row.meters.up.increment(bytes);
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The most that a client may say before its name is known.
const LONGEST_HELLO: usize = 64 << 10;
