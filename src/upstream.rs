//! The upstream: connections of our own, by group, with every stream accounted for.
//!
//! Not hyper-util's legacy client: that keeps one HTTP/2 connection per authority, so the 101st watch hangs every other call behind it.
//! Takes only [`Admitted`] requests. Never parks a call: a granted call either has a stream or goes back to the limiter, whose sum of
//! [`Rooms::add_room`] less its own grants is at every moment the streams that are free.

// In the path of a call nothing may panic: what could is written down with its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

mod body;
mod dial;
mod dns;
mod error;
mod inbound;
mod links;
mod names;
mod pacing;
mod pool;
mod prepare;
mod race;
mod send;
mod stream_accounts;
mod streaming;
mod through;
mod trailing;
mod upgrade;
mod windows;

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc, OnceLock, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{HeaderValue, Request, Response, uri::Scheme};

pub(crate) use self::trailing::Trailing;
use self::{
    body::{Budget, KEPT_TOGETHER},
    dial::Dialer,
    names::Names,
    pool::Pool,
    upgrade::Upgrades,
};
pub use self::{
    body::{Kept, Outgoing, OutgoingError},
    dns::Dns,
    error::{DialError, DialFailure, SendError},
    inbound::{Inbound, InboundError, Remainder, Unread},
    pool::StreamLease,
    streaming::{Streaming, StreamingError},
    upgrade::{Dedicated, Protocol, Upgraded},
};
pub use crate::credentials::Target;
use crate::{api::Group, clock::Clock, credentials::Injector, limit::Admitted, telemetry::meters::UpstreamMeters, tls};

/// Who wants to know how many more calls the connections could take. Implemented by the proxy's driver.
///
/// Called without any lock of the pool held, from whichever task noticed; also from the drop of a [`StreamLease`] or [`Streaming`], so neither may
/// be dropped under a lock that these methods take.
pub trait Rooms: Send + Sync + 'static {
    /// Room for `change` more calls of `group` (fewer when negative) than was told before. Sums may pass below zero for a moment.
    fn add_room(&self, group: Group, change: i64);
    /// A dial failed: whoever waits for `group` need not wait on.
    fn unreachable(&self, group: Group);
}

/// Where calls go and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Scheme, host, port and base path.
    pub target: Target,
    /// TLS towards the target; `None` speaks plain HTTP/1.1.
    pub tls: Option<Arc<tls::Client>>,
    /// The Host sent upstream.
    pub host: Host,
    /// Links to the upstream in response headers become links to the gate, by which clients come with this scheme; `None` leaves them.
    pub rewrite_links: Option<Scheme>,
    /// Whose credentials the upstream sees.
    pub injector: Arc<Injector>,
    /// Where the gate listens, which is never dialled.
    pub own: Vec<SocketAddr>,
    /// Where the target's name is looked up if the hosts file says that it is the gate.
    pub dns: Dns,
    /// To a connection that can take calls: name, TCP, TLS, first SETTINGS.
    pub connect_timeout: Duration,
    /// From handing over the request to the response head; never for long-running calls. `None` for no limit.
    pub response_timeout: Option<Duration>,
}

/// The Host sent upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// The upstream's own authority.
    Rewrite,
    /// The client's.
    Preserve,
    /// This one.
    Literal(HeaderValue),
}

/// What stands and what goes over it, in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Connections that take calls.
    pub connections: usize,
    /// Streams in use on them.
    pub used: usize,
    /// Streams free on them.
    pub free: usize,
}

/// The connections to one upstream. Cheap to clone.
#[derive(Clone)]
pub struct Upstream {
    inner: Arc<Inner>,
}

/// Where to count, once that is known.
type Meters = Arc<OnceLock<UpstreamMeters>>;

