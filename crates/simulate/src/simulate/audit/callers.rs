//! The calls of each caller: a user with one program.

use std::collections::HashMap;
use std::time::Duration;

use super::over_time::PeakSeries;
use crate::api::Verb;
use crate::moment::Moment;
use crate::simulate::recommend::{Backlogs, CurvePoint, Traffic, knee, usual_rates};
use crate::simulate::replay::{CallEnd, Record, RecordedRequest};

/// The counts of one caller.
#[derive(Debug, Default)]
pub struct CallerTotals {
    /// The user and the program.
    pub name: String,
    /// All calls.
    pub calls: u64,
    /// Calls other than get, list and watch.
    pub writes: u64,
    /// Calls answered with a 4xx other than 429.
    pub rejected: u64,
    /// Calls answered with 429.
    pub throttled: u64,
    /// Calls answered with a 5xx.
    pub failed: u64,
    /// The length of this caller's lines in the log, in bytes.
    pub bytes: u64,
    /// The most calls in one second, without leases and watches.
    pub peak: usize,
    /// These calls over the time of the log.
    pub over_time: PeakSeries,
    /// The bucket at the knee of the curve ([`recommend`](crate::simulate::recommend)); `None` if the
    /// log is too short for any.
    pub bucket: Option<CurvePoint>,
    traffic: Traffic,
    backlogs: Backlogs,
}

/// The second with the most calls.
#[derive(Clone, Debug, Default)]
pub struct WorstSecond {
    /// The time from the first call of the log.
    pub at: Duration,
    /// All calls.
    pub calls: u64,
    /// The lists and new watches among them.
    pub lists: u64,
    /// The callers with the most calls, and how many.
    pub callers: Vec<(String, u64)>,
}

/// The names of the callers, and a number for each.
#[derive(Debug, Default)]
pub(super) struct CallerNames {
    names: Vec<String>,
    by_name: HashMap<String, usize>,
}

/// All callers so far.
#[derive(Debug, Default)]
pub(super) struct Callers {
    names: CallerNames,
    totals: Vec<CallerTotals>,
    second: Second,
    worst: Second,
    over_time: PeakSeries,
}

/// The calls of one second.
#[derive(Clone, Debug, Default)]
struct Second {
    number: u64,
    calls: u64,
    lists: u64,
    by_caller: HashMap<usize, u64>,
}

// === impl Callers ===

impl Callers {
    /// Counts a call that takes so many tokens, and returns the number of its caller.
    pub(super) fn count(&mut self, record: &Record, tokens: u16) -> usize {
        let caller = self.names.number(&record.request);
        if caller == self.totals.len() {
            let name = self.names.names[caller].clone();
            let backlogs = Backlogs::new(usual_rates(), 0, 1);
            self.totals.push(CallerTotals { name, backlogs, ..CallerTotals::default() });
        }
        let totals = &mut self.totals[caller];
        let verb = record.request.verb;
        totals.calls += 1;
        totals.writes += u64::from(!verb.is_read());
        totals.bytes += record.bytes as u64;
        match record.ending {
            CallEnd::Answered { status: 429, .. } => totals.throttled += 1,
            CallEnd::Answered { status: 400..500, .. } => totals.rejected += 1,
            CallEnd::Answered { status: 500.., .. } => totals.failed += 1,
            _ => {}
        }
        if tokens > 0 {
            let in_last_second = totals.traffic.count(record.at, tokens);
            totals.over_time.count(record.at.since_start().as_secs(), in_last_second as u64);
            totals.backlogs.arrive(record.at, tokens);
        }
        self.in_its_second(record.at, caller, verb.is_read() && verb != Verb::Get);
        caller
    }

    /// Returns the name of a caller.
    pub(super) fn name(&self, caller: usize) -> &str {
        &self.totals[caller].name
    }

    pub(super) fn over_time(&self) -> &PeakSeries {
        &self.over_time
    }

    pub(super) fn worst(&self) -> WorstSecond {
        let worst = if self.second.calls > self.worst.calls { &self.second } else { &self.worst };
        let mut callers: Vec<_> =
            worst.by_caller.iter().map(|(caller, calls)| (self.name(*caller).to_owned(), *calls)).collect();
        callers.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        callers.truncate(CALLERS_OF_A_SECOND);
        WorstSecond { at: Duration::from_secs(worst.number), calls: worst.calls, lists: worst.lists, callers }
    }

    /// Returns the callers of a log of this length, the loudest first.
    pub(super) fn loudest(mut self, length: Duration) -> Vec<CallerTotals> {
        for totals in &mut self.totals {
            // Tokens in 100 seconds.
            let mean = totals.traffic.tokens * 100 / length.as_secs().max(1);
            totals.peak = totals.traffic.peak.most;
            totals.over_time.align(&self.over_time);
            totals.bucket = knee(&totals.backlogs.curve_above(mean, WAIT)).filter(|_| totals.peak > 0);
        }
        self.totals.sort_by(|one, other| other.calls.cmp(&one.calls).then_with(|| one.name.cmp(&other.name)));
        self.totals
    }

    fn in_its_second(&mut self, at: Moment, caller: usize, lists: bool) {
        let number = at.since_start().as_secs();
        if number / 60 != self.second.number / 60 {
            self.totals.iter_mut().for_each(|totals| totals.traffic.forget(at));
        }
        if number != self.second.number {
            let ended = std::mem::replace(&mut self.second, Second { number, ..Second::default() });
            if ended.calls > self.worst.calls {
                self.worst = ended;
            }
        }
        self.second.calls += 1;
        self.over_time.count(number, self.second.calls);
        self.second.lists += u64::from(lists);
        *self.second.by_caller.entry(caller).or_insert(0) += 1;
    }
}

// === impl CallerNames ===

impl CallerNames {
    /// Returns the name of a request's caller.
    pub(super) fn name_of(&mut self, request: &RecordedRequest) -> &str {
        let caller = self.number(request);
        &self.names[caller]
    }

    fn number(&mut self, request: &RecordedRequest) -> usize {
        let name = match (&*request.client, &*request.user_agent) {
            ("", "") => "unknown".to_owned(),
            ("", one) | (one, "") => one.to_owned(),
            (user, program) => format!("{user} ({program})"),
        };
        let is_known = self.by_name.contains_key(&name) || self.names.len() < MOST_CALLERS;
        let name = if is_known { name } else { OTHERS.to_owned() };
        let next = self.names.len();
        let caller = *self.by_name.entry(name.clone()).or_insert(next);
        if caller == next {
            self.names.push(name);
        }
        caller
    }
}

/// The longest wait of a call under the bucket named for a caller. A shorter one could not lower the
/// most calls in one second by half.
const WAIT: Duration = Duration::from_secs(2);
const CALLERS_OF_A_SECOND: usize = 3;
/// The most callers with counts of their own.
const MOST_CALLERS: usize = 10_000;
/// The name of all further callers together.
const OTHERS: &str = "others";
