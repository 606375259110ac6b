//! A gate in virtual time: callers, a driver that may be late, and a record of everything that
//! happened.

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::num::NonZeroU32;
use std::time::Duration;

use tidegate_limit::key::{Group, Key, facet};
use tidegate_limit::moment::Moment;
use tidegate_limit::outcome::{Answer, Charged, Outcome, Pause};
use tidegate_limit::policy::{Backoff, BucketPolicy, ClassPolicy, InFlight, QueuePolicy, Strategy};
use tidegate_limit::quota::{QuotaHint, QuotaId, ResourceId};
use tidegate_limit::snapshot::BucketView;
use tidegate_limit::{
    Arrival, Claim, ClassId, Flow, Limiter, Permit, Policy, Preview, Reason, Receipt, Refusal, Slot, Ticket, Verdict,
};

/// The properties of a caller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Caller {
    pub(super) class: u16,
    pub(super) flow: u64,
    pub(super) key: Option<u64>,
    pub(super) facet: u64,
    /// The collection, if the key does not give it.
    pub(super) collection: Option<u64>,
    pub(super) credential: u64,
    pub(super) quota: QuotaHint,
    pub(super) group: Group,
    pub(super) long_running: bool,
    pub(super) lists_first: bool,
    pub(super) patient: bool,
    pub(super) timeout: Option<Duration>,
    pub(super) cost: u16,
}

/// The state of a call.
#[derive(Debug)]
pub(super) enum Life {
    Waiting(Ticket),
    /// Granted, and its caller has not claimed it yet.
    Granted(Ticket),
    /// Claimed; no byte has been sent.
    Admitted(Permit),
    /// Sent: it still owes an outcome and a slot.
    Out(Option<Receipt>, Option<Slot>),
    Refused(Refusal),
    Unconnected,
    HungUp,
    Retracted,
    /// Between two of the above.
    Moving,
}

/// One call.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) caller: Caller,
    pub(super) arrived: Moment,
    pub(super) life: Life,
    /// The moment at which it left, and its place among all that left.
    pub(super) left: Option<(Moment, usize)>,
    pub(super) waited: Option<(Reason, Duration)>,
    /// The event at which it left.
    noted: usize,
    /// True once its grant was taken back: it waits for the second time, beside the call that took
    /// its place.
    pub(super) came_back: bool,
}

/// The events, in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Event {
    Left(usize),
    /// The call was about to leave, and did not.
    Stayed,
    Answered(usize, Outcome),
    /// The answer of a call asked for a pause.
    Paused(usize, Pause),
    /// The bucket of the gate (0) or of a class (its place plus one) has a new rate.
    Rate(u16, f64),
    Reloaded(usize),
}

/// A gate in virtual time.
#[derive(Debug)]
pub(super) struct World {
    pub(super) limiter: Limiter,
    pub(super) now: Moment,
    pub(super) calls: Vec<Record>,
    pub(super) events: Vec<(Moment, Event)>,
    tickets: HashMap<Ticket, usize>,
    /// True if callers claim at once; otherwise the test must claim for them.
    pub(super) prompt: bool,
    leaves: usize,
    /// True if any rate adapts, and the rates in force at the last look.
    adapts: bool,
    rates: Vec<(u16, f64)>,
}

struct Name(u64);

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flow {}", self.0)
    }
}

// === impl Caller ===

impl Caller {
    pub(super) fn new() -> Self {
        Self {
            class: 0,
            flow: 0,
            key: None,
            facet: 0,
            collection: None,
            credential: 0,
            quota: QuotaHint::default(),
            group: Group::Short,
            long_running: false,
            lists_first: false,
            patient: false,
            timeout: None,
            cost: 1,
        }
    }

    pub(super) fn of_class(self, class: u16) -> Self {
        Self { class, ..self }
    }

    pub(super) fn of_flow(self, flow: u64) -> Self {
        Self { flow, ..self }
    }

