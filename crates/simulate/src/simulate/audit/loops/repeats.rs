//! Calls of one kind by one caller, and how many of them were in vain.

use std::rc::Rc;
use std::time::Duration;

use super::{FoundLoop, LoopKind};
use crate::moment::Moment;
use crate::simulate::audit::callers::Callers;
use crate::simulate::replay::{Record, RecordedRequest};

/// Calls of one kind by one caller.
#[derive(Debug)]
pub(super) struct Repeats {
    pub(super) caller: usize,
    pub(super) request: Rc<RecordedRequest>,
    name: Rc<str>,
    pub(super) calls: u64,
    /// The number of calls known from the log to be in vain or not.
    judged: u64,
    in_vain: u64,
    first: Moment,
    pub(super) last: Moment,
    /// The number of the minute of the last call, the calls in it, and the most in any.
    minute: u64,
    in_minute: u64,
    most_in_a_minute: u64,
}

// === impl Repeats ===

impl Repeats {
    pub(super) fn new(record: &Record, caller: usize) -> Self {
        let name = match record.hashes.key {
            // A gate's log has hashes in place of names.
            Some(key) if record.object.name.is_empty() => format!("{:016x}", key.object).into(),
            _ => Rc::clone(&record.object.name),
        };
        Self {
            caller,
            request: Rc::clone(&record.request),
            name,
            calls: 0,
            judged: 0,
            in_vain: 0,
            first: record.at,
            last: record.at,
            minute: 0,
            in_minute: 0,
            most_in_a_minute: 0,
        }
    }

    /// Counts a call. `in_vain` is absent if the log does not say.
    pub(super) fn count(&mut self, at: Moment, in_vain: Option<bool>) {
        self.calls += 1;
        self.judged += u64::from(in_vain.is_some());
        self.in_vain += u64::from(in_vain == Some(true));
        self.last = at;
        let minute = at.since_start().as_secs() / 60;
        self.in_minute = if minute == self.minute { self.in_minute + 1 } else { 1 };
        self.minute = minute;
        self.most_in_a_minute = self.most_in_a_minute.max(self.in_minute);
    }

    /// Returns true for calls to remember.
    pub(super) fn is_repeated(&self) -> bool {
        self.calls >= REPEATED
    }

    /// Returns true for calls frequent enough to be a loop.
    pub(super) fn is_often(&self) -> bool {
        self.calls >= LEAST && self.an_hour() >= AN_HOUR
    }

    /// Returns true if at least half of the calls were in vain, as far as it is known.
    pub(super) fn is_mostly_in_vain(&self) -> bool {
        self.in_vain > 0 && self.in_vain * 2 >= self.judged
    }

    /// Returns true if in some minute a call came nearly each second.
    pub(super) fn is_fast(&self) -> bool {
        self.most_in_a_minute >= IN_A_MINUTE
    }

    /// Returns the calls in an hour at this pace.
    pub(super) fn an_hour(&self) -> u64 {
        self.calls * HOUR / self.last.since(self.first).max(SHORT).as_secs()
    }

    pub(super) fn found(&self, kind: LoopKind, callers: &Callers) -> FoundLoop {
        let request = &self.request;
        let parts = [&*request.group, &request.resource, &request.subresource];
        let object = [&*request.namespace, &self.name].into_iter().filter(|part| !part.is_empty());
        FoundLoop {
            kind,
            callers: vec![callers.name(self.caller).to_owned()],
            verb: request.verb,
            resource: parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/"),
            object: object.collect::<Vec<_>>().join("/"),
            objects: 1,
            calls: self.calls,
            within: self.last.since(self.first),
            in_vain: self.in_vain,
            judged: self.judged,
            status: None,
        }
    }

    /// Returns the calls as those of no object in particular.
    pub(super) fn of_all(self) -> Self {
        Self { name: Rc::default(), ..self }
    }

    /// Returns the calls of both together.
    pub(super) fn with(self, other: &Self) -> Self {
        Self {
            calls: self.calls + other.calls,
            judged: self.judged + other.judged,
            in_vain: self.in_vain + other.in_vain,
            first: self.first.min(other.first),
            last: self.last.max(other.last),
            ..self
        }
    }
}

/// Fewer calls are no loop.
pub(super) const LEAST: u64 = 10;
/// Fewer calls are forgotten if there are too many objects.
const REPEATED: u64 = 3;
/// Fewer calls in an hour are no loop.
const AN_HOUR: u64 = 30;
/// So many calls in a minute are a fast loop.
const IN_A_MINUTE: u64 = 45;
/// The pace of calls within a shorter time is counted over this time.
const SHORT: Duration = Duration::from_secs(600);
const HOUR: u64 = 3600;
