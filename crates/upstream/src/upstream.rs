//! The upstream: connections made here, by group, with a count of every stream.
//!
//! hyper-util's legacy client is not used: it keeps one HTTP/2 connection per authority, so the
//! 101st watch hangs every other call behind it. Only [`Admitted`] requests are sent. A call is
//! never kept waiting here: an admitted call either has a stream or goes back to the limiter. The
//! sum of [`Rooms::add_room`] less the calls that the limiter has let go is at every moment the
//! number of free streams.

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
use http::{HeaderMap, Request, Response};
use tokio::sync::Semaphore;

pub use self::body::{BodyPrefix, OutgoingBody, OutgoingBodyError};
use self::body::{Budget, KEPT_TOGETHER};
pub use self::corked::{CorkedConnection, CorkedStream};
use self::dial::Dialer;
pub use self::dns::{Dns, Judge};
pub use self::error::{DialError, DialFailure, ForbiddenAddress, SendError};
pub use self::inbound::{Inbound, InboundError, Remainder, UnreadBody};
use self::pool::Pool;
pub use self::pool::StreamLease;
pub use self::prepare::hides_fields;
pub use self::protocol::Protocol;
pub use self::response_body::{ResponseBody, ResponseBodyError};
pub use self::through::Wire as Bare;
pub use self::upgrade::{DedicatedConnection, UpgradeAnswer};
use crate::api::Group;
use crate::clock::Clock;
use crate::credentials::Injector;
pub use crate::credentials::Target;
use crate::limit::Admitted;
use crate::moment::Moment;
pub use crate::spec::Host;
use crate::telemetry::meters::UpstreamMeters;
use crate::{Current, lock, tls};

/// The receiver of changes in the number of free streams (the room), implemented by the proxy's
/// driver.
///
/// It is called without any lock of the pool held, from any task; also from the drop of a
/// [`StreamLease`] or [`ResponseBody`]. So neither may be dropped under a lock that these methods
/// take.
pub trait Rooms: Send + Sync + 'static {
    /// Reports that `change` more streams of `group` are free (fewer when negative). The sum may be
    /// below zero for a moment.
    fn add_room(&self, group: Group, change: i64);
    /// Reports that no connection could be made: waiting calls of `group` need not wait longer.
    fn unreachable(&self, group: Group);
}

/// The upstream's address and settings.
#[derive(Clone, Debug)]
pub struct Options {
    /// Scheme, host, port and base path.
    pub target: Target,
    /// TLS towards the target; `None` speaks plain HTTP/1.1.
    pub tls: Option<Arc<tls::Client>>,
    /// What to send as Host to the upstream.
    pub host: Host,
    /// The scheme of the gate's own URL, for links to the upstream in response headers to be
    /// rewritten; `None` leaves them unchanged.
    pub rewrite_links: Option<Scheme>,
    /// Sets the credentials of requests.
    pub injector: Arc<Injector>,
    /// The gate's own addresses; they are never connected to.
    pub own: Vec<SocketAddr>,
    /// The name servers to use if the hosts file points the target's name at the gate.
    pub dns: Dns,
    /// The timeout of a connection attempt: name lookup, TCP, TLS, first HTTP/2 SETTINGS.
    pub connect_timeout: Duration,
    /// The timeout from the request to the response head, never for long-running calls; `None` for
    /// no timeout.
    pub response_timeout: Option<Duration>,
}

/// How many connections and streams of a group are open and in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Open connections.
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

/// The metrics to count in, once they are set.
type Meters = OnceLock<UpstreamMeters>;

struct Inner {
    target: Target,
    settings: Current<RequestSettings>,
    injector: Arc<Injector>,
    clock: Clock,
    budget: Budget,
    /// The number of changes to TLS files, at the last check.
    tls_changes: AtomicU64,
    /// Set while the upstream refuses the gate's client certificate, so that this is logged once.
    certificate_refused: AtomicBool,
    dialer: Arc<Dialer>,
    /// The connections, in the order of [`Group`]. Those of upgrades are not pooled.
    pools: [Arc<Pool>; 3],
    /// Counts the connections of upgrades: its reference count is one more than their number.
    upgrades: Arc<()>,
    /// The last connection error of [`Self::speaks_http2`], and its moment.
    ahead: tokio::sync::Mutex<Option<(Moment, Arc<DialError>)>>,
}

