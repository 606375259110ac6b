//! A hypothetical gate with other limits, for a replay of recorded calls.

use std::collections::HashMap;
use std::time::Duration;

use super::log_entry::CallEnd;
use super::reader::{Record, RecordedRequest};
use super::{Leases, ReplayResult, STEP};
use crate::api::{Group, Key};
use crate::classify::{ApiKind, FairBy};
use crate::config::scenario::StoreModel;
use crate::limit::policy::Lane;
use crate::limit::quota::QuotaHint;
use crate::limit::{Arrival, ClassId, Flow, Slot};
use crate::moment::Moment;
use crate::simulate::Limits;
use crate::simulate::event_loop::{EventLoop, LoopEvent, ONLY, SentCall};
use crate::simulate::request::{NOTHING, ReadRequest, Request, RequestReader};
use crate::simulate::tally::{Peak, Row};

/// A hypothetical gate, and its unfinished calls.
pub(in crate::simulate) struct Candidate<'a> {
    limits: &'a Limits,
    events: EventLoop<Event>,
    reader: RequestReader,
    /// The unfinished calls, by the number of their arrival.
    calls: HashMap<usize, ReplayedCall>,
    arrivals: usize,
    /// The counts of each class.
    rows: Vec<Row>,
    /// The usual response time of the upstream in each class, averaged over recent calls.
    usual: Vec<Duration>,
    /// The last response for each key, if it was a failure: its status and Retry-After.
    failed: HashMap<Key, (u16, Option<Duration>)>,
    leases: Leases,
    /// The sent calls that take a token.
    sent: Peak,
}

#[derive(Debug)]
enum Event {
    /// The upstream responds to this call, or the call is lost.
    Ended(usize),
    /// The body of a response ends, and this slot is free again.
    BodyEnded(Slot),
    /// The client of this call hangs up.
    GivesUp(usize),
}

/// An unfinished call.
struct ReplayedCall {
    record: Record,
    read: ReadRequest,
    key: Option<Key>,
    sent: Option<SentCall>,
    sent_at: Moment,
    /// How the call will end, if it is sent.
    ending: CallEnd,
}

// === impl Candidate ===

impl<'a> Candidate<'a> {
    pub(in crate::simulate) fn new(limits: &'a Limits) -> Self {
        let classes = &limits.gate.policy.classes;
        Self {
            limits,
            events: EventLoop::new(&limits.gate, 1, 1, &StoreModel::default()),
            reader: RequestReader::new(),
            calls: HashMap::new(),
            arrivals: 0,
            rows: classes.iter().map(|class| Row::new(&class.name, STEP)).collect(),
            usual: vec![USUAL; classes.len()],
            failed: HashMap::new(),
            leases: Leases::default(),
            sent: Peak::default(),
        }
    }

    /// Simulates everything before a call, then the call's arrival.
    pub(in crate::simulate) fn arrive(&mut self, record: &Record) {
        self.play(record.at);
        let now = self.events.now.max(record.at);
        self.events.now = now;
        let read = self.read(record);
        let key = record.hashes.key.filter(|_| !self.is_exempt(read.class));
        let class = usize::from(read.class.0);
        self.rows[class].arrived(now);
        if let CallEnd::Answered { after, .. } = record.ending
            && !read.classified.call.is_long_running
        {
            self.usual[class] = (self.usual[class] * 15 + after) / 16;
        }
        self.arrivals += 1;
        let index = self.arrivals;
        if let CallEnd::GaveUp { after } = record.ending {
            self.events.schedule(now + after, Event::GivesUp(index));
        }
        let credential = record.hashes.credential;
        // The log has neither paths nor credentials, but it has the flow that they gave.
        let id = match (self.limits.gate.rules.fair_by, self.limits.gate.kind) {
            (FairBy::Account | FairBy::Action | FairBy::Client | FairBy::Credential, _)
            | (FairBy::Resource, ApiKind::Http) => record.hashes.flow,
            _ => read.classified.flow(),
        };
        let flow = Flow { id, name: &read.flow_name };
        let arrival = read.arrival();
        let holder = if arrival.quota.holder == 0 { 0 } else { credential.max(1) };
        let quota = QuotaHint { holder, ..arrival.quota };
        self.events.arrive(ONLY, index, &Arrival { key, flow, credential, quota, timeout: record.timeout, ..arrival });
        let record = record.clone();
        let ending = CallEnd::NotReplayed;
        self.calls.insert(index, ReplayedCall { record, read, key, sent: None, sent_at: now, ending });
        self.play(now);
    }

