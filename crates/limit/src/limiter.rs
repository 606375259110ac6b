//! The limiter's operations: everything that the driver (or a simulation) does with it.
//!
//! Every operation first applies what time alone has brought about since the last one, then does
//! its own work, then admits every call that may leave. Everything that happens to waiting calls
//! comes out as events, so this code calls nothing outside the core.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::{
    Arrival, Ask, Asked, Away, Claim, Ended, Keys, Parts, Permit, Policy, Preview, Questions, Receipt, Refusal, Slot,
    SweepNews, Ticket, Verdict, Walk, resources,
};
use crate::key::{Group, Key};
use crate::moment::Moment;
use crate::outcome::{Answer, Scope};

/// The limits of one gate at work.
#[derive(Debug)]
pub struct Limiter {
    parts: Parts,
    now: Moment,
}

// === impl Limiter ===

impl Limiter {
    /// Makes a limiter at rest. `seed` feeds the jitter.
    #[must_use]
    pub fn new(policy: Policy, seed: u64, now: Moment) -> Self {
        debug_assert!(!policy.classes.is_empty(), "a policy has a class");
        Self { parts: Parts::new(policy, seed, now), now }
    }

    /// Shares the bound on waiting bytes with every limiter that has the same `sum`.
    #[must_use]
    pub fn sharing_bytes(mut self, sum: Arc<AtomicUsize>) -> Self {
        self.parts.queues.share_bytes(sum);
        self
    }

    /// Asks stores with the gates of other origins that have the same `questions`. `origin` is the
    /// number of this one's, which is the same in every process.
    #[must_use]
    pub fn of_origin(mut self, origin: u64, questions: Questions) -> Self {
        let shared = &mut self.parts.resources.buckets.shared;
        shared.origin = origin;
        shared.questions = questions;
        self
    }

    /// Returns the key table, which answers without the limiter's lock.
    pub fn keys(&self) -> &Arc<Keys> {
        self.parts.stage.keys()
    }

    /// Returns the number of waiting calls.
    pub fn waiting(&self) -> usize {
        self.parts.queues.waiting()
    }

    /// True if no call waits or is in flight and no trial is out: the limiter owes nothing.
    pub fn is_at_rest(&self) -> bool {
        let Parts { stage, queues, resources, .. } = &self.parts;
        queues.is_empty() && stage.is_at_rest() && resources.gate_slots.used == 0
    }

    /// True if something is left to do that no moment is awaited for: `advance` does a little of
    /// it.
    pub fn is_behind(&self) -> bool {
        self.parts.work.behind
    }

    /// Reads the parts.
    pub(super) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Lets the parts take over what another limiter remembered.
    pub(super) fn restore(&mut self, take_over: impl FnOnce(&mut Parts)) {
        take_over(&mut self.parts);
    }

    #[cfg(test)]
    pub(super) fn parts_mut(&mut self) -> &mut Parts {
        &mut self.parts
    }

    /// Returns the time that counts as now.
    pub(super) fn latest(&self, now: Moment) -> Moment {
        self.now.max(now)
    }

    /// Applies everything that time alone has brought about. Returns the time to go on with, which
    /// never goes back.
    #[inline]
    fn catch_up(&mut self, now: Moment) -> Moment {
        self.now = self.now.max(now);
        if self.parts.stage.table().has_expired(self.now) {
            self.parts.stage.expire(&mut self.parts.work, self.now);
        }
        self.parts.dispatch(self.now);
        self.now
    }

    /// Admits the calls whose turn has come and ends the waits that are over. Advancing too often
    /// does nothing.
    pub fn advance(&mut self, now: Moment) {
        let now = self.catch_up(now);
        if self.is_behind() {
            self.parts.dispatch_turns(now);
        }
    }

    /// Returns the moment to `advance` if nothing else happens; `None` if time alone changes
    /// nothing. The answer may change with every operation.
    pub fn next_wakeup(&self) -> Option<Moment> {
        if self.is_behind() {
            return Some(self.now);
        }
        let Parts { queues, resources, .. } = &self.parts;
        let turn = queues.scheduler().next_wakeup(resources, self.now);
        let next = [turn, queues.first_timer()].into_iter().flatten().min();
        let tended = resources.buckets.shared.tended;
        if tended < next.unwrap_or(Moment::MAX) { Some(tended) } else { next }
    }

    /// Returns a waiting call whose answer may have changed: wake it to `claim`. Drain this after
    /// every operation.
    pub fn next_event(&mut self) -> Option<Ticket> {
        self.parts.queues.next_event(&mut self.parts.work)
    }

    /// Returns the keys that have stopped failing since the last call: at most a few dozen, further
    /// ones are not reported. Does not allocate when there are none.
    pub fn take_ended(&mut self) -> Vec<Ended> {
        self.parts.stage.take_ended()
    }

    /// Decides about a call that arrives.
    pub fn arrive(&mut self, arrival: &Arrival<'_>, now: Moment) -> Verdict {
        let now = self.catch_up(now);
        self.parts.arrive(arrival, now)
    }

