//! Several gates in virtual time that share one bucket, or one for each account, the store that
//! keeps it, and the network between.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limit::key::Group;
use tidegate_limit::moment::Moment;
use tidegate_limit::outcome::{Answer as Outcome, Charged, Outcome as Meaning, Pause, PauseLength};
use tidegate_limit::policy::{BucketPolicy, Per, QueuePolicy, SharedId, SharedPolicy};
use tidegate_limit::quota::QuotaHint;
use tidegate_limit::{
    Arrival, Ask, AskId, BucketPart, Claim, ClassId, Fallback, Flow, Ledger, Limiter, Permit, Policy, SharedLimits,
    StoreAnswer, StoreFailure, Ticket, Verdict,
};

/// The gates, the store and what happened.
pub(super) struct Fleet {
    pub(super) gates: Vec<Gate>,
    pub(super) now: Moment,
    pub(super) ledger: Ledger,
    /// The same of each part, if the bucket is split.
    pub(super) parts: BTreeMap<BucketPart, Ledger>,
    /// Added to the store's clock, in microseconds.
    pub(super) clock: i64,
    /// The time from a question to its answer.
    pub(super) round_trip: Duration,
    pub(super) terms: SharedLimits,
    pub(super) rate: f64,
    pub(super) burst: u32,
    weights: Vec<u32>,
    /// The calls that left, by moment and gate.
    pub(super) sent: Vec<(Moment, usize)>,
    pub(super) refused: usize,
    /// The account of each.
    pub(super) of: Vec<u64>,
    /// The asks, by moment and gate.
    pub(super) asks: Vec<(Moment, usize)>,
    /// The questions that had any, by moment and gate.
    pub(super) questions: Vec<(Moment, usize)>,
    /// The pause that the upstream asks for with its next answer.
    pub(super) asks_pause: Option<Duration>,
    /// What the upstream says is left of its quota with each answer.
    pub(super) left: Option<u32>,
    /// What the store was told of it, by moment and gate.
    pub(super) told_left: Vec<(Moment, usize, u32)>,
    /// The words of gates that come back to their store on their way without it.
    pub(super) told_alone: Vec<(usize, Fallback)>,
    /// The answers that are lost on the way, by their number among all answers.
    pub(super) lose_answer: Box<dyn FnMut() -> bool>,
    /// What becomes of an answer on the way.
    pub(super) bend: Box<dyn FnMut(StoreAnswer) -> StoreAnswer>,
    agenda: BinaryHeap<Reverse<(Moment, u64)>>,
    events: BTreeMap<u64, Event>,
    number: u64,
}

/// One gate.
pub(super) struct Gate {
    pub(super) limiter: Limiter,
    /// True while the store does not answer this gate.
    pub(super) cut_off: bool,
    waiting: HashMap<Ticket, (Moment, u64)>,
    /// The time that each call which left had waited.
    pub(super) waits: Vec<Duration>,
    /// True if it keeps its calls' permits and gives them back.
    pub(super) returns: bool,
    /// True if whoever made a call makes another as soon as it is answered.
    pub(super) comes_back: bool,
    /// The number of times that it has died.
    life: u64,
}

#[derive(Debug)]
enum Event {
    /// A question reaches the store.
    Ask(Sender, Box<Ask>, Moment),
    Answer(Sender, AskId, Result<StoreAnswer, StoreFailure>, Moment),
    Call(usize, u64, Duration),
    HangUp(Sender, Ticket),
}

/// A gate in one of its lives: what was meant for one that has died reaches nobody.
#[derive(Clone, Copy, Debug)]
struct Sender {
    gate: usize,
    life: u64,
}

// === impl Event ===

impl Event {
    /// Returns the only gate that it concerns.
    fn gate(&self) -> usize {
        match self {
            Self::Ask(from, ..) | Self::Answer(from, ..) | Self::HangUp(from, _) => from.gate,
            Self::Call(gate, ..) => *gate,
        }
    }
}

// === impl Fleet ===

impl Fleet {
    pub(super) fn new(rate: f64, burst: u32, weights: &[u32], change: impl Fn(&mut SharedPolicy)) -> Self {
        let shared = |weight: u32| {
            let mut shared = weighing(weight);
            change(&mut shared);
            shared
        };
        let bucket = bucket(rate, burst);
        let gate = |(weight, seed): (&u32, u64)| Gate::new(policy(bucket, shared(*weight)), seed);
        Self {
            gates: weights.iter().zip(1..).map(gate).collect(),
            now: Moment::ZERO,
            ledger: Ledger::default(),
            parts: BTreeMap::new(),
            clock: 1_700_000_000_000_000,
            round_trip: Duration::from_micros(500),
            terms: SharedLimits::new(&bucket, &shared(1)),
            rate,
            burst,
            weights: weights.to_vec(),
            sent: Vec::new(),
            refused: 0,
            of: Vec::new(),
            asks: Vec::new(),
            questions: Vec::new(),
            asks_pause: None,
            left: None,
            told_left: Vec::new(),
            told_alone: Vec::new(),
            lose_answer: Box::new(|| false),
            bend: Box::new(|answer| answer),
            agenda: BinaryHeap::new(),
            events: BTreeMap::new(),
            number: 0,
        }
    }