    /// Simulates everything still to come. Returns the counts.
    pub(in crate::simulate) fn end(mut self, length: Duration) -> ReplayResult {
        self.play(Moment::MAX);
        self.rows.retain(|row| row.arrived > 0);
        let peak = self.sent.most;
        ReplayResult { peak, ..ReplayResult::new(&self.limits.name, self.rows, self.leases, length) }
    }

    /// Simulates everything up to `until`, each event at its time.
    fn play(&mut self, until: Moment) {
        while let Some(happening) = self.events.next(until) {
            match happening {
                LoopEvent::Sent(index, sent) => self.left(index, sent),
                LoopEvent::Refused(index, refusal) => {
                    let call = self.calls.remove(&index);
                    call.iter().for_each(|call| self.rows[call.class()].refused(self.events.now, refusal.reason));
                }
                LoopEvent::Due(Event::Ended(index)) => self.ended(index),
                LoopEvent::Due(Event::BodyEnded(slot)) => self.events.release(ONLY, slot),
                LoopEvent::Due(Event::GivesUp(index)) => {
                    if self.events.give_up(ONLY, index) {
                        let call = self.calls.remove(&index);
                        call.iter().for_each(|call| self.rows[call.class()].gave_up += 1);
                    }
                }
            }
        }
    }

    fn left(&mut self, index: usize, sent: SentCall) {
        let now = self.events.now;
        let limits = self.limits;
        let Some(call) = self.calls.get_mut(&index) else { return };
        if tokens(limits, &call.read) > 0 {
            self.sent.count(now);
        }
        call.sent_at = now;
        call.sent = Some(sent);
        let usual = self.usual[call.class()];
        let last = call.key.and_then(|key| self.failed.get(&key)).copied();
        let guess = match last {
            Some((status, retry_after)) => {
                CallEnd::Answered { after: usual, body: Duration::ZERO, status, retry_after }
            }
            None => CallEnd::NotReplayed,
        };
        call.ending = match call.record.ending {
            // It would have been answered before its client gave up.
            CallEnd::GaveUp { after } if now + usual < call.record.at + after && call.record.sent_after.is_none() => {
                guess
            }
            CallEnd::GaveUp { after } => CallEnd::GaveUp { after: (call.record.at + after).since(now) },
            CallEnd::Refused(_) | CallEnd::NotReplayed => guess,
            known @ (CallEnd::Answered { .. } | CallEnd::Lost) => known,
        };
        let after = match call.ending {
            CallEnd::Answered { after, .. } | CallEnd::GaveUp { after } => after,
            CallEnd::Lost | CallEnd::Refused(_) | CallEnd::NotReplayed => usual,
        };
        self.rows[call.class()].sent(now, now - call.record.at, last.is_some());
        self.events.schedule(now + after, Event::Ended(index));
    }

