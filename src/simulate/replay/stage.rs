//! A gate to which recorded calls come once more.

use std::{collections::HashMap, rc::Rc, time::Duration};

use slab::Slab;

use super::{
    Leases, Replayed, STEP,
    line::Fate,
    reader::{Asked, Record},
};
use crate::{
    api::{Answer, Group, Key},
    classify::{FairBy, Kind},
    limit::{Arrival, ClassId, Flow, Slot, policy::Lane},
    moment::Moment,
    simulate::{
        Limits,
        agenda::Agenda,
        gate::{Gate, Sent, Turn},
        request::{Read, Reader, Request},
        tally::Row,
    },
};

/// A gate under limits, and the calls that are under way through it.
pub(super) struct Stage<'a> {
    limits: &'a Limits,
    gate: Gate,
    reader: Reader,
    now: Moment,
    agenda: Agenda<Event>,
    calls: Slab<Call>,
    /// The slots of calls whose bodies are under way.
    bodies: Slab<Slot>,
    fed: u64,
    /// Requests by number, as the gate reads them.
    reads: HashMap<usize, Rc<Read>>,
    /// The counts of each class.
    rows: Vec<Row>,
    /// The time that the upstream took lately, by class.
    usual: Vec<Duration>,
    /// The last answer of each key that failed.
    failed: HashMap<Key, (u16, Option<Duration>)>,
    leases: Leases,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The upstream's answer to a call comes.
    Answered(u32),
    /// The body of an answer ends.
    Ended(usize),
    /// The client leaves. The number identifies the call, as another call may have its place by
    /// then.
    GivesUp(u32, u64),
}

/// A call under way.
struct Call {
    number: u64,
    record: Record,
    read: Rc<Read>,
    key: Option<Key>,
    sent: Option<Sent>,
    left: Moment,
    answer: Known,
}

/// The outcome of a call that has left.
#[derive(Clone, Copy)]
enum Known {
    Answer {
        status: u16,
        retry_after: Option<Duration>,
        body: Duration,
    },
    Lost,
    /// The client leaves before the answer.
    Left,
    /// The log has no answer, and none like it.
    Nothing,
}

// === impl Stage ===

impl<'a> Stage<'a> {
    pub(super) fn new(limits: &'a Limits) -> Self {
        let classes = &limits.gate.policy.classes;
        Self {
            limits,
            gate: Gate::new(&limits.gate, 1, Moment::ZERO),
            reader: Reader::new(),
            now: Moment::ZERO,
            agenda: Agenda::new(),
            calls: Slab::new(),
            bodies: Slab::new(),
            fed: 0,
            reads: HashMap::new(),
            rows: classes.iter().map(|class| Row::new(&class.name, STEP)).collect(),
            usual: vec![USUAL; classes.len()],
            failed: HashMap::new(),
            leases: Leases::default(),
        }
    }

    /// Runs the events up to a call's arrival, then lets the call arrive.
    pub(super) fn feed(&mut self, record: &Record) {
        self.run(record.at);
        self.now = self.now.max(record.at);
        let read = self.read(record);
        let key =
            record.hashes.key.map(|[object, collection, facet]| self.reader.key(Key { object, collection, facet }));
        let key = key.filter(|_| !self.is_exempt(read.class));
        let class = usize::from(read.class.0);
        if let Some(row) = self.rows.get_mut(class) {
            row.arrived(self.now);
        }
        if let (Fate::Answered { after, .. }, Some(usual)) = (record.fate, self.usual.get_mut(class))
            && !read.call.is_long_running()
        {
            *usual = (*usual * 15 + after) / 16;
        }
        self.fed += 1;
        let number = self.fed;
        let call = Call {
            number,
            record: record.clone(),
            read: Rc::clone(&read),
            key,
            sent: None,
            left: self.now,
            answer: Known::Nothing,
        };
        let index = u32::try_from(self.calls.insert(call)).unwrap_or(u32::MAX);
        if let Fate::GaveUp { after } = record.fate {
            self.agenda.put(self.now + after, Event::GivesUp(index, number));
        }
        let credential = self.reader.number(record.hashes.credential);
        // The log has neither paths nor credentials, but it has the flow that they gave.
        let flow = match (self.limits.gate.rules.fair_by(), self.limits.gate.kind) {
            (FairBy::Credential, _) => credential,
            (FairBy::Resource, Kind::Http) => self.reader.number(record.hashes.flow),
            _ => read.flow,
        };
        let flow = Flow { id: flow, name: &read.flow_name };
        let arrival = Arrival { key, flow, credential, timeout: record.timeout, ..read.arrival() };
        self.gate.arrive(index, &arrival, self.now);
        self.settle();
    }

