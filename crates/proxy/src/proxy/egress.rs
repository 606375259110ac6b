//! The egress listener: a forward proxy for the clients of a pod, for external APIs with a fixed
//! URL.
//!
//! Calls for hosts that gates list (`directory`) go through a gate of their own origin (`origins`)
//! and leave over TLS. Tunnels are carried unread (`tunnel`). After a host's name was looked up, its
//! address is judged (`address`), and the judged address is dialled. `options` is what a listener is
//! made of, `access` who may use it, `target` one origin in any spelling, `head` a client's request,
//! and `reason` a refusal as people see it. `connect` serves a CONNECT, `intercept` opened TLS, and
//! `calls` the calls in it and those over plain HTTP.

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
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use http::StatusCode;
use tokio::io::AsyncWriteExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::access::Access;
pub use self::address::judge;
use self::calls::Entry;
pub use self::directory::{Directory, Fate};
pub use self::head::connect_in;
pub use self::options::{EgressError, EgressOptions};
use self::origins::Origins;
use self::reason::{EgressRefusal, Why};
use self::tally::Tally;
pub use self::target::{Host, Origin, TargetError};
pub use self::tunnel::{First, first};
use super::gate::Gate;
use super::guard::buffers::Buffers;
use super::listener::{self, ClientTasks, Handshakes, ListenSocket, Stream, Wire, WireHandle};
use super::respond::Responder;
use crate::classify::ApiKind;
use crate::clock::Clock;
use crate::places::{self, Door, Place};
use crate::spec::Listen;
use crate::status;
use crate::telemetry::{self, Sampler};
use crate::tls;
use crate::upstream::{self, Judge};

/// The egress listener at work.
#[derive(derive_more::Debug)]
#[debug("Egress on {listen}")]
pub struct EgressListener {
    directory: RwLock<Arc<Directory>>,
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
    /// Sets the gauges for as long as the listener is there.
    sampler: Arc<Sampler>,
}

/// The settings for dialling tunnels.
struct TunnelDial {
    /// The target is of each tunnel.
    options: upstream::Options,
    judge: Judge,
}

/// The clients, and the bounds on their number and memory.
struct EgressClients {
    door: Arc<Door>,
    /// The door of clients beyond `max_connections`, for their refusals.
    crowd: Arc<Door>,
    tasks: ClientTasks,
    buffers: Buffers,
}

// === impl EgressListener ===

