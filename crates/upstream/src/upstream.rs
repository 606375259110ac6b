//! The connections to an upstream, in several groups, with exact counts of their free streams.
//!
//! Only [`Admitted`] requests are sent. A call never waits here: an admitted call either gets a
//! stream or returns to the limiter. At every moment, the sum of [`Rooms::add_room`] less the calls
//! that the limiter has admitted is the number of free streams.
//!
//! hyper-util's legacy client is not used: it keeps one HTTP/2 connection per authority, so the
//! 101st watch would block every other call.

// In the path of a call nothing may panic: what could is written down with its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

mod body;
mod corked;
mod dial;
mod dns;
mod error;
mod http1;
mod inbound;
mod links;
mod names;
mod pacing;
mod pool;
mod prepare;
mod protocol;
mod race;
mod response_body;
mod send;
mod stream_accounts;
mod through;
mod upgrade;
mod windows;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use http::uri::Scheme;
use http::{Request, Response};
use tokio::sync::Semaphore;

pub use self::body::{BodyPrefix, OutgoingBody, OutgoingBodyError};
use self::body::{Budget, KEPT_TOGETHER};
pub use self::corked::{CorkedConnection, CorkedStream};
use self::dial::Dialer;
pub use self::dns::{Dns, Judge};
pub use self::error::{DialError, DialFailure, ForbiddenAddress, SendError};
pub use self::inbound::{Inbound, InboundError, UnreadBody};
use self::pool::Pool;
pub use self::pool::StreamLease;
pub use self::prepare::hides_fields;
pub use self::protocol::{Protocol, tokens};
pub use self::response_body::{ResponseBody, ResponseBodyError};
pub use self::through::Wire as Bare;
pub use self::upgrade::{DedicatedConnection, UpgradeAnswer};
use crate::api::Group;
use crate::clock::Clock;
use crate::credentials::Injector;
pub use crate::credentials::Target;
use crate::limit::Admitted;
pub use crate::spec::Host;
use crate::telemetry::meters::UpstreamMeters;
use crate::{Current, lock, tls};

/// Receives changes in the number of free streams (the room). The proxy's driver implements it.
///
/// It is called by any task, without any lock of the pool held. It may also be called when a
/// [`StreamLease`] or [`ResponseBody`] is dropped. So neither may be dropped while holding a lock
/// that these methods take.
pub trait Rooms: Send + Sync + 'static {
    /// Reports that `change` more streams of `group` are free; fewer if negative. The sum may be
    /// below zero for a moment.
    fn add_room(&self, group: Group, change: i64);
    /// Reports a failed connection attempt: waiting calls of `group` can be refused.
    fn unreachable(&self, group: Group);
}

/// The upstream's address and settings.
#[derive(Clone, Debug)]
pub struct Options {
    /// The upstream's scheme, host, port and base path.
    pub target: Target,
    /// The TLS client for the upstream; `None` for plain HTTP/1.1.
    pub tls: Option<Arc<tls::Client>>,
    /// The Host header of requests to the upstream.
    pub host: Host,
    /// The scheme of the gate's own URL. With it, links to the upstream in response headers are
    /// rewritten; `None` leaves them unchanged.
    pub rewrite_links: Option<Scheme>,
    /// The path at which the gate's clients reach this upstream, without a final slash: empty if it
    /// has the whole gate.
    pub mount: String,
    /// Sets the credentials of requests.
    pub injector: Arc<Injector>,
    /// The gate's own addresses. It never connects to these.
    pub own: Vec<SocketAddr>,
    /// The name servers to use if the hosts file maps the upstream's name to the gate.
    pub dns: Dns,
    /// The timeout of a connection attempt: name lookup, TCP, TLS, first HTTP/2 SETTINGS.
    pub connect_timeout: Duration,
    /// The timeout from the request to the response head; `None` for no timeout. Long-running calls
    /// never have one.
    pub response_timeout: Option<Duration>,
}

/// The numbers of connections and streams in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// The number of open connections.
    pub connections: usize,
    /// The number of streams in use.
    pub used: usize,
    /// The number of free streams.
    pub free: usize,
}