    /// Runs all remaining events.
    pub(super) fn end(mut self, length: Duration) -> Replayed {
        self.run(Moment::MAX);
        let (leases, holders) = self.leases.into_row();
        let mut rows: Vec<Row> = self.rows.into_iter().filter(|row| row.arrived > 0).collect();
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        Replayed { limits: self.limits.name.clone(), rows, leases, holders, length }
    }

    /// Runs all events up to `until`, each at its own time.
    fn run(&mut self, until: Moment) {
        loop {
            let event = self.agenda.next();
            let due = self.gate.next_wakeup().filter(|due| event.is_none_or(|event| *due <= event));
            match due {
                // No call is left for which the refill of a bucket would matter.
                Some(_) if until == Moment::MAX && event.is_none() && self.gate.waiting() == 0 => return,
                Some(due) if due <= until => {
                    self.now = self.now.max(due);
                    self.gate.advance(self.now);
                }
                Some(_) => return,
                None => {
                    let Some((at, event)) = self.agenda.take(until) else { return };
                    self.now = self.now.max(at);
                    self.happen(event);
                }
            }
            self.settle();
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Answered(index) => self.answered(index),
            Event::Ended(body) => {
                if let Some(slot) = self.bodies.try_remove(body) {
                    self.gate.release(slot, self.now);
                }
            }
            Event::GivesUp(index, number) => self.gives_up(index, number),
        }
    }

    fn settle(&mut self) {
        while let Some(turn) = self.gate.next_turn() {
            match turn {
                Turn::Left(index, sent) => self.left(index, sent),
                Turn::Refused(index, refusal) => {
                    let Some(call) = self.calls.try_remove(index as usize) else { continue };
                    if let Some(row) = self.rows.get_mut(usize::from(call.read.class.0)) {
                        row.was_refused(self.now, refusal.reason);
                    }
                }
            }
        }
    }

    fn left(&mut self, index: u32, sent: Sent) {
        let Some(call) = self.calls.get_mut(index as usize) else { return };
        call.left = self.now;
        call.sent = Some(sent);
        let class = usize::from(call.read.class.0);
        let usual = self.usual.get(class).copied().unwrap_or(USUAL);
        let last = call.key.and_then(|key| self.failed.get(&key)).copied();
        let guess = last.map_or(Known::Nothing, |(status, retry_after)| Known::Answer {
            status,
            retry_after,
            body: Duration::ZERO,
        });
        let (answer, after) = match call.record.fate {
            Fate::Answered { after, body, status, retry_after } => (Known::Answer { status, retry_after, body }, after),
            Fate::Lost => (Known::Lost, usual),
            // The call would have been answered before its client lost patience.
            Fate::GaveUp { after } if self.now + usual < call.record.at + after && call.record.left_after.is_none() => {
                (guess, usual)
            }
            Fate::GaveUp { after } => (Known::Left, (call.record.at + after).since(self.now)),
            Fate::Refused(_) | Fate::Aside => (guess, usual),
        };
        call.answer = answer;
        let waited = self.now - call.record.at;
        let is_retry = last.is_some();
        if let Some(row) = self.rows.get_mut(class) {
            row.left(self.now, waited, is_retry);
        }
        self.agenda.put(self.now + after, Event::Answered(index));
    }

