//! The pool of connections of one group: it lends their streams to calls, and makes new
//! connections.
//!
//! A std Mutex protects the [`PoolState`]. Nothing is awaited while it is locked, and calls to
//! other parts are made after it is released.

mod connection;
mod state;
mod stream_lease;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::client::conn::http1;

use self::connection::{Handle, NewConnection};
use self::state::{Deferred, PoolState};
pub use self::stream_lease::StreamLease;
pub(super) use self::stream_lease::{Exclusive, SentBody, Stream, StreamUnit};
use super::dial::Dialer;
use super::error::{DialError, DialFailure};
use super::stream_accounts::ConnectionId;
use super::{Occupancy, Rooms, lock};
use crate::api::Group;
use crate::clock::Clock;
use crate::moment::Moment;

/// The connections of one group.
pub(super) struct Pool {
    pub(super) group: Group,
    dialer: Arc<Dialer>,
    clock: Clock,
    rooms: Arc<dyn Rooms>,
    state: Mutex<PoolState>,
}

impl Pool {
    pub(super) fn new(group: Group, dialer: Arc<Dialer>, clock: Clock, rooms: Arc<dyn Rooms>) -> Arc<Self> {
        let state = PoolState { multiplexed: dialer.tls.is_none().then_some(false), ..PoolState::default() };
        Arc::new(Self { group, dialer, clock, rooms, state: Mutex::new(state) })
    }

    pub(super) fn occupancy(&self) -> Occupancy {
        lock(&self.state).accounts.occupancy()
    }

    pub(super) fn want(self: &Arc<Self>, calls: usize) {
        self.with(|state, _, _| state.pacing.wanted = calls);
    }

    pub(super) fn down(&self) -> Option<Arc<DialError>> {
        let state = lock(&self.state);
        state.pacing.failing()?; // as nearly always: the clock need not be read
        state.pacing.down(self.clock.now()).filter(|_| state.accounts.free() == 0).cloned()
    }

    pub(super) fn unreachable(&self) -> Option<Arc<DialError>> {
        let state = lock(&self.state);
        state.pacing.failing().filter(|_| state.accounts.free() == 0).cloned()
    }

    /// Returns a stream for a call just admitted by the limiter.
    pub(super) fn checkout(self: &Arc<Self>) -> Option<StreamLease> {
        self.with(|state, deferred, _| {
            state.accounts.return_grant();
            state.open(self, deferred)
        })
    }

    /// Returns the first available stream: a free stream, or one of any new connection.
    pub(super) async fn take_exempt(self: &Arc<Self>) -> Result<StreamLease, Arc<DialError>> {
        let found = self.with(|state, deferred, _| match state.open(self, deferred) {
            Some(lease) => Ok(lease),
            None => Err((state.exempt.add(), state.pacing.under_way > 0 || state.exempt.0.len() > 1)),
        });
        let (coming, dialling) = match found {
            Ok(lease) => return Ok(lease),
            Err(none) => none,
        };
        let own = async {
            if dialling {
                // a dial that began earlier is likely to be done earlier; one that hangs must not
                // hold this call up
                self.clock.sleep(HEAD_START).await;
            }
            self.dial_for_itself().await
        };
        tokio::select! {
            biased;
            Ok(lease) = coming => lease, // none comes if the waiter was dropped: its own dial decides then
            own = own => own,
        }
    }

    /// Returns another stream for a call not processed by the upstream, the next that is free. If
    /// `fresh`, it is on a new connection.
    pub(super) async fn take_again(self: &Arc<Self>, fresh: bool) -> Result<StreamLease, Arc<DialError>> {
        if fresh {
            return self.dial_for_itself().await;
        }
        let found = self.with(|state, deferred, now| match state.open(self, deferred) {
            Some(lease) => Ok(Ok(lease)),
            None => match state.pacing.down(now) {
                Some(error) => Ok(Err(Arc::clone(error))),
                None => Err(state.replays.add()),
            },
        });
        match found {
            Ok(found) => found,
            Err(coming) => coming.await.unwrap_or_else(|_gone| Err(self.closed_at_once())),
        }
    }

    /// Makes a connection, whoever else makes one, and returns its first stream.
    pub(super) async fn dial_for_itself(self: &Arc<Self>) -> Result<StreamLease, Arc<DialError>> {
        let (connection, tls) = self.connect().await?;
        let lease = self.register(connection, tls, true);
        lease.ok_or_else(|| self.closed_at_once())
    }

    /// Returns true if the latest connection speaks HTTP/2; `None` before the first.
    pub(super) fn is_multiplexed(&self) -> Option<bool> {
        lock(&self.state).multiplexed
    }

    /// Connects. Returns the connection, and how often the TLS settings had changed before it.
    async fn connect(&self) -> Result<(NewConnection, u64), Arc<DialError>> {
        // boxed: it is large, and rare, and would make every call's future large
        let connecting = Box::pin(connection::connect(&self.dialer, self.group));
        self.dialer.dial(self.group, self.clock.now(), connecting).await
    }

    fn closed_at_once(&self) -> Arc<DialError> {
        Arc::new(self.dialer.failure(DialFailure::ClosedAtOnce))
    }

