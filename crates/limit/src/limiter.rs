//! The limiter's operations: everything that the driver (or a simulation) does with it.
//!
//! Every operation first applies what time alone has brought about since the last one, then does
//! its own work, then admits every call that may leave. Everything that happens to waiting calls
//! comes out as events, so this code calls nothing outside the core.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use super::{
    Ask, BucketId, Call, Claim, ClassId, ClassPolicy, DroppedRequests, Ended, Grant, KeyGrant, KeyId, Keys, Lane,
    PerClass, Permit, Policy, Questions, Refusal, Resources, Scheduler, Slot, Spread, State, Sweep, Table, Ticket,
    Waiter, WaiterIndex, WaiterWalk, Waiting, WaitingBytes, Want, Work,
};
use crate::key::Group;
use crate::moment::Moment;
use crate::sketch::Sketch;

/// The limits of one gate at work.
#[derive(Debug)]
pub struct Limiter {
    pub(super) policy: Policy,
    /// For each class, a number that stays the same over a reload.
    pub(super) serials: PerClass<u32>,
    pub(super) table: Table,
    pub(super) resources: Resources,
    pub(super) scheduler: Scheduler,
    pub(super) waiting: Waiting,
    /// Keys (as [`KeyId::written`]) of which a write is past the key stage, where only one may be.
    pub(super) writes: HashSet<KeyId, Spread>,
    pub(super) work: Work,
    pub(super) dropped_requests: DroppedRequests,
    pub(super) now: Moment,
    /// The latest calls of each object, where a class enforces a rate per object.
    pub(super) objects: Sketch,
    /// True while every call is admitted without limits.
    pub(super) bypassed: bool,
    /// True if that is so, or if a class enforces how often one object may be called.
    pub(super) is_unusual: bool,
}

// === impl Limiter ===

impl Limiter {
    /// Makes a limiter at rest. `seed` feeds the jitter.
    #[must_use]
    pub fn new(policy: Policy, seed: u64, now: Moment) -> Self {
        debug_assert!(!policy.classes.is_empty(), "a policy has a class");
        let (mut serials, is_unusual) = (0.., policy.enforces_per_key());
        Self {
            serials: policy.per_class(|_| serials.next().unwrap_or(u32::MAX)),
            table: Table::new(policy.max_keys, seed),
            resources: Resources::new(&policy, seed, now),
            scheduler: Scheduler::new(&policy),
            policy,
            waiting: Waiting::default(),
            writes: HashSet::default(),
            work: Work { idle_since: now, ..Work::default() },
            dropped_requests: DroppedRequests::new(),
            now,
            objects: Sketch::default(),
            bypassed: false,
            is_unusual,
        }
    }

    /// Shares the bound on waiting bytes with every limiter that has the same `sum`.
    #[must_use]
    pub fn sharing_bytes(mut self, sum: Arc<AtomicUsize>) -> Self {
        self.waiting.bytes = WaitingBytes::sharing(sum);
        self
    }

    /// Asks stores with the gates of other origins that have the same `questions`. `origin` is the
    /// number of this one's, which is the same in every process.
    #[must_use]
    pub fn of_origin(mut self, origin: u64, questions: Questions) -> Self {
        let shared = &mut self.resources.buckets.shared;
        (shared.origin, shared.questions) = (origin, questions);
        self
    }

    /// Returns the key table, which answers without the limiter's lock.
    pub fn keys(&self) -> &Arc<Keys> {
        &self.table.keys
    }

    /// Returns the number of waiting calls.
    pub fn waiting(&self) -> usize {
        self.waiting.count
    }

    /// True if no call waits or is in flight and no trial is out: the limiter owes nothing.
    pub fn is_at_rest(&self) -> bool {
        self.waiting.is_empty()
            && self.scheduler.is_empty()
            && self.writes.is_empty()
            && self.work.moving.is_none()
            && self.resources.gate_slots.used == 0
            && self.table.trials_out == 0
    }