    /// Admits a call without asking any limit: it takes nothing, and nothing is remembered of it.
    pub fn admit_unmetered(&mut self, arrival: &Arrival<'_>, now: Moment) -> Permit {
        let now = self.catch_up(now);
        self.parts.admit_unmetered(arrival, now)
    }

    /// Takes the verdict of a waiting call.
    pub fn claim(&mut self, ticket: Ticket, now: Moment) -> Claim {
        let now = self.catch_up(now);
        if self.parts.resources.pauses.any(now) && self.parts.queues.find(ticket).is_some() {
            self.parts.carry_over(ticket.index, now);
            self.parts.stop_if_paused(ticket.index, now);
        }
        self.parts.queues.take_verdict(ticket)
    }

    /// Removes a call whose client hung up while waiting. Idempotent. A turn that was granted and
    /// not claimed goes to the next call.
    pub fn leave(&mut self, ticket: Ticket, now: Moment) {
        let now = self.catch_up(now);
        if self.parts.queues.find(ticket).is_none() {
            return;
        }
        self.parts.carry_over(ticket.index, now);
        self.parts.withdraw(ticket.index);
        self.parts.queues.remove(ticket.index);
        self.parts.dispatch(now);
    }

    /// Counts `bytes` more that are held for a waiting call. Past the limit the call is refused and
    /// has left.
    ///
    /// # Errors
    /// The refusal, with reason `BytesFull`.
    pub fn hold_bytes(&mut self, ticket: Ticket, bytes: usize, now: Moment) -> Result<(), Refusal> {
        let now = self.catch_up(now);
        let waiter = self.parts.queues.find(ticket).filter(|waiter| waiter.is_waiting());
        let Some(arrived) = waiter.map(|waiter| waiter.call.arrived) else { return Ok(()) };
        if let Err(cause) = self.parts.bytes_full(ticket.index, bytes, now) {
            self.leave(ticket, now);
            return Err(cause.refusal(now - arrived, None));
        }
        Ok(())
    }

    /// Gives back everything that a call took, because it will not be sent.
    pub fn retract(&mut self, permit: Permit, now: Moment) {
        let now = self.catch_up(now);
        self.parts.retract(permit);
        self.parts.dispatch(now);
    }

    /// Takes back a call that found no connection: everything except the room goes back, and the
    /// call waits again at the head of its queue (or for its key, if that has failed meanwhile).
    pub fn requeue(&mut self, permit: Permit, now: Moment) -> Ticket {
        let now = self.catch_up(now);
        let receipt = self.parts.take_back(permit);
        let mut call = *receipt.call();
        call.demand.class = self.parts.rules.class_of(&call);
        let ticket = self.parts.come_back(call, receipt.grant(), now);
        self.parts.dispatch(now);
        ticket
    }

    /// Records the outcome of a call. `key` replaces the receipt's key (for a name that is known
    /// only from the body). `name` is called if the key starts to fail.
    #[expect(clippy::needless_pass_by_value, reason = "a receipt is settled once: it is used up")]
    pub fn finish(
        &mut self,
        receipt: Receipt,
        answer: Answer,
        key: Option<Key>,
        name: &dyn Fn() -> String,
        now: Moment,
    ) {
        let now = self.catch_up(now);
        self.parts.finish(&receipt, answer, key, name, now);
        self.parts.dispatch(now);
    }

    /// Gives back the token that a call took of the gate's bucket, because the upstream did not
    /// count the call. Its outcome is still owed.
    pub fn refund(&mut self, of: &Receipt, now: Moment) {
        let now = self.catch_up(now);
        if let Some(needs) = &of.grant().needs {
            self.parts.resources.give_back_uncounted(needs, of.grant().number, now);
            self.parts.dispatch(now);
        }
    }

    /// Gives a slot back at the end of a body.
    #[expect(clippy::needless_pass_by_value, reason = "a slot can be given back once: it is used up")]
    pub fn release(&mut self, slot: Slot, now: Moment) {
        let now = self.catch_up(now);
        self.parts.give_back_slot(&slot);
        self.parts.dispatch(now);
    }

    // --- connections

    /// Changes the room on the connections of `group`. It starts at zero; exempt calls need none.
    pub fn add_room(&mut self, group: Group, change: i64, now: Moment) {
        let now = self.catch_up(now);
        self.parts.resources.add_room(group, change);
        self.parts.dispatch(now);
    }

    /// Returns the number of calls of `group` that would leave now if there were room and that wait
    /// for nothing else. Zero is exact; a higher number is an estimate, never too high for one
    /// class alone.
    pub fn wants_room(&self, group: Group) -> usize {
        let Parts { queues, resources, .. } = &self.parts;
        if resources.room(group) > 0 { 0 } else { queues.scheduler().would_go(group, resources, self.now) }
    }

    /// Ends the wait of every call of `group` with `Claim::Unconnected`, because a dial failed.
    pub fn fail_group(&mut self, group: Group, now: Moment) {
        let now = self.catch_up(now);
        self.parts.begin_sweep(SweepNews::Unconnected(group));
        self.parts.dispatch_turns(now);
    }

    // --- shared buckets

