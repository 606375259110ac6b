//! Serving a CONNECT: read its head, decide on it, connect to the host, and carry the tunnel.
//!
//! The client gets its answer only after the connection attempt, so the answer can say that a host
//! cannot be reached.

use std::io;
use std::sync::Arc;

use http::uri::Scheme;
use tokio::io::AsyncWriteExt as _;

use super::EgressListener;
use super::calls::Entry;
use super::directory::{Fate, Inside};
use super::head::{self, ConnectHead};
use super::intercept::InterceptedTunnel;
use super::reason::{EgressRefusal, Why};
use super::target::{Host, Origin};
use super::tunnel::{self, First};
use crate::credentials::Target;
use crate::places::Place;
use crate::proxy::listener::{Wire, WireHandle};
use crate::spec::HostFate;
use crate::upstream;

impl EgressListener {
    /// Answers a CONNECT.
    pub(super) async fn connect(self: &Arc<Self>, handle: &WireHandle, named: Option<&Arc<str>>) {
        if let Err(refused) = self.tunnel(handle, named).await {
            self.turn_away(handle, &refused).await;
        }
    }

    async fn tunnel(self: &Arc<Self>, handle: &WireHandle, named: Option<&Arc<str>>) -> Result<(), EgressRefusal> {
        let (origin, agent, client) = self.read_connect(handle, named).await?;
        let directory = self.directory.get();
        let listed_by = match directory.tunnel(&origin)? {
            Fate::Gate(..) => {
                self.tally.became("plain");
                if established(handle).await.is_ok() {
                    self.serve_calls(handle, Entry::Tunnel(Inside { origin, is_tls: false }, client), false).await;
                }
                return Ok(());
            }
            Fate::Intercepted(section, _) => {
                let gate = self.gate(&directory, section, &origin)?;
                if established(handle).await.is_ok() {
                    self.read(handle, InterceptedTunnel { origin, gate, agent, client }).await;
                }
                return Ok(());
            }
            Fate::Passed(listed_by) => listed_by,
        };
        let busy = handle.place.as_ref().map(Place::busy);
        let host = self.dial(&origin).await?;
        if established(handle).await.is_err() {
            return Ok(());
        }
        let others = directory.egress.others;
        let must_be_tls = listed_by.is_some() || others == HostFate::Refuse;
        if must_be_tls && !self.is_tls(handle, &origin, others).await {
            handle.close().await;
            return Ok(());
        }
        self.tally.became("tunnelled");
        let open = self.tally.opened(&origin.to_string(), listed_by);
        if let Some(gate) = listed_by.filter(|_| self.tally.warnings.is_due("unlimited", self.clock.now())) {
            tracing::info!(
                gate = &**gate,
                host = %origin.host,
                "a tunnel to a host of this gate carries encrypted calls, which its limits do not count: only calls with http:// URLs are limited, or all with intercept = true"
            );
        }
        tunnel::carry(Wire::unscanned(handle), host, open, busy).await;
        Ok(())
    }

    /// Reads the head of a CONNECT. Returns its host and port, its user agent, and the name of its
    /// client.
    async fn read_connect(
        &self,
        handle: &WireHandle,
        named: Option<&Arc<str>>,
    ) -> Result<(Origin, String, Option<Arc<str>>), EgressRefusal> {
        let late = || EgressRefusal::new(Why::Malformed, "the request's head did not come to its end in time");
        let mut reading = ConnectHead::default();
        let end = self.begins(handle, |bytes| reading.read(bytes).transpose()).await.ok_or_else(late)??;
        let head::Connect { origin, shown, agent } = head::connect(&handle.take(end))?;
        let shown: Vec<&[u8]> = shown.iter().map(Vec::as_slice).collect();
        let client = self.access.admit(named, &shown).await?;
        Ok((origin, agent, client))
    }

    /// Connects to a host, if its address may be connected to.
    async fn dial(&self, origin: &Origin) -> Result<upstream::Bare, EgressRefusal> {
        if let Host::Address(address) = origin.host {
            (self.dial.judge)(address).map_err(|why| EgressRefusal::address(&address.to_string(), why))?;
        }
        let authority = origin.to_string().parse();
        let authority =
            authority.map_err(|_| EgressRefusal::new(Why::Malformed, "the target is not a host and port"))?;
        let target = Target { authority, scheme: Scheme::HTTP, ..self.dial.options.target.clone() };
        let options = upstream::Options { target, ..self.dial.options.clone() };
        let connected = upstream::connect(&options, self.clock).await;
        connected.map_err(|error| EgressRefusal::dial(&origin.host.to_string(), &error))
    }

    /// Returns true if the client begins with TLS. If the settings refuse hosts that no gate lists,
    /// the TLS must also name the host of the tunnel.
    async fn is_tls(&self, handle: &WireHandle, origin: &Origin, others: HostFate) -> bool {
        let Some(first) = self.begins(handle, tunnel::first).await else { return false };
        let is_right = match others {
            HostFate::Tunnel => matches!(first, First::Tls(_)),
            HostFate::Refuse => tunnel::is_for(&first, origin),
        };
        if !is_right {
            self.tally.refused(&EgressRefusal::new(Why::Sni, format!("the tunnel has no TLS for {}", origin.host)));
            if self.tally.warnings.is_due("sni", self.clock.now()) {
                tracing::warn!(
                    host = %origin.host,
                    "a tunnel was closed: its client did not begin TLS for the host that it asked the tunnel for"
                );
            }
        }
        is_right
    }
}

/// Answers that the tunnel is open.
async fn established(handle: &WireHandle) -> io::Result<()> {
    let mut wire = Wire::unscanned(handle);
    wire.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
    wire.flush().await
}