struct Inner {
    target: Target,
    /// What a reload may change.
    settings: RwLock<Arc<RequestSettings>>,
    injector: Arc<Injector>,
    clock: Clock,
    budget: Budget,
    /// Under which TLS settings the connections are that still take calls.
    tls_changes: AtomicU64,
    /// The upstream refuses our certificate, and it has been said.
    certificate_refused: AtomicBool,
    dialer: Arc<Dialer>,
    meters: Meters,
    leases: Arc<Pool>,
    short: Arc<Pool>,
    long_running: Arc<Pool>,
    upgrades: Arc<Upgrades>,
}

impl Upstream {
    /// Starts with no connection; the first call dials. Must be called inside a tokio runtime.
    #[must_use]
    pub fn start(options: Options, clock: Clock, rooms: Arc<dyn Rooms>) -> Self {
        let plain = options.tls.is_none();
        let settings = RwLock::new(Arc::new(RequestSettings::of(&options)));
        let injector = options.injector;
        let names = |host, port| Names::new(host, port, options.own, options.dns, clock);
        let credentials = Arc::clone(&injector);
        let dialer = Arc::new(Dialer::new(&options.target, options.tls, credentials, options.connect_timeout, names));
        let meters: Meters = Arc::default();
        let pool = |group, rooms| Pool::new(group, Arc::clone(&dialer), Arc::clone(&meters), plain, clock, rooms);
        let inner = Arc::new(Inner {
            leases: pool(Group::Exempt, Arc::clone(&rooms)),
            short: pool(Group::Short, Arc::clone(&rooms)),
            long_running: pool(Group::LongRunning, rooms),
            upgrades: Arc::default(),
            target: options.target,
            settings,
            injector,
            clock,
            budget: Budget::new(KEPT_TOGETHER),
            tls_changes: AtomicU64::new(dialer.tls_changes()),
            certificate_refused: AtomicBool::new(false),
            dialer,
            meters,
        });
        tokio::spawn(maintain(Arc::downgrade(&inner), clock));
        Self { inner }
    }

    /// Takes over the Host that is sent, the timeouts and what becomes of links; everything else stays as it was.
    pub fn adjust(&self, options: &Options) {
        self.inner.dialer.set_timeout(options.connect_timeout);
        *self.inner.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(RequestSettings::of(options));
    }

    /// `calls` calls of `group` wait for room and nothing else: dials if that makes sense. A level, not an increment; spurious calls do
    /// nothing.
    pub fn want(&self, group: Group, calls: usize) {
        if let Some(pool) = self.inner.pool(group) {
            pool.want(calls);
        }
    }

    /// The last dial of `group` failed, the next is not due yet and no stream is free: new calls fail at once, with this.
    #[must_use]
    pub fn down(&self, group: Group) -> Option<Arc<DialError>> {
        self.inner.pool(group)?.down()
    }

    /// The last dial of `group` failed, none has succeeded since, and no stream is free. Unlike [`Self::down`] this does not end while a dial is
    /// due that nobody asks for: it is for people who look.
    #[must_use]
    pub fn unreachable(&self, group: Group) -> Option<Arc<DialError>> {
        self.inner.pool(group)?.unreachable()
    }

    /// The stream that a grant of the limiter stands for. `None` when the connection went meanwhile: the unit of room that the grant
    /// took is then given back here, and the caller requeues.
    #[must_use]
    pub fn checkout(&self, group: Group) -> Option<StreamLease> {
        self.inner.pool(group)?.checkout()
    }

    /// A stream for an exempt call: a free one, or the first to come of its own dial and anybody else's.
    ///
    /// # Errors
    /// Its own dial failed.
    pub async fn checkout_exempt(&self, group: Group) -> Result<StreamLease, Arc<DialError>> {
        self.inner.pool(group).unwrap_or(&self.inner.leases).take_exempt().await
    }

