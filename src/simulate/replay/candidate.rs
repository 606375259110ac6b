//! A gate to which recorded calls come once more.

use std::{collections::HashMap, time::Duration};

use slab::Slab;

use super::{
    Leases, Replayed, STEP,
    log_entry::Ending,
    reader::{Asked, Record},
};
use crate::{
    api::{Group, Key},
    classify::{FairBy, Kind},
    limit::{Arrival, ClassId, Flow, Slot, policy::Lane},
    moment::Moment,
    simulate::{
        Limits,
        event_loop::{EventLoop, Happening, Sent},
        request::{NOTHING, Read, Reader, Request},
        tally::Row,
    },
};

/// A gate under limits, and the calls that are under way through it.
pub(super) struct Candidate<'a> {
    limits: &'a Limits,
    events: EventLoop<Event>,
    reader: Reader,
    calls: Slab<Call>,
    arrivals: u64,
    /// Requests by number, as the gate reads them.
    reads: HashMap<usize, Read>,
    /// The counts of each class.
    rows: Vec<Row>,
    /// The time that the upstream took lately, by class.
    usual: Vec<Duration>,
    /// The last answer of each key that failed.
    failed: HashMap<Key, (u16, Option<Duration>)>,
    leases: Leases,
}

#[derive(Debug)]
enum Event {
    /// The upstream's answer to a call comes.
    Answered(usize),
    /// The body of an answer ends.
    Ended(Slot),
    /// The client leaves. The number identifies the call, as another call may have its place by
    /// then.
    GivesUp(usize, u64),
}

/// A call under way.
struct Call {
    number: u64,
    record: Record,
    read: Read,
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

// === impl Candidate ===

impl<'a> Candidate<'a> {
    pub(super) fn new(limits: &'a Limits) -> Self {
        let classes = &limits.gate.policy.classes;
        Self {
            limits,
            events: EventLoop::new(&limits.gate, 1),
            reader: Reader::new(),
            calls: Slab::new(),
            arrivals: 0,
            reads: HashMap::new(),
            rows: classes.iter().map(|class| Row::new(&class.name, STEP)).collect(),
            usual: vec![USUAL; classes.len()],
            failed: HashMap::new(),
            leases: Leases::default(),
        }
    }

    /// Runs the events up to a call's arrival, then lets the call arrive.
    pub(super) fn arrive(&mut self, record: &Record) {
        self.play(record.at);
        let now = self.events.now.max(record.at);
        self.events.now = now;
        let read = self.read(record);
        let key =
            record.hashes.key.map(|[object, collection, facet]| self.reader.key(Key { object, collection, facet }));
        let key = key.filter(|_| !self.is_exempt(read.class));
        let class = usize::from(read.class.0);
        self.rows[class].arrived(now);
        if let Ending::Answered { after, .. } = record.ending
            && !read.shared.call.is_long_running()
        {
            self.usual[class] = (self.usual[class] * 15 + after) / 16;
        }
        self.arrivals += 1;
        let number = self.arrivals;
        let (record, sent, answer) = (record.clone(), None, Known::Nothing);
        let index = self.calls.insert(Call { number, record, read, key, sent, left: now, answer });
        let Call { record, read, .. } = &self.calls[index];
        if let Ending::GaveUp { after } = record.ending {
            self.events.schedule(now + after, Event::GivesUp(index, number));
        }
        let credential = self.reader.number(record.hashes.credential);
        // The log has neither paths nor credentials, but it has the flow that they gave.
        let flow = match (self.limits.gate.rules.fair_by(), self.limits.gate.kind) {
            (FairBy::Credential, _) => credential,
            (FairBy::Resource, Kind::Http) => self.reader.number(record.hashes.flow),
            _ => read.shared.flow,
        };
        let flow = Flow { id: flow, name: &read.shared.flow_name };
        self.events.arrive(index, &Arrival { key, flow, credential, timeout: record.timeout, ..read.arrival() });
        self.play(now);
    }

    /// Runs all remaining events.
    pub(super) fn end(mut self, length: Duration) -> Replayed {
        self.play(Moment::MAX);
        self.rows.retain(|row| row.arrived > 0);
        Replayed::new(&self.limits.name, self.rows, self.leases, length)
    }

