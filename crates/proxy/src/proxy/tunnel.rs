//! Tunnels: a client's connection after its call has switched protocols, or after a CONNECT.
//!
//! A call that asks for either carries the [`UpgradeSlot`] of its connection, and puts there what
//! serves the connection from then on. Once hyper has written the answer and released the
//! connection, the connection's own task serves it. A tunnel holds only two buffers of 16 KiB (a TLS
//! record's worth); if one side does not read, the other must stop sending.

use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::sync::Notify;

use super::observe::InFlight;
use crate::lock;
use crate::places::Busy;
use crate::upstream::Protocol;

/// What serves a connection after hyper has released it.
pub(crate) enum Tunnel {
    /// The upstream has switched protocols: bytes are carried both ways.
    Switched(OnUpgrade),
    /// A CONNECT has opened it.
    Opened(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// A slot for passing a tunnel from a call to the task of its connection.
#[derive(Clone, Default)]
pub(crate) struct UpgradeSlot(Arc<Mutex<SlotState>>);

#[derive(Default)]
struct SlotState {
    tunnel: Option<Tunnel>,
    /// Counts the tunnel among the calls in flight.
    in_flight: Option<InFlight>,
}

/// What an upgrading call needs to make a tunnel, if the upstream accepts the other protocol.
pub(crate) struct Switch {
    pub(crate) protocol: Protocol,
    slot: UpgradeSlot,
}

/// Notifies of events in a tunnel: a side has ended, or bytes moved.
#[derive(Default)]
struct TunnelEvents {
    ended: Notify,
    moved: Notify,
}

/// Counters of the bytes read from the client and from the upstream.
#[derive(Clone, Copy)]
pub(crate) struct Counters<'a> {
    pub(crate) up: &'a (dyn Fn(usize) + Sync),
    pub(crate) down: &'a (dyn Fn(usize) + Sync),
}

/// One of the two connections of a tunnel.
struct Side<'a, S> {
    stream: S,
    count: &'a (dyn Fn(usize) + Sync),
    events: &'a TunnelEvents,
    /// True while this side does not accept bytes.
    is_stuck: &'a AtomicBool,
}

// === impl UpgradeSlot ===

impl UpgradeSlot {
    /// Puts a tunnel into the slot.
    pub(crate) fn fill(&self, tunnel: Tunnel) {
        lock(&self.0).tunnel = Some(tunnel);
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).tunnel.is_none()
    }

    /// Makes the tunnel count as in flight until it ends.
    pub(crate) fn hold(&self, in_flight: Option<InFlight>) {
        lock(&self.0).in_flight = in_flight;
    }

    /// Serves the rest of a client's connection, if one of its calls has put a tunnel into the
    /// slot.
    pub(crate) async fn serve<C>(&self, gate: &str, client: C, busy: impl FnOnce() -> Option<Busy>)
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let SlotState { tunnel, in_flight } = mem::take(&mut *lock(&self.0));
        let upstream = match tunnel {
            Some(Tunnel::Switched(upstream)) => upstream,
            Some(Tunnel::Opened(tunnel)) => return tunnel.await,
            None => return,
        };
        let carried = async {
            let upstream = TokioIo::new(upstream.await.map_err(io::Error::other)?);
            carry(client, upstream, busy(), Counters { up: &|_| {}, down: &|_| {} }).await
        };
        match carried.await {
            Ok((up, down)) => tracing::debug!(gate, up, down, "an upgraded connection ended"),
            Err(error) => tracing::debug!(gate, %error, "an upgraded connection broke"),
        }
        drop(in_flight);
    }
}

// === impl Switch ===

impl Switch {
    /// Returns what is needed to switch protocols; `None` if the call does not ask for it, or its
    /// connection cannot switch.
    pub(crate) fn asked(parts: &mut Parts) -> Option<Self> {
        let slot = parts.extensions.remove::<UpgradeSlot>()?;
        Some(Self { protocol: Protocol::asked(parts)?, slot })
    }

    /// Puts the tunnel into the connection's slot, because the upstream has switched.
    pub(crate) fn tunnel(self, upstream: OnUpgrade) -> UpgradeSlot {
        self.slot.fill(Tunnel::Switched(upstream));
        self.slot
    }
}

/// Carries bytes both ways until both sides have ended, and returns the numbers of bytes to the
/// upstream and to the client. When one side stops sending, the other is told so; when one breaks,
/// the other is closed. After the first side has ended, the client's connection counts as idle
/// since the last byte.
///
/// # Errors
/// A side broke, or one side had ended and the other was silent for [`HALF_CLOSED`]: nobody reads
/// its bytes any more, and the tunnel would stay open as long as the silence. A side that has bytes
/// still to read does not count as silent: `kubectl exec | less` may pause.
pub(crate) async fn carry<C, U>(
    client: C,
    upstream: U,
    busy: Option<Busy>,
    counters: Counters<'_>,
) -> io::Result<(u64, u64)>
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let events = TunnelEvents::default();
    let stuck = [AtomicBool::new(false), AtomicBool::new(false)];
    let [client_stuck, upstream_stuck] = &stuck;
    let mut client = Side { stream: client, count: counters.up, events: &events, is_stuck: client_stuck };
    let mut upstream = Side { stream: upstream, count: counters.down, events: &events, is_stuck: upstream_stuck };
    let silent = async {
        events.ended.notified().await;
        let place = busy.map(Busy::end);
        loop {
            match tokio::time::timeout(HALF_CLOSED, events.moved.notified()).await {
                Ok(()) => place.iter().for_each(|place| place.touch()),
                Err(_) if stuck.iter().any(|is_stuck| is_stuck.load(Relaxed)) => {}
                Err(_) => return,
            }
        }
    };
    tokio::select! {
        biased;
        carried = copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER) => carried,
        () = silent => Err(io::Error::new(io::ErrorKind::TimedOut, "one side closed the connection, and the other sent nothing more")),
    }
}

