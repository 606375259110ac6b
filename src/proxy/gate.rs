//! A gate: what it is made of, how it starts and how it stops.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    admission::Door,
    coalesce::Coalescer,
    driver::Driver,
    forward::Outcomes,
    gauges,
    guard::{buffers::Buffers, request::Hosts},
    listener::{Bound, HandshakeErrors, Parting, Server},
    observe::Observer,
    pauses::{self, LastSignal},
    respond::{Responder, RetryAfter},
    stack,
    tally::Tally,
    terms::{Current, Terms},
    view,
};
use crate::{
    api::{Failures, Throttling},
    classify::{Kind, Rules},
    clock::Clock,
    limit::{Limiter, Policy},
    telemetry::{self, CallLog, GateMeters, Sampler, UpstreamMeters},
    tls,
    upstream::{self, Upstream},
};

/// What a gate is made of. Checked before: nothing here can be wrong, but a socket may be taken.
#[derive(Debug)]
pub struct Options {
    /// Its name in metrics, logs and messages.
    pub name: Arc<str>,
    /// Where it listens; at least one.
    pub listen: Vec<Listen>,
    /// TLS on all of them; `None` for plain HTTP.
    pub tls: Option<Arc<tls::Listener>>,
    /// Host names to accept besides localhost and the address that the client connected to.
    pub hosts: Vec<String>,
    /// Classes, flows and keys.
    pub rules: Arc<Rules>,
    /// The limits.
    pub policy: Policy,
    /// What counts as failure, by class.
    pub failures: Vec<Failures>,
    /// What the upstream may ask for.
    pub throttling: Throttling,
    /// When refusals carry Retry-After.
    pub retry_after: RetryAfter,
    /// Identical calls that wait become one.
    pub coalesce: bool,
    /// Everything is decided and counted, and everything is let through.
    pub shadow: bool,
    /// Where calls go.
    pub upstream: upstream::Options,
    /// Where one line per call goes.
    pub call_log: Option<CallLog>,
    /// After `stop` the gate serves on for at most this long.
    pub drain: Duration,
}

/// Where a gate listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A gate that could not start.
#[derive(Debug, thiserror::Error)]
#[error("gate {gate:?} cannot listen on {listen}; is another process there?")]
pub struct GateError {
    gate: Arc<str>,
    listen: Listen,
    #[source]
    source: io::Error,
}

/// A gate at work.
pub struct Gate {
    name: Arc<str>,
    addresses: Vec<SocketAddr>,
    pub(super) driver: Driver,
    pub(super) upstream: Upstream,
    pub(super) terms: Arc<Current>,
    pub(super) tally: Arc<Tally>,
    pub(super) hasher: RandomState,
    pub(super) clock: Clock,
    /// As shown.
    pub(super) listen: Vec<String>,
    pub(super) target: String,
    pub(super) kind: Kind,
    tasks: TaskTracker,
    server: Arc<Server>,
    /// Keeps the gauges' sampler alive.
    _sampler: Arc<Sampler>,
}

// === impl Listen ===

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

// === impl Gate ===