    /// Sends the request and returns at the response head. Makes the request upstream's (hop-by-hop fields, Host, base path, credentials)
    /// and the response the client's. What the upstream provably did not process is sent again on another connection; nothing else ever
    /// is. Dropping the future resets the stream.
    ///
    /// # Errors
    /// What became of the request; see [`SendError`].
    pub fn send(
        &self,
        lease: StreamLease,
        request: Admitted<Request<Outgoing>>,
    ) -> impl Future<Output = Result<Response<Streaming>, SendError>> + Send {
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
                Some(after) => tokio::time::timeout(after, answer).await.unwrap_or(Err(SendError::Timeout { after })),
            }
        }
    }

    /// An HTTP/1.1 connection for one call that asks to switch protocols. It serves nothing else, whatever the answer.
    ///
    /// # Errors
    /// Its dial failed.
    pub async fn dedicate(&self) -> Result<Dedicated, Arc<DialError>> {
        let now = self.inner.clock.now();
        // boxed: it is large and rare
        Box::pin(Dedicated::dial(&self.inner.dialer, &self.inner.meters, &self.inner.upgrades, now)).await
    }

    /// Sends a request that asks to switch to `protocol` and returns at the response head. Like [`Upstream::send`], but nothing is sent twice.
    ///
    /// # Errors
    /// What became of the request. A switch to anything else than `protocol` is an error.
    pub async fn upgrade(
        &self,
        connection: Dedicated,
        protocol: Protocol,
        request: Admitted<Request<Outgoing>>,
    ) -> Result<Upgraded, SendError> {
        Box::pin(self.switch(connection, protocol, request.into_inner())).await
    }

    /// Counts into these meters from now on. Once.
    pub fn measure(&self, meters: UpstreamMeters) {
        let first = self.inner.meters.set(meters).is_ok();
        debug_assert!(first, "an upstream has one set of meters");
    }

    /// What stands and what goes over it.
    #[must_use]
    pub fn occupancy(&self, group: Group) -> Occupancy {
        self.inner.pool(group).map_or_else(|| self.inner.upgrades.occupancy(), |pool| pool.occupancy())
    }

    /// Whether the upstream speaks HTTP/2, which has no upper case in the names of fields; as far as the last connection tells, at any time.
    #[must_use]
    pub fn lower_case(&self) -> Arc<AtomicBool> {
        Arc::clone(self.inner.dialer.lower_case())
    }

    /// Whose credentials the upstream sees: the proxy asks it what must be refused.
    #[must_use]
    pub fn injector(&self) -> &Injector {
        &self.inner.injector
    }
}

/// How calls are sent, as far as a reload may change it.
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

    /// The connections of a group; upgrades share none.
    fn pool(&self, group: Group) -> Option<&Arc<Pool>> {
        match group {
            Group::Exempt => Some(&self.leases),
            Group::Short => Some(&self.short),
            Group::LongRunning => Some(&self.long_running),
            Group::Upgrades => None,
        }
    }

    fn pools(&self) -> [&Arc<Pool>; 3] {
        [&self.leases, &self.short, &self.long_running]
    }

    /// Takes over TLS files that have changed. Connections from before take no more calls once they have successors; their streams run on.
    fn refresh_tls(&self) {
        let Some(tls) = self.dialer.tls() else { return };
        tls.refresh(self.clock.now());
        let changes = tls.changes();
        if self.tls_changes.swap(changes, Ordering::SeqCst) != changes {
            for pool in self.pools() {
                pool.outdate();
            }
        }
    }
}

/// Retires idle and old connections and sets the gauges, for as long as the upstream is in use.
async fn maintain(upstream: Weak<Inner>, clock: Clock) {
    loop {
        clock.sleep(MAINTAIN_EVERY).await;
        let Some(inner) = upstream.upgrade() else { return };
        inner.refresh_tls();
        for pool in inner.pools() {
            pool.maintain();
            if let Some(meters) = inner.meters.get() {
                let Occupancy { connections, used, .. } = pool.occupancy();
                meters.connections(pool.group(), connections);
                meters.streams(pool.group(), used);
            }
        }
    }
}

/// Fine enough beside the 75 s after which idle connections go.
const MAINTAIN_EVERY: Duration = Duration::from_secs(5);

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").finish_non_exhaustive()
    }
}