// === impl Side ===

impl<S> Side<'_, S> {
    /// Records whether the side accepted the bytes, and returns `written` unchanged.
    fn wrote<T>(&self, written: Poll<T>) -> Poll<T> {
        self.is_stuck.store(written.is_pending(), Relaxed);
        if written.is_ready() {
            self.events.moved.notify_one();
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Side<'_, S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        let bytes = buf.filled().len() - before;
        let event = if bytes > 0 { &self.events.moved } else { &self.events.ended };
        event.notify_one();
        (self.count)(bytes);
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Side<'_, S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.wrote(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.wrote(ended)
    }
}

/// The longest silence of the other side of a tunnel after one side has ended.
const HALF_CLOSED: Duration = Duration::from_secs(60);

/// The size of each direction's buffer: a TLS record.
const BUFFER: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;
    use crate::clock::Clock;
    use crate::places::Door;

    const NONE: Counters<'_> = Counters { up: &|_| {}, down: &|_| {} };

    /// A tunnel on its way, with the far ends of its client and its upstream.
    fn tunnel() -> (tokio::task::JoinHandle<io::Result<(u64, u64)>>, DuplexStream, DuplexStream) {
        let ((client, near), (far, upstream)) = (duplex(64), duplex(64));
        (tokio::spawn(async { carry(near, far, None, NONE).await }), client, upstream)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_side_is_let_go_a_minute_after_the_other_ended() {
        let clock = Clock::start();
        for client_ends in [true, false] {
            let (carrying, client, upstream) = tunnel();
            let (mut ends, mut stays) = if client_ends { (client, upstream) } else { (upstream, client) };
            clock.sleep(10 * HALF_CLOSED).await;
            assert!(!carrying.is_finished(), "both sides are there, however silent");
            ends.shutdown().await.expect("ends its half");
            assert_eq!(stays.read(&mut [0; 9]).await.expect("a clean end"), 0);
            for _ in 0..5 {
                clock.sleep(HALF_CLOSED - Duration::from_secs(1)).await;
                stays.write_all(b"x").await.expect("it goes on");
                assert_eq!(ends.read(&mut [0; 9]).await.expect("reads"), 1);
            }
            let last = clock.now();
            let carried = carrying.await.expect("no panic");
            assert_eq!(carried.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
            assert_eq!(clock.now() - last, HALF_CLOSED);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_side_that_pauses_gets_all_that_the_other_said() {
        for client_ends in [true, false] {
            let (carrying, client, upstream) = tunnel();
            let (mut ends, mut pauses) = if client_ends { (client, upstream) } else { (upstream, client) };
            let clock = Clock::start();
            ends.write_all(&[7; 128]).await.expect("both pipes and the buffer take it");
            ends.shutdown().await.expect("ends its half");
            clock.sleep(10 * HALF_CLOSED + HALF_CLOSED / 2).await;
            let mut said = Vec::new();
            pauses.read_to_end(&mut said).await.expect("a clean end");
            assert_eq!(said.len(), 128);
            let read = clock.now();
            assert_eq!(carrying.await.expect("no panic").map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
            assert_eq!(clock.now() - read, HALF_CLOSED, "it has read everything, and says nothing");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_half_closed_tunnel_gives_way() {
        let door = Door::new("door", 1, Clock::start());
        let place = door.take().expect("free");
        let ((near, mut client), (far, mut upstream)) = (duplex(64), duplex(64));
        let busy = Some(place.busy());
        tokio::spawn(async { carry(near, far, busy, NONE).await });
        tokio::task::yield_now().await;
        assert!(door.take().is_none(), "both sides are there");
        upstream.write_all(&[7; 128]).await.expect("the client's half of the pipe and the buffer take it");
        upstream.shutdown().await.expect("ends its half");
        Clock::start().sleep(Duration::from_millis(1)).await;
        let _other = door.take().expect("it goes at once");
        place.lost().await;
        client.read_u8().await.expect("it would have read on");
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_whose_sides_both_end_ends_well() {
        let (carrying, mut client, mut upstream) = tunnel();
        client.write_all(b"up").await.expect("writes");
        upstream.write_all(b"down").await.expect("writes");
        client.shutdown().await.expect("ends");
        upstream.shutdown().await.expect("ends");
        assert_eq!(carrying.await.expect("no panic").expect("ends well"), (2, 4));
    }
}
