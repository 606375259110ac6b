//! The log of calls: one JSON line each, without secrets, for `simulate --replay` and for whoever audits the limits.
//!
//! A call hands its record to a writer task and goes on; when the disk cannot keep up, lines are dropped and counted rather than calls
//! held up. No header, no query, no body and no object name is in it: keys are salted hashes, good for "the same object again" only.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, Write},
    path::Path,
    sync::Arc,
    time::Duration,
};

use serde::Serialize;
use tokio::sync::mpsc;

use super::table;
use crate::{clock::Clock, limit::Reason, moment::Moment};

/// Where records go. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CallLog {
    lines: mpsc::Sender<CallRecord>,
}

/// What is known of a call once it was answered.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// When it came.
    pub arrived: Moment,
    /// The gate's name.
    pub gate: Arc<str>,
    /// Its class.
    pub class: Box<str>,
    /// The class's lane.
    pub lane: &'static str,
    /// Identity of its flow (salted).
    pub flow: u64,
    /// Its verb.
    pub verb: &'static str,
    /// API group and resource, or empty.
    pub resource: (Box<str>, Box<str>),
    /// Identity of its key (salted).
    pub key: Option<u64>,
    /// How long it waited and for what above all.
    pub waited: Option<(Reason, Duration)>,
    /// The moment its permit was claimed: this is what P1 counts.
    pub sent: Option<Moment>,
    /// From then to the response head.
    pub upstream: Option<Duration>,
    /// What the client got; `None` when it was not there any more.
    pub status: Option<u16>,
    /// Why it was refused.
    pub refused: Option<Reason>,
}

/// A record as written.
#[derive(Serialize)]
struct Line<'a> {
    /// Nanoseconds since the process started.
    arrived_ns: u64,
    /// Milliseconds since 1970.
    wall_ms: u64,
    gate: &'a str,
    class: &'a str,
    lane: &'a str,
    flow: String,
    verb: &'a str,
    group: &'a str,
    resource: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_for: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<&'static str>,
}

// === impl CallLog ===

impl CallLog {
    /// Appends to `path`; a thread of its own writes, because files have no other way.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: &Path, clock: Clock) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let (lines, records) = mpsc::channel(PENDING);
        std::thread::Builder::new().name("call-log".to_owned()).spawn(move || write(records, file, clock))?;
        Ok(Self { lines })
    }

    /// Hands records to a test.
    #[cfg(test)]
    pub(crate) fn to(lines: mpsc::Sender<CallRecord>) -> Self {
        Self { lines }
    }

    /// Writes a record, soon.
    pub fn record(&self, record: CallRecord) {
        if self.lines.try_send(record).is_err() {
            table::CALL_LOG_DROPPED.counter(&[]).increment(1);
        }
    }
}

/// Writes until the last sender is gone; flushes whenever there is nothing more to write.
fn write(mut records: mpsc::Receiver<CallRecord>, file: File, clock: Clock) {
    let mut out = BufWriter::new(file);
    while let Some(record) = records.blocking_recv() {
        let mut next = Some(record);
        while let Some(record) = next {
            if let Err(error) = line(&record, &clock).and_then(|line| out.write_all(&line)) {
                tracing::error!(%error, "the call log cannot be written and ends here");
                return;
            }
            next = records.try_recv().ok();
        }
        if let Err(error) = out.flush() {
            tracing::error!(%error, "the call log cannot be written and ends here");
            return;
        }
    }
}

/// A record as a line.
fn line(record: &CallRecord, clock: &Clock) -> io::Result<Vec<u8>> {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let line = Line {
        arrived_ns: record.arrived.as_nanos(),
        wall_ms: clock.wall(record.arrived),
        gate: &record.gate,
        class: &record.class,
        lane: record.lane,
        flow: format!("{:016x}", record.flow),
        verb: record.verb,
        group: &record.resource.0,
        resource: &record.resource.1,
        key: record.key.map(|key| format!("{key:016x}")),
        waited_ns: record.waited.map(|(_, time)| nanos(time)),
        waited_for: record.waited.map(|(reason, _)| reason.word()),
        sent_ns: record.sent.map(Moment::as_nanos),
        upstream_ns: record.upstream.map(nanos),
        status: record.status,
        refused: record.refused.map(Reason::word),
    };
    let mut bytes = serde_json::to_vec(&line)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Records that may wait for the disk: a second of a busy gate, 2 MiB.
const PENDING: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_is_json_and_leaves_out_what_is_not_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("calls.jsonl");
        let log = CallLog::open(&path, Clock::start()).expect("opens");
        let record = CallRecord {
            arrived: Moment::from_millis(5),
            gate: "kubernetes".into(),
            class: "default".into(),
            lane: "normal",
            flow: 7,
            verb: "update",
            resource: ("apps".into(), "deployments".into()),
            key: None,
            waited: Some((Reason::Bucket, Duration::from_millis(20))),
            sent: Some(Moment::from_millis(25)),
            upstream: None,
            status: Some(200),
            refused: None,
        };
        log.record(record);
        drop(log);
        let mut text = String::new();
        while !text.ends_with('\n') {
            tokio::task::yield_now().await;
            text = std::fs::read_to_string(&path).expect("readable");
        }
        let line: serde_json::Value = serde_json::from_str(text.trim()).expect("JSON");
        assert_eq!(line["sent_ns"], 25_000_000);
        assert_eq!(line["waited_for"], "bucket");
        assert_eq!(line["resource"], "deployments");
        assert!(line.get("upstream_ns").is_none() && line.get("refused").is_none(), "{line}");
    }
}
