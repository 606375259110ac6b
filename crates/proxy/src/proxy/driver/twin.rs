//! A twin: a limiter that decides about copies of calls in virtual time. It delays or refuses no
//! call.
//!
//! A gate in shadow mode has a twin in place of a limiter that holds calls. Other gates have a twin
//! beside their limiter if some of their classes are in shadow mode, and one if they have a
//! candidate (limits to compare with those in force).
//!
//! A twin gets each call's arrival and outcome, and works like a replay of the call log (`tidegate
//! simulate --replay`): it is never late and always has connections. If the twin sends a call later
//! than the gate did, the answer comes as much later. If the gate refused a call that the twin
//! sends, there is no answer; the twin then assumes the last failure of the call's key, if that key
//! is failing.
//!
//! Its memory is bounded like the limiter's: it stores the calls that wait, those under way at the
//! gate, and at most [`LATER`] calls that it sends later than the gate did.

mod call;

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use slab::Slab;

pub(crate) use self::call::{TwinAnswer, TwinCall};
use super::log::KeyLog;
use crate::api::{Answer, Group, Key, Outcome};
use crate::limit::{
    Arrival, Claim, ClassId, KeyState, Keys, Limiter, Permit, Policy, Preview, Reason, Receipt, Slot, Ticket, Verdict,
};
use crate::moment::Moment;
use crate::proxy::gate_config::GateConfig;
use crate::proxy::tally::{Comparison, Tally};
use crate::telemetry::meters::Decision;
use crate::telemetry::table;

/// A limiter with copies of calls. The limiter in force of a gate that is not in shadow mode has no
/// copies: its calls are the real ones.
pub(super) struct Twin {
    pub(super) limiter: Limiter,
    /// Where the decisions about copies are counted; `None` for the limits in force.
    counts: Option<TwinCounts>,
    /// The keys that began or ceased to fail and are not logged yet.
    pub(super) log: Arc<KeyLog>,
    /// The start of this twin: a reload may replace it.
    since: Moment,
    copies: Slab<CallCopy>,
    /// The waiting copies.
    tickets: HashMap<Ticket, usize>,
    /// Future events of calls sent later by the twin than by the gate, at most one of each call.
    later: BinaryHeap<Reverse<(Moment, usize)>>,
    /// The upstream's recent response time, for each class.
    usual: Vec<Duration>,
}

/// Where a twin's decisions are counted.
pub(super) enum TwinCounts {
    Shadow(Arc<Tally>),
    Candidate(Arc<Comparison>),
}

/// A call at the twin. It stays there until it has ended both at the gate and at the twin.
struct CallCopy {
    /// The configuration that classified the call.
    config: Arc<GateConfig>,
    class: ClassId,
    key: Option<Key>,
    stage: Stage,
    /// The answer to the real call, until the twin has it too.
    answer: Option<TwinAnswer>,
    /// The moment of the real answer.
    head: Option<Moment>,
    /// The duration of the real response body, once the real call has ended.
    body: Option<Duration>,
}

/// How far a copy of a call has come at its twin.
enum Stage {
    Waits(Ticket),
    Sent { at: Moment, receipt: Receipt, slot: Slot },
    Answered { at: Moment, slot: Slot },
    Gone,
}

/// What has become of the real call, at the gate.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "it is handed on at once")]
pub(crate) enum Fate {
    Answered(TwinAnswer),
    /// The gate refused it, so there is no answer.
    Refused,
    /// It ended: with its body, or before it was answered.
    Ended,
}

// === impl Twin ===

impl Twin {
    pub(super) fn new(limiter: Limiter) -> Self {
        Self {
            limiter,
            counts: None,
            log: Arc::default(),
            since: Moment::ZERO,
            copies: Slab::new(),
            tickets: HashMap::new(),
            later: BinaryHeap::new(),
            usual: Vec::new(),
        }
    }