    /// Makes it a call of this holder.
    pub(super) fn held_by(self, holder: u64) -> Self {
        Self { quota: QuotaHint { holder, ..self.quota }, ..self }
    }

    /// Returns true if a pause of this quota is one of the call's.
    pub(super) fn is_charged_to(&self, quota: QuotaId, class: ResourceId) -> bool {
        let QuotaHint { holder, word, .. } = self.quota;
        let is_of_resource = [ResourceId::ALL, word, class].contains(&quota.resource);
        word != ResourceId::FREE && [0, holder].contains(&quota.holder) && is_of_resource
    }

    /// Returns the quota of a pause that an answer to the call asks for.
    pub(super) fn paused(&self, charged: Charged, class: ResourceId) -> QuotaId {
        let QuotaHint { holder, word, .. } = self.quota;
        let resource = match charged {
            Charged::All => ResourceId::ALL,
            Charged::Named(word) => word,
            Charged::Predicted if word != ResourceId::ALL => word,
            Charged::Predicted | Charged::Class => class,
        };
        QuotaId { holder, resource }
    }

    pub(super) fn of_key(self, key: u64) -> Self {
        Self { key: Some(key), ..self }
    }

    fn arrival<'a>(&self, name: &'a Name) -> Arrival<'a> {
        Arrival {
            class: ClassId(self.class),
            flow: Flow { id: self.flow, name },
            key: self.key.map(|object| Key {
                object,
                collection: self.collection.unwrap_or(object / 10),
                facet: self.facet,
            }),
            key_in_body: false,
            credential: self.credential,
            quota: self.quota,
            write: self.writes(),
            reads: !self.writes(),
            group: self.group,
            long_running: self.long_running,
            lists_first: self.lists_first,
            patient: self.patient,
            timeout: self.timeout,
            cost: self.cost,
        }
    }

    /// Makes it a DELETE of the object that the other calls of its key write.
    pub(super) fn deleting(self) -> Self {
        Self { facet: facet(self.facet, true), ..self }
    }

    /// True for odd keys, which are those of writes.
    pub(super) fn writes(&self) -> bool {
        self.key.is_some_and(|key| key % 2 == 1)
    }
}

// === impl Record ===

impl Record {
    /// True while the call is upstream.
    pub(super) fn is_out(&self) -> bool {
        matches!(self.life, Life::Admitted(_) | Life::Out(_, Some(_)))
    }
}

// === impl World ===

impl World {
    /// A world with plenty of room on every connection.
    pub(super) fn new(policy: Policy) -> Self {
        let mut world = Self::without_room(policy);
        for group in [Group::Exempt, Group::Short, Group::LongRunning] {
            world.limiter.add_room(group, 1 << 40, Moment::ZERO);
        }
        world
    }

    pub(super) fn without_room(policy: Policy) -> Self {
        Self {
            adapts: adapts(&policy),
            limiter: Limiter::new(policy, 1, Moment::ZERO),
            now: Moment::ZERO,
            calls: Vec::new(),
            events: Vec::new(),
            tickets: HashMap::new(),
            prompt: true,
            leaves: 0,
            rates: Vec::new(),
        }
    }

    /// Moves time to `to`. The driver wakes whenever the limiter asks for it, each time `late()`
    /// too late.
    pub(super) fn pass_to(&mut self, to: Moment, late: &mut dyn FnMut() -> Duration) {
        while let Some(wakeup) = self.limiter.next_wakeup() {
            let at = (wakeup + late()).max(self.now);
            if at > to {
                break;
            }
            self.now = at;
            self.limiter.advance(at);
            let again = self.limiter.next_wakeup();
            let goes_on = self.limiter.is_behind() || again.is_none_or(|again| again > at);
            assert!(goes_on, "after advance({at:?}) it asks for {again:?}");
            self.drain();
        }
        self.now = self.now.max(to);
    }

    pub(super) fn pass(&mut self, by: Duration) {
        self.pass_to(self.now + by, &mut || Duration::ZERO);
    }