    /// True if something is left to do that no moment is awaited for: `advance` does a little of
    /// it.
    pub fn is_behind(&self) -> bool {
        self.work.behind
    }

    /// Admits the calls whose turn has come and ends the waits that are over. Advancing too often
    /// does nothing.
    pub fn advance(&mut self, now: Moment) {
        let now = self.catch_up(now);
        if self.is_behind() {
            self.dispatch_turns(now);
        }
    }

    /// Returns a waiting call whose answer may have changed: wake it to `claim`. Drain this after
    /// every operation.
    pub fn next_event(&mut self) -> Option<Ticket> {
        let is_news = |ticket: &Ticket| self.waiting.find(*ticket).is_some_and(|waiter| !waiter.is_waiting());
        std::iter::from_fn(|| self.work.events.pop_front()).find(is_news)
    }

    /// Returns the keys that have stopped failing since the last call: at most a few dozen, further
    /// ones are not reported. Does not allocate when there are none.
    pub fn take_ended(&mut self) -> Vec<Ended> {
        self.table.take_ended()
    }

    /// Returns the moment to `advance` if nothing else happens; `None` if time alone changes
    /// nothing. The answer may change with every operation.
    pub fn next_wakeup(&self) -> Option<Moment> {
        if self.is_behind() {
            return Some(self.now);
        }
        let turn = self.scheduler.next_wakeup(&self.resources, self.now);
        let next = [turn, self.waiting.timers.first()].into_iter().flatten().min();
        let tended = self.resources.buckets.shared.tended;
        if tended < next.unwrap_or(Moment::MAX) { Some(tended) } else { next }
    }

    /// Returns the questions to the stores of shared buckets that are due. Hand them on, and bring
    /// what comes of each to [`Limiter::answered`], whatever that is. No allocation if there are
    /// none.
    pub fn take_asks(&mut self, now: Moment) -> Vec<Ask> {
        let now = self.now.max(now);
        let shared = &mut self.resources.buckets.shared;
        if shared.is_empty() {
            shared.tended = Moment::MAX;
            return Vec::new();
        }
        // More tokens than calls that could leave while they last would only expire.
        let (slots, longest) = (self.resources.free_slots(), self.policy.queue.max_wait);
        let Self { scheduler, resources, waiting: calls, .. } = self;
        let Resources { buckets, pauses, .. } = resources;
        let ends = |index| calls.get(index).map(|waiter| waiter.call.half_time.min(waiter.call.arrived + longest));
        let mut waiting = None;
        let want = |bucket: BucketId| {
            let waiting = waiting.get_or_insert_with(|| scheduler.waiting_for_shared(pauses, ends, now));
            let (calls, end) = waiting.get(&bucket).copied()?;
            Some(Want { calls, slots, within: end - now })
        };
        let asks = buckets.shared.asks(want, now);
        self.set_member_timer(now);
        asks
    }

    /// Returns the last questions of a gate that stops. Hand them on, and wait for what comes of
    /// them no longer than is worth it.
    pub fn take_farewells(&mut self, now: Moment) -> Vec<Ask> {
        self.resources.buckets.shared.farewells(self.now.max(now))
    }

    /// Sets the moment at which the members of shared buckets are looked at though no call waits.
    /// Nothing but [`Limiter::take_asks`] is due then, so that no other operation has to look at
    /// it.
    pub(super) fn set_member_timer(&mut self, now: Moment) {
        let shared = &mut self.resources.buckets.shared;
        // What is due and was not asked waits for something else.
        shared.tended = shared.tend_at(now).map_or(Moment::MAX, |at| at.max(now + TEND_EVERY));
    }