    /// A fleet of equals that share one bucket for each account.
    pub(super) fn split(count: usize, rate: f64, burst: u32) -> Self {
        let mut fleet = Self::of(count, rate, burst);
        let bucket = BucketPolicy { per: Per::Account, ..bucket(rate, burst) };
        for (gate, seed) in fleet.gates.iter_mut().zip(1..) {
            *gate = Gate::new(policy(bucket, SharedPolicy::new("account")), seed);
        }
        fleet
    }

    /// Changes the time after which the gates refuse a call.
    pub(super) fn wait_at_most(&mut self, max_wait: Duration) {
        for (gate, weight) in self.gates.iter_mut().zip(&self.weights) {
            let mut policy = policy(bucket(self.rate, self.burst), weighing(*weight));
            policy.queue.max_wait = max_wait;
            gate.limiter.reconfigure(policy, self.now);
        }
    }

    /// A fleet of equals.
    pub(super) fn of(count: usize, rate: f64, burst: u32) -> Self {
        Self::new(rate, burst, &vec![1; count], |_| ())
    }

    fn schedule(&mut self, at: Moment, event: Event) {
        self.number += 1;
        self.agenda.push(Reverse((at, self.number)));
        self.events.insert(self.number, event);
    }

    /// A call comes to a gate after a while; it would wait for so long.
    pub(super) fn call(&mut self, gate: usize, after: Duration, patience: Duration) {
        self.call_of(0, gate, after, patience);
    }

    /// A call for this account.
    pub(super) fn call_of(&mut self, who: u64, gate: usize, after: Duration, patience: Duration) {
        self.schedule(self.now + after, Event::Call(gate, who, patience));
    }

    /// Calls come to a gate so many times a second, evenly, for a while.
    pub(super) fn calls(&mut self, gate: usize, per_second: f64, length: Duration) {
        self.calls_of(0, gate, per_second, length);
    }

    /// The same for an account.
    pub(super) fn calls_of(&mut self, who: u64, gate: usize, per_second: f64, length: Duration) {
        let mut after = 0.37 / per_second;
        while after < length.as_secs_f64() {
            self.call_of(who, gate, Duration::from_secs_f64(after), Duration::from_secs(3600));
            after += 1.0 / per_second;
        }
    }

    pub(super) fn run(&mut self, length: Duration) {
        let end = self.now + length;
        let mut wakeups: Vec<_> = self.gates.iter().map(|gate| gate.limiter.next_wakeup()).collect();
        loop {
            let event = self.agenda.peek().map(|Reverse((at, _))| *at);
            let wakeup = wakeups.iter().enumerate().filter_map(|(gate, at)| Some(((*at)?, gate))).min();
            let next = event.into_iter().chain(wakeup.map(|(at, _)| at)).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            let gate = match wakeup {
                Some((at, gate)) if event.is_none_or(|event| at <= event) => {
                    self.tick(gate);
                    gate
                }
                _ => self.happen(),
            };
            // Nothing changes the moment of another gate.
            wakeups[gate] = self.gates[gate].limiter.next_wakeup();
        }
        self.now = end;
    }

    /// Lets the next event happen. Returns its gate.
    fn happen(&mut self) -> usize {
        let Reverse((_, number)) = self.agenda.pop().expect("an event");
        let event = self.events.remove(&number).expect("each number has its event");
        let gate = event.gate();
        match event {
            Event::Ask(from, ask, sent) => self.ask(from, &ask, sent),
            Event::Answer(Sender { life, .. }, asked, answer, sent) if self.gates[gate].life == life => {
                self.gates[gate].limiter.answered(asked, answer, sent, self.now);
                self.drain(gate);
            }
            Event::Call(_, who, patience) => self.arrive(gate, who, patience),
            Event::HangUp(Sender { life, .. }, ticket) if self.gates[gate].life == life => {
                self.gates[gate].waiting.remove(&ticket);
                self.gates[gate].limiter.leave(ticket, self.now);
                self.drain(gate);
            }
            Event::Answer(..) | Event::HangUp(..) => {}
        }
        gate
    }

    /// A gate dies, with all that it holds and all that waits, and another takes its place.
    pub(super) fn replace(&mut self, gate: usize) {
        let life = self.gates[gate].life + 1;
        let policy = policy(bucket(self.rate, self.burst), weighing(self.weights[gate]));
        let mut new = Gate::new(policy, 1_000 * life + gate as u64);
        new.limiter.advance(self.now);
        self.gates[gate] = Gate { life, ..new };
    }