    /// Returns the questions to the stores of shared buckets that are due. Hand them on, and bring
    /// what comes of each to [`Limiter::answered`], whatever that is. No allocation if there are
    /// none.
    pub fn take_asks(&mut self, now: Moment) -> Vec<Ask> {
        let now = self.latest(now);
        self.parts.take_asks(now)
    }

    /// Returns the last questions of a gate that stops. Hand them on, and wait for what comes of
    /// them no longer than is worth it.
    pub fn take_farewells(&mut self, now: Moment) -> Vec<Ask> {
        let now = self.latest(now);
        self.parts.resources.buckets.shared.farewells(now)
    }

    /// Takes in what came of a question to a store that was asked at `sent`.
    pub fn answered(&mut self, asked: Asked, answer: Result<resources::Answer, Away>, sent: Moment, now: Moment) {
        self.all_answered([(asked, answer)], sent, now);
    }

    /// Takes in what came of questions that were asked together.
    pub fn all_answered(
        &mut self,
        answers: impl IntoIterator<Item = (Asked, Result<resources::Answer, Away>)>,
        sent: Moment,
        now: Moment,
    ) {
        let now = self.catch_up(now);
        self.parts.all_answered(answers, sent, now);
        self.parts.dispatch(now);
    }

    /// Records what is left of a quota of the upstream's, as the answer to a call says. The quota
    /// is that of a shared bucket if the call has spent a token of it, and `scope` says that what
    /// the upstream asks for concerns the calls of that bucket. The gates that share it are told.
    pub fn note_left(&mut self, of: &Receipt, scope: Scope, left: u32, now: Moment) {
        let now = self.catch_up(now);
        self.parts.note_left(of, scope, left, now);
    }

    // --- the operator

    /// Applies new limits. Buckets keep their level, and waiters their places. Classes are the same
    /// if their names are; calls of a class that is gone go on as those of `default`. A bucket that
    /// is new, or split differently than before, starts with one token: no burst for free.
    pub fn reconfigure(&mut self, policy: Policy, now: Moment) {
        let now = self.catch_up(now);
        if self.parts.reconfigure(policy, now) {
            self.parts.dispatch_turns(now);
        }
    }

    /// Ends every pause now, with `everywhere` also for the gates that share its buckets. Returns
    /// how many there were.
    pub fn lift_pauses(&mut self, everywhere: bool, now: Moment) -> usize {
        let now = self.catch_up(now);
        let lifted = self.parts.lift_pauses(everywhere, now);
        self.parts.dispatch_turns(now);
        lifted
    }

    /// Forgets those of the next few failing keys whose names `is_meant`, and releases the calls
    /// that waited for them. Returns how many there were. Call it again until the walk is over.
    /// Keys that fail after the walk began are left alone.
    pub fn forget_some(&mut self, is_meant: &dyn Fn(&str) -> bool, walk: &mut Walk, now: Moment) -> usize {
        let now = self.catch_up(now);
        let forgotten = self.parts.forget_some(is_meant, walk, now);
        self.parts.dispatch(now);
        forgotten
    }

    /// Does the same to the end at once: for simulations and tests, because the time it takes grows
    /// with the number of keys.
    pub fn forget(&mut self, is_meant: &dyn Fn(&str) -> bool, now: Moment) -> usize {
        let mut walk = Walk::default();
        let mut forgotten = 0;
        while !walk.is_over() {
            forgotten += self.forget_some(is_meant, &mut walk, now);
        }
        forgotten
    }

    /// True if keys are still there that no longer fail, or that are too many: `advance` forgets a
    /// few of them.
    pub fn has_expired_keys(&self, now: Moment) -> bool {
        self.parts.stage.table().has_expired(self.latest(now))
    }

    /// Switches the bypass: while it is on, every call leaves at once and spends nothing, and
    /// waiting calls are released. Buckets fill and keys are remembered as usual, so that all
    /// limits hold again from the moment it is off.
    pub fn set_bypass(&mut self, on: bool, now: Moment) {
        let now = self.catch_up(now);
        self.parts.rules.set_bypass(on);
        if on {
            self.parts.begin_sweep(SweepNews::Bypass);
            self.parts.dispatch_turns(now);
        }
    }

    /// True while every call is admitted without limits.
    pub fn is_bypassed(&self) -> bool {
        self.parts.rules.is_bypassed()
    }

    /// Returns what would happen to a call that arrived now. The call arrives and leaves again
    /// within this moment, and nothing is spent.
    pub fn preview(&mut self, arrival: &Arrival<'_>, now: Moment) -> Preview {
        let now = self.catch_up(now);
        let supposition = self.parts.suppose(arrival);
        let preview = match self.arrive(arrival, now) {
            Verdict::Admit(permit) => {
                self.retract(permit, now);
                Preview::Goes
            }
            Verdict::Refuse(refusal) => Preview::Refused(refusal),
            Verdict::Wait(ticket) => {
                let wait = self.parts.wait_of(ticket);
                self.leave(ticket, now);
                wait.map_or(Preview::Goes, |wait| self.parts.preview_wait(&wait, now))
            }
        };
        self.parts.end_supposing(supposition);
        preview
    }
}
