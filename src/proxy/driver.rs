//! The driver: the limiter at work in real time.
//!
//! One std mutex around the limiter; every operation drains the limiter's events under that lock and wakes whoever they name after
//! unlocking. A task sleeps until the limiter's next wakeup. Nothing is awaited under the lock, and nothing of the pool is called under
//! it. What the limiter is owed (an outcome, a slot, a permit back) is in guards, so that a caller who leaves at any await owes nothing.

mod held;
mod interleave;
mod log;
mod operator;
mod tell;

use std::{
    cell::RefCell,
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::AtomicBool},
    task::{Context, Poll, Waker},
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::tell::Teller;
pub(crate) use self::{
    held::{HeldPermit, HeldSlot, OwedReceipt, ShadowEntry, Told},
    tell::Wants,
};
use crate::{
    api::{Answer, Group, Key},
    clock::Clock,
    limit::{Arrival, Claim, Keys, Limiter, Permit, Receipt, Refusal, Slot, Ticket, Verdict},
    moment::Moment,
    upstream::Rooms,
};

/// The limiter of one gate, shared by its calls. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
}

struct Shared {
    /// For the log.
    gate: Arc<str>,
    state: Mutex<State>,
    keys: Arc<Keys>,
    clock: Clock,
    /// The limiter wants to be advanced sooner than the ticker sleeps.
    sooner: Notify,
    /// Nobody is made to wait for room: see [`Driver::cast_shadow`].
    shadow: AtomicBool,
    teller: Teller,
}

struct State {
    limiter: Limiter,
    /// Who to wake when a ticket's answer may have changed.
    wakers: HashMap<Ticket, Waker>,
    /// Until when the ticker sleeps.
    alarm: Moment,
    /// The terms that the limits belong to.
    generation: u64,
    /// Until when everything is let through.
    bypass_until: Option<Moment>,
}

/// The call was read under terms that are not in force any more: its class may mean another now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stale;

/// What the door says to a call.
pub(crate) enum Entry {
    /// It may go.
    Go(HeldPermit),
    /// It has a place in a queue.
    Wait(HeldTicket),
    /// It may not.
    Refused(Refusal),
}

/// How a wait ended.
pub(crate) enum Turn {
    /// It is its turn.
    Go(HeldPermit),
    /// It may not.
    Refused(Refusal),
    /// No connection could be had.
    Unconnected,
}

/// A place among those who wait; dropping it leaves.
#[derive(Debug)]
pub(crate) struct HeldTicket {
    driver: Driver,
    ticket: Option<Ticket>,
}

/// The driver as the pool knows it: without keeping it alive, or the two would keep each other.
struct PoolSide(Weak<Shared>);

// === impl Driver ===

