//! Tunnels: a client's connection after its call has switched protocols.
//!
//! A call that asks to switch carries the [`UpgradeSlot`] of its connection. When the upstream has
//! switched, the call leaves a [`Tunnel`] there; once hyper has written the 101 and released the
//! connection, the connection's own task finds it and carries the bytes. Two buffers of 16 KiB (a
//! TLS record's worth) are all that a tunnel holds; a side that does not read stops the other.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};
use tokio::sync::Notify;
use tokio_util::io::InspectReader;

use super::observe::InFlight;
use crate::upstream::Protocol;

/// The place where a call leaves the tunnel that its connection is to become.
#[derive(Clone, Default)]
pub(crate) struct UpgradeSlot(Arc<Mutex<Option<Tunnel>>>);

/// A call's side of a switch, until the upstream has answered.
pub(crate) struct Switch {
    pub(crate) protocol: Protocol,
    slot: UpgradeSlot,
    client: OnUpgrade,
}

/// Both sides of a tunnel, which counts as in flight until its end.
pub(crate) struct Tunnel {
    client: OnUpgrade,
    upstream: OnUpgrade,
    in_flight: Option<InFlight>,
}

// === impl UpgradeSlot ===

impl UpgradeSlot {
    /// Takes the tunnel that a call left here.
    pub(crate) fn take(&self) -> Option<Tunnel> {
        self.lock().take()
    }

    /// Makes the tunnel count as in flight until it ends.
    pub(crate) fn hold(&self, in_flight: Option<InFlight>) {
        if let Some(tunnel) = self.lock().as_mut() {
            tunnel.in_flight = in_flight;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Tunnel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Switch ===

impl Switch {
    /// Returns the call's side of a switch, if it asks for one and its connection can.
    pub(crate) fn asked(parts: &mut Parts) -> Option<Self> {
        let slot = parts.extensions.remove::<UpgradeSlot>()?;
        let client = parts.extensions.remove::<OnUpgrade>()?;
        let protocol = Protocol::asked(parts)?;
        Some(Self { protocol, slot, client })
    }

    /// Leaves the tunnel: the upstream has switched.
    pub(crate) fn tunnel(self, upstream: OnUpgrade) -> UpgradeSlot {
        *self.slot.lock() = Some(Tunnel { client: self.client, upstream, in_flight: None });
        self.slot
    }
}

// === impl Tunnel ===

impl Tunnel {
    /// Carries bytes both ways, as [`carry`] does.
    pub(crate) async fn carry(self, gate: &str) {
        let Self { client, upstream, in_flight } = self;
        let carried = async {
            let (client, upstream) = tokio::try_join!(client, upstream).map_err(io::Error::other)?;
            carry(TokioIo::new(client), TokioIo::new(upstream)).await
        };
        match carried.await {
            Ok((up, down)) => tracing::debug!(gate, up, down, "a tunnel ended"),
            Err(error) => tracing::debug!(gate, %error, "a tunnel broke"),
        }
        drop(in_flight);
    }
}

/// Carries bytes both ways until both sides have ended, and returns how many went up and down. A
/// side that ends its half has it ended on the other; a side that breaks breaks the other.
///
/// # Errors
/// A side broke, or one has ended and the other was silent for [`HALF_CLOSED`] since: whoever could
/// have read its bytes is gone, and the tunnel would keep its place for as long as it says nothing.
pub(crate) async fn carry<C, U>(client: C, upstream: U) -> io::Result<(u64, u64)>
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let (came, ended) = (Notify::new(), Notify::new());
    let note = |bytes: &[u8]| if bytes.is_empty() { ended.notify_one() } else { came.notify_one() };
    let mut sides = (InspectReader::new(client, note), InspectReader::new(upstream, note));
    let silent = async {
        ended.notified().await;
        while tokio::time::timeout(HALF_CLOSED, came.notified()).await.is_ok() {}
    };
    tokio::select! {
        biased;
        carried = copy_bidirectional_with_sizes(&mut sides.0, &mut sides.1, BUFFER, BUFFER) => carried,
        () = silent => Err(io::Error::new(io::ErrorKind::TimedOut, "one side ended, and the other was silent")),
    }
}

/// The longest silence of a tunnel of which one side has ended.
const HALF_CLOSED: Duration = Duration::from_secs(60);

/// Each way: a TLS record.
const BUFFER: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;
    use crate::clock::Clock;

    /// A tunnel on its way, with the far ends of its client and its upstream.
    fn tunnel() -> (tokio::task::JoinHandle<io::Result<(u64, u64)>>, DuplexStream, DuplexStream) {
        let ((client, near), (far, upstream)) = (duplex(64), duplex(64));
        (tokio::spawn(carry(near, far)), client, upstream)
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
    async fn a_side_that_never_reads_is_let_go_too() {
        let (carrying, client, mut upstream) = tunnel();
        let clock = Clock::start();
        let begun = clock.now();
        upstream.write_all(&[7; 128]).await.expect("the client's half of the pipe and the buffer take it");
        upstream.shutdown().await.expect("ends its half");
        assert_eq!(carrying.await.expect("no panic").map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        assert_eq!(clock.now() - begun, HALF_CLOSED);
        drop(client);
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
