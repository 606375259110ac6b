//! The limiter of a candidate, and its copies of the calls, in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::{LATER, SentCall, TwinAnswer, TwinNumber, TwinStage};
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
    pub(super) limits_slots: bool,
    /// The number of the gate's current configuration.
    pub(super) generation: u64,
    pub(super) since: Moment,
    pub(super) calls: u64,
    /// The number of calls ever put into the list.
    listed: u64,
    entries: Vec<TwinEntry>,
    /// The free indexes in `entries`.
    free: Vec<usize>,
    /// The waiting calls.
    tickets: HashMap<Ticket, TwinNumber>,
    /// Future events of calls sent later by the twin than by the gate.
    later: BinaryHeap<Reverse<(Moment, TwinNumber)>>,
    /// The upstream's recent response time, for each class.
    usual: Vec<Duration>,
    pub(super) in_force: Shadow,
    pub(super) candidate: Shadow,
}

/// A call in the list. It stays there until it has ended both at the gate and at the twin.
#[derive(Debug)]
struct TwinEntry {
    number: TwinNumber,
    class: ClassId,
    key: Option<Key>,
    stage: Stage,
    fate: Fate,
    /// The duration of the real response body, once it has ended.
    body: Option<Duration>,
}

/// The stage of a listed call.
#[derive(Debug)]
enum Stage {
    Waits(Ticket),
    Sent(SentCall),
    Answered { at: Moment, slot: Slot },
    Gone,
}

