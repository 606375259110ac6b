//! The driver: runs the limiter in real time.
//!
//! A mutex guards the limiter. A panic under it is a bug of the limiter, but does not poison the
//! mutex: to continue is better than to refuse every call from then on. Every operation takes the
//! limiter's events under that lock, and wakes the tasks of these calls after unlocking. A
//! background task sleeps until the limiter has something to do. Nothing is awaited and no method
//! of the connection pool is called under the lock. An outcome, a slot or a permit that must be
//! given back to the limiter is in a guard, so that none is lost if a caller hangs up at any await.

mod held;
mod interleave;
mod log;
mod operator;
mod sharing;
mod tell;
mod twin;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::Waker;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(crate) use self::held::{HeldPermit, HeldSlot, HeldTicket, Learning, OwedReceipt};
use self::tell::Teller;
use self::twin::Twin;
pub(crate) use self::twin::{Fate, TwinAnswer, TwinCall};
use super::stores::{Done, Stores};
use crate::api::{Answer, Group, Key};
use crate::clock::Clock;
use crate::limit::{self, Arrival, Keys, Limiter, Receipt, Refusal, Ticket};
use crate::lock;
use crate::moment::Moment;
use crate::telemetry::meters::Decision;
use crate::upstream::Rooms;

/// The limiter of one gate, shared by its calls. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Driver {
    shared: Arc<DriverCore>,
}

struct DriverCore {
    /// The gate's name in log lines.
    gate: Arc<str>,
    state: Mutex<DriverState>,
    keys: Arc<Keys>,
    clock: Clock,
    /// Notified when the limiter must be advanced sooner than the background task wakes.
    sooner: Notify,
    teller: Teller,
    /// Sends requests to the stores of shared buckets.
    stores: Stores,
}

struct DriverState {
    /// The gate's limiter. In shadow mode it decides about copies of the calls, and holds back
    /// none.
    own: Twin,
    /// The limiter for the classes in shadow mode, on a gate where other classes are enforced.
    shadow: Option<Box<Twin>>,
    /// The limiter of the candidate.
    candidate: Option<Box<Twin>>,
    /// The tasks to wake when the limiter may have decided on a waiting call.
    wakers: HashMap<Ticket, Waker>,
    /// The time of the background task's timer.
    alarm: Moment,
    /// The number of the configuration with the limits in force.
    generation: u64,
    /// The end of a bypass: until then an operator has switched off all limits.
    bypass_until: Option<Moment>,
}

/// The error for a call classified before a reload: in the new configuration its class may be
/// another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stale;

/// What the limiter decides about a call on arrival.
pub(crate) enum Verdict {
    /// The call may be sent to the upstream.
    Go(HeldPermit),
    /// The call has to wait.
    Wait(HeldTicket),
    /// The call is refused.
    Refused(Refusal),
}

// === impl Verdict ===

impl Verdict {
    /// Returns the name of the verdict in metrics.
    pub(crate) fn decision(&self) -> Decision {
        match self {
            Self::Go(_) => Decision::Go,
            Self::Wait(_) => Decision::Wait,
            Self::Refused(_) => Decision::Refuse,
        }
    }
}

// === impl Driver ===