    /// Makes a twin with limits of its own, at rest.
    pub(super) fn beside(policy: Policy, counts: TwinCounts, now: Moment) -> Box<Self> {
        let mut twin = Self { since: now, ..Self::new(Limiter::new(policy, SEED, now)) };
        twin.cast_shadow(counts, now);
        Box::new(twin)
    }

    /// Makes the limiter decide about copies from now on. Call it once.
    pub(super) fn cast_shadow(&mut self, counts: TwinCounts, now: Moment) {
        self.counts = Some(counts);
        self.log.cast_shadow();
        Group::ALL.into_iter().for_each(|group| self.limiter.add_room(group, ROOM, now));
    }

    /// Returns true if the limiter decides about copies.
    pub(super) fn is_shadow(&self) -> bool {
        self.counts.is_some()
    }

    /// Plays a call's arrival. Returns the number of the call's copy, unless the call is refused.
    /// `bytes` returns the bytes to count while the call waits.
    fn arrive(
        &mut self,
        config: &Arc<GateConfig>,
        arrival: &Arrival<'_>,
        bytes: &dyn Fn() -> usize,
        now: Moment,
    ) -> Option<usize> {
        self.play(now);
        let Arrival { class, key, .. } = *arrival;
        let (decision, stage) = match self.limiter.arrive(arrival, now) {
            Verdict::Admit(permit) => (Decision::Go, Ok(sent(permit, now))),
            Verdict::Wait(ticket) => {
                (Decision::Wait, self.limiter.hold_bytes(ticket, bytes(), now).map(|()| Stage::Waits(ticket)))
            }
            Verdict::Refuse(refusal) => (Decision::Refuse, Err(refusal)),
        };
        if let Some(TwinCounts::Candidate(comparison)) = &self.counts {
            comparison.calls.fetch_add(1, Relaxed);
        } else if config.is_in_shadow(class) {
            config.meters.decided(class, decision);
        }
        let stage = stage.map_err(|refusal| self.count(config, class, refusal.reason, None));
        let number = stage.ok().map(|stage| {
            let number = self.copies.vacant_key();
            let waits = if let Stage::Waits(ticket) = stage { Some(ticket) } else { None };
            self.tickets.extend(waits.map(|ticket| (ticket, number)));
            let config = Arc::clone(config);
            self.copies.insert(CallCopy { config, class, key, stage, answer: None, head: None, body: None })
        });
        self.claim(now);
        number
    }

    /// Records what has become of the real call. Returns true if its end will matter, too.
    fn report(&mut self, number: usize, fate: Fate, now: Moment) -> bool {
        self.play(now);
        let Some(copy) = self.copies.get_mut(number) else { return false };
        let is_due_later = matches!(copy.stage, Stage::Sent { .. }) && copy.answer.is_some();
        let class = usize::from(copy.class.0);
        self.usual.resize(self.usual.len().max(class + 1), USUAL);
        match fate {
            Fate::Answered(answer) => {
                self.usual.get_mut(class).into_iter().for_each(|usual| *usual = (*usual * 15 + answer.after) / 16);
                // Without a slot, the end of the body changes nothing.
                let is_over = matches!(&copy.stage, Stage::Sent { slot, .. } if slot.is_empty());
                copy.body = is_over.then_some(Duration::ZERO);
                (copy.answer, copy.head) = (Some(answer), Some(now));
            }
            Fate::Refused => {
                let failing = copy.key.and_then(|key| self.limiter.keys().find(&key, now));
                let failure = |(_, state): (_, KeyState)| Answer::new(Outcome::Failure, state.last_status);
                let answer = failing.map_or(NOTHING.answer, failure);
                copy.answer =
                    Some(TwinAnswer { answer, after: self.usual.get(class).copied().unwrap_or(USUAL), ..NOTHING });
                copy.body = Some(Duration::ZERO);
            }
            Fate::Ended => {
                copy.body = Some(copy.head.map_or(Duration::ZERO, |head| now - head));
                if let (Stage::Waits(ticket), None) = (&copy.stage, &copy.answer) {
                    self.tickets.remove(ticket);
                    self.limiter.leave(*ticket, now);
                    copy.stage = Stage::Gone;
                }
                copy.answer.get_or_insert(NOTHING);
            }
        }
        let has_end = copy.body.is_none();
        if !is_due_later {
            self.go_on(number, now);
        }
        self.claim(now);
        has_end
    }

