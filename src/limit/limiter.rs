//! The limiter's operations: everything that the driver (or a simulation) does with it.
//!
//! Every operation first applies what time alone has brought about since the last one, then does
//! its own work, then admits every call that may leave. Everything that happens to waiting calls
//! comes out as events, so this code calls nothing outside the core.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, atomic::AtomicUsize},
};

use super::{
    call::{Grant, KeyGrant},
    dropped_requests::DroppedRequests,
    keys::{
        failing::{Keys, Spread},
        id::KeyId,
        table::Table,
    },
    permit::{Permit, Slot},
    policy::{Lane, Policy},
    queue::{
        held_calls::HeldCalls,
        regroup::Move,
        scheduler::Scheduler,
        timers::Timers,
        waiter::{State, Waiter, Waiters},
        waiting_bytes::WaitingBytes,
        walk::{Sweep, WaiterWalk},
    },
    refusal::{Ended, Reason, Refusal},
    resources::Resources,
    verdict::{Claim, Ticket},
};
use crate::{api::Group, moment::Moment};

/// The limits of one gate at work.
#[derive(Debug)]
pub struct Limiter {
    pub(super) policy: Policy,
    /// For each class, a number that stays the same over a reload.
    pub(super) serials: Vec<u32>,
    pub(super) table: Table,
    pub(super) resources: Resources,
    pub(super) scheduler: Scheduler,
    pub(super) waiters: Waiters,
    /// The waiting calls of each key that fails or for which several calls wait.
    pub(super) held_calls: HashMap<KeyId, HeldCalls, Spread>,
    /// Keys (as [`KeyId::written`]) of which a write is past the key stage, where only one may be.
    pub(super) writes: HashSet<KeyId, Spread>,
    pub(super) timers: Timers,
    /// The keys whose held calls must be reviewed.
    pub(super) dirty_keys: Vec<KeyId>,
    /// The queue groups whose own bucket or slots got something back.
    pub(super) unblocked: Vec<u32>,
    /// The calls in retry queues whose `hold` ended while a retry token was there: refused as soon
    /// as there is none.
    pub(super) expired_holds: Vec<Ticket>,
    pub(super) events: VecDeque<Ticket>,
    pub(super) dropped_requests: DroppedRequests,
    /// The number of waiting calls, and the bytes of their bodies.
    pub(super) waiting: usize,
    pub(super) waiting_bytes: WaitingBytes,
    pub(super) now: Moment,
    /// The last moment at which every call that could leave had left.
    pub(super) idle_since: Moment,
    pub(super) sequence: u64,
    /// True while every call is admitted without limits.
    pub(super) bypassed: bool,
    /// What many waiting calls are yet to learn.
    pub(super) sweeps: VecDeque<Sweep>,
    /// A reload whose waiters are on their way to their new queues.
    pub(super) moving: Option<Box<Move>>,
    /// Something is left to do at this moment.
    pub(super) behind: bool,
    /// Steps that are left of the turn under way.
    pub(super) steps: u32,
}

// === impl Limiter ===

impl Limiter {
    /// Makes a limiter at rest. `seed` feeds the jitter.
    #[must_use]
    pub fn new(policy: Policy, seed: u64, now: Moment) -> Self {
        debug_assert!(!policy.classes.is_empty(), "a policy has a class");
        Self {
            serials: (0..).take(policy.classes.len()).collect(),
            table: Table::new(policy.max_keys, seed),
            resources: Resources::new(&policy, now),
            scheduler: Scheduler::new(&policy),
            policy,
            waiters: Waiters::default(),
            held_calls: HashMap::default(),
            writes: HashSet::default(),
            timers: Timers::default(),
            dirty_keys: Vec::new(),
            unblocked: Vec::new(),
            expired_holds: Vec::new(),
            events: VecDeque::new(),
            dropped_requests: DroppedRequests::new(),
            waiting: 0,
            waiting_bytes: WaitingBytes::default(),
            now,
            idle_since: now,
            sequence: 0,
            bypassed: false,
            sweeps: VecDeque::new(),
            moving: None,
            behind: false,
            steps: 0,
        }
    }

    /// Shares the bound on waiting bytes with every limiter that has the same `sum`.
    #[must_use]
    pub fn sharing_bytes(self, sum: Arc<AtomicUsize>) -> Self {
        Self { waiting_bytes: WaitingBytes::sharing(sum), ..self }
    }

    /// Returns the key table, which answers without the limiter's lock.
    #[must_use]
    pub fn keys(&self) -> &Arc<Keys> {
        self.table.keys()
    }

