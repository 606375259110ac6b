//! A gate to which recorded calls come once more.

use std::collections::HashMap;
use std::time::Duration;

use super::log_entry::Ending;
use super::reader::{Asked, Record};
use super::{Leases, Replayed, STEP};
use crate::api::{Group, Key};
use crate::classify::{ApiKind, FairBy};
use crate::limit::policy::Lane;
use crate::limit::{Arrival, ClassId, Flow, Slot};
use crate::moment::Moment;
use crate::simulate::Limits;
use crate::simulate::event_loop::{EventLoop, Happening, ONLY, Sent};
use crate::simulate::request::{NOTHING, Read, Reader, Request};
use crate::simulate::tally::Row;

/// A gate under limits, and the calls that are under way through it.
pub(super) struct Candidate<'a> {
    limits: &'a Limits,
    events: EventLoop<Event>,
    reader: Reader,
    /// The calls under way, by the number of their arrival.
    calls: HashMap<usize, Call>,
    arrivals: usize,
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
    /// The upstream's answer to a call comes, or the call is lost.
    Ended(usize),
    /// The body of an answer ends.
    BodyEnded(Slot),
    /// The client leaves.
    GivesUp(usize),
}

/// A call under way.
struct Call {
    record: Record,
    read: Read,
    key: Option<Key>,
    sent: Option<Sent>,
    left: Moment,
    /// The way it ends, once it has left.
    ending: Ending,
}

// === impl Candidate ===

impl<'a> Candidate<'a> {
    pub(super) fn new(limits: &'a Limits) -> Self {
        let classes = &limits.gate.policy.classes;
        Self {
            limits,
            events: EventLoop::new(&limits.gate, 1),
            reader: Reader::default(),
            calls: HashMap::new(),
            arrivals: 0,
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
        let key = record.hashes.key.map(|key| self.reader.key(key)).filter(|_| !self.is_exempt(read.class));
        let class = usize::from(read.class.0);
        self.rows[class].arrived(now);
        if let Ending::Answered { after, .. } = record.ending
            && !read.shared.call.is_long_running
        {
            self.usual[class] = (self.usual[class] * 15 + after) / 16;
        }
        self.arrivals += 1;
        let index = self.arrivals;
        if let Ending::GaveUp { after } = record.ending {
            self.events.schedule(now + after, Event::GivesUp(index));
        }
        let credential = self.reader.number(record.hashes.credential);
        // The log has neither paths nor credentials, but it has the flow that they gave.
        let flow = match (self.limits.gate.rules.fair_by, self.limits.gate.kind) {
            (FairBy::Account | FairBy::Action | FairBy::Client | FairBy::Credential, _) => {
                self.reader.number(record.hashes.flow)
            }
            (FairBy::Resource, ApiKind::Http) => self.reader.number(record.hashes.flow),
            _ => read.shared.flow,
        };
        let flow = Flow { id: flow, name: &read.shared.flow_name };
        self.events.arrive(ONLY, index, &Arrival { key, flow, credential, timeout: record.timeout, ..read.arrival() });
        let record = record.clone();
        let sent = None;
        let ending = Ending::Aside;
        self.calls.insert(index, Call { record, read, key, sent, left: now, ending });
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
                    let call = self.calls.remove(&index);
                    call.iter().for_each(|call| self.rows[call.class()].was_refused(self.events.now, refusal.reason));
                }
                Happening::Due(Event::Ended(index)) => self.ended(index),
                Happening::Due(Event::BodyEnded(slot)) => self.events.release(ONLY, slot),
                Happening::Due(Event::GivesUp(index)) => {
                    if self.events.give_up(ONLY, index) {
                        let call = self.calls.remove(&index);
                        call.iter().for_each(|call| self.rows[call.class()].gave_up += 1);
                    }
                }
            }
        }
    }

    fn left(&mut self, index: usize, sent: Sent) {
        let now = self.events.now;
        let Some(call) = self.calls.get_mut(&index) else { return };
        (call.left, call.sent) = (now, Some(sent));
        let usual = self.usual[call.class()];
        let last = call.key.and_then(|key| self.failed.get(&key)).copied();
        let guess = match last {
            Some((status, retry_after)) => Ending::Answered { after: usual, body: Duration::ZERO, status, retry_after },
            None => Ending::Aside,
        };
        call.ending = match call.record.ending {
            // The call would have been answered before its client lost patience.
            Ending::GaveUp { after } if now + usual < call.record.at + after && call.record.left_after.is_none() => {
                guess
            }
            Ending::GaveUp { after } => Ending::GaveUp { after: (call.record.at + after).since(now) },
            Ending::Refused(_) | Ending::Aside => guess,
            known @ (Ending::Answered { .. } | Ending::Lost) => known,
        };
        let after = match call.ending {
            Ending::Answered { after, .. } | Ending::GaveUp { after } => after,
            Ending::Lost | Ending::Refused(_) | Ending::Aside => usual,
        };
        self.rows[call.class()].left(now, now - call.record.at, last.is_some());
        self.events.schedule(now + after, Event::Ended(index));
    }

    /// Handles the answer to a call, or the end of a call without one.
    fn ended(&mut self, index: usize) {
        let now = self.events.now;
        let Some(mut call) = self.calls.remove(&index) else { return };
        let Some(Sent { receipt, slot }) = call.sent.take() else { return };
        let gate = &self.limits.gate;
        let (answer, body) = match call.ending {
            Ending::Answered { body, status, retry_after, .. } => {
                self.count(&call, status, retry_after);
                (call.read.answer(gate, status, retry_after, false), body)
            }
            Ending::Lost => (call.read.lost(gate), Duration::ZERO),
            Ending::GaveUp { .. } => (call.read.left(gate, now - call.left), Duration::ZERO),
            Ending::Refused(_) | Ending::Aside => (NOTHING, Duration::ZERO),
        };
        self.events.finish(ONLY, receipt, answer);
        if body.is_zero() {
            self.events.release(ONLY, slot);
        } else {
            self.events.schedule(now + body, Event::BodyEnded(slot));
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

    /// Returns a recorded call as this gate reads it.
    fn read(&mut self, record: &Record) -> Read {
        let asked = &record.asked;
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
