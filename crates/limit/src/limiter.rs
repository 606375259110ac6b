//! The limiter, and the operations its driver (the proxy, or a simulation) calls.
//!
//! Every operation first applies the changes due to time alone, then does its own work, and then
//! admits all calls whose turn has come. Results for waiting calls are reported as events, so this
//! code calls nothing outside the core.

mod arrive;
mod dispatch;
mod feedback;
mod operator;
mod parts;
mod reload;
mod review;
pub mod snapshot;
mod sweep;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

pub use self::operator::{Preview, Walk};
use crate::key::{Group, Key};
use crate::moment::Moment;
use crate::outcome::{Answer, Charged};
use crate::quota::ResourceId;
use crate::{
    Arrival, Ask, AskId, Claim, DroppedRequests, KeyEnd, KeyStage, Keys, Permit, Policy, Questions, Queues, Receipt,
    Refusal, Resources, Rules, Slot, StoreFailure, SweepNews, Ticket, Verdict, Work, resources,
};

/// A rate limiter: admits each call at once, makes it wait, or refuses it.
///
/// The crate's documentation has an example, and the duties of a driver.
#[derive(Debug)]
pub struct Limiter {
    parts: Parts,
    now: Moment,
}

/// The parts of a limiter. `work` collects the tasks left by one part for the other parts.
#[derive(Debug)]
struct Parts {
    rules: Rules,
    stage: KeyStage,
    queues: Queues,
    resources: Resources,
    work: Work,
    dropped_requests: DroppedRequests,
}

// === impl Limiter ===

impl Limiter {
    /// Makes a limiter without calls. `seed` determines the jitter of delays.
    #[must_use]
    pub fn new(policy: Policy, seed: u64, now: Moment) -> Self {
        debug_assert!(!policy.classes.is_empty(), "a policy has a class");
        Self { parts: Parts::new(policy, seed, now), now }
    }

    /// Counts waiting bytes in `sum`, so that all limiters with the same `sum` share one bound.
    #[must_use]
    pub fn sharing_bytes(mut self, sum: Arc<AtomicUsize>) -> Self {
        self.parts.queues.share_bytes(sum);
        self
    }

    /// Makes the limiter send its requests to the stores of shared buckets together with all other
    /// limiters with the same `questions`. `origin` is this limiter's number, the same in every
    /// process.
    #[must_use]
    pub fn of_origin(mut self, origin: u64, questions: Questions) -> Self {
        let sharing = &mut self.parts.resources.buckets.sharing;
        sharing.origin = origin;
        sharing.questions = questions;
        self
    }

    /// Returns the failing keys. They can be read without the limiter's lock.
    pub fn keys(&self) -> &Arc<Keys> {
        self.parts.stage.keys()
    }

    /// Returns the number of waiting calls.
    pub fn waiting(&self) -> usize {
        self.parts.queues.waiting()
    }

    /// Returns true if no call waits or is in flight, and no failing key is being tried.
    pub fn is_at_rest(&self) -> bool {
        let Parts { stage, queues, resources, .. } = &self.parts;
        queues.is_empty() && stage.is_at_rest() && resources.gate_slots.used == 0
    }

    /// Returns true if some work due now was postponed. Each call of [`Limiter::advance`] does a
    /// part of it.
    pub fn is_behind(&self) -> bool {
        self.parts.work.behind
    }

    /// Returns the later of `now` and the latest time seen so far.
    fn latest(&self, now: Moment) -> Moment {
        self.now.max(now)
    }

    /// Applies what time alone changes, such as ended waits. Returns the time to use for the
    /// operation, which never goes back.
    #[inline]
    fn catch_up(&mut self, now: Moment) -> Moment {
        self.now = self.now.max(now);
        if self.parts.stage.table().has_expired(self.now) {
            self.parts.stage.expire(&mut self.parts.work, self.now);
        }
        self.parts.dispatch(self.now);
        self.now
    }

    /// Applies the changes due to time alone, runs `operation`, and then admits waiting calls.
    #[inline]
    fn operate<T>(&mut self, now: Moment, operation: impl FnOnce(&mut Parts, Moment) -> T) -> T {
        let now = self.catch_up(now);
        let result = operation(&mut self.parts, now);
        self.parts.dispatch(now);
        result
    }

    /// Admits waiting calls in turn, and ends overlong waits. Calling it too often does no harm.
    pub fn advance(&mut self, now: Moment) {
        let now = self.catch_up(now);
        if self.is_behind() {
            self.parts.dispatch_turns(now);
        }
    }

