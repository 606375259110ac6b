//! Serving a CONNECT: decide on it, connect to the host, and carry the tunnel.
//!
//! hyper reads its head and writes the answer, as for every request. The client gets its answer only
//! after the connection attempt, so the answer can say that a host cannot be reached. What the
//! client sends behind the head waits below hyper, for the tunnel.

use std::pin::Pin;
use std::sync::Arc;

use http::Request;
use http::uri::Scheme;
use http_body::Body as _;

use super::EgressListener;
use super::calls::Entry;
use super::directory::{Fate, Inside};
use super::head;
use super::intercept::InterceptedTunnel;
use super::reason::{EgressRefusal, Why};
use super::target::{Host, Origin};
use super::tunnel::{self, First};
use crate::credentials::Target;
use crate::places::Place;
use crate::proxy::listener::{Wire, WireHandle};
use crate::spec::HostFate;
use crate::upstream::{self, Inbound};

/// A tunnel whose bytes are carried unread.
struct PassedTunnel {
    origin: Origin,
    /// The connection to the host.
    host: upstream::Bare,
    /// The gate with this host among its `hosts`, if any.
    listed_by: Option<Arc<str>>,
    others: HostFate,
}

impl EgressListener {
    /// Opens the tunnel to a host that an authenticated client asks for. Returns what serves its
    /// connection once hyper has released it.
    pub(super) async fn open_tunnel(
        self: &Arc<Self>,
        handle: &WireHandle,
        origin: Origin,
        request: &Request<Inbound>,
        client: Option<Arc<str>>,
    ) -> Result<Pin<Box<dyn Future<Output = ()> + Send>>, EgressRefusal> {
        if !request.body().is_end_stream() {
            return Err(EgressRefusal::new(Why::Malformed, "the CONNECT request has a body; expected none"));
        }
        let directory = self.directory.get();
        let egress = Arc::clone(self);
        let handle = handle.clone();
        match directory.tunnel(&origin)? {
            Fate::Gate(..) => Ok(Box::pin(async move {
                egress.tally.became("plain");
                egress.serve_calls(&handle, Entry::Tunnel(Inside { origin, is_tls: false }, client), false).await;
            })),
            Fate::Intercepted(section, _) => {
                let gate = self.gate(&directory, section, &origin)?;
                let agent = head::agent(request.headers());
                let opened = InterceptedTunnel { origin, gate, agent, client };
                Ok(Box::pin(async move { egress.read(&handle, opened).await }))
            }
            Fate::Passed(listed_by) => {
                let host = self.dial(&origin).await?;
                let listed_by = listed_by.cloned();
                let opened = PassedTunnel { origin, host, listed_by, others: directory.egress.others };
                Ok(Box::pin(async move { egress.pass(&handle, opened).await }))
            }
        }
    }

    /// Carries a tunnel. If it may be for one host only, it must begin with TLS.
    async fn pass(&self, handle: &WireHandle, opened: PassedTunnel) {
        let PassedTunnel { origin, host, listed_by, others } = opened;
        let busy = handle.place.as_ref().map(Place::busy);
        let must_be_tls = listed_by.is_some() || others == HostFate::Refuse;
        if must_be_tls && !self.is_tls(handle, &origin, others).await {
            return handle.close().await;
        }
        self.tally.became("tunnelled");
        let open = self.tally.opened(&origin.to_string(), listed_by.as_ref());
        if let Some(gate) = listed_by.filter(|_| self.tally.warnings.is_due("unlimited", self.clock.now())) {
            tracing::info!(
                gate = &*gate,
                host = %origin.host,
                "a tunnel to a host of this gate carries encrypted calls, which its limits do not count: only calls with http:// URLs are limited, or all with intercept = true"
            );
        }
        tunnel::carry(Wire::unscanned(handle), host, open, busy).await;
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