    /// Makes a connection planned by [`PoolState::plan`].
    async fn dial(self: Arc<Self>) {
        let begun = self.clock.now();
        let error = match self.connect().await {
            Ok((connection, tls)) => return drop(self.register(connection, tls, false)),
            Err(error) => error,
        };
        let waiters = self.with(|state, deferred, now| {
            if state.pacing.failed(Arc::clone(&error), begun, now) {
                let gate = self.dialer.gate();
                let group = self.group.word();
                tracing::warn!(gate, group, %error, cause = error.cause(), "the upstream cannot be reached");
            }
            deferred.unreachable = state.accounts.free() == 0;
            std::mem::take(&mut state.replays)
        });
        waiters.fail(&error);
    }

    /// Adds a connection to the pool and starts its driver. If `own`, returns its first stream.
    ///
    /// `tls` is how often the TLS settings had changed before the connection was made.
    fn register(self: &Arc<Self>, connection: NewConnection, tls: u64, own: bool) -> Option<StreamLease> {
        self.with(|state, deferred, now| {
            let failure = if own { state.pacing.recovered() } else { state.pacing.succeeded() };
            if let Some(failure) = failure {
                tracing::info!(gate = self.dialer.gate(), group = self.group.word(), at = %failure.at, "the upstream can be reached again");
            }
            let outdated = self.dialer.tls_changes() != tls;
            let expires = if outdated { now } else { now + MAX_AGE };
            state.multiplexed = Some(connection.is_http2);
            state.accounts.add(connection.limit, now, expires, |id| (connection.start)(self, id));
            let lease = if own { state.open(self, deferred) } else { None };
            state.retire(now, deferred);
            lease
        })
    }

    // === what connections and streams report ===

    pub(super) fn stream_ended(self: &Arc<Self>, id: ConnectionId) {
        self.with(|state, _, now| state.accounts.give(id, now));
    }

    pub(super) fn set_limit(self: &Arc<Self>, id: ConnectionId, limit: usize) {
        self.with(|state, _, _| state.accounts.set_limit(id, limit));
    }

    /// Removes a closed connection.
    pub(super) fn gone(self: &Arc<Self>, id: ConnectionId) {
        self.with(|state, deferred, _| state.close(id, deferred));
    }

    /// Closes an HTTP/1.1 connection after a call without a proper end.
    pub(super) fn discard(self: &Arc<Self>, id: ConnectionId) {
        self.with(|state, deferred, _| {
            if let Some(Handle::Http1 { driver, .. }) = state.accounts.handle(id) {
                driver.abort();
            }
            state.close(id, deferred);
        });
    }

    /// Takes back an HTTP/1.1 connection after a complete call. Once hyper is ready, the next call
    /// may use it.
    pub(super) fn put_back(self: &Arc<Self>, id: ConnectionId, back: http1::SendRequest<SentBody>) {
        self.with(|state, _, now| {
            if let Some(Handle::Http1 { sender, traffic, reused, .. }) = state.accounts.handle(id) {
                traffic.releasing.store(true, Ordering::SeqCst);
                *reused = true;
                *sender = Some(back);
            }
            state.release(id, now);
        });
    }

    /// Makes an HTTP/1.1 connection available if hyper is ready for its next call.
    pub(super) fn released(self: &Arc<Self>, id: ConnectionId) {
        self.with(|state, _, now| state.release(id, now));
    }

    /// Closes idle and old connections. Must be called every few seconds.
    pub(super) fn maintain(self: &Arc<Self>) {
        self.with(|state, deferred, now| {
            state.retire(now, deferred);
            if state.accounts.has_expired(now) {
                state.pacing.ahead = true;
            }
        });
    }

    /// Replaces all connections after a change of the TLS settings. Idle ones are closed now, the
    /// others once there are new ones; their calls continue.
    pub(super) fn outdate(self: &Arc<Self>) {
        self.with(|state, _, now| state.accounts.expire(now));
        self.maintain();
    }

    /// Runs `change` under the lock, then gives free streams to waiting calls. The remaining
    /// actions, such as making connections, follow without the lock.
    fn with<R>(self: &Arc<Self>, change: impl FnOnce(&mut PoolState, &mut Deferred, Moment) -> R) -> R {
        let mut deferred = Deferred::default();
        let mut state = lock(&self.state);
        let now = self.clock.now();
        let result = change(&mut state, &mut deferred, now);
        state.serve(self, &mut deferred);
        state.plan(now, &mut deferred);
        let room = state.accounts.take_room();
        drop(state);
        self.carry_out(room, deferred);
        result
    }

    fn carry_out(self: &Arc<Self>, room: i64, deferred: Deferred) {
        let Deferred { unreachable, dials, alarm, leases, handles } = deferred;
        drop((leases, handles));
        for _ in 0..dials {
            tokio::spawn(Arc::clone(self).dial());
        }
        if let Some(due) = alarm {
            let pool = Arc::clone(self);
            tokio::spawn(async move {
                pool.clock.sleep_until(due).await;
                pool.with(|state, _, _| state.alarm = false);
            });
        }
        if room != 0 {
            self.rooms.add_room(self.group, room);
        }
        if unreachable {
            self.rooms.unreachable(self.group);
        }
    }
}

/// The maximum age of a connection: a new one looks the name up again, and load spreads over new
/// servers.
const MAX_AGE: Duration = Duration::from_secs(600);
/// How long an exempt call waits for other new connections before it makes its own.
const HEAD_START: Duration = Duration::from_millis(250);
