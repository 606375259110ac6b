//! Tunnels: a client's connection after its call has switched protocols.
//!
//! A call that asks to switch carries the [`UpgradeSlot`] of its connection. When the upstream has
//! switched, the call leaves a [`Tunnel`] there; once hyper has written the 101 and released the
//! connection, the connection's own task finds it and carries the bytes. Two buffers of 16 KiB (a
//! TLS record's worth) are all that a tunnel holds; a side that does not read stops the other.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional_with_sizes;

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
    /// Carries bytes both ways until both sides have ended. A side that ends its half has it ended
    /// on the other; a side that breaks breaks the other.
    pub(crate) async fn carry(self, gate: &str) {
        let Self { client, upstream, in_flight } = self;
        let carried = async {
            let (client, upstream) = tokio::try_join!(client, upstream).map_err(io::Error::other)?;
            let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
            copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER).await
        };
        match carried.await {
            Ok((up, down)) => tracing::debug!(gate, up, down, "a tunnel ended"),
            Err(error) => tracing::debug!(gate, %error, "a tunnel broke"),
        }
        drop(in_flight);
    }
}

/// Each way: a TLS record.
const BUFFER: usize = 16 << 10;
