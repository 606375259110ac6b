//! Reads the calls of logs, and sorts them by arrival, in bounded memory.
//!
//! A line is written when its call ends, so long calls are out of order. A fixed number of calls is
//! buffered to sort them. If a line comes even later, its call is replayed late, and counted.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher as _;
use std::io::{BufRead, BufReader, Read};
use std::rc::Rc;
use std::time::Duration;

use super::log_entry::{CallEnd, Contents, Hashes, LogEntry, ObjectFacts, shortened};
use super::pieces::{Piece, Pieces};
use super::{RecordedLog, ReplayError};
use crate::agenda::Agenda;
use crate::api::Verb;
use crate::limit::Reason;
use crate::moment::Moment;
use crate::status::text::cut;

/// The selection of calls to read from a log.
#[derive(Clone, Debug, Default)]
pub struct LogSelection {
    /// The gate of the calls; empty for the gate of the first call. Calls in an audit log have no
    /// gate.
    pub gate: String,
    /// The user or program behind the calls; `None` for all.
    pub caller: Option<String>,
}

/// A recorded call.
#[derive(Clone, Debug)]
pub(in crate::simulate) struct Record {
    /// When the call reached the limiter, counted from the first call.
    pub(in crate::simulate) at: Moment,
    pub(in crate::simulate) request: Rc<RecordedRequest>,
    pub(in crate::simulate) object: ObjectFacts,
    /// The length of its line.
    pub(in crate::simulate) bytes: usize,
    pub(in crate::simulate) hashes: Hashes,
    pub(super) timeout: Option<Duration>,
    /// The call's waiting time; `None` if it was not sent.
    pub(super) waited: Option<Duration>,
    /// The main reason for its wait.
    pub(in crate::simulate) waited_for: Option<Reason>,
    /// The time from `at` until the call was sent; `None` if it was not.
    pub(super) sent_after: Option<Duration>,
    pub(in crate::simulate) ending: CallEnd,
}

/// A recorded request. Equal requests are stored once.
#[derive(Debug, Hash)]
pub(in crate::simulate) struct RecordedRequest {
    pub(super) class: String,
    pub(in crate::simulate) verb: Verb,
    pub(in crate::simulate) group: String,
    pub(in crate::simulate) resource: String,
    pub(in crate::simulate) subresource: String,
    pub(in crate::simulate) namespace: String,
    pub(in crate::simulate) user_agent: String,
    /// The user, if it is known.
    pub(in crate::simulate) client: String,
    pub(super) long_running: bool,
    pub(in crate::simulate) dry_run: bool,
}

/// The counts of the lines read, and of those not used.
#[derive(Clone, Debug, Default)]
pub struct ReadCounts {
    /// The number of lines: JSON values, and lines without any.
    pub lines: u64,
    /// The time from the first call of the gate to the last one, by any caller.
    pub length: Duration,
    /// The number of calls of each other gate, by name.
    pub other_gates: BTreeMap<String, u64>,
    /// The number of calls by other callers.
    pub other_callers: u64,
    /// The number of unsuitable calls: without the limiter, or with a response not from the
    /// upstream.
    pub aside: u64,
    /// The number of calls replayed later than they arrived, because their lines were too far out
    /// of order.
    pub late: u64,
    /// Events of an audit log at another stage of a call than its answer.
    pub other_stages: u64,
    /// Lines of other logs, which share a file with one that is read.
    pub other_logs: u64,
    /// Unreadable lines, and files cut short.
    pub unreadable: u64,
    /// The position and error of the first unreadable lines.
    pub examples: Vec<String>,
}