impl Driver {
    pub(crate) fn new(gate: Arc<str>, limiter: Limiter, clock: Clock) -> Self {
        let keys = Arc::clone(limiter.keys());
        let state = State { limiter, wakers: HashMap::new(), alarm: Moment::ZERO, generation: 0, bypass_until: None };
        let shared = Shared {
            gate,
            state: Mutex::new(state),
            keys,
            clock,
            sooner: Notify::new(),
            shadow: AtomicBool::new(false),
            teller: Teller::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// What the pool tells this driver through.
    pub(crate) fn rooms(&self) -> Arc<dyn Rooms> {
        Arc::new(PoolSide(Arc::downgrade(&self.shared)))
    }

    /// Whom this driver tells how many calls wait for room. Once.
    pub(crate) fn connect(&self, pool: Arc<dyn Wants>) {
        self.shared.teller.connect(pool);
    }

    /// The failing keys, without the lock.
    pub(crate) fn keys(&self) -> &Keys {
        &self.shared.keys
    }

    pub(crate) fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// A call is at the door, read under the terms of this number.
    ///
    /// # Errors
    /// There are other terms now.
    pub(crate) fn arrive(&self, generation: u64, arrival: &Arrival<'_>) -> Result<Entry, Stale> {
        let (verdict, now) = self.operate(|state, now| {
            let verdict =
                if state.generation == generation { Ok(state.limiter.arrive(arrival, now)) } else { Err(Stale) };
            (verdict, now)
        });
        Ok(match verdict? {
            Verdict::Admit(permit) => Entry::Go(HeldPermit::new(self.clone(), permit, now)),
            Verdict::Wait(ticket) => Entry::Wait(HeldTicket { driver: self.clone(), ticket: Some(ticket) }),
            Verdict::Refuse(refusal) => Entry::Refused(refusal),
        })
    }

    /// Advances the limiter whenever it is due, until `stop`. Calls `bypass_over` when the time in which everything was let through has ended.
    pub(crate) async fn tick(self, stop: CancellationToken, bypass_over: impl Fn()) {
        loop {
            let until = self.set_alarm();
            tokio::select! {
                () = self.shared.clock.sleep_until(until) => {
                    if self.operate(State::advance) {
                        bypass_over();
                    }
                    // What is left to do at this moment is not more urgent than everything else.
                    tokio::task::yield_now().await;
                }
                () = self.shared.sooner.notified() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Reads the limiter under the lock, for gauges.
    pub(crate) fn look<T>(&self, at: impl FnOnce(&Limiter, Moment) -> T) -> T {
        let state = self.lock();
        at(&state.limiter, self.shared.clock.now())
    }

    /// Wakers that are kept.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        self.lock().wakers.len()
    }

    /// Tells the limiter what a call came to; says whether its key began to fail.
    fn finish(&self, receipt: Receipt, answer: Answer, key: Option<Key>, name: &dyn Fn() -> String) {
        let receipt = match key {
            Some(_) => receipt,
            None => match self.shared.keys.settle(receipt, answer) {
                Ok(()) => return,
                Err(receipt) => receipt,
            },
        };
        let began = RefCell::new(None);
        let note = || {
            let name = name();
            began.replace(Some(name.clone()));
            name
        };
        self.operate(|state, now| state.limiter.finish(receipt, answer, key, &note, now));
        if let Some(key) = began.into_inner() {
            self.tell_began(&key, answer);
        }
    }

    fn release(&self, slot: Slot) {
        self.operate(|state, now| state.limiter.release(slot, now));
    }

    fn retract(&self, permit: Permit) {
        self.operate(|state, now| state.limiter.retract(permit, now));
    }

    fn requeue(&self, permit: Permit) -> HeldTicket {
        let ticket = self.operate(|state, now| state.limiter.requeue(permit, now));
        HeldTicket { driver: self.clone(), ticket: Some(ticket) }
    }

    fn set_alarm(&self) -> Moment {
        let mut state = self.lock();
        state.alarm = state.next_wakeup();
        state.alarm
    }

    /// Does something to the limiter, and everything that has to follow.
    fn operate<T>(&self, operation: impl FnOnce(&mut State, Moment) -> T) -> T {
        let (result, woken, sooner, wanted, ended) = {
            let mut state = self.lock();
            let now = self.shared.clock.now();
            let result = operation(&mut state, now);
            let wanted = self.shared.teller.has_news(&state.limiter);
            (result, state.drain(), state.is_sooner(), wanted, state.limiter.take_ended())
        };
        interleave::point();
        woken.into_iter().for_each(Waker::wake);
        ended.iter().for_each(|ended| self.tell_ended(ended));
        if sooner {
            self.shared.sooner.notify_one();
        }
        if wanted {
            self.shared.teller.tell(|look| look(&self.lock().limiter));
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        interleave::point();
        // A panic under the lock is a bug of the limiter; going on with what it left is better than refusing every call from then on.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driver")
    }
}

// === impl State ===

impl State {
    /// Lets happen what is due; says whether the time in which everything is let through has ended.
    fn advance(&mut self, now: Moment) -> bool {
        let over = self.bypass_until.take_if(|until| *until <= now).is_some();
        if over {
            self.limiter.set_bypass(false, now);
        }
        self.limiter.advance(now);
        over
    }

    fn next_wakeup(&self) -> Moment {
        [self.limiter.next_wakeup(), self.bypass_until].into_iter().flatten().min().unwrap_or(Moment::MAX)
    }

    /// Takes the wakers of those whose answer may have changed. No allocation when there are none.
    fn drain(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some(ticket) = self.limiter.next_event() {
            woken.extend(self.wakers.remove(&ticket));
        }
        woken
    }

    /// Whether the ticker must be told that it is due sooner.
    fn is_sooner(&mut self) -> bool {
        let next = self.next_wakeup();
        let sooner = next < self.alarm;
        self.alarm = self.alarm.min(next);
        sooner
    }

    fn remember(&mut self, ticket: Ticket, waker: &Waker) {
        let kept = self.wakers.entry(ticket).or_insert_with(|| waker.clone());
        kept.clone_from(waker);
    }
}

// === impl HeldTicket ===

impl HeldTicket {
    /// Ready when the wait is over; woken whenever that may have changed.
    pub(crate) fn poll_turn(&mut self, cx: &Context<'_>) -> Poll<Turn> {
        let Some(ticket) = self.ticket else {
            return Poll::Pending; // the wait is over and was told
        };
        let (claim, now) = self.driver.operate(|state, now| {
            let claim = state.limiter.claim(ticket, now);
            match claim {
                Claim::Waiting => state.remember(ticket, cx.waker()),
                Claim::Permit(_) | Claim::Refused(_) | Claim::Unconnected => drop(state.wakers.remove(&ticket)),
            }
            (claim, now)
        });
        let turn = match claim {
            Claim::Waiting => return Poll::Pending,
            Claim::Permit(permit) => Turn::Go(HeldPermit::new(self.driver.clone(), permit, now)),
            Claim::Refused(refusal) => Turn::Refused(refusal),
            Claim::Unconnected => Turn::Unconnected,
        };
        self.ticket = None;
        Poll::Ready(turn)
    }

    /// `bytes` more of the call are held.
    ///
    /// # Errors
    /// There is no room for them; the place is lost.
    pub(crate) fn hold_bytes(&mut self, bytes: usize) -> Result<(), Refusal> {
        let Some(ticket) = self.ticket else {
            return Ok(());
        };
        let held = self.driver.operate(|state, now| {
            let held = state.limiter.hold_bytes(ticket, bytes, now);
            if held.is_err() {
                state.wakers.remove(&ticket);
            }
            held
        });
        if held.is_err() {
            self.ticket = None;
        }
        held
    }
}

impl Drop for HeldTicket {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.driver.operate(|state, now| {
                state.wakers.remove(&ticket);
                state.limiter.leave(ticket, now);
            });
        }
    }
}

// === impl PoolSide ===

impl PoolSide {
    fn operate(&self, operation: impl FnOnce(&mut Limiter, Moment)) {
        if let Some(shared) = self.0.upgrade() {
            Driver { shared }.operate(|state, now| operation(&mut state.limiter, now));
        }
    }
}

impl Rooms for PoolSide {
    fn add_room(&self, group: Group, change: i64) {
        self.operate(|limiter, now| limiter.add_room(group, change, now));
    }

    fn unreachable(&self, group: Group) {
        self.operate(|limiter, now| limiter.fail_group(group, now));
    }
}

/// More room than there can ever be calls.
const BOUNDLESS: i64 = 1 << 40;

#[cfg(test)]
mod tests;