    /// Asks what would happen to such a call.
    pub(super) fn preview(&mut self, caller: Caller) -> Preview {
        let name = Name(caller.flow);
        let previewed = self.limiter.preview(&caller.arrival(&name), self.now);
        self.drain();
        previewed
    }

    pub(super) fn arrive(&mut self, caller: Caller) -> usize {
        let call = self.calls.len();
        let name = Name(caller.flow);
        let arrival = caller.arrival(&name);
        self.calls.push(Record {
            caller,
            arrived: self.now,
            life: Life::Moving,
            left: None,
            waited: None,
            noted: 0,
            came_back: false,
        });
        match self.limiter.arrive(&arrival, self.now) {
            Verdict::Admit(permit) => {
                // Everything that time brought about in the same operation came before.
                self.drain();
                self.go(call, permit, true);
            }
            Verdict::Wait(ticket) => {
                self.tickets.insert(ticket, call);
                self.calls[call].life = Life::Waiting(ticket);
                self.drain();
            }
            Verdict::Refuse(refusal) => {
                self.calls[call].life = Life::Refused(refusal);
                self.drain();
            }
        }
        call
    }

    fn go(&mut self, call: usize, permit: Permit, leaves_now: bool) {
        if leaves_now {
            self.leave_now(call);
        }
        self.calls[call].waited = permit.waited();
        self.calls[call].life = Life::Admitted(permit);
    }

    /// Sends the request.
    fn send(&mut self, call: usize) {
        match std::mem::replace(&mut self.calls[call].life, Life::Moving) {
            Life::Admitted(permit) => {
                let (admitted, receipt, slot) = permit.admit(());
                let () = admitted.into_inner();
                self.calls[call].life = Life::Out(Some(receipt), Some(slot));
            }
            other => self.calls[call].life = other,
        }
    }

    fn leave_now(&mut self, call: usize) {
        self.leaves += 1;
        self.note_rates(true);
        self.calls[call].left = Some((self.now, self.leaves));
        self.calls[call].noted = self.events.len();
        self.events.push((self.now, Event::Left(call)));
    }

    /// Records what the limiter has done while a test drove it directly.
    pub(super) fn notice(&mut self) {
        self.drain();
    }

    /// Records rates that have changed. A snapshot has the rate that the next call would find; the
    /// rate in force rises only when one leaves.
    fn note_rates(&mut self, has_left: bool) {
        if !self.adapts {
            return;
        }
        let snapshot = self.limiter.snapshot(self.now);
        let classes = (1_u16..).zip(&snapshot.classes).map(|(place, class)| (place, &class.buckets));
        let first = |(place, buckets): (u16, &Vec<BucketView>)| Some((place, buckets.first()?.rate));
        let rates: Vec<_> = [(0, &snapshot.buckets)].into_iter().chain(classes).filter_map(first).collect();
        for (place, rate) in rates {
            let known = self.rates.iter_mut().find(|(known, _)| *known == place);
            match known {
                Some((_, known)) if rate == *known || rate > *known && !has_left => continue,
                Some((_, known)) => *known = rate,
                None => self.rates.push((place, rate)),
            }
            self.events.push((self.now, Event::Rate(place, rate)));
        }
    }

    /// Records the calls whose answer has changed.
    fn drain(&mut self) {
        self.note_rates(false);
        while let Some(ticket) = self.limiter.next_event() {
            let call = *self.tickets.get(&ticket).expect("events are about calls that wait");
            if self.prompt {
                self.claim(call);
                continue;
            }
            if matches!(self.calls[call].life, Life::Granted(_)) {
                // It was taken back before it was claimed, and this is its next turn.
                self.unleave(call);
                self.calls[call].came_back = true;
            }
            self.leave_now(call);
            self.calls[call].life = Life::Granted(ticket);
        }
    }

