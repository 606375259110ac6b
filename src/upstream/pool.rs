//! The connections of one group: who gets a stream, when to dial, and what the limiter is told.
//!
//! One std Mutex around the [`State`]; no operation awaits under it, and everything that calls out (rooms, dials, drops) happens
//! after it is let go.

pub(super) mod connection;
mod state;
pub(super) mod stream_lease;

use std::{
    hash::{BuildHasher, RandomState},
    pin::pin,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use hyper::client::conn::http1;
use tokio::sync::oneshot;

pub use self::stream_lease::StreamLease;
use self::{
    connection::Established,
    state::{After, Handle, State},
};
use super::{
    Meters, Occupancy, Rooms,
    body::Outgoing,
    dial::Dialer,
    error::{DialError, DialFailure},
    stream_accounts::ConnectionId,
};
use crate::{api::Group, clock::Clock, moment::Moment};

/// The connections of one group.
pub(super) struct Pool {
    group: Group,
    dialer: Arc<Dialer>,
    clock: Clock,
    rooms: Arc<dyn Rooms>,
    meters: Meters,
    state: Mutex<State>,
}

impl Pool {
    pub(super) fn new(
        group: Group,
        dialer: Arc<Dialer>,
        meters: Meters,
        plain: bool,
        clock: Clock,
        rooms: Arc<dyn Rooms>,
    ) -> Arc<Self> {
        let state = State::new(plain.then_some(false));
        Arc::new(Self { group, dialer, clock, rooms, meters, state: Mutex::new(state) })
    }

    pub(super) fn group(&self) -> Group {
        self.group
    }

    pub(super) fn occupancy(&self) -> Occupancy {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).accounts.occupancy()
    }

    pub(super) fn want(self: &Arc<Self>, calls: usize) {
        self.with(|state, _, _| state.pacing.want(calls));
    }

    pub(super) fn down(&self) -> Option<Arc<DialError>> {
        let now = self.clock.now();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.pacing.down(now).filter(|_| state.accounts.free() == 0).cloned()
    }

    pub(super) fn unreachable(&self) -> Option<Arc<DialError>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.pacing.failing().filter(|_| state.accounts.free() == 0).cloned()
    }

    /// The stream that a grant stands for.
    pub(super) fn checkout(self: &Arc<Self>) -> Option<StreamLease> {
        self.with(|state, after, _| state.open(self, true, after))
    }

    /// The first stream to come: a free one, one of our own dial, or one of anybody else's.
    pub(super) async fn take_exempt(self: &Arc<Self>) -> Result<StreamLease, Arc<DialError>> {
        let (waiter, coming) = oneshot::channel();
        let (open, dialling) = self.with(|state, after, _| {
            let open = state.open(self, false, after);
            if open.is_none() {
                state.exempt.retain(|waiter| !waiter.is_closed());
                state.exempt.push_back(waiter);
            }
            (open, state.pacing.is_dialling() || state.exempt.len() > 1)
        });
        if let Some(lease) = open {
            return Ok(lease);
        }
        let mut coming = pin!(async {
            match coming.await {
                Ok(lease) => lease,
                Err(_gone) => std::future::pending().await, // our own dial decides then
            }
        });
        if dialling {
            // a dial that began earlier is likely to be done earlier; one that hangs must not hold us up
            tokio::select! {
                biased;
                lease = &mut coming => return Ok(lease),
                () = self.clock.sleep(HEAD_START) => {}
            }
        }
        tokio::select! {
            biased;
            lease = &mut coming => Ok(lease),
            own = self.dial_for_itself() => own,
        }
    }

    /// Another stream for a call that was not processed; `fresh` for one of a new connection.
    pub(super) async fn take_again(self: &Arc<Self>, fresh: bool) -> Result<StreamLease, Arc<DialError>> {
        if fresh {
            return self.dial_for_itself().await;
        }
        let (waiter, coming) = oneshot::channel();
        let open = self.with(|state, after, now| {
            if let Some(lease) = state.open(self, false, after) {
                return Some(Ok(lease));
            }
            if let Some(error) = state.pacing.down(now) {
                return Some(Err(Arc::clone(error)));
            }
            state.replays.retain(|waiter| !waiter.is_closed());
            state.replays.push_back(waiter);
            None
        });
        match open {
            Some(open) => open,
            None => coming.await.unwrap_or_else(|_gone| Err(Arc::new(self.dialer.failure(DialFailure::ClosedAtOnce)))),
        }
    }

    async fn dial_for_itself(self: &Arc<Self>) -> Result<StreamLease, Arc<DialError>> {
        let (established, under) = self.connect().await?;
        let lease = self.register(established, under, |state| state.pacing.recovered(), true);
        lease.ok_or_else(|| Arc::new(self.dialer.failure(DialFailure::ClosedAtOnce)))
    }

    /// A connection, and the TLS settings it was made under.
    async fn connect(&self) -> Result<(Established, u64), Arc<DialError>> {
        let connecting = async {
            let under = self.dialer.prepare(self.clock.now()).await?;
            // boxed: it is large, and rare, and would make every call's future large
            Ok((Box::pin(connection::connect(&self.dialer, self.group)).await?, under))
        };
        connecting.await.map_err(|what| {
            if let Some(meters) = self.meters.get() {
                meters.dial_failed(self.group);
            }
            Arc::new(self.dialer.failure(what))
        })
    }

    /// A dial that was planned.
    async fn dial(self: Arc<Self>) {
        let begun = self.clock.now();
        match self.connect().await {
            Ok((established, under)) => {
                self.register(established, under, |state| state.pacing.succeeded(), false);
            }
            Err(error) => self.dial_failed(&error, begun),
        }
    }

    fn dial_failed(self: &Arc<Self>, error: &Arc<DialError>, begun: Moment) {
        let waiters = self.with(|state, after, now| {
            if state.pacing.failed(Arc::clone(error), begun, now) {
                tracing::warn!(group = ?self.group, %error, cause = error.cause(), "the upstream cannot be reached");
            }
            after.unreachable = state.accounts.free() == 0;
            std::mem::take(&mut state.replays)
        });
        for waiter in waiters {
            // whoever does not wait any more needs no answer
            drop(waiter.send(Err(Arc::clone(error))));
        }
    }

    /// Enters a connection into the accounts and starts its driver. `own` takes the first stream of it before anybody else.
    fn register(
        self: &Arc<Self>,
        established: Established,
        under: u64,
        up: impl FnOnce(&mut State) -> Option<Arc<DialError>>,
        own: bool,
    ) -> Option<StreamLease> {
        self.with(|state, after, now| {
            if let Some(before) = up(state) {
                tracing::info!(group = ?self.group, at = %before.at, "the upstream can be reached again");
            }
            let limit = established.limit();
            let outdated = self.dialer.tls_changes() != under;
            let expires = if outdated { now } else { now + MAX_AGE + MAX_AGE.mul_f64(jitter()) };
            match established {
                Established::Http1 { sender, connection, traffic } => {
                    state.multiplexed = Some(false);
                    let shared = Arc::clone(&traffic);
                    let handle = Handle::Http1 { sender: Some(sender), traffic, driver: None, reused: false };
                    let (id, change) = state.accounts.add(handle, limit, now, expires);
                    after.room += change;
                    let task = tokio::spawn(connection::drive_http1(connection, shared, Arc::downgrade(self), id));
                    if let Some(Handle::Http1 { driver, .. }) = state.accounts.handle(id) {
                        *driver = Some(task.abort_handle());
                    }
                }
                Established::Http2 { sender, connection, limit } => {
                    state.multiplexed = Some(true);
                    let (id, change) = state.accounts.add(Handle::Http2(sender), limit, now, expires);
                    after.room += change;
                    tokio::spawn(connection.drive(Arc::downgrade(self), id, limit));
                }
            }
            let opened = if own { state.open(self, false, after) } else { None };
            state.retire(now, after);
            opened
        })
    }

    // === what connections and streams report ===

    pub(super) fn stream_ended(self: &Arc<Self>, id: ConnectionId) {
        self.with(|state, after, now| after.room += state.accounts.give(id, now));
    }

    pub(super) fn set_limit(self: &Arc<Self>, id: ConnectionId, limit: usize) {
        self.with(|state, after, _| after.room += state.accounts.set_limit(id, limit));
    }

    /// A connection takes no more streams.
    pub(super) fn gone(self: &Arc<Self>, id: ConnectionId) {
        self.with(|state, after, _| state.close(id, after));
    }

    /// A call on an HTTP/1.1 connection was cut short: the connection with it.
    pub(super) fn discard(self: &Arc<Self>, id: ConnectionId) {
        self.with(|state, after, _| {
            if let Some(Handle::Http1 { driver: Some(driver), .. }) = state.accounts.handle(id) {
                driver.abort();
            }
            state.close(id, after);
        });
    }

    /// A call on an HTTP/1.1 connection ended well: the next may have it as soon as hyper is ready.
    pub(super) fn put_back(self: &Arc<Self>, id: ConnectionId, back: http1::SendRequest<Outgoing>) {
        self.with(|state, after, now| {
            if let Some(Handle::Http1 { sender, traffic, reused, .. }) = state.accounts.handle(id) {
                traffic.releasing.store(true, Ordering::SeqCst);
                *reused = true;
                *sender = Some(back);
            }
            state.release(id, after, now);
        });
    }

    /// An HTTP/1.1 connection may have become ready for its next call.
    pub(super) fn released(self: &Arc<Self>, id: ConnectionId) {
        self.with(|state, after, now| state.release(id, after, now));
    }

    /// To be called every few seconds: retires what is idle or old.
    pub(super) fn maintain(self: &Arc<Self>) {
        self.with(|state, after, now| {
            state.retire(now, after);
            if state.accounts.has_expired(now) {
                state.pacing.want_ahead();
            }
        });
    }

    /// The connections there are were made under TLS settings that hold no longer: those that are idle go now, the others as soon as they
    /// have successors, and what they carry runs on.
    pub(super) fn outdate(self: &Arc<Self>) {
        self.with(|state, _, now| state.accounts.expire(now));
        self.maintain();
    }

    /// Runs `change` under the lock, now, serves whoever can be served then, and does the rest without the lock.
    fn with<R>(self: &Arc<Self>, change: impl FnOnce(&mut State, &mut After, Moment) -> R) -> R {
        let mut after = After::default();
        let result = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let now = self.clock.now();
            let result = change(&mut state, &mut after, now);
            state.serve(self, &mut after);
            state.plan(now, &mut after);
            result
        };
        self.carry_out(after);
        result
    }

    fn carry_out(self: &Arc<Self>, after: After) {
        let After { room, unreachable, dials, alarm, leases, handles } = after;
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

/// A fraction below a fifth, so that connections established together do not age together.
fn jitter() -> f64 {
    f64::from(u32::try_from(RandomState::new().hash_one(0_u8) % 1_000).unwrap_or(0)) / 5_000.0
}

/// Then names are resolved anew and load spreads over servers that have come since.
const MAX_AGE: Duration = Duration::from_secs(600);
/// What an exempt call grants a dial that began before its own.
const HEAD_START: Duration = Duration::from_millis(250);