impl Gate {
    /// Starts to listen. After `stop` it serves on until the last client is gone or the drain is over; see [`Gate::finished`].
    ///
    /// # Errors
    /// When a socket cannot be had.
    pub async fn start(mut options: Options, clock: Clock, stop: CancellationToken) -> Result<Self, GateError> {
        let sockets = bind(&options.name, &options.listen).await?;
        let addresses: Vec<_> = sockets.iter().filter_map(Bound::address).collect();
        options.upstream.own.clone_from(&addresses);
        let name = Arc::clone(&options.name);
        let listen = options
            .listen
            .iter()
            .zip(&sockets)
            .map(|(listen, socket)| socket.address().map_or_else(|| listen.to_string(), |at| at.to_string()))
            .collect();
        let (target, kind) = (view::shown(&options.upstream.target), options.rules.kind());
        let (server, driver) = server(options, clock);
        let server = Arc::new(server);
        let sampler = gauges::sampler(&name, &driver, &server.parts.door.upstream);
        telemetry::metrics().sample_by(&sampler);

        let tasks = TaskTracker::new();
        let accepting = TaskTracker::new();
        for socket in sockets {
            accepting.spawn(Arc::clone(&server).accept(socket));
        }
        accepting.close();
        let (upstream, terms) = (server.parts.door.upstream.clone(), Arc::clone(&server.parts.terms));
        let (tally, hasher) = (Arc::clone(&server.parts.observer.tally), server.parts.door.hasher.clone());
        let serves = Arc::clone(&server);
        let over = CancellationToken::new();
        tasks.spawn(gauges::upkeep(Arc::clone(&name), driver.clone(), Arc::clone(&tally), clock, over.clone()));
        let (door, observer) = (Arc::clone(&server.parts.door), Arc::clone(&server.parts.observer));
        tasks.spawn(pauses::watch(door, observer, clock, over.clone()));
        let gate = Arc::clone(&name);
        tasks.spawn(driver.clone().tick(over.clone(), move || view::bypass_is_over(&gate)));
        tasks.spawn(async move {
            stop.cancelled().await;
            say_goodbye(&server).await;
            accepting.wait().await;
            over.cancel();
        });
        tasks.close();
        Ok(Self {
            name,
            addresses,
            driver,
            upstream,
            terms,
            tally,
            hasher,
            clock,
            listen,
            target,
            kind,
            tasks,
            server: serves,
            _sampler: sampler,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The TCP addresses it listens on, with the ports that were given for port 0.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Takes over what `options` say, but for what only a restart can change: name and kind, listeners and their TLS, the upstream with its
    /// TLS and credentials. Nothing can fail here, no call is dropped and no place is lost (P11).
    pub fn reconfigure(&self, options: Options) {
        let meters = self.terms.get().meters.renewed(&options.policy);
        let mut next = terms(&options, 0, meters);
        self.upstream.adjust(&options.upstream);
        self.driver.reconfigure(options.policy, |number| {
            next.number = number;
            self.terms.set(next);
        });
    }

    /// Returns when an earlier `reconfigure` has reached everyone who waits: the next one then need not finish it.
    pub async fn settled(&self) {
        self.driver.settled().await;
    }

    /// The connections behind it.
    #[must_use]
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Serves a client whose connection was accepted elsewhere, over plain HTTP, until it is done.
    pub async fn serve<S>(&self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (read, write) = tokio::io::split(stream);
        self.server.serve(Box::new(tokio::io::join(read, write)), None, false).await;
    }

    /// Returns when the gate has stopped, some time after `stop`.
    pub async fn finished(&self) {
        self.tasks.wait().await;
    }

    /// Returns when the log of calls has all of them that have ended.
    pub async fn logged(&self) {
        if let Some(log) = &self.terms.get().log {
            log.flushed().await;
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("name", &self.name).field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

async fn bind(gate: &Arc<str>, listen: &[Listen]) -> Result<Vec<Bound>, GateError> {
    let mut sockets = Vec::with_capacity(listen.len());
    for listen in listen {
        let bound = Bound::bind(listen).await;
        sockets.push(bound.map_err(|source| GateError { gate: Arc::clone(gate), listen: listen.clone(), source })?);
    }
    Ok(sockets)
}

/// Puts the parts together.
pub(super) fn server(options: Options, clock: Clock) -> (Server, Driver) {
    let name = Arc::clone(&options.name);
    let hasher = RandomState::new();
    let host: Arc<str> = options.upstream.target.authority.as_str().into();
    let meters = GateMeters::new(Arc::clone(&name), host, &options.policy);
    let kind = options.rules.kind();
    let terms = Arc::new(Current::new(terms(&options, 0, meters)));
    let tally = Arc::new(Tally::new(&name, clock));
    let observer = Observer { terms: Arc::clone(&terms), tally: Arc::clone(&tally), clock };
    let responder = Responder::new(Arc::clone(&name), kind, clock);
    let limiter = Limiter::new(options.policy, hasher.hash_one("jitter"), clock.now());
    let driver = Driver::new(Arc::clone(&name), limiter, clock);
    let upstream = Upstream::start(options.upstream, clock, driver.rooms());
    upstream.measure(UpstreamMeters::new(Arc::clone(&name)));
    driver.connect(Arc::new(upstream.clone()));
    terms.get().meters.shadow(options.shadow);
    driver.cast_shadow(options.shadow);
    let lower_case = upstream.lower_case();
    let (coalescer, last_signal) = (Coalescer::default(), LastSignal::default());
    let door = Door { hasher, driver: driver.clone(), upstream, tally, coalescer, last_signal, shadow: options.shadow };
    let server = Server {
        gate: name,
        parts: stack::Parts {
            terms,
            observer: Arc::new(observer),
            responder: Arc::new(responder),
            door: Arc::new(door),
        },
        tls: options.tls,
        handshake_errors: HandshakeErrors::default(),
        buffers: Arc::<Buffers>::default(),
        lower_case,
        clock,
        clients: TaskTracker::new(),
        closing: Parting::new(),
        ending: Parting::new(),
    };
    (server, driver)
}

/// The part of a gate's options that a reload may change.
fn terms(options: &Options, number: u64, meters: GateMeters) -> Terms {
    Terms {
        number,
        rules: Arc::clone(&options.rules),
        outcomes: Outcomes { failures: options.failures.clone(), throttling: options.throttling },
        retry_after: options.retry_after,
        hosts: Hosts::new(options.hosts.iter().map(String::as_str)).before(&options.upstream.target.base_path),
        meters,
        log: options.call_log.clone(),
        coalesce: options.coalesce,
        limits_slots: limits_slots(&options.policy),
        drain: options.drain,
    }
}

fn limits_slots(policy: &Policy) -> bool {
    policy.in_flight.is_some() || policy.classes.iter().any(|class| class.in_flight.is_some())
}

/// Serves on, new calls too, until the last client is gone or the drain is over: a controller's lease release must still get through.
async fn say_goodbye(server: &Server) {
    let drain = server.parts.terms.get().drain;
    let clients = &server.clients;
    clients.close(); // from now on `wait` returns when there is none; new ones are still welcome
    tracing::info!(gate = &*server.gate, clients = clients.len(), ?drain, "draining");
    tokio::select! {
        () = clients.wait() => {}
        () = server.clock.sleep(drain) => {}
    }
    server.closing.tell().await;
    tokio::select! {
        () = clients.wait() => {}
        () = server.clock.sleep(LAST_WORDS) => {}
    }
    server.ending.tell().await;
    clients.wait().await;
    tracing::info!(gate = &*server.gate, "stopped");
}

/// For answers that are on their way when the drain is over.
const LAST_WORDS: Duration = Duration::from_secs(2);
