//! The egress listener: a forward proxy through which the clients of a pod call external APIs.
//!
//! A gate can list hosts (`directory`). Calls to these go through a gate made for their host and
//! port (`origins`), which sends them over TLS. Tunnels are carried unread (`tunnel`). After a
//! host's name was looked up, the address is checked (`address`), and exactly that address is
//! connected to. `options` are the settings of the listener, `access` decides who may use it,
//! `target` reads a host and port in any spelling, `head` a client's request head, and `reason` has
//! the texts of refusals. `connect` serves a CONNECT, `intercept` decrypts TLS, and `calls` serves
//! the requests in decrypted TLS and in plain HTTP.

mod access;
mod address;
mod calls;
mod connect;
mod directory;
mod head;
mod intercept;
mod options;
mod origins;
mod reason;
mod tally;
mod target;
mod tunnel;

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::access::Access;
pub use self::address::judge;
use self::calls::Entry;
pub use self::directory::{Directory, Fate};
pub use self::options::EgressOptions;
use self::origins::Origins;
use self::reason::{EgressRefusal, Why};
use self::tally::Tally;
pub use self::target::{Host, Origin, TargetError};
pub use self::tunnel::{First, first};
use super::gate::Gate;
use super::guard::buffers::Buffers;
use super::listener::{self, ClientTasks, Handshakes, ListenSocket, Stream, WireHandle};
use super::respond::Responder;
use crate::Current;
use crate::bind::BindError;
use crate::classify::ApiKind;
use crate::clock::Clock;
use crate::places::{self, Door, Place};
use crate::status;
use crate::telemetry::meters::as_f64;
use crate::telemetry::{self, Sampler, table};
use crate::tls;
use crate::upstream::{self, Judge};

/// The running egress listener.
#[derive(derive_more::Debug)]
#[debug("Egress on {listen}")]
pub struct EgressListener {
    directory: Current<Directory>,
    origins: Origins,
    dial: TunnelDial,
    access: Access,
    ca: Option<Arc<tls::CurrentCa>>,
    address: Option<SocketAddr>,
    listen: String,
    drain: Duration,
    clock: Clock,
    responder: Arc<Responder>,
    tally: Tally,
    clients: EgressClients,
    tasks: TaskTracker,
    /// Updates the gauges for as long as the listener exists.
    sampler: Arc<Sampler>,
}

/// The settings for connecting tunnels to hosts.
struct TunnelDial {
    /// The upstream settings; the target is set for each tunnel.
    options: upstream::Options,
    judge: Judge,
}

/// The listener's clients: the limits on their number, their tasks, and the memory counted for
/// them.
struct EgressClients {
    door: Arc<Door>,
    tasks: ClientTasks,
    buffers: Buffers,
}

// === impl EgressListener ===

impl EgressListener {
    /// Starts to listen. After `stop` it continues to serve until the last client is gone or the
    /// drain time is over; see [`EgressListener::finished`].
    ///
    /// # Errors
    /// The socket could not be bound.
    pub async fn start(options: EgressOptions, clock: Clock, stop: CancellationToken) -> Result<Arc<Self>, BindError> {
        let EgressOptions { directory, gates, clear, token, tls, clients, ca, mut own, judge } = options;
        let listen = directory.egress.listen.clone();
        let mut socket = None;
        let mut names = Vec::new();
        if let Some(listen) = &listen {
            socket = Some(ListenSocket::bind(LISTENER, listen).await?);
        }
        for listen in &directory.egress.names {
            names.push(ListenSocket::bind(LISTENER, listen).await?);
        }
        own.extend(socket.iter().chain(&names).filter_map(ListenSocket::address));
        let judge = judge.unwrap_or_else(|| directory.judge());
        let drain = clear.drain;
        let via = clear.upstream.target.proxy.clone();
        let judged = |mut options: upstream::Options| {
            options.own.clone_from(&own);
            options.dns.judge = Some(judge);
            options
        };
        let dial = TunnelDial { options: judged(clear.upstream.clone()), judge };
        let mut sections = Vec::new();
        for mut options in gates.into_iter().chain([clear]) {
            options.upstream = judged(options.upstream);
            sections.push(Arc::new(Gate::start(options, clock, stop.clone()).await?));
        }
        let address = socket.as_ref().and_then(ListenSocket::address);
        let configured = listen.map_or_else(|| "off".to_owned(), |listen| listen.to_string());
        let egress = Arc::new_cyclic(|weak| Self {
            address,
            listen: address.map_or(configured, |address| address.to_string()),
            directory: Current::new(directory),
            origins: Origins::new(sections, via, clock),
            dial,
            access: Access { token, clients, tls, handshakes: Handshakes::default(), clock },
            ca,
            drain,
            clock,
            responder: Arc::new(Responder::new(NAME.into(), ApiKind::Http, clock)),
            tally: Tally::new(),
            clients: EgressClients {
                door: Door::to(places::of_process(), NAME, usize::MAX, clock),
                tasks: ClientTasks::default(),
                buffers: Buffers::default(),
            },
            tasks: TaskTracker::new(),
            sampler: sampler(weak.clone()),
        });
        telemetry::metrics().sample_by(&egress.sampler);
        egress.open(socket, names, stop);
        Ok(egress)
    }