    /// Returns the decision about a call arriving now, without sending it.
    pub(super) fn preview(&mut self, arrival: &Arrival<'_>, now: Moment) -> Preview {
        self.play(now);
        self.limiter.preview(arrival, now)
    }

    /// Advances the limiter. Returns true if more is due now.
    pub(super) fn advance(&mut self, now: Moment) -> bool {
        if self.play(now) {
            return true;
        }
        self.limiter.advance(now);
        self.limiter.has_expired_keys(now)
    }

    /// Plays the events of copies up to `until`, each at its own time. Returns true if more are
    /// left, because it plays at most [`AT_ONCE`].
    fn play(&mut self, until: Moment) -> bool {
        for _ in 0..AT_ONCE {
            if self.tickets.is_empty() && self.later.is_empty() {
                return false;
            }
            let turn = self.limiter.next_wakeup();
            let later = self.later.peek().map(|Reverse((at, _))| *at);
            let Some(at) = [turn, later].into_iter().flatten().min().filter(|at| *at <= until) else { return false };
            if turn == Some(at) {
                self.limiter.advance(at);
            } else if let Some(Reverse((_, number))) = self.later.pop() {
                self.go_on(number, at);
            }
            self.claim(at);
        }
        true
    }

    /// Carries out the limiter's new decisions about waiting copies.
    fn claim(&mut self, now: Moment) {
        self.note_ended();
        while !self.tickets.is_empty()
            && let Some(ticket) = self.limiter.next_event()
        {
            self.decided(ticket, now);
        }
    }

    /// Carries out the limiter's decision about a waiting call, if it is a copy.
    pub(super) fn decided(&mut self, ticket: Ticket, now: Moment) {
        let Some(&number) = self.tickets.get(&ticket) else { return };
        let claim = self.limiter.claim(ticket, now);
        if matches!(claim, Claim::Waiting) {
            return;
        }
        self.tickets.remove(&ticket);
        let Some(copy) = self.copies.get_mut(number) else { return };
        let (config, class) = (Arc::clone(&copy.config), copy.class);
        copy.stage = Stage::Gone;
        match claim {
            Claim::Permit(permit) => {
                let waited = permit.waited();
                copy.stage = sent(permit, now);
                waited.into_iter().for_each(|(reason, wait)| self.count(&config, class, reason, Some(wait)));
            }
            Claim::Refused(refusal) => self.count(&config, class, refusal.reason, None),
            Claim::Unconnected | Claim::Waiting => {}
        }
        self.go_on(number, now);
    }

    /// Moves a copy to its next stages, as far as the real call's outcome is known, and removes it
    /// at the end. A stage in the future becomes an event.
    fn go_on(&mut self, number: usize, now: Moment) {
        while let Some(copy) = self.copies.get_mut(number) {
            let due = match (&copy.stage, &copy.answer, copy.body) {
                (Stage::Gone, _, Some(_)) => now,
                (Stage::Sent { .. }, Some(answer), _) if answer.after.is_zero() => now,
                (Stage::Sent { at, .. }, Some(answer), _) => *at + answer.after,
                (Stage::Answered { at, .. }, _, Some(body)) => *at + body,
                (Stage::Waits(_) | Stage::Sent { .. } | Stage::Answered { .. } | Stage::Gone, ..) => return,
            };
            if due > now && self.later.len() < LATER {
                return self.later.push(Reverse((due, number)));
            }
            match mem::replace(&mut copy.stage, Stage::Gone) {
                Stage::Sent { receipt, slot, .. } => {
                    copy.stage = Stage::Answered { at: now, slot };
                    let told = copy.answer.take().unwrap_or(NOTHING);
                    let late_key = told.key.filter(|_| receipt.key().is_none());
                    if let Some(receipt) = unsettled(receipt, self.limiter.keys(), told.answer, late_key) {
                        self.finish(receipt, told.answer, late_key, &|| told.name.clone(), now);
                    }
                }
                Stage::Answered { slot, .. } => self.limiter.release(slot, now),
                Stage::Waits(_) | Stage::Gone => drop(self.copies.remove(number)),
            }
        }
    }