/// The connections to one upstream. Cheap to clone.
#[derive(Clone, derive_more::Debug)]
#[debug("Upstream")]
pub struct Upstream {
    inner: Arc<Inner>,
}

/// The metrics to record in, once they are set.
type Meters = OnceLock<UpstreamMeters>;

struct Inner {
    target: Target,
    mount: String,
    /// The settings now in force for requests.
    settings: Current<Options>,
    injector: Arc<Injector>,
    clock: Clock,
    budget: Budget,
    /// The number of changes to TLS files, at the last check.
    tls_changes: AtomicU64,
    /// Set while the upstream refuses the gate's client certificate, so that this is logged once.
    certificate_refused: AtomicBool,
    dialer: Arc<Dialer>,
    /// The pools of connections, in the order of [`Group`]. Connections for upgrades are not
    /// pooled.
    pools: [Arc<Pool>; 3],
    /// Counts the connections of upgrades: its reference count is one more than their number.
    upgrades: Arc<()>,
}

impl Upstream {
    /// Creates the upstream, without a connection until the first call. Must be called inside a
    /// tokio runtime.
    pub fn start(options: Options, clock: Clock, rooms: Arc<dyn Rooms>) -> Self {
        let dialer = Arc::new(Dialer::new(&options, clock));
        let pool = |group, rooms| Pool::new(group, Arc::clone(&dialer), clock, rooms);
        let exempt = pool(Group::Exempt, Arc::clone(&rooms));
        let short = pool(Group::Short, Arc::clone(&rooms));
        let inner = Arc::new(Inner {
            pools: [exempt, short, pool(Group::LongRunning, rooms)],
            upgrades: Arc::default(),
            settings: Current::new(options.clone()),
            target: options.target,
            mount: options.mount,
            injector: options.injector,
            clock,
            budget: Arc::new(Semaphore::new(KEPT_TOGETHER)),
            tls_changes: AtomicU64::new(dialer.tls_changes()),
            certificate_refused: AtomicBool::new(false),
            dialer,
        });
        tokio::spawn(maintain(Arc::downgrade(&inner), clock));
        Self { inner }
    }

    /// Applies changed settings: Host, timeouts and rewriting of links. Other settings cannot
    /// change.
    pub fn adjust(&self, options: &Options) {
        self.inner.dialer.set_timeout(options.connect_timeout);
        self.inner.settings.set(options.clone());
    }

    /// Sets the number of calls waiting only for a connection in `group`. Starts connections if
    /// needed.
    ///
    /// `calls` is the total, not an increment.
    pub fn want(&self, group: Group, calls: usize) {
        if let Some(pool) = self.inner.pool(group) {
            pool.want(calls);
        }
    }

    /// Returns the error to report at once to new calls of `group`.
    ///
    /// There is one if the last connection attempt failed, the next is not due yet and no stream is
    /// free.
    pub fn down(&self, group: Group) -> Option<Arc<DialError>> {
        self.inner.pool(group)?.down()
    }

    /// Returns the error of the last connection attempt of `group`, for status pages.
    ///
    /// There is one if no attempt has succeeded since, and no stream is free. Unlike with
    /// [`Self::down`], the next attempt may be due.
    pub fn unreachable(&self, group: Group) -> Option<Arc<DialError>> {
        self.inner.pool(group)?.unreachable()
    }

    /// Returns a stream for a call just admitted by the limiter. `None` if its connection has
    /// closed: the caller must give the call back to the limiter.
    pub fn checkout(&self, group: Group) -> Option<StreamLease> {
        self.inner.pool(group)?.checkout()
    }

    /// Returns a stream for an exempt call: a free stream, or the first one of any new connection.
    ///
    /// # Errors
    /// The connection made for this call failed.
    pub async fn checkout_exempt(&self, group: Group) -> Result<StreamLease, Arc<DialError>> {
        let [exempt, ..] = &self.inner.pools;
        self.inner.pool(group).unwrap_or(exempt).take_exempt().await
    }