    /// Returns the moment to call `advance` if nothing else happens; `None` if time alone changes
    /// nothing. Ask again after every operation.
    pub fn next_wakeup(&self) -> Option<Moment> {
        if self.is_behind() {
            return Some(self.now);
        }
        let Parts { queues, resources, .. } = &self.parts;
        let turn = queues.scheduler().next_wakeup(resources, self.now);
        let next = [turn, queues.first_timer()].into_iter().flatten().min();
        let tended = resources.buckets.sharing.tended;
        if tended < next.unwrap_or(Moment::MAX) { Some(tended) } else { next }
    }

    /// Returns a waiting call with a result to [`claim`](Self::claim). Drain this after every
    /// operation.
    pub fn next_event(&mut self) -> Option<Ticket> {
        self.parts.queues.next_event(&mut self.parts.work)
    }

    /// Returns the keys that have recovered or were forgotten since the last call, for the logs. Of
    /// very many, only a few dozen are returned. It allocates nothing if there are none.
    pub fn take_ended(&mut self) -> Vec<KeyEnd> {
        self.parts.stage.take_ended()
    }

    /// Decides whether an arriving call is sent at once, waits, or is refused.
    pub fn arrive(&mut self, arrival: &Arrival<'_>, now: Moment) -> Verdict {
        let now = self.catch_up(now);
        self.parts.arrive(arrival, now)
    }

    /// Admits a call without checking any limit. The call takes no token or slot, and its outcome
    /// is not remembered.
    pub fn admit_unmetered(&mut self, arrival: &Arrival<'_>, now: Moment) -> Permit {
        let now = self.catch_up(now);
        self.parts.admit_unmetered(arrival, now)
    }

    /// Returns the result of a call's wait, once; [`Claim::Waiting`] while the call still waits.
    pub fn claim(&mut self, ticket: Ticket, now: Moment) -> Claim {
        let now = self.catch_up(now);
        if self.parts.resources.pauses.any(now) && self.parts.queues.find(ticket).is_some() {
            self.parts.carry_over(ticket.index, now);
            self.parts.stop_if_paused(ticket.index, now);
        }
        self.parts.queues.take_verdict(ticket)
    }

    /// Removes a waiting call, because its client hung up. If the call was admitted and has not
    /// claimed its permit, the next call is admitted in its place.
    pub fn leave(&mut self, ticket: Ticket, now: Moment) {
        self.operate(now, |parts, now| {
            if parts.queues.find(ticket).is_some() {
                parts.carry_over(ticket.index, now);
                parts.withdraw(ticket.index);
                parts.queues.remove(ticket.index);
            }
        });
    }

    /// Counts `bytes` more of a waiting call's body against the bound on waiting bytes.
    ///
    /// # Errors
    /// A refusal with reason `BytesFull`, if the bound is exceeded. The call is then removed from
    /// the limiter.
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

    /// Gives a permit back, with its tokens and slots: the call will not be sent.
    pub fn retract(&mut self, permit: Permit, now: Moment) {
        self.operate(now, |parts, _| parts.retract(permit));
    }

    /// Makes an admitted call wait again, because it found no connection: at the head of its queue,
    /// or for its key if the key has failed meanwhile. The call's tokens and slots are given back,
    /// but not its room on a connection.
    pub fn requeue(&mut self, permit: Permit, now: Moment) -> Ticket {
        self.operate(now, |parts, now| {
            let receipt = parts.take_back(permit);
            let mut call = *receipt.call();
            call.demand.class = parts.rules.class_of(&call);
            parts.come_back(call, receipt.grant(), now)
        })
    }

    /// Records the outcome of a call. `key` replaces the receipt's key, for a call with its
    /// object's name in the body. `name` returns the key's readable name, and is called if the key
    /// starts to fail.
    #[expect(clippy::needless_pass_by_value, reason = "a receipt is settled once: it is used up")]
    pub fn finish(
        &mut self,
        receipt: Receipt,
        answer: Answer,
        key: Option<Key>,
        name: &dyn Fn() -> String,
        now: Moment,
    ) {
        self.operate(now, |parts, now| parts.finish(&receipt, answer, key, name, now));
    }

    /// Gives back the token of the gate's bucket, because the upstream did not count the call. The
    /// call's outcome must still be reported with `finish`.
    pub fn refund(&mut self, of: &Receipt, now: Moment) {
        if let Some(needs) = &of.grant().needs {
            self.operate(now, |parts, now| parts.resources.give_back_uncounted(needs, of.grant().number, now));
        }
    }

    /// Gives the slots of a call back at the end of its response body.
    #[expect(clippy::needless_pass_by_value, reason = "a slot can be given back once: it is used up")]
    pub fn release(&mut self, slot: Slot, now: Moment) {
        self.operate(now, |parts, _| parts.give_back_slot(&slot));
    }

    // --- connections