/// Reads recorded calls, and passes them on in the order of arrival.
#[derive(Default)]
pub(in crate::simulate) struct LogReader {
    pub(in crate::simulate) selection: LogSelection,
    requests: HashMap<u64, Rc<RecordedRequest>>,
    /// When each process in the log started, in milliseconds of the wall clock.
    starts: Vec<u64>,
    /// The buffer for sorting calls of all processes by their time.
    held: Agenda<Record>,
    /// The first arrival so far, by any caller.
    first: Option<Moment>,
    latest: Moment,
    /// The first arrival of a selected call, once it is known.
    origin: Option<Moment>,
    last: Moment,
    pub(in crate::simulate) counts: ReadCounts,
}

// === impl LogReader ===

impl LogReader {
    /// Creates a reader for the selected calls.
    pub(in crate::simulate) fn new(selection: &LogSelection) -> Self {
        Self { selection: selection.clone(), ..Self::default() }
    }

    /// Reads all files, and calls `each` with the calls in the order of arrival.
    pub(in crate::simulate) fn files(
        &mut self,
        recorded: Vec<RecordedLog<'_>>,
        each: &mut dyn FnMut(&Record),
    ) -> Result<(), ReplayError> {
        for RecordedLog { name, mut input } in recorded {
            self.file(&name, &mut *input, each);
        }
        self.pass_on(0, each);
        if self.origin.is_none() { Err(ReplayError::nothing(&self.selection, &self.counts)) } else { Ok(()) }
    }

    /// Returns the first arrival, counted from the Unix epoch; `None` before any call is passed on.
    pub(in crate::simulate) fn origin(&self) -> Option<Moment> {
        self.origin
    }

    /// Reads a file; `each` gets the records in order of arrival.
    fn file(&mut self, name: &str, input: &mut dyn BufRead, each: &mut dyn FnMut(&Record)) {
        let mut pieces = Pieces::new(input);
        while let Some(Piece { line, text }) = pieces.next() {
            self.counts.lines += 1;
            match text.and_then(|text| Ok((LogEntry::read(text)?, text.len()))) {
                Ok((Contents::Call(entry), bytes)) => self.take(*entry, bytes),
                Ok((Contents::OtherStage, _)) => self.counts.other_stages += 1,
                Ok((Contents::OtherLog, _)) => self.counts.other_logs += 1,
                Err(error) => self.unreadable(format!("{name}:{line}: {}", cut(&error, LONGEST_ERROR, '~'))),
            }
            self.pass_on(HELD, each);
        }
    }

    fn unreadable(&mut self, example: String) {
        self.counts.unreadable += 1;
        if self.counts.examples.len() < EXAMPLES {
            self.counts.examples.push(example);
        }
    }

    fn take(&mut self, mut entry: LogEntry, bytes: usize) {
        if self.selection.gate.is_empty() {
            self.selection.gate.clone_from(&entry.gate);
        }
        if entry.gate != self.selection.gate && !entry.gate.is_empty() {
            let others = &mut self.counts.other_gates;
            let has_room = others.len() < MOST_GATES;
            *others.entry(if has_room { shortened(entry.gate) } else { OTHERS.to_owned() }).or_insert(0) += 1;
            return;
        }
        let at = self.arrival(&entry);
        let first = self.first.get_or_insert(at);
        *first = at.min(*first);
        self.latest = self.latest.max(at);
        self.counts.length = self.latest.since(*first);
        if self.selection.caller.as_ref().is_some_and(|caller| !entry.is_of(caller)) {
            self.counts.other_callers += 1;
            return;
        }
        let ending = entry.ending();
        if ending == CallEnd::NotReplayed {
            self.counts.aside += 1;
            return;
        }
        let record = Record {
            at: Moment::ZERO,
            object: std::mem::take(&mut entry.object),
            bytes,
            hashes: entry.hashes(),
            timeout: entry.timeout_ns.map(Duration::from_nanos),
            waited: entry.sent_ns.map(|_| Duration::from_nanos(entry.waited_ns.unwrap_or(0))),
            waited_for: entry.waited_for(),
            sent_after: entry.sent_ns.map(|sent| Duration::from_nanos(sent.saturating_sub(entry.decided_ns()))),
            ending,
            request: self.request(entry),
        };
        self.held.add(at, record);
    }

