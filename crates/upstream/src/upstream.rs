//! The upstream: our own connections, by group, with accounts of every stream.
//!
//! Not hyper-util's legacy client: that keeps one HTTP/2 connection per authority, so the 101st
//! watch hangs every other call behind it. Takes only [`Admitted`] requests. Never parks a call: a
//! granted call either has a stream or goes back to the limiter. The sum of [`Rooms::add_room`]
//! less the limiter's own grants is at every moment the number of free streams.

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
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
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
use crate::lock;
use crate::moment::Moment;
pub use crate::spec::Host;
use crate::telemetry::meters::UpstreamMeters;
use crate::tls;

/// The receiver of changes in free streams, implemented by the proxy's driver.
///
/// Called without any lock of the pool held, from any task; also from the drop of a [`StreamLease`]
/// or [`ResponseBody`]. So neither may be dropped under a lock that these methods take.
pub trait Rooms: Send + Sync + 'static {
    /// Reports room for `change` more calls of `group` (fewer when negative) than before. Sums may
    /// pass below zero for a moment.
    fn add_room(&self, group: Group, change: i64);
    /// Reports a failed dial: waiting calls of `group` need not wait on.
    fn unreachable(&self, group: Group);
}

/// The upstream's address and settings.
#[derive(Clone, Debug)]
pub struct Options {
    /// Scheme, host, port and base path.
    pub target: Target,
    /// TLS towards the target; `None` speaks plain HTTP/1.1.
    pub tls: Option<Arc<tls::Client>>,
    /// The Host sent upstream.
    pub host: Host,
    /// The scheme of the gate's own URL, to rewrite links to the upstream in response headers;
    /// `None` leaves them.
    pub rewrite_links: Option<Scheme>,
    /// The credentials of requests.
    pub injector: Arc<Injector>,
    /// The gate's own addresses, never dialled.
    pub own: Vec<SocketAddr>,
    /// The name servers, for a target that the hosts file points at the gate.
    pub dns: Dns,
    /// The timeout of a connection: name, TCP, TLS, first SETTINGS.
    pub connect_timeout: Duration,
    /// The timeout from the request to the response head, never for long-running calls; `None` for
    /// no timeout.
    pub response_timeout: Option<Duration>,
}

/// The use of a group's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Open connections.
    pub connections: usize,
    /// Streams in use on them.
    pub used: usize,
    /// Streams free on them.
    pub free: usize,
}

/// The connections to one upstream. Cheap to clone.
#[derive(Clone, derive_more::Debug)]
#[debug("Upstream")]
pub struct Upstream {
    inner: Arc<Inner>,
}

/// The meters, once they are known.
type Meters = OnceLock<UpstreamMeters>;

struct Inner {
    target: Target,
    settings: RwLock<Arc<RequestSettings>>,
    injector: Arc<Injector>,
    clock: Clock,
    budget: Budget,
    /// The number of TLS changes, as of the last check.
    tls_changes: AtomicU64,
    /// The upstream refuses the gate's certificate, as the log says.
    certificate_refused: AtomicBool,
    dialer: Arc<Dialer>,
    /// In the order of [`Group`]; the connections of upgrades are not pooled.
    pools: [Arc<Pool>; 3],
    /// Its reference count is one more than the number of upgrades' connections.
    upgrades: Arc<()>,
    /// The last failure of [`Self::speaks_http2`] to connect.
    ahead: tokio::sync::Mutex<Option<(Moment, Arc<DialError>)>>,
}

