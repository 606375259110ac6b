//! The limiter of a candidate, and its copies of the calls, in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use super::{LATER, TwinAnswer};
use crate::api::{Answer, Group, Key, Outcome};
use crate::limit::{Arrival, Claim, ClassId, Limiter, Permit, Policy, Preview, Reason, Receipt, Slot, Ticket, Verdict};
use crate::moment::Moment;
use crate::proxy::gate_config::GateConfig;
use crate::proxy::tally::shadow::Shadow;
use crate::telemetry::table;

/// The limiter of a candidate with its copies of the calls, and the counts of both: of the gate's
/// own limits and of the candidate's.
#[derive(Debug)]
pub(super) struct TwinLimiter {
    gate: Arc<str>,
    policy: Arc<Policy>,
    limiter: Limiter,
    /// True if the candidate limits calls in flight, so that a call may wait for a slot.
    limits_slots: bool,
    /// The number of the gate's current configuration.
    pub(super) generation: u64,
    pub(super) since: Moment,
    pub(super) calls: u64,
    entries: Slab<TwinEntry>,
    /// The waiting calls.
    tickets: HashMap<Ticket, usize>,
    /// Future events of calls sent later by the twin than by the gate, at most one of each call.
    later: BinaryHeap<Reverse<(Moment, usize)>>,
    /// The upstream's recent response time, for each class.
    usual: Vec<Duration>,
    pub(super) in_force: Shadow,
    pub(super) candidate: Shadow,
}

/// A call at the twin. It stays there until it has ended both at the gate and at the twin.
#[derive(Debug)]
struct TwinEntry {
    class: ClassId,
    key: Option<Key>,
    stage: Stage,
    fate: Option<Fate>,
    /// The duration of the real response body, once the real call has ended.
    body: Option<Duration>,
}

/// The stage of a call at the twin.
#[derive(Debug)]
enum Stage {
    Waits(Ticket),
    Sent { at: Moment, receipt: Receipt, slot: Slot },
    Answered { at: Moment, slot: Slot },
    Gone,
}

/// What has become of the real call, at the gate.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    Answered(TwinAnswer),
    /// The gate refused it, so there is no answer.
    Refused,
    /// It ended: with its body, or before it was answered.
    Ended,
}

// === impl TwinLimiter ===

impl TwinLimiter {
    /// Creates the twin for the candidate of a configuration, without calls.
    pub(super) fn new(config: &GateConfig, now: Moment) -> Option<Self> {
        let policy = Arc::clone(config.options.gate.candidate.as_ref()?);
        let mut limiter = Limiter::new(Policy::clone(&policy), SEED, now);
        Group::ALL.into_iter().for_each(|group| limiter.add_room(group, ROOM, now));
        Some(Self {
            gate: Arc::clone(&config.options.gate.name),
            usual: vec![USUAL; policy.classes.len()],
            limits_slots: policy.in_flight.is_some() || policy.classes.iter().any(|class| class.in_flight.is_some()),
            policy,
            limiter,
            generation: config.generation,
            since: now,
            calls: 0,
            entries: Slab::new(),
            tickets: HashMap::new(),
            later: BinaryHeap::new(),
            in_force: Shadow::default(),
            candidate: Shadow::default(),
        })
    }

    /// Plays a call's arrival. Returns the call's number; `None` if the candidate refuses it.
    pub(super) fn arrive(&mut self, arrival: &Arrival<'_>, now: Moment) -> Option<usize> {
        self.play(now);
        self.calls += 1;
        let Arrival { class, key, .. } = *arrival;
        let number = self.entries.vacant_key();
        let stage = match self.limiter.arrive(arrival, now) {
            Verdict::Admit(permit) => Some(sent(permit, now)),
            Verdict::Wait(ticket) => {
                self.tickets.insert(ticket, number);
                Some(Stage::Waits(ticket))
            }
            Verdict::Refuse(refusal) => {
                self.count(class, refusal.reason, None);
                None
            }
        };
        let number = stage.map(|stage| self.entries.insert(TwinEntry { class, key, stage, fate: None, body: None }));
        self.claim(now);
        number
    }

    /// Records what has become of the real call. Returns true if its end will matter, too.
    pub(super) fn report(&mut self, number: usize, fate: Fate, now: Moment) -> bool {
        self.play(now);
        let Some(entry) = self.entries.get_mut(number) else { return false };
        let is_due_later = matches!(entry.stage, Stage::Sent { .. }) && entry.fate.is_some();
        match (fate, entry.fate, &entry.stage) {
            (Fate::Ended, Some(Fate::Answered(TwinAnswer { head, .. })), _) => entry.body = Some(now - head),
            (Fate::Answered(TwinAnswer { after, .. }), ..) => {
                entry.fate = Some(fate);
                // Without slots, the end of the body changes nothing.
                entry.body = (!self.limits_slots).then_some(Duration::ZERO);
                let usual = self.usual.get_mut(usize::from(entry.class.0));
                usual.into_iter().for_each(|usual| *usual = (*usual * 15 + after) / 16);
            }
            (Fate::Ended, _, Stage::Waits(ticket)) => {
                self.tickets.remove(ticket);
                self.limiter.leave(*ticket, now);
                (entry.stage, entry.body) = (Stage::Gone, Some(Duration::ZERO));
            }
            (Fate::Ended | Fate::Refused, ..) => (entry.fate, entry.body) = (Some(fate), Some(Duration::ZERO)),
        }
        let has_end = entry.body.is_none();
        if !is_due_later {
            self.go_on(number, now);
        }
        self.claim(now);
        has_end
    }