    /// Takes the verdict of a waiting call.
    pub fn claim(&mut self, ticket: Ticket, now: Moment) -> Claim {
        let now = self.catch_up(now);
        if self.resources.pauses.any(now) && self.waiting.find(ticket).is_some() {
            self.freshen(ticket.index, now);
            self.stop_if_paused(ticket.index, now);
        }
        match self.waiting.find(ticket).map(Waiter::is_waiting) {
            None => return Claim::Unconnected,
            Some(true) => return Claim::Waiting,
            Some(false) => self.waiting.leave_key(ticket.index),
        }
        let Some(waiter) = self.waiting.waiters.remove(ticket.index) else { return Claim::Unconnected };
        match waiter.state {
            State::Granted(grant) => Claim::Permit(Permit::new(waiter.call, *grant)),
            State::Refused(refusal) => Claim::Refused(*refusal),
            State::Held | State::Queued(_) | State::Unconnected => Claim::Unconnected,
        }
    }

    /// Removes a call whose client hung up while waiting. Idempotent. A turn that was granted and
    /// not claimed goes to the next call.
    pub fn leave(&mut self, ticket: Ticket, now: Moment) {
        let now = self.catch_up(now);
        if self.waiting.find(ticket).is_none() {
            return;
        }
        self.freshen(ticket.index, now);
        self.withdraw(ticket.index);
        self.waiting.waiters.remove(ticket.index);
        self.dispatch(now);
    }

    /// Counts `bytes` more that are held for a waiting call. Past the limit the call is refused and
    /// has left.
    ///
    /// # Errors
    /// The refusal, with reason `BytesFull`.
    pub fn hold_bytes(&mut self, ticket: Ticket, bytes: usize, now: Moment) -> Result<(), Refusal> {
        let now = self.catch_up(now);
        let waiter = self.waiting.find(ticket).filter(|waiter| waiter.is_waiting());
        let Some(arrived) = waiter.map(|waiter| waiter.call.arrived) else { return Ok(()) };
        if let Err(cause) = self.bytes_full(ticket.index, bytes, now) {
            self.leave(ticket, now);
            return Err(cause.refusal(now - arrived, None));
        }
        Ok(())
    }

    /// Gives back everything that a call took, because it will not be sent.
    pub fn retract(&mut self, permit: Permit, now: Moment) {
        let now = self.catch_up(now);
        let (call, grant) = self.take_back(permit);
        if let Some(needs) = &grant.needs {
            self.resources.add_room(needs.group, 1);
        }
        self.end_key_grant(call.key.as_ref().map(KeyId::from), grant.key_grant);
        self.dispatch(now);
    }

    /// Takes back a call that found no connection: everything except the room goes back, and the
    /// call waits again at the head of its queue (or for its key, if that has failed meanwhile).
    pub fn requeue(&mut self, permit: Permit, now: Moment) -> Ticket {
        let now = self.catch_up(now);
        let (mut call, grant) = self.take_back(permit);
        call.demand.class = self.class_of(&call);
        let ticket = self.come_back(call, &grant, now);
        self.dispatch(now);
        ticket
    }