/// What has become of the real call, at the gate.
#[derive(Clone, Copy, Debug)]
enum Fate {
    UnderWay,
    Answered(TwinAnswer),
    /// The gate refused it, so there is no answer.
    Refused,
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
            listed: 0,
            entries: Vec::new(),
            free: Vec::new(),
            tickets: HashMap::new(),
            later: BinaryHeap::new(),
            in_force: Shadow::default(),
            candidate: Shadow::default(),
        })
    }

    /// Plays a call's arrival. Returns the call's copy; `None` if the candidate refuses it.
    pub(super) fn arrive(&mut self, arrival: &Arrival<'_>, now: Moment) -> Option<TwinStage> {
        self.play(now);
        self.calls += 1;
        let Arrival { class, key, .. } = *arrival;
        let stage = match self.limiter.arrive(arrival, now) {
            Verdict::Admit(permit) => Some(TwinStage::Sent(sent(permit, class, key, now))),
            Verdict::Wait(ticket) => {
                let number = self.enlist(class, key, Stage::Waits(ticket));
                self.tickets.insert(ticket, number);
                Some(TwinStage::Listed(number))
            }
            Verdict::Refuse(refusal) => {
                self.refused_by(class, refusal.reason);
                None
            }
        };
        self.claim(now);
        stage
    }

    /// Moves a call sent by the twin on arrival into the list.
    pub(super) fn list(&mut self, call: SentCall) -> TwinNumber {
        self.enlist(call.class, call.key, Stage::Sent(call))
    }

    fn enlist(&mut self, class: ClassId, key: Option<Key>, stage: Stage) -> TwinNumber {
        self.listed += 1;
        let number = TwinNumber { call: self.listed, place: self.free.pop().unwrap_or(self.entries.len()) };
        let entry = TwinEntry { number, class, key, stage, fate: Fate::UnderWay, body: None };
        match self.entries.get_mut(number.place) {
            Some(place) => *place = entry,
            None => self.entries.push(entry),
        }
        number
    }

    /// Records the answer to a call sent by the twin on arrival.
    pub(super) fn learned(&mut self, call: &mut SentCall, answer: &TwinAnswer) {
        self.play(answer.head);
        self.took(call.class, answer.after);
        if let Some(receipt) = call.receipt.take() {
            self.learn(receipt, Fate::Answered(*answer), None, answer.head);
        }
        self.claim(answer.head);
    }

    /// Ends a call sent by the twin on arrival.
    pub(super) fn over(&mut self, mut call: SentCall, now: impl FnOnce() -> Moment) {
        let is_idle = self.tickets.is_empty() && self.later.is_empty();
        let now = if is_idle { Moment::ZERO } else { now() };
        self.play(now);
        if let Some(receipt) = call.receipt.take() {
            self.learn(receipt, LEFT, None, now);
        }
        self.limiter.release(call.slot, now);
        self.claim(now);
    }

    fn took(&mut self, class: ClassId, after: Duration) {
        if let Some(usual) = self.usual.get_mut(usize::from(class.0)) {
            *usual = (*usual * 15 + after) / 16;
        }
    }

    /// Records the real answer to a call in the list.
    pub(super) fn answered(&mut self, number: TwinNumber, answer: &TwinAnswer) {
        self.play(answer.head);
        let Some(entry) = self.entry(number) else { return };
        entry.fate = Fate::Answered(*answer);
        let class = entry.class;
        self.took(class, answer.after);
        self.go_on(number, answer.head);
        self.claim(answer.head);
    }

    /// Records a refusal, under the gate's own limits, of a call in the list.
    pub(super) fn refused(&mut self, number: TwinNumber, now: Moment) {
        self.play(now);
        let Some(entry) = self.entry(number) else { return };
        (entry.fate, entry.body) = (Fate::Refused, Some(Duration::ZERO));
        self.go_on(number, now);
        self.claim(now);
    }

    /// Records the end of the real call: with its body, or before it was answered.
    pub(super) fn ended(&mut self, number: TwinNumber, now: Moment) {
        self.play(now);
        let Some(entry) = self.entry(number) else { return };
        match (entry.fate, &entry.stage) {
            (Fate::Answered(TwinAnswer { head, .. }), stage) => {
                let is_next = matches!(stage, Stage::Answered { .. });
                entry.body = Some(now - head);
                if !is_next {
                    return;
                }
            }
            (Fate::Refused, _) => return,
            // Its client has left, or there was no connection.
            (Fate::UnderWay, Stage::Waits(ticket)) => {
                let ticket = *ticket;
                self.tickets.remove(&ticket);
                self.limiter.leave(ticket, now);
                self.remove(number);
            }
            (Fate::UnderWay, _) => (entry.fate, entry.body) = (LEFT, Some(Duration::ZERO)),
        }
        self.go_on(number, now);
        self.claim(now);
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
            let Some(entry) = self.entry(number) else { continue };
            let class = entry.class;
            match claim {
                Claim::Permit(permit) => {
                    let waited = permit.waited();
                    entry.stage = Stage::Sent(sent(permit, class, entry.key, now));
                    waited.into_iter().for_each(|(reason, wait)| self.waited_for(class, reason, wait));
                    self.go_on(number, now);
                }
                Claim::Refused(refusal) => {
                    self.refused_by(class, refusal.reason);
                    self.remove(number);
                }
                Claim::Unconnected | Claim::Waiting => self.remove(number),
            }
        }
    }

    /// Moves a call to its next stages, as far as the real call's outcome is known. A stage in the
    /// future becomes an event.
    fn go_on(&mut self, number: TwinNumber, now: Moment) {
        let Some(entry) = self.entry(number) else { return };
        let class = usize::from(entry.class.0);
        let due = match (&entry.stage, entry.fate, entry.body) {
            (Stage::Sent(call), Fate::Answered(answer), _) => call.at + answer.after,
            (Stage::Sent(call), Fate::Refused, _) => call.at + self.usual.get(class).copied().unwrap_or(USUAL),
            (Stage::Answered { at, .. }, _, Some(body)) => *at + body,
            (Stage::Waits(_) | Stage::Sent(_) | Stage::Answered { .. } | Stage::Gone, ..) => return,
        };
        if due > now && self.later.len() < LATER {
            return self.later.push(Reverse((due, number)));
        }
        let Some(entry) = self.entry(number) else { return };
        match std::mem::replace(&mut entry.stage, Stage::Gone) {
            Stage::Sent(SentCall { receipt, slot, .. }) => {
                entry.stage = Stage::Answered { at: now, slot };
                let fate = entry.fate;
                let key = entry.key;
                if let Some(receipt) = receipt {
                    self.learn(receipt, fate, key, now);
                }
                self.go_on(number, now);
            }
            Stage::Answered { slot, .. } => {
                self.limiter.release(slot, now);
                self.remove(number);
            }
            Stage::Waits(_) | Stage::Gone => {}
        }
    }

    /// Reports the outcome of a call to the limiter.
    fn learn(&mut self, receipt: Receipt, fate: Fate, of: Option<Key>, now: Moment) {
        let (answer, key) = match fate {
            Fate::Answered(TwinAnswer { answer, key, .. }) => (answer, key.filter(|_| receipt.key().is_none())),
            Fate::UnderWay | Fate::Refused => {
                let failing = of.and_then(|key| self.limiter.keys().find(&key, now));
                let again = failing.map(|(_, state)| Answer::new(Outcome::Failure, state.last_status));
                (again.unwrap_or(NOTHING), None)
            }
        };
        let receipt = match key {
            Some(_) => Err(receipt),
            None => receipt.settle(self.limiter.keys(), answer),
        };
        if let Err(receipt) = receipt {
            self.limiter.finish(receipt, answer, key, &String::new, now);
        }
    }

    /// Returns the size of the list, free indexes included.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of calls with a slot.
    #[cfg(test)]
    pub(super) fn slots(&self, now: Moment) -> u32 {
        self.limiter.overview(now).slots.used
    }

    fn waited_for(&self, class: ClassId, reason: Reason, wait: Duration) {
        let class = self.name(class);
        self.candidate.would_have_waited(class, reason, wait);
        table::CANDIDATE_WAIT_SECONDS.histogram(&[&self.gate, class, reason.word()]).record(wait.as_secs_f64());
    }

    fn refused_by(&self, class: ClassId, reason: Reason) {
        let class = self.name(class);
        self.candidate.would_have_refused(class, reason);
        table::CANDIDATE_REFUSALS.counter(&[&self.gate, class, reason.word()]).increment(1);
    }

    fn name(&self, class: ClassId) -> &str {
        self.policy.classes.get(usize::from(class.0)).map_or("other", |class| &class.name)
    }

    fn entry(&mut self, number: TwinNumber) -> Option<&mut TwinEntry> {
        self.entries.get_mut(number.place).filter(|entry| entry.number == number)
    }

    /// Removes a call from the list.
    fn remove(&mut self, number: TwinNumber) {
        if let Some(entry) = self.entry(number) {
            entry.number.call = 0;
            self.free.push(number.place);
        }
    }
}

fn sent(permit: Permit, class: ClassId, key: Option<Key>, at: Moment) -> SentCall {
    let (_, receipt, slot) = permit.admit(());
    SentCall { class, key, at, receipt: Some(receipt), slot }
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
/// The outcome of a real call without an answer.
const LEFT: Fate = Fate::Answered(TwinAnswer { answer: NOTHING, key: None, after: Duration::ZERO, head: Moment::ZERO });