    /// Starts the tasks accepting clients.
    fn open(self: &Arc<Self>, socket: Option<ListenSocket>, names: Vec<ListenSocket>, stop: CancellationToken) {
        self.directory.get().intercepting().for_each(|gate| self.tally.intercepts(gate));
        let leaving = listener::leaving(socket.iter().chain(&names));
        let over = CancellationToken::new();
        let named = names.into_iter().map(|socket| {
            let port = socket.address().map_or(443, |address| address.port());
            (socket, ListenerKind::Name(port))
        });
        for (socket, kind) in socket.map(|socket| (socket, ListenerKind::Proxy)).into_iter().chain(named) {
            let egress = Arc::clone(self);
            let until = over.clone();
            self.tasks.spawn(async move { until.run_until_cancelled(egress.accept(socket, kind)).await });
        }
        let egress = Arc::clone(self);
        let until = over.clone();
        self.tasks.spawn(async move { until.run_until_cancelled(egress.tidy()).await });
        let egress = Arc::clone(self);
        self.tasks.spawn(async move {
            stop.cancelled().await;
            egress.clients.tasks.drain(NAME, egress.clock, leaving, egress.drain).await;
            over.cancel();
        });
        self.tasks.close();
    }

    async fn accept(self: &Arc<Self>, socket: ListenSocket, kind: ListenerKind) {
        loop {
            let client = tokio::select! {
                client = self.clients.door.accept(|| socket.accept()) => client,
                () = self.clients.tasks.closing.cancelled() => return,
            };
            let Some(place) = self.clients.door.take_of(self.directory.get().egress.max_connections) else {
                self.turn_off();
                continue;
            };
            let egress = Arc::clone(self);
            self.clients.tasks.tasks.spawn(async move {
                tokio::select! {
                    biased; // an idle connection that is lost begins no call
                    () = place.lost() => {}
                    () = egress.receive(client.stream, kind, Arc::clone(&place)) => {}
                    () = egress.clients.tasks.ending.cancelled() => {}
                }
            });
        }
    }

    /// Counts a client that is closed because all others are busy.
    fn turn_off(&self) {
        self.tally.became("refused");
        self.tally.refused(&EgressRefusal::new(Why::Crowded, "too many connections"));
        if self.tally.warnings.is_due("crowded", self.clock.now()) {
            tracing::warn!(
                "too many connections of clients are busy, and more are closed; raise egress.max_connections, or the limit of open files (ulimit -n)"
            );
        }
    }

    async fn tidy(&self) {
        loop {
            let idle = self.directory.get().egress.idle_origin;
            self.clock.sleep(TIDY_EVERY.min(idle)).await;
            self.origins.tidy(idle);
            self.access.refresh();
        }
    }

    /// Serves a new client.
    async fn receive(self: &Arc<Self>, stream: Box<dyn Stream>, kind: ListenerKind, place: Arc<Place>) {
        let opened = match kind {
            ListenerKind::Proxy => Box::pin(self.access.open(stream)).await,
            ListenerKind::Name(_) => Some((stream, None)),
        };
        let Some((stream, named)) = opened else { return };
        let handle = WireHandle::new(stream, &self.clients.buffers, Some(place));
        match kind {
            ListenerKind::Proxy => self.serve(&handle, named).await,
            ListenerKind::Name(port) => Box::pin(self.serve_named(&handle, port)).await,
        }
    }