    /// Changes how many calls the connections of `group` can take now (the room). It starts at
    /// zero. Exempt calls need none.
    pub fn add_room(&mut self, group: Group, change: i64, now: Moment) {
        self.operate(now, |parts, _| parts.resources.add_room(group, change));
    }

    /// Returns the number of calls of `group` that wait only for room on a connection. Zero is
    /// exact; a higher number is an estimate, never too high for one class alone.
    pub fn wants_room(&self, group: Group) -> usize {
        let Parts { queues, resources, .. } = &self.parts;
        if resources.room(group) > 0 { 0 } else { queues.scheduler().would_go(group, resources, self.now) }
    }

    /// Ends the wait of every call of `group` with `Claim::Unconnected`, because no connection
    /// could be made.
    pub fn fail_group(&mut self, group: Group, now: Moment) {
        let now = self.catch_up(now);
        self.parts.begin_sweep(SweepNews::Unconnected(group));
        self.parts.dispatch_turns(now);
    }

    // --- shared buckets

    /// Returns the due requests to the stores of shared buckets. Send them, and pass the answer or
    /// the failure of each to [`Limiter::answered`]. It allocates nothing if there are none.
    pub fn take_asks(&mut self, now: Moment) -> Vec<Ask> {
        let now = self.latest(now);
        self.parts.take_asks(now)
    }

    /// Returns the last requests of a stopping gate to the stores of its shared buckets. Their
    /// answers need not be applied.
    pub fn take_farewells(&mut self, now: Moment) -> Vec<Ask> {
        let now = self.latest(now);
        self.parts.resources.buckets.farewells(now)
    }

    /// Applies a store's answer to a request sent at `sent`.
    pub fn answered(
        &mut self,
        asked: AskId,
        answer: Result<resources::StoreAnswer, StoreFailure>,
        sent: Moment,
        now: Moment,
    ) {
        self.all_answered([(asked, answer)], sent, now);
    }

    /// Applies a store's answers to a batch of requests.
    pub fn all_answered(
        &mut self,
        answers: impl IntoIterator<Item = (AskId, Result<resources::StoreAnswer, StoreFailure>)>,
        sent: Moment,
        now: Moment,
    ) {
        self.operate(now, |parts, now| parts.all_answered(answers, sent, now));
    }

    /// Records how many calls are left in the upstream's quota, as the answer to a call says.
    ///
    /// If the call has spent a token of a shared bucket (its class's or the gate's), the quota
    /// counts as that bucket's, and the other gates sharing the bucket are informed.
    pub fn note_left(&mut self, of: &Receipt, charged: Charged, left: u32, now: Moment) {
        let now = self.catch_up(now);
        self.parts.note_left(of, charged, left, now);
    }

    /// Records the quota charged by the upstream for calls of this action, as an answer says
    /// ([`Receipt::was_predicted`]).
    pub fn learn_resource(&mut self, of: &Receipt, action: u64, word: ResourceId, now: Moment) {
        let now = self.catch_up(now);
        self.parts.resources.pauses.learn(action, word, of.call().demand.quota, now);
    }

    // --- the operator

    /// Applies new limits. Buckets keep their levels, and waiting calls their places.
    ///
    /// Classes are the same if their names are; the calls of a removed class continue in `default`.
    /// A bucket that is new, or now split otherwise (per credential, say), starts with one token,
    /// so there is no free burst.
    pub fn reconfigure(&mut self, policy: Policy, now: Moment) {
        let now = self.catch_up(now);
        if self.parts.reconfigure(policy, now) {
            self.parts.dispatch_turns(now);
        }
    }

    /// Ends every pause now; with `everywhere`, also at the other gates sharing a bucket with this
    /// one. Returns the number of pauses ended at this gate.
    pub fn lift_pauses(&mut self, everywhere: bool, now: Moment) -> usize {
        let now = self.catch_up(now);
        let lifted = self.parts.lift_pauses(everywhere, now);
        self.parts.dispatch_turns(now);
        lifted
    }

    /// Returns true if there are keys to forget, because their time is over or they are too many.
    /// [`Limiter::advance`] forgets a few of them.
    pub fn has_expired_keys(&self, now: Moment) -> bool {
        self.parts.stage.table().has_expired(self.latest(now))
    }

    /// Switches the bypass of all limits on or off. While it is on, every call is admitted at once
    /// and spends nothing. Buckets fill and keys are remembered as usual, so that all limits hold
    /// again once it is off.
    pub fn set_bypass(&mut self, on: bool, now: Moment) {
        let now = self.catch_up(now);
        self.parts.rules.set_bypass(on);
        if on {
            self.parts.begin_sweep(SweepNews::Bypass);
            self.parts.dispatch_turns(now);
        }
    }

    /// Returns true while every call is admitted without limits.
    pub fn is_bypassed(&self) -> bool {
        self.parts.rules.is_bypassed()
    }
}