    /// Returns the number of waiting calls.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// True if no call waits or is in flight and no trial is out: the limiter owes nothing.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        let nobody = self.waiters.len() == 0
            && self.writes.is_empty()
            && self.held_calls.is_empty()
            && self.timers.is_empty()
            && self.waiting == 0
            && self.moving.is_none();
        nobody && self.scheduler.is_empty() && self.resources.gate_slots.used() == 0 && self.table.trials_out() == 0
    }

    /// Admits the calls whose turn has come and ends the waits that are over. Advancing too often
    /// does nothing.
    pub fn advance(&mut self, now: Moment) {
        let now = self.catch_up(now);
        if self.behind {
            self.dispatch_turns(now);
        }
    }

    /// Returns a waiting call whose answer may have changed: wake it to `claim`. Drain this after
    /// every operation.
    pub fn next_event(&mut self) -> Option<Ticket> {
        while let Some(ticket) = self.events.pop_front() {
            if self.waiters.find(ticket).is_some_and(|waiter| !waiter.is_waiting()) {
                return Some(ticket);
            }
        }
        None
    }

    /// Returns the keys that have stopped failing since the last call: at most a few dozen, further
    /// ones are not reported. Does not allocate when there are none.
    pub fn take_ended(&mut self) -> Vec<Ended> {
        self.table.take_ended()
    }

    /// Returns the moment to `advance` if nothing else happens; `None` if time alone changes
    /// nothing. The answer may change with every operation.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Moment> {
        if self.behind {
            return Some(self.now);
        }
        let turn = self.scheduler.next_wakeup(&self.resources, self.now);
        [turn, self.timers.first()].into_iter().flatten().min()
    }

    /// Takes the verdict of a waiting call.
    pub fn claim(&mut self, ticket: Ticket, now: Moment) -> Claim {
        let now = self.catch_up(now);
        if self.resources.pauses.any(now) && self.waiters.find(ticket).is_some() {
            self.freshen(ticket.index, now);
            self.stop_if_paused(ticket.index, now);
        }
        match self.waiters.find(ticket).map(Waiter::is_waiting) {
            None => return Claim::Unconnected,
            Some(true) => return Claim::Waiting,
            Some(false) => {}
        }
        if let Some(key) = self.waiters.get(ticket.index).and_then(Waiter::key) {
            self.leave_held_calls(key, ticket.index);
        }
        let Some(waiter) = self.waiters.remove(ticket.index) else { return Claim::Unconnected };
        match waiter.state {
            State::Granted(grant) => Claim::Permit(Permit::new(waiter.call, *grant)),
            State::Refused(refusal) => Claim::Refused(*refusal),
            State::Held | State::Queued(_) | State::Unconnected => Claim::Unconnected,
        }
    }

    /// Removes a call whose client hung up while waiting. Idempotent. A turn that was granted and
    /// not claimed goes to the next call.
    pub fn leave(&mut self, ticket: Ticket, now: Moment) {
        self.catch_up(now);
        if self.waiters.find(ticket).is_none() {
            return;
        }
        self.freshen(ticket.index, now);
        self.withdraw(ticket.index, now);
        self.waiters.remove(ticket.index);
        self.dispatch(now);
    }

    /// Counts `bytes` more that are held for a waiting call. Past the limit the call is refused and
    /// has left.
    ///
    /// # Errors
    /// The refusal, with reason `BytesFull`.
    pub fn hold_bytes(&mut self, ticket: Ticket, bytes: usize, now: Moment) -> Result<(), Refusal> {
        let now = self.catch_up(now);
        let Some(arrived) = self.waiters.find(ticket).filter(|w| w.is_waiting()).map(|waiter| waiter.call.arrived)
        else {
            return Ok(());
        };
        if !self.waiting_bytes.try_add(bytes, self.policy.queue.max_waiting_bytes) {
            let retry_at = self.dropped_requests.drop_one(now);
            self.leave(ticket, now);
            return Err(Refusal { reason: Reason::BytesFull, retry_at, waited: now - arrived, key: None });
        }
        if let Some(waiter) = self.waiters.get_mut(ticket.index) {
            waiter.bytes = waiter.bytes.saturating_add(bytes);
        }
        Ok(())
    }

    /// Gives back everything that a call took, because it will not be sent.
    pub fn retract(&mut self, permit: Permit, now: Moment) {
        let now = self.catch_up(now);
        let Permit { receipt, slot } = permit;
        let (call, grant) = receipt.into_parts();
        if let Some(needs) = &grant.needs {
            self.resources.add_room(needs.group, 1);
            self.resources.give_back_tokens(needs, grant.number, &mut self.unblocked);
        }
        self.give_back_slot(&slot);
        self.end_key_grant(call.key.as_ref().map(KeyId::from), grant.key_grant);
        self.dispatch(now);
    }

    /// Takes back a call that found no connection: everything except the room goes back, and the
    /// call waits again at the head of its queue (or for its key, if that has failed meanwhile).
    pub fn requeue(&mut self, permit: Permit, now: Moment) -> Ticket {
        let now = self.catch_up(now);
        let Permit { receipt, slot } = permit;
        let (mut call, mut grant) = receipt.into_parts();
        self.give_back_slot(&slot);
        if let Some(needs) = grant.needs.take() {
            self.resources.give_back_tokens(&needs, grant.number, &mut self.unblocked);
        }
        call.class = self.class_of(call.serial);
        let ticket = self.come_back(call, &grant, now);
        self.dispatch(now);
        ticket
    }

    /// Gives a slot back at the end of a body.
    #[expect(clippy::needless_pass_by_value, reason = "a slot can be given back once: it is used up")]
    pub fn release(&mut self, slot: Slot, now: Moment) {
        let now = self.catch_up(now);
        self.give_back_slot(&slot);
        self.dispatch(now);
    }

    /// Changes the room on the connections of `group`. It starts at zero; exempt calls need none.
    pub fn add_room(&mut self, group: Group, change: i64, now: Moment) {
        let now = self.catch_up(now);
        self.resources.add_room(group, change);
        self.dispatch(now);
    }

    /// Returns the number of calls of `group` that would leave now if there were room and that wait
    /// for nothing else. Zero is exact; a higher number is an estimate, never too high for one
    /// class alone.
    #[must_use]
    pub fn wants_room(&self, group: Group) -> usize {
        if self.resources.room(group) > 0 {
            return 0;
        }
        self.scheduler.would_go(group, &self.resources, self.now)
    }

    /// Ends the wait of every call of `group` with `Claim::Unconnected`, because a dial failed.
    pub fn fail_group(&mut self, group: Group, now: Moment) {
        let now = self.catch_up(now);
        self.begin_sweep(Sweep::Strand(group, WaiterWalk::over(&self.waiters)));
        self.dispatch_turns(now);
    }

    /// Takes a waiter out of where it stands and gives back what it has. Its record stays.
    pub(super) fn withdraw(&mut self, index: u32, _now: Moment) {
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        let (key, key_grant) = (waiter.key(), std::mem::take(&mut waiter.key_grant));
        match std::mem::replace(&mut waiter.state, State::Unconnected) {
            State::Held => self.stop_waiting(index),
            State::Queued(queue) => {
                self.scheduler.part(queue, index, &mut self.waiters, &mut self.resources);
                self.stop_waiting(index);
            }
            State::Granted(grant) => {
                self.undo(index, &grant);
                self.end_key_grant(key, grant.key_grant);
            }
            State::Refused(_) | State::Unconnected => return,
        }
        if let Some(key) = key {
            self.leave_held_calls(key, index);
        }
        self.end_key_grant(key, key_grant);
    }

    /// Gives back what a granted call took, because the call was not sent.
    pub(super) fn undo(&mut self, index: u32, grant: &Grant) {
        let Some(needs) = &grant.needs else { return };
        let class = self.waiters.get(index).map(|waiter| waiter.call.class);
        self.resources.add_room(needs.group, 1);
        self.resources.give_back_tokens(needs, grant.number, &mut self.unblocked);
        self.resources.give_back_slot(needs.places, class, &mut self.unblocked);
    }

    /// Gives back a key grant: the trial, the place of the one write, and a retry token reserved on
    /// arrival.
    pub(super) fn end_key_grant(&mut self, key: Option<KeyId>, key_grant: KeyGrant) {
        if let Some((bucket, number, _)) = key_grant.paid {
            self.resources.buckets.give_back(bucket, number, &mut self.unblocked);
        }
        if let Some(key) = key.filter(|_| key_grant.alone) {
            self.writes.remove(&key.written());
            // The last is looked at first: a delete that waits has its turn after a write, and a write after a delete.
            self.dirty_keys.extend([key, key.neighbour()]);
        }
        if let Some(key) = key.filter(|_| key_grant.trial != 0) {
            self.table.end_trial(key, key_grant.trial);
            self.dirty_keys.push(key);
        }
    }

    fn give_back_slot(&mut self, slot: &Slot) {
        let class = self.serials.iter().position(|serial| *serial == slot.serial);
        self.resources.give_back_slot(slot.places, class, &mut self.unblocked);
    }

    /// Returns the index of a class by its lasting number. A class that is gone has become the
    /// default class: the one of that name, or the last.
    pub(super) fn class_of(&self, serial: u32) -> usize {
        let found = self.serials.iter().position(|other| *other == serial);
        found.unwrap_or_else(|| self.default_class())
    }

    pub(super) fn default_class(&self) -> usize {
        let classes = &self.policy.classes;
        let named = classes.iter().position(|class| &*class.name == "default" && class.lane != Lane::Exempt);
        named.unwrap_or_else(|| classes.len().saturating_sub(1))
    }

    /// Removes a call from its key's held calls.
    pub(super) fn leave_held_calls(&mut self, key: KeyId, index: u32) {
        let Some(held) = self.held_calls.get_mut(&key) else { return };
        held.remove(&mut self.waiters, index);
        if held.is_empty() {
            self.timers.cancel_key(key);
            self.held_calls.remove(&key);
        }
    }
}