impl EgressListener {
    /// Starts to listen. After `stop` it serves on until the last client is gone or the drain is
    /// over; see [`EgressListener::finished`].
    ///
    /// # Errors
    /// The socket could not be bound.
    pub async fn start(
        options: EgressOptions,
        clock: Clock,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, EgressError> {
        let EgressOptions { directory, gates, clear, token, tls, clients, ca, mut own, judge } = options;
        let listen = directory.egress.listen.clone();
        let mut socket = None;
        let mut names = Vec::new();
        if let Some(listen) = &listen {
            socket = Some(bind(listen).await?);
        }
        for listen in &directory.egress.names {
            names.push(bind(listen).await?);
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
            directory: RwLock::new(Arc::new(directory)),
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
                crowd: Door::to(places::of_process(), "egress crowd", TURNED_AWAY, clock),
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

    /// Starts the tasks.
    fn open(self: &Arc<Self>, socket: Option<ListenSocket>, names: Vec<ListenSocket>, stop: CancellationToken) {
        self.directory().intercepting().for_each(|gate| self.tally.intercepts(gate));
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
            // When all are busy, some are told so. The others are closed before TLS: a handshake
            // holds a connection for as long as it may take.
            let served = self.clients.door.take_of(self.directory().egress.max_connections);
            let is_served = served.is_some();
            let Some(place) = served.or_else(|| self.clients.crowd.take()) else {
                self.tally.became("refused");
                continue;
            };
            let egress = Arc::clone(self);
            self.clients.tasks.tasks.spawn(async move {
                let _connection = egress.tally.connected();
                tokio::select! {
                    biased; // an idle connection that is lost begins no call
                    () = place.lost() => {}
                    () = egress.receive(client.stream, kind, is_served.then(|| Arc::clone(&place))) => {}
                    () = egress.clients.tasks.ending.cancelled() => {}
                }
            });
        }
    }

    async fn tidy(&self) {
        loop {
            let idle = self.directory().egress.idle_origin;
            self.clock.sleep(TIDY_EVERY.min(idle)).await;
            self.origins.tidy(idle);
            self.access.refresh();
        }
    }

    /// Receives a client. One without a place is turned away.
    async fn receive(self: &Arc<Self>, stream: Box<dyn Stream>, kind: ListenerKind, place: Option<Arc<Place>>) {
        let opened = match kind {
            ListenerKind::Proxy => Box::pin(self.access.open(stream)).await,
            ListenerKind::Name(_) => Some((stream, None)),
        };
        let Some((stream, named)) = opened else { return };
        let is_served = place.is_some();
        let handle = WireHandle::new(stream, &self.clients.buffers, place);
        if is_served {
            return match kind {
                ListenerKind::Proxy => self.serve(&handle, named).await,
                ListenerKind::Name(port) => Box::pin(self.serve_named(&handle, port)).await,
            };
        }
        let is_full = self.clients.door.is_full(self.directory().egress.max_connections);
        let crowded = EgressRefusal::new(Why::Crowded, if is_full { MANY } else { MANY_FOR_PROCESS });
        match kind {
            ListenerKind::Proxy => self.turn_away(&handle, &crowded).await,
            ListenerKind::Name(_) => Box::pin(self.turn_away_named(&handle, &crowded)).await,
        }
    }

    /// Serves a client, to the end.
    async fn serve(self: &Arc<Self>, handle: &WireHandle, named: Option<Arc<str>>) {
        let begins = handle.peek(|bytes| match bytes {
            [] => None,
            [intercept::TLS, ..] => Some(Begins::Tls),
            bytes if bytes.starts_with(CONNECT) => Some(Begins::Connect),
            bytes if CONNECT.starts_with(bytes) => None,
            bytes if bytes.starts_with(HTTP2) => Some(Begins::Http2),
            bytes if HTTP2.starts_with(bytes) => None,
            _ => Some(Begins::Http),
        });
        let begins = tokio::select! {
            begins = tokio::time::timeout(FIRST_BYTES, begins) => begins.ok().flatten(),
            () = self.clients.tasks.closing.cancelled() => return, // it has not said a word yet
        };
        match begins {
            Some(Begins::Connect) => Box::pin(self.connect(handle, named.as_ref())).await,
            Some(Begins::Http) => {
                self.tally.became("plain");
                Box::pin(self.serve_calls(handle, Entry::Proxy(named), false)).await;
            }
            Some(Begins::Http2) => {
                let refused = EgressRefusal::new(Why::Malformed, "HTTP/2 is not spoken to this proxy");
                self.turn_away(handle, &refused.with(StatusCode::HTTP_VERSION_NOT_SUPPORTED)).await;
            }
            Some(Begins::Tls) => {
                self.tally.became("refused");
                if self.tally.warnings.is_due("tls", self.clock.now()) {
                    tracing::warn!(
                        "a client spoke TLS to the egress listener: its HTTPS_PROXY must begin with http://, as the proxy itself speaks no TLS"
                    );
                }
                handle.close().await;
            }
            None => {}
        }
    }

    /// Answers with a refusal, and ends the connection.
    async fn turn_away(&self, handle: &WireHandle, refused: &EgressRefusal) {
        self.tally.became("refused");
        self.tally.refused(refused);
        let mut wire = Wire::unscanned(handle);
        let said = async {
            wire.write_all(&refused.bytes()).await?;
            wire.shutdown().await
        };
        if said.await.is_ok() {
            listener::linger(handle).await;
        }
    }

    fn directory(&self) -> Arc<Directory> {
        Arc::clone(&self.directory.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces hosts and rules, for calls and tunnels to come. The gates are reconfigured apart.
    pub fn reconfigure(&self, directory: Directory) {
        *self.directory.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(directory);
    }

    /// Returns the address, unless it listens on a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns the CA of interception, if a gate intercepted at the start.
    pub fn ca(&self) -> Option<Arc<tls::Interception>> {
        self.ca.as_ref().map(|ca| ca.get())
    }

    /// Returns the gates with hosts, without those of their origins.
    pub fn gates(&self) -> Vec<Arc<Gate>> {
        self.origins.sections().filter(|gate| **gate.name() != *CLEAR).cloned().collect()
    }

    /// Returns the gates of the origins of a gate.
    pub fn origins(&self, gate: &str) -> Vec<(Origin, Arc<Gate>)> {
        self.origins.of(gate)
    }

    /// Returns its status.
    pub fn status(&self) -> status::EgressStatus {
        let mut egress = status::EgressStatus { listen: self.listen.clone(), ..Default::default() };
        egress.origins = self.origins.len();
        egress.ca = self.ca().map(|ca| tls::fingerprint(ca.root())).unwrap_or_default();
        self.tally.tell(&mut egress);
        egress
    }

    /// Returns when it has stopped, some time after `stop`.
    pub async fn finished(&self) {
        self.tasks.wait().await;
        for gate in self.origins.sections() {
            gate.finished().await;
        }
    }
}

/// Sets the gauges of a listener.
fn sampler(egress: Weak<EgressListener>) -> Arc<Sampler> {
    Arc::new(move |_| {
        if let Some(egress) = egress.upgrade() {
            egress.tally.sample();
            egress.origins.sample();
        }
    })
}

async fn bind(listen: &Listen) -> Result<ListenSocket, EgressError> {
    ListenSocket::bind(listen).await.map_err(|source| EgressError::Bind { listen: listen.clone(), source })
}

/// The kind of a listener.
#[derive(Clone, Copy)]
enum ListenerKind {
    /// The forward proxy.
    Proxy,
    /// A port for names in a hosts file.
    Name(u16),
}

/// The first bytes of a client.
#[derive(Clone, Copy)]
enum Begins {
    Connect,
    Http,
    Http2,
    Tls,
}

/// Its name in logs.
const NAME: &str = "egress";
/// The name of the gate for unlisted calls in clear; no configured gate can have it.
pub const CLEAR: &str = "egress.others";
const CONNECT: &[u8] = b"CONNECT ";
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n";
/// The time for the first bytes, and for a head; as at every listener.
const FIRST_BYTES: Duration = Duration::from_secs(30);
const TIDY_EVERY: Duration = Duration::from_secs(10);
/// The text for a connection beyond `max_connections`.
const MANY: &str = "too many connections; raise egress.max_connections";
const MANY_FOR_PROCESS: &str = "too many connections for the process; raise its limit of open files (ulimit -n)";
/// The most clients beyond `max_connections` to answer; further ones are closed.
const TURNED_AWAY: usize = 100;