    /// Returns the candidate's decision about a call arriving now, without sending it.
    pub(super) fn preview(&mut self, arrival: &Arrival<'_>, now: Moment) -> Preview {
        self.play(now);
        self.limiter.preview(arrival, now)
    }

    /// Plays the events up to `until`, each at its own time. Returns true if more are left, because
    /// it plays at most [`AT_ONCE`].
    pub(super) fn play(&mut self, until: Moment) -> bool {
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

    /// Carries out the limiter's new decisions about waiting calls.
    fn claim(&mut self, now: Moment) {
        if self.tickets.is_empty() {
            return;
        }
        while let Some(ticket) = self.limiter.next_event() {
            let claim = self.limiter.claim(ticket, now);
            if matches!(claim, Claim::Waiting) {
                continue;
            }
            let Some(number) = self.tickets.remove(&ticket) else { continue };
            let Some(entry) = self.entries.get_mut(number) else { continue };
            let class = entry.class;
            entry.stage = Stage::Gone;
            match claim {
                Claim::Permit(permit) => {
                    let waited = permit.waited();
                    entry.stage = sent(permit, now);
                    waited.into_iter().for_each(|(reason, wait)| self.count(class, reason, Some(wait)));
                }
                Claim::Refused(refusal) => self.count(class, refusal.reason, None),
                Claim::Unconnected | Claim::Waiting => {}
            }
            self.go_on(number, now);
        }
    }

    /// Moves a call to its next stages, as far as the real call's outcome is known, and removes it at
    /// the end. A stage in the future becomes an event.
    fn go_on(&mut self, number: usize, now: Moment) {
        while let Some(entry) = self.entries.get_mut(number) {
            let usual = || self.usual.get(usize::from(entry.class.0)).copied().unwrap_or(USUAL);
            let due = match (&entry.stage, entry.fate, entry.body) {
                (Stage::Sent { at, .. }, Some(Fate::Answered(answer)), _) => *at + answer.after,
                (Stage::Sent { at, .. }, Some(Fate::Refused), _) => *at + usual(),
                (Stage::Sent { .. }, Some(Fate::Ended), _) | (Stage::Gone, _, Some(_)) => now,
                (Stage::Answered { at, .. }, _, Some(body)) => *at + body,
                (Stage::Waits(_) | Stage::Sent { .. } | Stage::Answered { .. } | Stage::Gone, ..) => return,
            };
            if due > now && self.later.len() < LATER {
                return self.later.push(Reverse((due, number)));
            }
            match std::mem::replace(&mut entry.stage, Stage::Gone) {
                Stage::Sent { receipt, slot, .. } => {
                    entry.stage = Stage::Answered { at: now, slot };
                    let (fate, key) = (entry.fate, entry.key);
                    self.learn(receipt, fate, key, now);
                }
                Stage::Answered { slot, .. } => self.limiter.release(slot, now),
                Stage::Waits(_) | Stage::Gone => drop(self.entries.remove(number)),
            }
        }
    }

    /// Reports the outcome of a call to the limiter.
    fn learn(&mut self, receipt: Receipt, fate: Option<Fate>, key: Option<Key>, now: Moment) {
        let failing = || key.and_then(|key| self.limiter.keys().find(&key, now));
        let answer = match fate {
            Some(Fate::Answered(TwinAnswer { answer, .. })) => answer,
            Some(Fate::Refused) => {
                failing().map_or(NOTHING, |(_, state)| Answer::new(Outcome::Failure, state.last_status))
            }
            Some(Fate::Ended) | None => NOTHING,
        };
        let late_key = match fate {
            Some(Fate::Answered(TwinAnswer { key, .. })) if receipt.key().is_none() => key,
            _ => None,
        };
        let receipt = if late_key.is_some() { Err(receipt) } else { receipt.settle(self.limiter.keys(), answer) };
        if let Err(receipt) = receipt {
            self.limiter.finish(receipt, answer, late_key, &String::new, now);
        }
    }

    /// Returns the number of calls that have not ended at the twin.
    #[cfg(test)]
    pub(super) fn calls_held(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of calls with a slot.
    #[cfg(test)]
    pub(super) fn slots(&self, now: Moment) -> u32 {
        self.limiter.overview(now).slots.used
    }

    /// Counts the candidate's decision about a call that does not go at once: its wait, or `None` for
    /// a refusal.
    fn count(&self, class: ClassId, reason: Reason, wait: Option<Duration>) {
        let class = self.policy.classes.get(usize::from(class.0)).map_or("other", |class| &class.name);
        let labels: [&str; 3] = [&self.gate, class, reason.word()];
        match wait {
            Some(wait) => {
                self.candidate.would_have_waited(class, reason, wait);
                table::CANDIDATE_WAIT_SECONDS.histogram(&labels).record(wait.as_secs_f64());
            }
            None => {
                self.candidate.would_have_refused(class, reason);
                table::CANDIDATE_REFUSALS.counter(&labels).increment(1);
            }
        }
    }
}

fn sent(permit: Permit, at: Moment) -> Stage {
    let (_, receipt, slot) = permit.admit(());
    Stage::Sent { at, receipt, slot }
}

/// The random seed. A replay uses the same one, so that both draw the same delays.
const SEED: u64 = 1;
/// The room on connections for the twin's calls: more than they can use up.
const ROOM: i64 = 1 << 40;
/// The assumed response time of the upstream before the first response.
const USUAL: Duration = Duration::from_millis(10);
/// The most events played under the lock.
const AT_ONCE: usize = 80;
/// The outcome if nothing was learned about the upstream.
const NOTHING: Answer = Answer::new(Outcome::Abandoned, None);