    /// Serves a client until its connection ends.
    async fn serve(self: &Arc<Self>, handle: &WireHandle, named: Option<Arc<str>>) {
        match self.first(handle).await {
            Some(intercept::TLS) => {
                self.tally.became("refused");
                if self.tally.warnings.is_due("tls", self.clock.now()) {
                    tracing::warn!(
                        "closed a client's connection to the egress listener, because the client began it with TLS: its HTTPS_PROXY must begin with http://"
                    );
                }
                handle.close().await;
            }
            Some(_) => self.serve_calls(handle, Entry::Proxy(named), false).await,
            None => {}
        }
    }

    /// Returns what the first bytes of a client decide; `None` if they do not come in time, or if the
    /// listener closes before.
    async fn begins<T>(&self, handle: &WireHandle, decide: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        tokio::select! {
            begins = tokio::time::timeout(FIRST_BYTES, handle.peek(decide)) => begins.ok().flatten(),
            () = self.clients.tasks.closing.cancelled() => None,
        }
    }

    /// Replaces the hosts and rules for later calls and tunnels. The limits of the gates are
    /// replaced by [`Gate::reconfigure`].
    pub fn reconfigure(&self, directory: Directory) {
        self.directory.set(directory);
    }

    /// Returns the TCP address; `None` if it listens on a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns the CA for decrypting clients' TLS; `None` if no gate decrypted TLS at the start of
    /// the listener.
    pub fn ca(&self) -> Option<Arc<tls::Interception>> {
        self.ca.as_ref().map(|ca| ca.get())
    }

    /// Returns the gates in the configuration that list hosts, without the gates made from them for
    /// each host and port.
    pub fn gates(&self) -> Vec<Arc<Gate>> {
        self.origins.sections().filter(|gate| **gate.name() != *CLEAR).cloned().collect()
    }

    /// Returns the gates made for each host and port of the configured gate.
    pub fn origins(&self, gate: &str) -> Vec<(Origin, Arc<Gate>)> {
        self.origins.of(gate)
    }

    /// Returns the state of the listener for the status page.
    pub fn status(&self) -> status::EgressStatus {
        let mut egress = status::EgressStatus { listen: self.listen.clone(), ..Default::default() };
        egress.connections = self.clients.tasks.tasks.len();
        egress.origins = self.origins.len();
        egress.ca = self.ca().map(|ca| tls::fingerprint(ca.root())).unwrap_or_default();
        self.tally.tell(&mut egress);
        egress
    }

    /// Waits until the listener has stopped: after `stop`, and the end of the last client or of the
    /// drain time.
    pub async fn finished(&self) {
        self.tasks.wait().await;
        for gate in self.origins.sections() {
            gate.finished().await;
        }
    }
}

/// Returns the function that updates the gauges of the listener.
fn sampler(egress: Weak<EgressListener>) -> Arc<Sampler> {
    Arc::new(move |_| {
        if let Some(egress) = egress.upgrade() {
            egress.tally.sample();
            table::EGRESS_ORIGINS.gauge(&[]).set(as_f64(egress.origins.len()));
        }
    })
}

/// How a client reached the listener.
#[derive(Clone, Copy)]
enum ListenerKind {
    /// The client uses the forward proxy.
    Proxy,
    /// The client connected directly to a port of the listener, because a hosts file maps a host's
    /// name to this address.
    Name(u16),
}

/// The listener's name in errors.
const LISTENER: &str = "the egress listener";
/// The listener's name in logs.
const NAME: &str = "egress";
/// The name of the gate for unencrypted calls to hosts of no gate. A configured gate cannot have
/// this name.
pub const CLEAR: &str = "egress.others";
/// The time for a client's first bytes, and for a request head; as at every listener.
const FIRST_BYTES: Duration = Duration::from_secs(30);
const TIDY_EVERY: Duration = Duration::from_secs(10);