    /// Runs all events up to `until`, each at its own time.
    fn play(&mut self, until: Moment) {
        while let Some(happening) = self.events.next(until) {
            match happening {
                Happening::Left(index, sent) => self.left(index, sent),
                Happening::Refused(index, refusal) => {
                    let class = self.calls.remove(index).class();
                    self.rows[class].was_refused(self.events.now, refusal.reason);
                }
                Happening::Due(Event::Answered(index)) => self.answered(index),
                Happening::Due(Event::Ended(slot)) => self.events.release(slot),
                Happening::Due(Event::GivesUp(index, number)) => self.gives_up(index, number),
            }
        }
    }

    fn left(&mut self, index: usize, sent: Sent) {
        let now = self.events.now;
        let call = &mut self.calls[index];
        (call.left, call.sent) = (now, Some(sent));
        let usual = self.usual[call.class()];
        let last = call.key.and_then(|key| self.failed.get(&key)).copied();
        let guess = last.map_or(Known::Nothing, |(status, retry_after)| Known::Answer {
            status,
            retry_after,
            body: Duration::ZERO,
        });
        let after;
        (call.answer, after) = match call.record.ending {
            Ending::Answered { after, body, status, retry_after } => {
                (Known::Answer { status, retry_after, body }, after)
            }
            Ending::Lost => (Known::Lost, usual),
            // The call would have been answered before its client lost patience.
            Ending::GaveUp { after } if now + usual < call.record.at + after && call.record.left_after.is_none() => {
                (guess, usual)
            }
            Ending::GaveUp { after } => (Known::Left, (call.record.at + after).since(now)),
            Ending::Refused(_) | Ending::Aside => (guess, usual),
        };
        self.rows[call.class()].left(now, now - call.record.at, last.is_some());
        self.events.schedule(now + after, Event::Answered(index));
    }

    /// Handles the answer to a call, or the end of a call without one.
    fn answered(&mut self, index: usize) {
        let now = self.events.now;
        let mut call = self.calls.remove(index);
        let Some(Sent { receipt, slot }) = call.sent.take() else { return };
        let gate = &self.limits.gate;
        let (answer, body) = match call.answer {
            Known::Answer { status, retry_after, body } => {
                self.count(&call, status, retry_after);
                (call.read.answer(gate, status, retry_after, false), body)
            }
            Known::Lost => (call.read.lost(gate), Duration::ZERO),
            Known::Left => (call.read.left(gate, now - call.left), Duration::ZERO),
            Known::Nothing => (NOTHING, Duration::ZERO),
        };
        self.events.finish(receipt, answer);
        if body.is_zero() {
            self.events.release(slot);
        } else {
            self.events.schedule(now + body, Event::Ended(slot));
        }
    }

    /// Counts an answer, and remembers it if it is a failure.
    fn count(&mut self, call: &Call, status: u16, retry_after: Option<Duration>) {
        self.leases.answered(&call.record, status, self.events.now);
        let failed = is_failure(status);
        if failed {
            self.rows[call.class()].failed(self.events.now);
        }
        let Some(key) = call.key else { return };
        if !failed {
            self.failed.remove(&key);
        } else if self.failed.len() < MOST_KEYS || self.failed.contains_key(&key) {
            self.failed.insert(key, (status, retry_after));
        }
    }

    fn gives_up(&mut self, index: usize, number: u64) {
        let is_it = self.calls.get(index).is_some_and(|call| call.number == number);
        if is_it && self.events.give_up(index) {
            let class = self.calls.remove(index).class();
            self.rows[class].gave_up += 1;
        }
    }

    /// Returns a recorded call as this gate reads it.
    fn read(&mut self, record: &Record) -> Read {
        let asked = &record.asked;
        if let Some(read) = self.reads.get(&asked.number) {
            return read.clone();
        }
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
        let mut read = self.reader.read(&request, &self.limits.gate);
        read.class = self.class(asked, read.class);
        read.group = match asked.long_running {
            _ if self.is_exempt(read.class) => Group::Exempt,
            true => Group::LongRunning,
            false => Group::Short,
        };
        self.reads.insert(asked.number, read.clone());
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
        self.limits.gate.policy.classes[usize::from(class.0)].lane == Lane::Exempt
    }
}

impl Call {
    fn class(&self) -> usize {
        usize::from(self.read.class.0)
    }
}

/// True for the answers that are counted as failures.
pub(super) fn is_failure(status: u16) -> bool {
    status >= 500 || status == 429
}

/// The upstream's assumed time, before any is known.
const USUAL: Duration = Duration::from_millis(10);
/// The most keys whose last failure is remembered.
const MOST_KEYS: usize = 1_000_000;