    /// Passes on the earliest calls in the buffer, until only `held` are left.
    fn pass_on(&mut self, held: usize, each: &mut dyn FnMut(&Record)) {
        while self.held.len() > held
            && let Some((at, mut record)) = self.held.take(Moment::MAX)
        {
            let origin = *self.origin.get_or_insert(at);
            self.counts.late += u64::from(at < self.last);
            self.last = self.last.max(at);
            record.at = Moment::ZERO + (self.last - origin);
            each(&record);
        }
    }

    /// Returns the arrival of a call on a common timeline for all processes.
    ///
    /// Each process counts from its own start, whose wall-clock time follows from the entry.
    fn arrival(&mut self, entry: &LogEntry) -> Moment {
        let start = entry.wall_ms.saturating_sub(entry.arrived_ns / NANOS_PER_MILLI);
        let known = self.starts.iter().copied().find(|known| known.abs_diff(start) < SAME_START);
        let start = known.unwrap_or_else(|| {
            self.starts.truncate(MOST_STARTS);
            self.starts.insert(0, start);
            start
        });
        Moment::from_nanos(start.saturating_mul(NANOS_PER_MILLI).saturating_add(entry.decided_ns()))
    }

    /// Returns the request of an entry, shared with equal ones.
    fn request(&mut self, entry: LogEntry) -> Rc<RecordedRequest> {
        let name = |name: Option<String>| shortened(name.unwrap_or_default());
        let request = RecordedRequest {
            verb: entry.verb(),
            class: shortened(entry.class),
            group: name(entry.group),
            resource: name(entry.resource),
            subresource: name(entry.subresource),
            namespace: name(entry.namespace),
            user_agent: name(entry.user_agent),
            client: name(entry.client),
            long_running: entry.long_running.unwrap_or_default(),
            dry_run: entry.dry_run.unwrap_or_default(),
        };
        let hash = self.requests.hasher().hash_one(&request);
        if self.requests.len() >= MOST_REQUESTS {
            self.requests.clear();
        }
        Rc::clone(self.requests.entry(hash).or_insert_with(|| Rc::new(request)))
    }
}

/// Returns the time of the first call in a file since the Unix epoch, if it begins with one.
pub fn first_call(input: impl Read) -> Option<Duration> {
    let mut input = BufReader::new(input.take(FIRST_BYTES));
    let mut pieces = Pieces::new(&mut input);
    while let Some(Piece { text, .. }) = pieces.next() {
        if let Ok(Contents::Call(entry)) = text.and_then(LogEntry::read) {
            return Some(Duration::from_millis(entry.wall_ms));
        }
    }
    None
}

