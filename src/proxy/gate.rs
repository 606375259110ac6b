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

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    admission::Door,
    coalesce::Coalescer,
    driver::Driver,
    forward::Outcomes,
    gauges,
    guard::request::Hosts,
    listener::{Bound, Reception, Strangers},
    observe::Observer,
    respond::{Responder, RetryAfter},
    stack,
};
use crate::{
    api::{Failures, Throttling},
    classify::Rules,
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
    upstream: Upstream,
    tasks: TaskTracker,
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
    pub async fn start(options: Options, clock: Clock, stop: CancellationToken) -> Result<Self, GateError> {
        let sockets = bind(&options.name, &options.listen).await?;
        let addresses: Vec<_> = sockets.iter().filter_map(Bound::address).collect();
        let (name, drain) = (Arc::clone(&options.name), options.drain);
        let (reception, driver) = reception(options, clock);
        let reception = Arc::new(reception);
        let sampler = gauges::sampler(&name, &driver, &reception.parts.door.upstream);
        telemetry::metrics().sample_by(&sampler);

        let tasks = TaskTracker::new();
        let accepting = TaskTracker::new();
        for socket in sockets {
            accepting.spawn(Arc::clone(&reception).accept(socket));
        }
        accepting.close();
        let upstream = reception.parts.door.upstream.clone();
        let over = CancellationToken::new();
        tasks.spawn(gauges::upkeep(Arc::clone(&name), driver.clone(), clock, over.clone()));
        tasks.spawn(driver.tick(over.clone()));
        tasks.spawn(async move {
            stop.cancelled().await;
            say_goodbye(&reception, drain).await;
            accepting.wait().await;
            over.cancel();
        });
        tasks.close();
        Ok(Self { name, addresses, upstream, tasks, _sampler: sampler })
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

    /// The connections behind it.
    #[must_use]
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Returns when the gate has stopped, some time after `stop`.
    pub async fn finished(&self) {
        self.tasks.wait().await;
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
pub(super) fn reception(options: Options, clock: Clock) -> (Reception, Driver) {
    let name = options.name;
    let hasher = RandomState::new();
    let host: Arc<str> = options.upstream.target.authority.as_str().into();
    let observer = Observer {
        meters: GateMeters::new(Arc::clone(&name), host, &options.policy),
        log: options.call_log,
        clock,
        limits_slots: limits_slots(&options.policy),
    };
    let responder = Responder::new(Arc::clone(&name), options.rules.kind(), options.retry_after, clock);
    let driver = Driver::new(Limiter::new(options.policy, hasher.hash_one("jitter"), clock.now()), clock);
    let upstream = Upstream::start(options.upstream, clock, driver.rooms());
    upstream.measure(UpstreamMeters::new(Arc::clone(&name)));
    driver.connect(Arc::new(upstream.clone()));
    let outcomes = Outcomes { failures: options.failures, throttling: options.throttling };
    let coalescer = options.coalesce.then(Coalescer::default);
    let door = Door { rules: options.rules, hasher, driver: driver.clone(), upstream, outcomes, coalescer };
    let reception = Reception {
        gate: name,
        parts: stack::Parts {
            hosts: Arc::new(Hosts::new(options.hosts.iter().map(String::as_str))),
            observer: Arc::new(observer),
            responder: Arc::new(responder),
            door: Arc::new(door),
        },
        tls: options.tls,
        strangers: Strangers::default(),
        clock,
        clients: TaskTracker::new(),
        closing: CancellationToken::new(),
        ending: CancellationToken::new(),
    };
    (reception, driver)
}

fn limits_slots(policy: &Policy) -> bool {
    policy.in_flight.is_some() || policy.classes.iter().any(|class| class.in_flight.is_some())
}

/// Serves on, new calls too, until the last client is gone or the drain is over: a controller's lease release must still get through.
async fn say_goodbye(reception: &Reception, drain: Duration) {
    let clients = &reception.clients;
    clients.close(); // from now on `wait` returns when there is none; new ones are still welcome
    tracing::info!(gate = &*reception.gate, clients = clients.len(), ?drain, "draining");
    tokio::select! {
        () = clients.wait() => {}
        () = reception.clock.sleep(drain) => {}
    }
    reception.closing.cancel();
    tokio::select! {
        () = clients.wait() => {}
        () = reception.clock.sleep(LAST_WORDS) => {}
    }
    reception.ending.cancel();
    clients.wait().await;
    tracing::info!(gate = &*reception.gate, "stopped");
}

/// For answers that are on their way when the drain is over.
const LAST_WORDS: Duration = Duration::from_secs(2);