    /// The caller of a call claims its grant, if there is one.
    pub(super) fn claim(&mut self, call: usize) {
        let (ticket, noted) = match self.calls[call].life {
            Life::Waiting(ticket) => (ticket, false),
            Life::Granted(ticket) => (ticket, true),
            _ => return,
        };
        match self.limiter.claim(ticket, self.now) {
            Claim::Permit(permit) => self.go(call, permit, !noted),
            Claim::Waiting => {
                if noted {
                    // It was taken back before its caller claimed it.
                    self.unleave(call);
                    self.calls[call].life = Life::Waiting(ticket);
                    self.calls[call].came_back = true;
                }
                return self.drain(); // others may have had their turn meanwhile
            }
            Claim::Refused(refusal) => {
                if noted {
                    self.unleave(call);
                }
                self.calls[call].life = Life::Refused(refusal);
            }
            Claim::Unconnected => {
                if noted {
                    self.unleave(call);
                }
                self.calls[call].life = Life::Unconnected;
            }
        }
        self.tickets.remove(&ticket);
        self.drain();
    }

    fn unleave(&mut self, call: usize) {
        self.calls[call].left = None;
        self.events[self.calls[call].noted].1 = Event::Stayed;
    }

    pub(super) fn hang_up(&mut self, call: usize) {
        let (Life::Waiting(ticket) | Life::Granted(ticket)) = self.calls[call].life else { return };
        if self.calls[call].left.is_some() {
            self.unleave(call);
        }
        self.calls[call].life = Life::HungUp;
        self.limiter.leave(ticket, self.now);
        self.limiter.leave(ticket, self.now);
        self.tickets.remove(&ticket);
        self.drain();
    }

    /// The response head arrives.
    pub(super) fn answer(&mut self, call: usize, outcome: Outcome) {
        self.answer_with(call, Answer::new(outcome, Some(500)));
    }

    pub(super) fn answer_with(&mut self, call: usize, answer: Answer) {
        self.send(call);
        let Life::Out(receipt, _) = &mut self.calls[call].life else { return };
        let Some(receipt) = receipt.take() else { return };
        // Everything that time has brought about came before.
        self.limiter.advance(self.now);
        self.drain();
        self.events.push((self.now, Event::Answered(call, answer.outcome)));
        self.events.extend(answer.pause.map(|pause| (self.now, Event::Paused(call, pause))));
        if let Err(receipt) = receipt.settle(self.limiter.keys(), answer) {
            self.limiter.finish(receipt, answer, None, &|| format!("call {call}"), self.now);
        }
        self.drain();
    }

    /// Returns true if the call has left, and its answer has not come.
    pub(super) fn owes_answer(&self, call: usize) -> bool {
        matches!(self.calls[call].life, Life::Admitted(_) | Life::Out(Some(_), _))
    }

    /// The response head names what the call was charged to.
    pub(super) fn name(&mut self, call: usize, word: ResourceId) {
        self.send(call);
        let action = self.calls[call].caller.quota.action;
        if let Life::Out(Some(receipt), _) = &self.calls[call].life
            && !receipt.was_predicted(word)
        {
            self.limiter.learn_resource(receipt, action, word, self.now);
        }
        self.drain();
    }

    /// The response head tells that the upstream did not count the call.
    pub(super) fn refund(&mut self, call: usize) {
        self.send(call);
        if let Life::Out(Some(receipt), _) = &self.calls[call].life {
            self.limiter.refund(receipt, self.now);
        }
        self.drain();
    }

    /// The body ends: the slot and the connection's stream are free.
    pub(super) fn end(&mut self, call: usize) {
        let group = self.calls[call].caller.group;
        self.send(call);
        let Life::Out(_, slot) = &mut self.calls[call].life else { return };
        let Some(slot) = slot.take() else { return };
        self.limiter.release(slot, self.now);
        self.drain();
        self.room(group, 1);
    }

    pub(super) fn room(&mut self, group: Group, change: i64) {
        self.limiter.add_room(group, change, self.now);
        self.drain();
    }

