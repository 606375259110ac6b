//! Blind tunnels: bytes between a client and a host, unread and unchanged.
//!
//! What a client says first is looked at only where the list of hosts would mean nothing otherwise:
//! if others are refused, TLS must be for the host that the tunnel is for.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::sync::Notify;

use super::tally::{Open, Row};
use super::target::{Host, Origin};
use crate::clock::Clock;
use crate::moment::Moment;
use crate::places::{Busy, Place};
use crate::proxy::listener::Wire;

/// The host's side of a tunnel, whose bytes are counted. Both ends are seen here: the client's as a
/// shutdown.
struct Counted<S> {
    stream: S,
    row: Arc<Row>,
    half: Arc<Half>,
}

/// A tunnel's hold on its place, and the clock for its end.
pub(super) struct Holding {
    pub(super) busy: Option<Busy>,
    pub(super) clock: Clock,
}

/// A tunnel of which one side has ended.
struct Half {
    clock: Clock,
    place: Option<Arc<Place>>,
    /// The last byte since the end of that side.
    last: Mutex<Option<Moment>>,
    ended: Notify,
}

/// The beginning of what a client says in a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum First {
    /// TLS, for this name.
    Tls(Option<String>),
    /// Something else.
    Other,
}

/// Carries bytes both ways until both sides have ended. A side that ends its half has it ended on
/// the other, which then is given up when it is silent for [`SILENCE`], or its place is wanted.
pub(super) async fn carry<S: AsyncRead + AsyncWrite + Unpin>(mut client: Wire, host: S, open: Open, holding: Holding) {
    let Holding { busy, clock } = holding;
    let place = busy.as_ref().map(|busy| Arc::clone(busy.place()));
    let half = Arc::new(Half { clock, place, last: Mutex::default(), ended: Notify::new() });
    let mut host = Counted { stream: host, row: Arc::clone(&open.row), half: Arc::clone(&half) };
    let carried = tokio::select! {
        carried = copy_bidirectional_with_sizes(&mut client, &mut host, BUFFER, BUFFER) => carried,
        () = half.is_silent(busy) => Err(io::ErrorKind::TimedOut.into()),
    };
    match carried {
        Ok((up, down)) => tracing::debug!(host = open.host, up, down, "a tunnel ended"),
        Err(error) => tracing::debug!(host = open.host, %error, "a tunnel broke"),
    }
}

// === impl Half ===

impl Half {
    /// Returns when one side has ended, and the other has been silent. The place is not kept for
    /// that.
    async fn is_silent(&self, busy: Option<Busy>) {
        self.ended.notified().await;
        if let Some(busy) = busy {
            busy.end();
        }
        loop {
            let silent = self.last() + SILENCE;
            if self.clock.now() >= silent {
                return;
            }
            self.clock.sleep_until(silent).await;
        }
    }

    /// Returns the moment of the last byte.
    fn last(&self) -> Moment {
        self.lock().unwrap_or_else(|| self.clock.now())
    }

    fn end(&self) {
        self.lock().get_or_insert_with(|| self.clock.now());
        self.ended.notify_one();
    }

    /// Notes bytes.
    fn move_on(&self) {
        if let Some(last) = &mut *self.lock() {
            *last = self.clock.now();
            if let Some(place) = &self.place {
                place.touch();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Moment>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
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
        if bytes > 0 {
            self.half.move_on();
        } else {
            self.half.end();
        }
        self.row.down.fetch_add(bytes, Relaxed);
        self.row.meters.down.increment(bytes);
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> Counted<S> {
    fn count(&self, written: &io::Result<usize>) {
        let bytes = *written.as_ref().unwrap_or(&0) as u64;
        self.half.move_on();
        self.row.up.fetch_add(bytes, Relaxed);
        self.row.meters.up.increment(bytes);
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf));
        self.count(&written);
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs));
        self.count(&written);
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.half.end();
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A half that says nothing for so long has nobody to say it to.
const SILENCE: Duration = Duration::from_secs(60);
/// Each way: a TLS record.
const BUFFER: usize = 16 << 10;
/// The most that a client may say before its name is known.
const LONGEST_HELLO: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::super::tally::Tally;
    use super::*;
    use crate::proxy::listener::WireHandle;

    #[tokio::test(start_paused = true)]
    async fn a_half_closed_tunnel_ends_after_a_silent_minute() {
        let clock = Clock::start();
        for client_ends in [true, false] {
            let ((near, client), (host, far)) = (duplex(99), duplex(99));
            let wire = Wire::unscanned(&WireHandle::new(Box::new(near), Arc::default()));
            let open = Tally::new().opened("host", None);
            tokio::spawn(carry(wire, host, open, Holding { busy: None, clock }));
            let [mut ends, mut stays] = if client_ends { [client, far] } else { [far, client] };
            clock.sleep(SILENCE * 10).await;
            ends.shutdown().await.expect("it was open all the time");
            assert_eq!(stays.read(&mut [0]).await.expect("the end"), 0);
            for _ in 0..3 {
                clock.sleep(SILENCE - Duration::from_secs(1)).await;
                stays.write_all(b"x").await.expect("it is open");
                ends.read_exact(&mut [0]).await.expect("a byte is carried on");
            }
            let last = clock.now();
            assert_eq!(ends.read(&mut [0]).await.expect("the end"), 0);
            assert_eq!((clock.now() - last).as_secs(), SILENCE.as_secs());
        }
    }
}