    /// Returns the calls that were sent while the store was away, of the gates that live.
    pub(super) fn alone(&self) -> u64 {
        self.gates.iter().map(|gate| gate.alone(self.now)).sum()
    }

    /// Returns the number of calls that wait.
    pub(super) fn waiting(&self) -> usize {
        self.gates.iter().map(|gate| gate.waiting.len()).sum()
    }

    fn tick(&mut self, gate: usize) {
        self.gates[gate].limiter.advance(self.now);
        self.drain(gate);
        let asks = self.gates[gate].limiter.take_asks(self.now);
        if !asks.is_empty() {
            self.questions.push((self.now, gate));
        }
        let from = self.sender(gate);
        for ask in asks {
            self.asks.push((self.now, gate));
            self.told_alone.extend(ask.away.then_some((gate, ask.fallback)));
            self.told_left.extend(ask.left.map(|left| (self.now, gate, left)));
            let away = Event::Answer(from, ask.asked, Err(StoreFailure::Unreachable), self.now);
            self.schedule(self.now + TIMEOUT, away);
            self.schedule(self.now + self.round_trip / 2, Event::Ask(from, Box::new(ask), self.now));
        }
    }

    fn sender(&self, gate: usize) -> Sender {
        Sender { gate, life: self.gates[gate].life }
    }

    fn ask(&mut self, from: Sender, ask: &Ask, sent: Moment) {
        if self.gates[from.gate].cut_off {
            return;
        }
        let micros = i64::try_from(self.now.as_nanos() / 1000).expect("short");
        let ledger = match ask.part {
            Some(part) => self.parts.entry(part).or_default(),
            None => &mut self.ledger,
        };
        let answer = ledger.ask(ask, u64::try_from(self.clock + micros).expect("after 1970"));
        if !(self.lose_answer)() {
            let answer = (self.bend)(answer);
            self.schedule(self.now + self.round_trip / 2, Event::Answer(from, ask.asked, Ok(answer), sent));
        }
    }

    fn arrive(&mut self, gate: usize, who: u64, patience: Duration) {
        let quota = QuotaHint { holder: who, ..QuotaHint::default() };
        let arrival = Arrival { credential: who, quota, ..Arrival::new(ClassId(0), Flow { id: 0, name: &0 }) };
        match self.gates[gate].limiter.arrive(&arrival, self.now) {
            Verdict::Admit(permit) => {
                self.drain(gate); // those that waited went before
                self.leave(gate, permit, (self.now, who));
            }
            Verdict::Refuse(_) => self.refused += 1,
            Verdict::Wait(ticket) => {
                self.gates[gate].waiting.insert(ticket, (self.now, who));
                if patience < Duration::from_secs(3600) {
                    self.schedule(self.now + patience, Event::HangUp(self.sender(gate), ticket));
                }
            }
        }
        self.drain(gate);
    }

    fn drain(&mut self, gate: usize) {
        while let Some(ticket) = self.gates[gate].limiter.next_event() {
            let claim = self.gates[gate].limiter.claim(ticket, self.now);
            let arrived = self.gates[gate].waiting.remove(&ticket).unwrap_or((self.now, 0));
            match claim {
                Claim::Permit(permit) => self.leave(gate, permit, arrived),
                Claim::Refused(_) => self.refused += 1,
                Claim::Waiting | Claim::Unconnected => {}
            }
        }
    }

    fn leave(&mut self, gate: usize, permit: Permit, (arrived, who): (Moment, u64)) {
        let (now, of) = (self.now, &mut self.gates[gate]);
        if of.returns {
            return of.limiter.retract(permit, now);
        }
        of.waits.push(now - arrived);
        let comes_back = of.comes_back;
        self.sent.push((now, gate));
        self.of.push(who);
        let (_, receipt, slot) = permit.admit(());
        let pause =
            self.asks_pause.take().map(|length| Pause { charged: Charged::All, length: PauseLength::Known(length) });
        let answer = Outcome { pause, ..Outcome::new(Meaning::Success, Some(200)) };
        if let Some(left) = self.left {
            of.limiter.note_left(&receipt, Charged::All, left, now);
        }
        if let Err(receipt) = receipt.settle(of.limiter.keys(), answer) {
            of.limiter.finish(receipt, answer, None, &String::new, now);
        }
        of.limiter.release(slot, now);
        of.limiter.add_room(Group::Short, 1, now);
        if comes_back {
            self.call_of(who, gate, Duration::from_millis(1), Duration::from_secs(3600));
        }
    }

    // --- judged

    /// Returns the largest excess of the calls in any window over `burst + rate * t`.
    pub(super) fn over(&self) -> f64 {
        self.excess(self.sent.iter())
    }