    /// Reports an outcome to the limiter, and records for the log if the key began to fail.
    pub(super) fn finish(
        &mut self,
        receipt: Receipt,
        answer: Answer,
        key: Option<Key>,
        name: &dyn Fn() -> String,
        now: Moment,
    ) {
        let of = key.or_else(|| receipt.key());
        let began = Cell::new(false);
        let note = || {
            began.set(true);
            name()
        };
        self.limiter.finish(receipt, answer, key, &note, now);
        let failing = of.filter(|_| began.get()).and_then(|key| self.limiter.keys().find(&key, now));
        failing.into_iter().for_each(|(name, state)| self.log.began(name, &state));
    }

    /// Records for the log which keys ceased to fail.
    pub(super) fn note_ended(&mut self) {
        self.limiter.take_ended().into_iter().for_each(|ended| self.log.ended(ended));
    }

    /// Counts the decision about a call that does not go at once: its wait, or `None` for a refusal.
    fn count(&self, config: &GateConfig, class: ClassId, reason: Reason, wait: Option<Duration>) {
        let meters = &config.meters;
        let name = meters.class_name(class);
        let (waits, refusals) = match &self.counts {
            Some(TwinCounts::Candidate(comparison)) => {
                comparison.candidate.count(name, reason, wait);
                (&table::CANDIDATE_WAIT_SECONDS, &table::CANDIDATE_REFUSALS)
            }
            Some(TwinCounts::Shadow(tally)) if config.is_in_shadow(class) => {
                tally.shadow.count(name, reason, wait);
                tally.count_in_force(name, reason, wait);
                (&table::SHADOW_WAIT_SECONDS, &table::SHADOW_REFUSALS)
            }
            Some(TwinCounts::Shadow(_)) | None => return,
        };
        let labels = [&*meters.gate, name, reason.word()];
        match wait {
            Some(wait) => waits.histogram(&labels).record(wait.as_secs_f64()),
            None => refusals.counter(&labels).increment(1),
        }
    }
}

/// Settles a receipt without the limiter's lock if the outcome changes nothing; otherwise returns
/// it. `key` is given if the call's key became known only after it was sent.
pub(super) fn unsettled(receipt: Receipt, keys: &Keys, answer: Answer, key: Option<Key>) -> Option<Receipt> {
    if key.is_some() { Some(receipt) } else { receipt.settle(keys, answer).err() }
}

fn sent(permit: Permit, at: Moment) -> Stage {
    let (_, receipt, slot) = permit.admit(());
    Stage::Sent { at, receipt, slot }
}

/// The random seed. A replay uses the same one, so that both draw the same delays.
const SEED: u64 = 1;
/// The room on connections for copies: more than they can use up.
const ROOM: i64 = 1 << 40;
/// The assumed response time of the upstream before the first response.
const USUAL: Duration = Duration::from_millis(10);
/// The most events played under the lock.
const AT_ONCE: usize = 80;
/// The most stored events of calls sent later by the twin than by the gate.
const LATER: usize = 10_000;
/// The answer if nothing was learned about the upstream.
const NOTHING: TwinAnswer =
    TwinAnswer { answer: Answer::new(Outcome::Abandoned, None), key: None, name: String::new(), after: Duration::ZERO };

#[cfg(test)]
mod tests;