    /// Handles the answer to a call, or the end of a call without one.
    fn answered(&mut self, index: u32) {
        let Some(mut call) = self.calls.try_remove(index as usize) else { return };
        let Some(Sent { receipt, slot }) = call.sent.take() else { return };
        let gate = &self.limits.gate;
        let (answer, body) = match call.answer {
            Known::Answer { status, retry_after, body } => {
                self.note(&call, status, retry_after);
                (call.read.answer(gate, status, retry_after), body)
            }
            Known::Lost => (call.read.lost(gate), Duration::ZERO),
            Known::Left => (call.read.left(gate, self.now - call.left), Duration::ZERO),
            Known::Nothing => (NOTHING, Duration::ZERO),
        };
        self.gate.finish(receipt, answer, self.now);
        if body.is_zero() {
            self.gate.release(slot, self.now);
        } else {
            let body_ends = Event::Ended(self.bodies.insert(slot));
            self.agenda.put(self.now + body, body_ends);
        }
    }

    fn note(&mut self, call: &Call, status: u16, retry_after: Option<Duration>) {
        self.leases.answered(&call.record, status, self.now);
        let failed = status >= 500 || status == 429;
        if let Some(row) = self.rows.get_mut(usize::from(call.read.class.0)).filter(|_| failed) {
            row.failed(self.now);
        }
        let Some(key) = call.key else { return };
        if !failed {
            self.failed.remove(&key);
        } else if self.failed.len() < MOST_KEYS || self.failed.contains_key(&key) {
            self.failed.insert(key, (status, retry_after));
        }
    }

    fn gives_up(&mut self, index: u32, number: u64) {
        let is_it = self.calls.get(index as usize).is_some_and(|call| call.number == number);
        if is_it
            && self.gate.give_up(index, self.now)
            && let Some(call) = self.calls.try_remove(index as usize)
            && let Some(row) = self.rows.get_mut(usize::from(call.read.class.0))
        {
            row.gave_up += 1;
        }
    }

    /// Returns a recorded call as this gate reads it.
    fn read(&mut self, record: &Record) -> Rc<Read> {
        if let Some(read) = self.reads.get(&record.asked.number) {
            return Rc::clone(read);
        }
        let asked = &record.asked;
        let gate = &self.limits.gate;
        let request = Request {
            verb: asked.verb,
            group: &asked.group,
            resource: &asked.resource,
            namespace: &asked.namespace,
            name: "-",
            subresource: &asked.subresource,
            user_agent: &asked.user_agent,
            follows: asked.long_running && asked.subresource == "log",
            dry_run: asked.dry_run,
        };
        let mut read = self.reader.read(&request, gate);
        read.class = self.class(asked, read.class);
        let is_exempt = self.is_exempt(read.class);
        read.group = match asked.long_running {
            _ if is_exempt => Group::Exempt,
            true => Group::LongRunning,
            false => Group::Short,
        };
        let read = Rc::new(read);
        self.reads.insert(asked.number, Rc::clone(&read));
        read
    }

    /// Returns the class of a recorded call: by the rules, or the class of the same name if the log
    /// lacks what the rules need.
    fn class(&self, asked: &Asked, by_rules: ClassId) -> ClassId {
        let classes = self.limits.gate.policy.classes.iter().zip(0_u16..);
        let mut named = classes.filter(|(class, _)| *class.name == *asked.class).map(|(_, id)| ClassId(id));
        let rules = &self.limits.gate.rules;
        let is_blind = |class: &ClassId| asked.resource.is_empty() || rules.looks_past_the_log(*class);
        named.find(is_blind).unwrap_or(by_rules)
    }

    fn is_exempt(&self, class: ClassId) -> bool {
        let class = self.limits.gate.policy.classes.get(usize::from(class.0));
        class.is_some_and(|class| class.lane == Lane::Exempt)
    }
}

/// The upstream's assumed time, before any is known.
const USUAL: Duration = Duration::from_millis(10);
/// The most keys whose last failure is remembered.
const MOST_KEYS: usize = 1_000_000;
/// An answer from which the limiter learns nothing.
const NOTHING: Answer = Answer::new(crate::api::Outcome::Abandoned, None);