impl Upstream {
    /// Starts without a connection; the first call makes one. Must be called inside a tokio
    /// runtime.
    pub fn start(options: Options, clock: Clock, rooms: Arc<dyn Rooms>) -> Self {
        let dialer = Arc::new(Dialer::new(&options, clock));
        let pool = |group, rooms| Pool::new(group, Arc::clone(&dialer), clock, rooms);
        let exempt = pool(Group::Exempt, Arc::clone(&rooms));
        let short = pool(Group::Short, Arc::clone(&rooms));
        let inner = Arc::new(Inner {
            pools: [exempt, short, pool(Group::LongRunning, rooms)],
            upgrades: Arc::default(),
            ahead: tokio::sync::Mutex::default(),
            settings: Current::new(RequestSettings::of(&options)),
            target: options.target,
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

    /// Applies changed settings: Host, timeouts and rewriting of links. Everything else stays.
    pub fn adjust(&self, options: &Options) {
        self.inner.dialer.set_timeout(options.connect_timeout);
        self.inner.settings.set(RequestSettings::of(options));
    }

    /// Sets how many calls of `group` wait only for a connection, and makes connections if
    /// necessary. `calls` is the total, not an increment.
    pub fn want(&self, group: Group, calls: usize) {
        if let Some(pool) = self.inner.pool(group) {
            pool.want(calls);
        }
    }

    /// Returns the error for new calls of `group`, if the last connection attempt failed, the next
    /// is not due yet and no stream is free.
    pub fn down(&self, group: Group) -> Option<Arc<DialError>> {
        self.inner.pool(group)?.down()
    }

    /// Returns the error of the last connection attempt of `group`, if none has succeeded since and
    /// no stream is free. Unlike [`Self::down`] it stays when the next attempt is due: it is for
    /// status pages.
    pub fn unreachable(&self, group: Group) -> Option<Arc<DialError>> {
        self.inner.pool(group)?.unreachable()
    }

    /// Returns a stream for a call the limiter let go. `None` if its connection has closed
    /// meanwhile: the stream is counted as given back here, and the caller must requeue the call.
    pub fn checkout(&self, group: Group) -> Option<StreamLease> {
        self.inner.pool(group)?.checkout()
    }

    /// Returns a stream for an exempt call: a free one, or the first from a new connection, whoever
    /// it is made for.
    ///
    /// # Errors
    /// The connection made for this call failed.
    pub async fn checkout_exempt(&self, group: Group) -> Result<StreamLease, Arc<DialError>> {
        let [exempt, ..] = &self.inner.pools;
        self.inner.pool(group).unwrap_or(exempt).take_exempt().await
    }

    /// Sends the request and returns at the response head. Adapts the request to the upstream
    /// (hop-by-hop fields, Host, base path, credentials) and the response to the client. A request
    /// that the upstream provably did not process is sent again on another connection; nothing else
    /// ever is. Dropping the future resets the stream.
    ///
    /// # Errors
    /// Says what happened to the request; see [`SendError`].
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

    /// Sets the metrics to count in. Call it once.
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

    /// Returns true if the upstream speaks HTTP/2. Connects to find out, if it is not known yet;
    /// calls use that connection later.
    ///
    /// # Errors
    /// No connection could be made.
    pub async fn speaks_http2(&self) -> Result<bool, Arc<DialError>> {
        let [_, short, _] = &self.inner.pools;
        if let Some(known) = short.is_multiplexed() {
            return Ok(known);
        }
        // One at a time: many clients that begin at once need one connection, and an upstream that
        // is down needs one try in a while.
        let mut failed = self.inner.ahead.lock().await;
        if let Some((at, error)) = &*failed
            && self.inner.clock.now().since(*at) < LOOK_AGAIN
        {
            return Err(Arc::clone(error));
        }
        if short.is_multiplexed().is_none() {
            let connected = short.dial_for_itself().await;
            *failed = connected.as_ref().err().map(|error| (self.inner.clock.now(), Arc::clone(error)));
            drop(connected?);
        }
        Ok(short.is_multiplexed().unwrap_or_default())
    }

    /// Returns true if the response's headers have a link leading past the gate to the upstream.
    pub fn leads_past(&self, headers: &HeaderMap) -> bool {
        links::are_in(headers) && links::lead_past(headers, &self.inner.target, &self.inner.settings.get().host)
    }

    /// Returns what sets credentials, for its checks of requests.
    pub fn injector(&self) -> &Injector {
        &self.inner.injector
    }

    /// Returns how often the client certificate or the CAs were replaced. Calls under one number
    /// have the same certificate.
    pub fn certificate_changes(&self) -> u64 {
        self.inner.tls_changes.load(Ordering::SeqCst)
    }
}

/// The settings for sending requests, as a reload may change them.
#[derive(Clone, Debug)]
struct RequestSettings {
    host: Host,
    response_timeout: Option<Duration>,
    rewrite_links: Option<Scheme>,
}

impl RequestSettings {
    fn of(options: &Options) -> Self {
        let Options { host, response_timeout, rewrite_links, .. } = options;
        Self { host: host.clone(), response_timeout: *response_timeout, rewrite_links: rewrite_links.clone() }
    }
}

impl Inner {
    /// Returns the pool of a group; `None` for upgrades, which share no connections.
    fn pool(&self, group: Group) -> Option<&Arc<Pool>> {
        self.pools.get(group as usize)
    }

    /// Uses changed TLS files. Earlier connections take no more calls once new ones replace them;
    /// their streams run on.
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

/// Retires idle and old connections while the upstream is in use.
async fn maintain(upstream: Weak<Inner>, clock: Clock) {
    loop {
        clock.sleep(MAINTAIN_EVERY).await;
        let Some(inner) = upstream.upgrade() else { return };
        inner.refresh_tls();
        inner.pools.iter().for_each(Pool::maintain);
    }
}

/// The time between two connection attempts of [`Upstream::speaks_http2`].
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The time between two rounds of closing connections, short beside the 75 s of idle connections.
const MAINTAIN_EVERY: Duration = Duration::from_secs(5);