    /// Handles the response to a call, or its end without one.
    fn ended(&mut self, index: usize) {
        let now = self.events.now;
        let Some(mut call) = self.calls.remove(&index) else { return };
        let Some(SentCall { receipt, slot }) = call.sent.take() else { return };
        let gate = &self.limits.gate;
        let (answer, body) = match call.ending {
            CallEnd::Answered { body, status, retry_after, .. } => {
                self.count(&call, status, retry_after);
                (call.read.answer(gate, status, retry_after, false), body)
            }
            CallEnd::Lost => (call.read.lost(gate), Duration::ZERO),
            CallEnd::GaveUp { .. } => (call.read.left(gate, now - call.sent_at), Duration::ZERO),
            CallEnd::Refused(_) | CallEnd::NotReplayed => (NOTHING, Duration::ZERO),
        };
        self.events.finish(ONLY, receipt, answer);
        if body.is_zero() {
            self.events.release(ONLY, slot);
        } else {
            self.events.schedule(now + body, Event::BodyEnded(slot));
        }
    }

    /// Counts a response. If it is a failure, records it for later calls of the same key.
    fn count(&mut self, call: &ReplayedCall, status: u16, retry_after: Option<Duration>) {
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

    /// Returns the number of tokens for a recorded call from the gate's bucket; may be zero.
    pub(in crate::simulate) fn tokens(&mut self, record: &Record) -> u16 {
        tokens(self.limits, &self.read(record))
    }

    /// Returns the name of a recorded call's class.
    pub(in crate::simulate) fn class_name(&mut self, record: &Record) -> &'a str {
        let class = self.read(record).class;
        &self.limits.gate.policy.classes[usize::from(class.0)].name
    }

    /// Returns a recorded call as this gate would read it.
    fn read(&mut self, record: &Record) -> ReadRequest {
        let recorded = &record.request;
        let request = Request {
            verb: recorded.verb,
            group: &recorded.group,
            resource: &recorded.resource,
            namespace: &recorded.namespace,
            name: "-",
            subresource: &recorded.subresource,
            user_agent: &recorded.user_agent,
            follows: recorded.long_running && recorded.subresource == "log",
            dry_run: recorded.dry_run,
        };
        let mut read = self.reader.read(&request, &self.limits.gate);
        read.class = self.class(recorded, read.class);
        read.group = match recorded.long_running {
            _ if self.is_exempt(read.class) => Group::Exempt,
            true => Group::LongRunning,
            false => Group::Short,
        };
        read
    }

    /// Returns the class of a recorded call: by the gate's rules or, if these need more than the
    /// log has, the class of the recorded name.
    fn class(&self, recorded: &RecordedRequest, by_rules: ClassId) -> ClassId {
        let classes = self.limits.gate.policy.classes.iter().zip(0_u16..);
        let mut named = classes.filter(|(class, _)| *class.name == *recorded.class).map(|(_, id)| ClassId(id));
        let rules = &self.limits.gate.rules;
        let is_blind = |class: &ClassId| recorded.resource.is_empty() || rules.looks_past_the_log(*class);
        named.find(is_blind).unwrap_or(by_rules)
    }

    fn is_exempt(&self, class: ClassId) -> bool {
        self.limits.gate.policy.classes[usize::from(class.0)].lane == Lane::Exempt
    }
}

// === impl ReplayedCall ===

impl ReplayedCall {
    fn class(&self) -> usize {
        usize::from(self.read.class.0)
    }
}

/// Returns the number of tokens that a call takes from the gate's bucket.
fn tokens(limits: &Limits, read: &ReadRequest) -> u16 {
    let call = read.arrival();
    let policy = &limits.gate.policy;
    let class = &policy.classes[usize::from(read.class.0)];
    let is_long = call.long_running && !call.lists_first && !class.meter_long_running;
    if is_long || class.lane == Lane::Exempt || class.own_bucket_only {
        return 0;
    }
    let largest = policy.bucket.map_or(1, |bucket| bucket.largest_cost.get());
    class.cost.of(call.cost).min(largest)
}

/// Returns true if a response with this status counts as a failure.
pub(super) fn is_failure(status: u16) -> bool {
    status >= 500 || status == 429
}

/// The response time to assume for the upstream until the first real one.
const USUAL: Duration = Duration::from_millis(10);
/// The most keys with a recorded failure.
const MOST_KEYS: usize = 1_000_000;