impl Upstream {
    /// Starts with no connection; the first call dials. Must be called inside a tokio runtime.
    pub fn start(options: Options, clock: Clock, rooms: Arc<dyn Rooms>) -> Self {
        let dialer = Arc::new(Dialer::new(&options, clock));
        let pool = |group, rooms| Pool::new(group, Arc::clone(&dialer), clock, rooms);
        let exempt = pool(Group::Exempt, Arc::clone(&rooms));
        let short = pool(Group::Short, Arc::clone(&rooms));
        let inner = Arc::new(Inner {
            pools: [exempt, short, pool(Group::LongRunning, rooms)],
            upgrades: Arc::default(),
            ahead: tokio::sync::Mutex::default(),
            settings: RwLock::new(Arc::new(RequestSettings::of(&options))),
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
        *self.inner.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(RequestSettings::of(options));
    }

    /// Sets the number of `group`'s calls that wait for room alone, and dials if necessary. A
    /// level, not an increment.
    pub fn want(&self, group: Group, calls: usize) {
        if let Some(pool) = self.inner.pool(group) {
            pool.want(calls);
        }
    }

    /// Returns the error for new calls of `group`: the last dial failed, the next is not due yet
    /// and no stream is free.
    pub fn down(&self, group: Group) -> Option<Arc<DialError>> {
        self.inner.pool(group)?.down()
    }

    /// Returns the error of the last dial of `group` if none has succeeded since and no stream is
    /// free. Unlike [`Self::down`] it stays when the next dial is due: it is for status pages.
    pub fn unreachable(&self, group: Group) -> Option<Arc<DialError>> {
        self.inner.pool(group)?.unreachable()
    }

    /// Returns the stream of a limiter's grant. `None` if the connection is gone meanwhile: the
    /// grant's unit of room is returned here, and the caller requeues.
    pub fn checkout(&self, group: Group) -> Option<StreamLease> {
        self.inner.pool(group)?.checkout()
    }

    /// Returns a stream for an exempt call: a free one, or the first from its own dial or any
    /// other.
    ///
    /// # Errors
    /// Its own dial failed.
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
    /// The fate of the request; see [`SendError`].
    pub fn send(
        &self,
        lease: StreamLease,
        request: Admitted<Request<OutgoingBody>>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, SendError>> + Send {
        let settings = self.inner.settings();
        let limit = settings.response_timeout.filter(|_| lease.group() != Group::LongRunning);
        let mut attempt = self.attempt(&settings, lease, request.into_inner()); // kept where it is made: it is large
        async move {
            let answer = match &mut attempt {
                Ok(attempt) => self.transmit(attempt),
                Err(error) => return Err(error.clone()),
            };
            match limit {
                None => answer.await,
                Some(after) => tokio::time::timeout(after, answer).await.unwrap_or(Err(SendError::Timeout(after))),
            }
        }
    }

    /// Sets the meters. To be called once.
    pub fn measure(&self, meters: UpstreamMeters) {
        let first = self.inner.dialer.meters.set(meters).is_ok();
        debug_assert!(first, "an upstream has one set of meters");
    }

    /// Returns the use of a group's connections. An upgrade's connection has one use, and is never
    /// free.
    pub fn occupancy(&self, group: Group) -> Occupancy {
        self.inner.pool(group).map_or_else(
            || {
                let open = Arc::strong_count(&self.inner.upgrades) - 1;
                Occupancy { connections: open, used: open, free: 0 }
            },
            |pool| pool.occupancy(),
        )
    }

    /// True if the upstream speaks HTTP/2. Connects to find out, if it is not known yet; calls use
    /// that connection later.
    ///
    /// # Errors
    /// There is no connection.
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
            let connected = short.connect_ahead().await;
            *failed = connected.as_ref().err().map(|error| (self.inner.clock.now(), Arc::clone(error)));
            connected?;
        }
        Ok(short.is_multiplexed().unwrap_or_default())
    }

    /// True if the response's headers have a link to the upstream past the gate.
    pub fn leads_past(&self, headers: &HeaderMap) -> bool {
        links::are_in(headers) && links::lead_past(headers, &self.inner.target, &self.inner.settings().host)
    }

    /// Returns the injector, for its checks of requests.
    pub fn injector(&self) -> &Injector {
        &self.inner.injector
    }

    /// Returns the number of changes of the client certificate or the roots. Calls under one number
    /// have the same certificate.
    pub fn certificate_changes(&self) -> u64 {
        self.inner.tls_changes.load(Ordering::SeqCst)
    }
}

/// The settings of requests that a reload may change.
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
    fn settings(&self) -> Arc<RequestSettings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the connections of a group; upgrades share none.
    fn pool(&self, group: Group) -> Option<&Arc<Pool>> {
        self.pools.get(group as usize)
    }

    /// Takes over changed TLS files. Earlier connections take no more calls once they have
    /// successors; their streams run on.
    fn refresh_tls(&self) {
        let Some(tls) = &self.dialer.tls else { return };
        tls.refresh(self.clock.now());
        let changes = tls.changes();
        if self.tls_changes.swap(changes, Ordering::SeqCst) != changes {
            self.pools.iter().for_each(Pool::outdate);
        }
    }
}

/// Connects to the target's port for a tunnel, without TLS.
///
/// # Errors
/// There is no connection.
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

/// The time between two tries of [`Upstream::speaks_http2`] to connect.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The time between two rounds, short beside the 75 s of idle connections.
const MAINTAIN_EVERY: Duration = Duration::from_secs(5);