    /// Returns that of each account.
    pub(super) fn over_of_each(&self) -> Vec<(u64, f64)> {
        let mut accounts = self.of.clone();
        accounts.sort_unstable();
        accounts.dedup();
        let of =
            |who: u64| self.excess(self.sent.iter().zip(&self.of).filter(|(_, of)| **of == who).map(|(call, _)| call));
        accounts.into_iter().map(|who| (who, of(who))).collect()
    }

    /// Returns the calls of an account since a moment.
    pub(super) fn sent_of(&self, who: u64, from: Moment) -> usize {
        self.sent.iter().zip(&self.of).filter(|((at, _), of)| *at >= from && **of == who).count()
    }

    /// Returns the most tokens that are promised at one moment: a turn of all, one for each, and one.
    #[expect(clippy::cast_precision_loss, reason = "few gates")]
    pub(super) fn promised(&self) -> f64 {
        let (sum, least) = (self.weights.iter().sum::<u32>(), self.weights.iter().min().copied().unwrap_or(1));
        let turn = f64::from(sum) / f64::from(least);
        turn.max(self.rate * self.terms.horizon.as_secs_f64()) + self.gates.len() as f64 + 1.0
    }

    fn excess<'a>(&self, calls: impl Iterator<Item = &'a (Moment, usize)>) -> f64 {
        let (mut least, mut most) = (f64::MAX, f64::MIN);
        for (number, (at, _)) in (0_u32..).zip(calls) {
            let ahead = f64::from(number) - self.rate * at.since_start().as_secs_f64();
            least = least.min(ahead);
            most = most.max(ahead + 1.0 - least);
        }
        most - f64::from(self.burst).max(self.terms.bound())
    }

    /// Returns the calls sent since a moment, of a gate or of all.
    pub(super) fn sent_since(&self, from: Moment, gate: Option<usize>) -> usize {
        self.sent.iter().filter(|(at, of)| *at >= from && gate.is_none_or(|gate| gate == *of)).count()
    }

    /// Returns the share of the rate that was used since a moment.
    #[expect(clippy::cast_precision_loss, reason = "few calls")]
    pub(super) fn used_since(&self, from: Moment) -> f64 {
        self.sent_since(from, None) as f64 / (self.rate * (self.now - from).as_secs_f64())
    }

    /// Returns Jain's index of the gates' calls since a moment, each by its weight.
    #[expect(clippy::cast_precision_loss, reason = "few calls")]
    pub(super) fn fairness_since(&self, from: Moment, weights: &[u32]) -> f64 {
        let shares: Vec<f64> = (0..)
            .zip(weights)
            .map(|(gate, weight)| self.sent_since(from, Some(gate)) as f64 / f64::from(*weight))
            .collect();
        let sum: f64 = shares.iter().sum();
        sum * sum / (shares.len() as f64 * shares.iter().map(|share| share * share).sum::<f64>())
    }
}

// === impl Gate ===

impl Gate {
    fn new(policy: Policy, seed: u64) -> Self {
        let mut limiter = Limiter::new(policy, seed, Moment::ZERO);
        limiter.add_room(Group::Short, 1 << 40, Moment::ZERO);
        Self {
            limiter,
            cut_off: false,
            waiting: HashMap::new(),
            waits: Vec::new(),
            returns: false,
            comes_back: false,
            life: 0,
        }
    }

    /// Returns the calls that it sent while the store was away.
    pub(super) fn alone(&self, now: Moment) -> u64 {
        self.limiter.snapshot(now).shared.first().map_or(0, |shared| shared.tally.fallback)
    }

    pub(super) fn wait_of(&self, of_100: usize) -> Duration {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        waits.get(waits.len() * of_100 / 100).copied().unwrap_or_default()
    }
}

/// The word of a gate of so much weight.
fn weighing(weight: u32) -> SharedPolicy {
    SharedPolicy { weight: NonZeroU32::new(weight).expect("a weight"), ..SharedPolicy::new("account") }
}

pub(super) fn bucket(rate: f64, burst: u32) -> BucketPolicy {
    let shared = Some(SharedId(0));
    BucketPolicy { shared, ..BucketPolicy::new(rate, NonZeroU32::new(burst).expect("a burst")) }
}

pub(super) fn policy(bucket: BucketPolicy, shared: SharedPolicy) -> Policy {
    let queue = QueuePolicy {
        max_wait: Duration::from_secs(30),
        max_waiting: 100_000,
        max_waiting_bytes: 1 << 20,
        ..QueuePolicy::default()
    };
    Policy { bucket: Some(bucket), queue, shared: vec![Arc::new(shared)], ..Policy::default() }
}

/// The time after which a gate takes the store for away.
pub(super) const TIMEOUT: Duration = Duration::from_millis(250);