impl Driver {
    /// Creates the driver of a gate's limiter; `generation` is the number of the configuration with its
    /// limits.
    pub(crate) fn new(gate: Arc<str>, limiter: Limiter, generation: u64, stores: Stores, clock: Clock) -> Self {
        let keys = Arc::clone(limiter.keys());
        let state = DriverState {
            own: Twin::new(limiter),
            shadow: None,
            candidate: None,
            wakers: HashMap::new(),
            alarm: Moment::ZERO,
            generation,
            bypass_until: None,
        };
        let shared = DriverCore {
            gate,
            state: Mutex::new(state),
            keys,
            clock,
            sooner: Notify::new(),
            teller: Teller::default(),
            stores,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns a handle for the connection pool, to report how many more calls its connections can
    /// carry.
    pub(crate) fn rooms(&self) -> Arc<dyn Rooms> {
        Arc::new(PoolRooms(Arc::downgrade(&self.shared)))
    }

    /// Connects the driver to the connection pool: the driver calls `want` with the number of calls
    /// waiting for a connection. Call it once.
    pub(crate) fn connect(&self, want: impl Fn(Group, usize) + Send + Sync + 'static) {
        let is_first = self.shared.teller.pool.set(Box::new(want)).is_ok();
        debug_assert!(is_first, "a driver has one pool");
    }

    /// Returns the failing keys, readable without the limiter's lock.
    pub(crate) fn keys(&self) -> &Keys {
        &self.shared.keys
    }

    pub(crate) fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// Returns what the limiter decides about a new call. `generation` is the number of the
    /// configuration that classified the call.
    ///
    /// # Errors
    /// The configuration was replaced meanwhile.
    pub(crate) fn arrive(&self, generation: u64, arrival: &Arrival<'_>) -> Result<Verdict, Stale> {
        let (verdict, now) = self.operate(|state, now| {
            let is_current = state.generation == generation;
            (is_current.then(|| state.own.limiter.arrive(arrival, now)).ok_or(Stale), now)
        });
        Ok(self.held(verdict?, Learning::All, now))
    }

    /// Puts what a verdict gives to a call into its guard.
    fn held(&self, verdict: limit::Verdict, learns: Learning, now: Moment) -> Verdict {
        match verdict {
            limit::Verdict::Admit(permit) => Verdict::Go(HeldPermit::new(self, permit, now, learns)),
            limit::Verdict::Wait(ticket) => Verdict::Wait(HeldTicket::new(self, ticket)),
            limit::Verdict::Refuse(refusal) => Verdict::Refused(refusal),
        }
    }

    /// Advances the limiter whenever it is due, until `stop`. Calls `bypass_over` when a bypass of
    /// the limits has run out.
    pub(crate) async fn tick(self, stop: CancellationToken, bypass_over: impl Fn()) {
        loop {
            let until = {
                let mut state = self.lock();
                state.alarm = state.next_wakeup();
                state.alarm
            };
            tokio::select! {
                () = self.shared.clock.sleep_until(until) => {
                    let advance = |state: &mut DriverState, now| (state.advance(now), state.own.limiter.take_asks(now), now);
                    let (is_over, asks, sent) = self.operate(advance);
                    if is_over {
                        bypass_over();
                    }
                    self.ask_stores(asks, sent);
                    // The rest of the limiter's work is not more urgent than everything else.
                    tokio::task::yield_now().await;
                }
                () = self.shared.sooner.notified() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Applies a function to the limiter under the lock, only to read it.
    pub(crate) fn look<T>(&self, at: impl FnOnce(&Limiter, Moment) -> T) -> T {
        self.look_as(false, at)
    }

    /// Like [`Self::look`], at the limiter that decides about calls in shadow mode or not.
    pub(crate) fn look_as<T>(&self, is_in_shadow: bool, at: impl FnOnce(&Limiter, Moment) -> T) -> T {
        let mut state = self.lock();
        at(&state.decider(is_in_shadow).limiter, self.shared.clock.now())
    }

    /// Returns the number of tasks to be woken, for tests.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        self.lock().wakers.len()
    }

    /// Reports the outcome of a call to the limiter, and records for the log if its key began to
    /// fail.
    fn finish(&self, receipt: Receipt, answer: Answer, key: Option<Key>, name: &dyn Fn() -> String) {
        if let Some(receipt) = twin::unsettled(receipt, &self.shared.keys, answer, key) {
            self.operate(|state, now| state.own.finish(receipt, answer, key, name, now));
        }
    }

    /// Logs which keys began or ceased to fail. Called every second; `is_last` at the end, to log
    /// everything.
    pub(crate) fn log_keys(&self, is_last: bool) {
        let logs: Vec<_> = self.lock().deciders().map(|twin| Arc::clone(&twin.log)).collect();
        logs.iter().for_each(|log| log.write(&self.shared.gate, self.shared.clock.now(), is_last));
    }

    /// Runs an operation on the limiter under the lock, then wakes the tasks it concerns.
    fn operate<T>(&self, operation: impl FnOnce(&mut DriverState, Moment) -> T) -> T {
        let (result, woken, sooner, wanted) = {
            let mut state = self.lock();
            let now = self.shared.clock.now();
            let result = operation(&mut state, now);
            let wanted = self.shared.teller.has_news(&state.own.limiter);
            state.own.note_ended();
            (result, state.drain(now), state.is_sooner(), wanted)
        };
        interleave::point();
        woken.into_iter().for_each(Waker::wake);
        if sooner {
            self.shared.sooner.notify_one();
        }
        if wanted {
            self.shared.teller.tell(|look| look(&self.lock().own.limiter));
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, DriverState> {
        interleave::point();
        lock(&self.shared.state)
    }
}

/// The handle of the connection pool to the driver. It is weak: the driver has a handle to the
/// pool, and two strong ones would never be dropped.
struct PoolRooms(Weak<DriverCore>);

impl Rooms for PoolRooms {
    fn add_room(&self, group: Group, change: i64) {
        if let Some(shared) = self.0.upgrade() {
            Driver { shared }.operate(|state, now| state.own.limiter.add_room(group, change, now));
        }
    }

    fn unreachable(&self, group: Group) {
        if let Some(shared) = self.0.upgrade() {
            Driver { shared }.operate(|state, now| state.own.limiter.fail_group(group, now));
        }
    }
}

// === impl DriverState ===

impl DriverState {
    /// Returns the limiter that decides about calls: the one in force, or that of calls in shadow
    /// mode.
    fn decider(&mut self, is_in_shadow: bool) -> &mut Twin {
        match &mut self.shadow {
            Some(twin) if is_in_shadow => twin,
            Some(_) | None => &mut self.own,
        }
    }

    /// Returns the gate's limiter, and the one for classes in shadow mode if there is one.
    fn deciders(&mut self) -> impl Iterator<Item = &mut Twin> {
        [Some(&mut self.own), self.shadow.as_deref_mut()].into_iter().flatten()
    }

    /// Advances the limiter. Returns true if a bypass has run out.
    fn advance(&mut self, now: Moment) -> bool {
        let over = self.bypass_until.take_if(|until| *until <= now).is_some();
        if over {
            self.own.limiter.set_bypass(false, now);
        }
        self.own.advance(now);
        over
    }

    fn next_wakeup(&self) -> Moment {
        [self.own.limiter.next_wakeup(), self.bypass_until].into_iter().flatten().min().unwrap_or(Moment::MAX)
    }

    /// Takes the wakers of the calls with a result. Does not allocate if there are none.
    fn drain(&mut self, now: Moment) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some(ticket) = self.own.limiter.next_event() {
            woken.extend(self.wakers.remove(&ticket));
            self.own.decided(ticket, now);
        }
        woken
    }

    /// Returns true if the background task must wake earlier than its timer.
    fn is_sooner(&mut self) -> bool {
        let next = self.next_wakeup();
        let sooner = next < self.alarm;
        self.alarm = self.alarm.min(next);
        sooner
    }
}

#[cfg(test)]
mod tests;