    /// Sends a request, and returns when the response head has arrived.
    ///
    /// Adapts the request to the upstream (hop-by-hop fields, Host, base path, credentials) and the
    /// response to the client. A request is sent again on another connection only if the upstream
    /// provably did not process it. Dropping the future resets the stream.
    ///
    /// # Errors
    /// What happened to the request; see [`SendError`].
    pub fn send(
        &self,
        lease: StreamLease,
        request: Admitted<Request<OutgoingBody>>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, SendError>> + Send {
        let settings = self.inner.settings.get();
        let limit = settings.response_timeout.filter(|_| lease.group() != Group::LongRunning);
        let mut attempt = self.attempt(&settings, lease, request.into_inner()); // kept where it is made: it is large
        async move { within(limit, self.transmit(attempt.as_mut().map_err(|error| error.clone())?)).await }
    }

    /// Sets the metrics to record in. Must be called only once.
    pub fn measure(&self, meters: UpstreamMeters) {
        let first = self.inner.dialer.meters.set(meters).is_ok();
        debug_assert!(first, "an upstream has one set of meters");
    }

    /// Returns the connections and streams of a group. An upgrade's connection counts as one stream
    /// in use.
    pub fn occupancy(&self, group: Group) -> Occupancy {
        self.inner.pool(group).map_or_else(
            || {
                let open = Arc::strong_count(&self.inner.upgrades) - 1;
                Occupancy { connections: open, used: open, free: 0 }
            },
            |pool| pool.occupancy(),
        )
    }

    /// Returns true if the upstream speaks HTTP/2. If this is unknown, waits for the next connection;
    /// many clients that ask at once need one.
    ///
    /// # Errors
    /// No connection could be made.
    pub async fn speaks_http2(&self) -> Result<bool, Arc<DialError>> {
        let [_, short, _] = &self.inner.pools;
        if let Some(known) = short.is_multiplexed() {
            return Ok(known);
        }
        drop(short.take_again(false).await?);
        Ok(short.is_multiplexed().unwrap_or_default())
    }

    /// Returns the address of the upstream.
    pub fn target(&self) -> &Target {
        &self.inner.target
    }

    /// Returns the injector of credentials, for its checks of requests.
    pub fn injector(&self) -> &Injector {
        &self.inner.injector
    }

    /// Returns how often the client certificate or the CAs were replaced. Calls made at the same
    /// number use the same certificate.
    pub fn certificate_changes(&self) -> u64 {
        self.inner.tls_changes.load(Ordering::SeqCst)
    }
}

impl Inner {
    /// Returns the pool of a group; `None` for upgrades, which share no connections.
    fn pool(&self, group: Group) -> Option<&Arc<Pool>> {
        self.pools.get(group as usize)
    }

    /// Reads changed TLS files. Then new connections replace the old ones; calls on these continue.
    fn refresh_tls(&self) {
        let Some(tls) = &self.dialer.tls else { return };
        tls.refresh(self.clock.now());
        let changes = tls.changes();
        if self.tls_changes.swap(changes, Ordering::SeqCst) != changes {
            self.pools.iter().for_each(Pool::outdate);
        }
    }
}

/// Waits for an answer, for this long at most.
async fn within<T>(
    limit: Option<Duration>,
    answer: impl Future<Output = Result<T, SendError>>,
) -> Result<T, SendError> {
    match limit {
        None => answer.await,
        Some(after) => tokio::time::timeout(after, answer).await.unwrap_or(Err(SendError::Timeout(after))),
    }
}

/// Connects to the target's port for a tunnel, without TLS.
///
/// # Errors
/// No connection could be made.
pub async fn connect(options: &Options, clock: Clock) -> Result<Bare, DialError> {
    Dialer::new(options, clock).connect_bare().await
}

/// Closes idle and old connections regularly, as long as the upstream is in use.
async fn maintain(upstream: Weak<Inner>, clock: Clock) {
    loop {
        clock.sleep(MAINTAIN_EVERY).await;
        let Some(inner) = upstream.upgrade() else { return };
        inner.refresh_tls();
        inner.pools.iter().for_each(Pool::maintain);
    }
}

/// The time between two rounds of closing connections, short compared to the 75 s of an idle one.
const MAINTAIN_EVERY: Duration = Duration::from_secs(5);