    /// The call is not sent after all; with `requeue` it waits again.
    pub(super) fn take_back(&mut self, call: usize, requeue: bool) {
        let permit = match std::mem::replace(&mut self.calls[call].life, Life::Moving) {
            Life::Admitted(permit) => permit,
            other => return self.calls[call].life = other,
        };
        self.unleave(call);
        if requeue {
            let ticket = self.limiter.requeue(permit, self.now);
            self.tickets.insert(ticket, call);
            self.calls[call].life = Life::Waiting(ticket);
        } else {
            self.limiter.retract(permit, self.now);
            self.calls[call].life = Life::Retracted;
        }
        self.drain();
    }

    pub(super) fn fail_group(&mut self, group: Group) {
        self.limiter.fail_group(group, self.now);
        self.drain();
    }

    pub(super) fn reload(&mut self, policy: Policy, number: usize) {
        // Everything that time has brought about belongs to the old limits.
        self.limiter.advance(self.now);
        self.drain();
        self.events.push((self.now, Event::Reloaded(number)));
        self.adapts |= adapts(&policy);
        self.limiter.reconfigure(policy, self.now);
        self.rates.clear();
        self.drain();
    }

    pub(super) fn refusal(&self, call: usize) -> Option<Refusal> {
        match &self.calls[call].life {
            Life::Refused(refusal) => Some(*refusal),
            _ => None,
        }
    }

    pub(super) fn left_at(&self, call: usize) -> Option<Moment> {
        self.calls[call].left.map(|(at, _)| at)
    }

    pub(super) fn is_waiting(&self, call: usize) -> bool {
        matches!(self.calls[call].life, Life::Waiting(_))
    }

    /// Lets everything end; then nothing may be left in the limiter (conservation).
    pub(super) fn wind_down(&mut self) {
        self.prompt = true;
        for call in 0..self.calls.len() {
            self.claim(call);
            self.hang_up(call);
        }
        for call in 0..self.calls.len() {
            self.answer(call, Outcome::Success);
            self.end(call);
        }
        let snapshot = self.limiter.snapshot(self.now);
        assert_eq!((snapshot.waiting, snapshot.waiting_bytes), (0, 0), "somebody still waits");
        assert_eq!(snapshot.slots.used, 0, "a slot is still held");
        assert!(snapshot.classes.iter().all(|class| class.slots.used == 0 && class.waiting == 0), "{snapshot:?}");
        assert!(snapshot.queues.is_empty(), "{:?}", snapshot.queues);
        assert!(self.limiter.next_event().is_none());
        assert_eq!(snapshot.trials, 0, "a trial is still out");
        assert!(self.limiter.is_at_rest(), "{:?}", self.limiter);
        for record in &self.calls {
            assert!(
                !matches!(record.life, Life::Waiting(_) | Life::Granted(_) | Life::Moving),
                "no verdict: {record:?}"
            );
        }
    }
}

fn adapts(policy: &Policy) -> bool {
    let classes = policy.classes.iter().map(|class| class.bucket);
    [policy.bucket].into_iter().chain(classes).flatten().any(|bucket| bucket.adapt.is_some())
}

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(super) fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

pub(super) fn bucket(rate: f64, burst: u32) -> BucketPolicy {
    BucketPolicy::new(rate, NonZeroU32::new(burst).expect("above zero"))
}

pub(super) fn slots(max: u32) -> InFlight {
    InFlight::new(NonZeroU32::new(max).expect("above zero"))
}

pub(super) fn class(name: &str) -> ClassPolicy {
    ClassPolicy {
        name: name.into(),
        backoff: Backoff {
            strategy: Strategy::Exponential { base: secs(1), max: secs(60), jitter: 0.0 },
            hold: ms(100),
            forget_after: secs(120),
        },
        ..ClassPolicy::default()
    }
}

/// No limits except those of the waiting room: an hour, ten thousand calls.
pub(super) fn open() -> Policy {
    Policy {
        queue: QueuePolicy {
            max_wait: secs(3600),
            max_waiting: 10_000,
            max_waiting_bytes: 1 << 24,
            ..QueuePolicy::default()
        },
        classes: vec![class("default")],
        ..Policy::default()
    }
}