/// A file's first call is within its first bytes.
const FIRST_BYTES: u64 = 1 << 20;
/// The most calls to buffer for sorting: a minute of a busy gate, some 32 MiB.
const HELD: usize = 1 << 16;
/// The most processes to know at once, and the most gates with counts of their own.
const MOST_STARTS: usize = 1000;
const MOST_GATES: usize = 100;
/// The name under which all gates past the most that are told apart are counted.
const OTHERS: &str = "others";
/// The most different requests to know at once.
const MOST_REQUESTS: usize = 1 << 14;
/// The most unreadable lines to name.
const EXAMPLES: usize = 3;
/// The longest error to show, in characters: it may quote a line.
const LONGEST_ERROR: usize = 200;
/// The largest difference between start times computed for the same process, in milliseconds. The
/// wall clock may have been adjusted.
const SAME_START: u64 = 5000;
const NANOS_PER_MILLI: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn line(arrived_ms: u64, wall_ms: u64, gate: &str) -> String {
        let arrived = arrived_ms * NANOS_PER_MILLI;
        format!(
            "{{\"arrived_ns\":{arrived},\"wall_ms\":{wall_ms},\"gate\":\"{gate}\",\"class\":\"default\",\"verb\":\"get\",\
             \"sent_ns\":{arrived},\"upstream_ns\":1,\"status\":200}}\n"
        )
    }

    fn read(texts: &[&str]) -> (Vec<u64>, ReadCounts) {
        let mut reader = LogReader::new(&LogSelection { gate: "g".to_owned(), caller: None });
        let mut arrivals = Vec::new();
        let mut each = |record: &Record| arrivals.push(record.at.as_nanos() / NANOS_PER_MILLI);
        for text in texts {
            reader.file("calls.jsonl", &mut text.as_bytes(), &mut each);
        }
        reader.pass_on(0, &mut each);
        (arrivals, reader.counts)
    }

    #[test]
    fn lines_are_put_in_order_and_those_that_cannot_be_read_are_named() {
        let text = format!(
            "{}{}{{\"arrived_ns\":\n\n\0\u{fffd}\n{}{}",
            line(700, 100_700, "g"),
            line(500, 100_500, "g"),
            line(600, 100_600, "another"),
            line(900, 100_900, "g").trim_end().trim_end_matches("200}"),
        );
        let (arrivals, counts) = read(&[&text]);
        assert_eq!(arrivals, [0, 200]);
        assert_eq!((counts.lines, counts.unreadable, counts.late), (5, 2, 0));
        assert_eq!(counts.other_gates.get("another"), Some(&1));
        assert_eq!(counts.examples, ["calls.jsonl:3: cut off before its end", "calls.jsonl:7: (the file ends here)"]);
    }

    #[test]
    fn rotated_files_and_restarts_are_one_line_of_time_whatever_their_order() {
        // The second process started 60 s after the first, and counts from there.
        let newer = format!("{}{}", line(1000, 161_000, "g"), line(3000, 163_002, "g"));
        let older = format!("{}{}", line(50_000, 150_000, "g"), line(55_000, 155_001, "g"));
        let (arrivals, counts) = read(&[&newer, &older]);
        assert_eq!((&arrivals[..], counts.length), (&[0, 5000, 11_000, 13_000][..], Duration::from_secs(13)));
    }

    #[test]
    fn memory_is_bounded_whatever_processes_gates_and_names_there_are() {
        let long = "\u{fc}".repeat(1000);
        let names = format!(r#""verb":"get","client":"{long}","user_agent":"{long}","namespace":"{long}""#);
        let more = 2 * MOST_STARTS as u64;
        let text: String = (0..more).map(|n| line(0, n * 10_000, "g") + &line(0, 0, &format!("{n}{long}"))).collect();
        let mut reader = LogReader::new(&LogSelection { gate: "g".to_owned(), caller: None });
        let mut lengths = Vec::new();
        let mut each = |record: &Record| {
            let RecordedRequest { client, user_agent, namespace, .. } = &*record.request;
            lengths.extend([client, user_agent, namespace].map(|name| name.len()));
        };
        reader.file("calls.jsonl", &mut text.replace(r#""verb":"get""#, &names).as_bytes(), &mut each);
        reader.pass_on(0, &mut each);
        assert!(reader.starts.len() <= MOST_STARTS + 1 && reader.counts.other_gates.len() <= MOST_GATES + 1);
        assert_eq!(reader.counts.other_gates.values().sum::<u64>(), more, "all are counted");
        assert_eq!(
            (lengths.len(), lengths.iter().max()),
            (6 * MOST_STARTS, Some(&(63 * 2 + 1 + 16))),
            "some characters and a hash"
        );
    }

    #[test]
    fn what_is_too_far_out_of_order_is_late_and_nothing_is_lost() {
        let count = HELD as u64 + 10;
        let mut text: String = (0..count).map(|n| line(1000 + n, 101_000 + n, "g")).collect();
        text += &line(0, 100_000, "g");
        let (arrivals, counts) = read(&[&text]);
        assert_eq!((arrivals.len() as u64, counts.late), (count + 1, 1));
        assert!(arrivals.is_sorted());
    }
}