    /// Gives back the tokens and the slot of a call that will not be sent.
    fn take_back(&mut self, permit: Permit) -> (Call, Grant) {
        let (call, grant) = *permit.receipt.0;
        if let Some(needs) = &grant.needs {
            self.resources.give_back_tokens(needs, grant.number);
        }
        self.give_back_slot(&permit.slot);
        (call, grant)
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
    pub fn wants_room(&self, group: Group) -> usize {
        if self.resources.room(group) > 0 {
            return 0;
        }
        self.scheduler.would_go(group, &self.resources, self.now)
    }

    /// Ends the wait of every call of `group` with `Claim::Unconnected`, because a dial failed.
    pub fn fail_group(&mut self, group: Group, now: Moment) {
        let now = self.catch_up(now);
        self.work.begin_sweep(Sweep::Unconnected(group, WaiterWalk::over(&self.waiting.waiters)));
        self.dispatch_turns(now);
    }

    /// Takes a waiter out of where it stands and gives back what it has. Its record stays.
    pub(super) fn withdraw(&mut self, index: WaiterIndex) {
        let Some(waiter) = self.waiting.get_mut(index) else { return };
        let (key, key_grant) = (waiter.key(), std::mem::take(&mut waiter.key_grant));
        match std::mem::replace(&mut waiter.state, State::Unconnected) {
            State::Held => self.waiting.count_out(index),
            State::Queued(queue) => {
                self.scheduler.part(queue, index, &mut self.waiting.waiters, &mut self.resources);
                self.waiting.count_out(index);
            }
            State::Granted(grant) => {
                self.undo(index, &grant);
                self.end_key_grant(key, grant.key_grant);
            }
            State::Refused(_) | State::Unconnected => return,
        }
        self.waiting.leave_key(index);
        self.end_key_grant(key, key_grant);
    }

    /// Gives back what a granted call took, because the call was not sent.
    pub(super) fn undo(&mut self, index: WaiterIndex, grant: &Grant) {
        let Some(needs) = &grant.needs else { return };
        let class = self.waiting.get(index).map(|waiter| waiter.call.demand.class);
        self.resources.add_room(needs.group, 1);
        self.resources.give_back_tokens(needs, grant.number);
        self.resources.give_back_slot(needs.shares, class);
    }

    /// Gives back a key grant: the trial, the place of the one write, and a retry token reserved on
    /// arrival.
    pub(super) fn end_key_grant(&mut self, key: Option<KeyId>, key_grant: KeyGrant) {
        if let Some(reserved) = key_grant.reserved {
            self.resources.give_back_token(reserved.bucket, reserved.number);
        }
        if let Some(key) = key.filter(|_| key_grant.alone) {
            self.writes.remove(&key.written());
            // The last is looked at first: a delete that waits has its turn after a write, and a
            // write after a delete.
            self.work.dirty_keys.extend([key, key.neighbour()]);
        }
        if let Some(key) = key.filter(|_| key_grant.trial != 0) {
            self.table.end_trial(key, key_grant.trial);
            self.work.dirty_keys.push(key);
        }
    }

    fn give_back_slot(&mut self, slot: &Slot) {
        let class = self.find_class(slot.serial, slot.class);
        self.resources.give_back_slot(slot.shares, class);
    }

    /// Returns the class of a call, which a reload may have moved. A class that is gone has become
    /// the default class.
    pub(super) fn class_of(&self, call: &Call) -> ClassId {
        self.find_class(call.serial, call.demand.class).unwrap_or_else(|| self.policy.default_class())
    }

    /// Returns the class of a lasting number, or `None` if it is gone. It is looked for first where
    /// it was: only a reload moves classes, and there may be a thousand of them.
    fn find_class(&self, serial: u32, was: ClassId) -> Option<ClassId> {
        let stays = self.serials.get(was) == Some(&serial);
        if stays { Some(was) } else { self.serials.find(|other| *other == serial) }
    }

    /// Returns the tokens that a call takes from each bucket that counts costs.
    #[inline]
    pub(super) fn cost(&self, call: &Call) -> u16 {
        self.class(call).cost.of(call.demand.cost)
    }

    pub(super) fn class(&self, call: &Call) -> &ClassPolicy {
        self.policy.class(call.demand.class)
    }

    /// True if a call waits for nothing: its class is exempt, or a bypass is on.
    pub(super) fn is_exempt(&self, call: &Call) -> bool {
        self.bypassed || self.class(call).lane == Lane::Exempt
    }

    /// Returns the grant of an exempt call: it takes nothing.
    pub(super) fn exempt_grant(&mut self) -> Grant {
        let (left, number) = (self.table.failures, self.resources.buckets.next_take());
        Grant { needs: None, number, left, key_grant: KeyGrant::default(), sequence: 0, waited: None }
    }

    /// Returns the moment at which the gate would end the call's wait.
    #[inline]
    pub(super) fn longest_wait(&self, call: &Call) -> Moment {
        call.arrived + self.policy.queue.max_wait
    }

    /// Returns the moment at which the call's wait ends in any case.
    #[inline]
    pub(super) fn ends(&self, call: &Call) -> Moment {
        call.half_time.min(self.longest_wait(call))
    }
}

/// The least time between two looks at the members of shared buckets while no call waits.
const TEND_EVERY: Duration = Duration::from_millis(5);
