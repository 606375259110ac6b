//! The call log: one JSON line per call, without secrets, for `simulate --replay` and for audits of
//! the limits. Trace spans are made from the same records, by the same thread.
//!
//! A call passes its record to a writer thread and does not wait for it. If the disk is slow or
//! full, lines are dropped and counted, and writing resumes once there is space again. At the end
//! of the process, [`CallLog::flushed`] waits for the last line. A line is written after the end of
//! the body (of a long-running call, after its head), so that lines are not in order of arrival.
//!
//! A line has no query, no body and no object name, and of the headers only the first word of the
//! User-Agent. Keys and credentials are salted hashes, which can be compared within one process.
//! The names of groups, resources, subresources and namespaces are in it, because classes match
//! them.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use tokio::sync::{mpsc, oneshot};

use super::table;
use super::trace::Trace;
use crate::api::Key;
use crate::clock::Clock;
use crate::controls::json_in_clear;
use crate::limit::Reason;
use crate::moment::Moment;

/// A handle for sending records to the call log. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CallLog {
    lines: mpsc::Sender<Entry>,
    /// True if every call is recorded; false if only calls whose client records a trace are.
    takes_all: bool,
}

/// The functions for making trace spans from records.
#[derive(Clone)]
pub struct Spans {
    /// True if some calls without a trace get a new one.
    pub begins: bool,
    /// Makes the span of a record, and begins a trace in the record if it has none.
    pub take: Arc<dyn Fn(&mut CallRecord) + Send + Sync>,
}

/// A message to the writer thread.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "all but a handful are calls; in a box each would cost an allocation")]
pub enum Entry {
    /// The record of a call.
    Call(CallRecord),
    /// A request to report when all records before it are written: the writer drops the sender
    /// then.
    Flush(oneshot::Sender<()>),
}

/// The data recorded about a call.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// The name of the gate.
    pub gate: Arc<str>,
    /// The upstream's host, if the gate was made for a host of the egress listener.
    pub host: Option<Arc<str>>,
    /// The call's class.
    pub class: CallClass,
    /// The salted hash of the call's flow.
    pub flow: u64,
    /// The verb of the call.
    pub verb: &'static str,
    /// The HTTP method.
    pub method: Method,
    /// The trace the call belongs to.
    pub trace: Option<Box<Trace>>,
    /// What the call is for.
    pub asked: CallTarget,
    /// The call's key, as salted hashes.
    pub key: Option<Key>,
    /// How long the call waited, and the main reason.
    pub waited: Option<(Reason, Duration)>,
    /// The status the client got; `None` if the client hung up before.
    pub status: Option<u16>,
    /// Why the gate refused the call, if it did.
    pub refused: Option<Reason>,
    /// How long the upstream asked to wait, in Retry-After or another signal the gate obeys.
    pub retry_after: Option<Duration>,
    /// When each step of the call happened.
    pub times: CallTimes,
}

/// The class of a call.
#[derive(Clone, Debug)]
pub struct CallClass {
    /// The name of the class.
    pub name: Box<str>,
    /// The priority of the class: `exempt`, `high`, `normal` or `low`.
    pub lane: &'static str,
    /// True in shadow mode: the calls of the class are sent at once, and what the limits would have
    /// done is only counted.
    pub shadow: bool,
}

/// The moments and durations in the life of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallTimes {
    /// When the call arrived.
    pub arrived: Moment,
    /// When the limiter was asked: later than the arrival if the start of a body was read first, or
    /// if the machine is busy.
    pub at_door: Option<Moment>,
    /// When the call got its tokens, to check the bound on calls (P1). On a busy machine it is sent
    /// later.
    pub granted: Option<Moment>,
    /// When the call was sent.
    pub sent: Option<Moment>,
    /// The time from the start of sending to the response head.
    pub upstream: Option<Duration>,
    /// The time from the response head to the end of the body, if it is known.
    pub body: Option<Duration>,
    /// When the record was completed.
    pub ended: Moment,
}

/// What a call is for, without secrets.
#[derive(Clone, Debug, Default)]
pub struct CallTarget {
    /// The API group; empty if there is none.
    pub group: Box<str>,
    /// The resource; empty if there is none.
    pub resource: Box<str>,
    /// The subresource; empty if there is none.
    pub subresource: Box<str>,
    /// The namespace; empty if there is none.
    pub namespace: Box<str>,
    /// The first word of the User-Agent.
    pub user_agent: Box<str>,
    /// The salted hash of the credential; zero if no limits are split by credential. The log has
    /// only a part of it.
    pub credential: u64,
    /// The name of the client, if the gate authenticates clients.
    pub client: Option<Arc<str>>,
    /// True if the call lasts until the client ends it, as a watch does.
    pub long_running: bool,
    /// True for a call with `?dryRun=`.
    pub dry_run: bool,
    /// The client's own deadline, from its request.
    pub timeout: Option<Duration>,
}

// === impl Spans ===

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spans").field("begins", &self.begins).finish_non_exhaustive()
    }
}

// === impl CallLog ===

impl CallLog {
    /// Opens the log, and starts its thread. The thread appends lines to the file `path`, if one is
    /// given, and makes the spans.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: Option<&Path>, spans: Option<Spans>, clock: Clock) -> io::Result<Self> {
        let file = path.map(|path| OpenOptions::new().create(true).append(true).open(path)).transpose()?;
        let (lines, records) = mpsc::channel(PENDING);
        let takes_all = file.is_some() || spans.as_ref().is_some_and(|spans| spans.begins);
        let thread = std::thread::Builder::new().name("call-log".to_owned());
        thread.spawn(move || write(records, file, spans.as_ref(), clock))?;
        Ok(Self { lines, takes_all })
    }

    /// Creates a call log sending its entries to a channel instead of a file.
    #[must_use]
    pub fn to(lines: mpsc::Sender<Entry>) -> Self {
        Self { lines, takes_all: true }
    }

    /// Sends a record to the writer thread.
    pub fn record(&self, record: CallRecord) {
        let is_wanted = self.takes_all || record.trace.as_ref().is_some_and(|trace| trace.is_sampled);
        if is_wanted && self.lines.try_send(Entry::Call(record)).is_err() {
            table::CALL_LOG_DROPPED.counter(&[]).increment(1);
        }
    }

    /// Waits until the file has every record so far, for at most five seconds.
    pub async fn flushed(&self) {
        let (done, flushed) = oneshot::channel();
        let flush = async {
            if self.lines.send(Entry::Flush(done)).await.is_ok() {
                drop(flushed.await); // dropped when it is done, or when the writer has ended
            }
        };
        if tokio::time::timeout(PATIENCE, flush).await.is_err() {
            tracing::error!(
                "the call log could not be written in five seconds at the end: its last lines are lost; check its volume"
            );
        }
    }
}

/// Writes entries until the last sender is gone, and flushes the file whenever no further entry is
/// there. A line is written completely or not at all.
fn write(mut entries: mpsc::Receiver<Entry>, to: Option<impl Write>, spans: Option<&Spans>, clock: Clock) {
    let mut out = to.map(BufWriter::new);
    let mut fails = false;
    while let Some(entry) = entries.blocking_recv() {
        let mut next = Some(entry);
        let mut written = Ok(());
        let mut asked = Vec::new(); // answered by being dropped after the flush below
        while let Some(entry) = next {
            match entry {
                Entry::Call(mut record) => {
                    if let Some(spans) = spans {
                        (spans.take)(&mut record);
                    }
                    let line = out.as_mut().map_or(Ok(()), |out| out.write_all(&json_line(&record, &clock)?));
                    if line.is_err() {
                        table::CALL_LOG_DROPPED.counter(&[]).increment(1);
                    }
                    written = written.and(line);
                }
                Entry::Flush(done) => asked.push(done),
            }
            next = entries.try_recv().ok();
        }
        written = written.and_then(|()| out.as_mut().map_or(Ok(()), Write::flush));
        match &written {
            Err(error) if !fails => {
                tracing::error!(%error, "cannot write the call log: calls go on, and lines are dropped until it can be written");
            }
            Ok(()) if fails => tracing::info!("the call log can be written again: no more lines are dropped"),
            Ok(()) | Err(_) => {}
        }
        fails = written.is_err();
    }
}

/// A record to be written as one JSON object; unknown values are left out. The clock converts
/// moments to the time of day.
struct LogLine<'a>(&'a CallRecord, &'a Clock);

impl Serialize for LogLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(call, clock) = self;
        let asked = &call.asked;
        let times = &call.times;
        let mut line = serializer.serialize_map(None)?;
        put(&mut line, "arrived_ns", Some(times.arrived.as_nanos()))?; // since the process started
        put(&mut line, "wall_ms", Some(clock.wall(times.arrived)))?; // since 1970
        put(&mut line, "door_ns", times.at_door.map(Moment::as_nanos))?;
        put(&mut line, "gate", Some(&*call.gate))?;
        put(&mut line, "host", call.host.as_deref())?;
        put(&mut line, "class", Some(&call.class.name))?;
        put(&mut line, "lane", Some(call.class.lane))?;
        put(&mut line, "shadow", call.class.shadow.then_some(true))?;
        put(&mut line, "flow", Some(hash(call.flow)))?;
        put(&mut line, "verb", Some(call.verb))?;
        put(&mut line, "trace", call.trace.as_ref().map(|trace| format!("{:032x}", trace.id)))?;
        put(&mut line, "group", Some(&asked.group))?;
        put(&mut line, "resource", Some(&asked.resource))?;
        put(&mut line, "subresource", Some(&asked.subresource).filter(|text| !text.is_empty()))?;
        put(&mut line, "namespace", Some(&asked.namespace).filter(|text| !text.is_empty()))?;
        put(&mut line, "user_agent", Some(&asked.user_agent).filter(|text| !text.is_empty()))?;
        // Six digits distinguish a handful of clients, and are useless for anything else.
        let credential = Some(asked.credential).filter(|hash| *hash != 0);
        put(&mut line, "credential", credential.map(|hash| format!("{:06x}", hash & 0xff_ffff)))?;
        put(&mut line, "client", asked.client.as_deref())?;
        put(&mut line, "long_running", asked.long_running.then_some(true))?;
        put(&mut line, "dry_run", asked.dry_run.then_some(true))?;
        put(&mut line, "timeout_ns", asked.timeout.map(nanos))?;
        // The object (or path), its collection, and its part in the call.
        put(&mut line, "key", call.key.map(|key| hash(key.object)))?;
        put(&mut line, "collection", call.key.map(|key| hash(key.collection)))?;
        put(&mut line, "facet", call.key.map(|key| hash(key.facet)))?;
        put(&mut line, "waited_ns", call.waited.map(|(_, time)| nanos(time)))?;
        put(&mut line, "waited_for", call.waited.map(|(reason, _)| reason.word()))?;
        put(&mut line, "granted_ns", times.granted.map(Moment::as_nanos))?;
        put(&mut line, "sent_ns", times.sent.map(Moment::as_nanos))?;
        put(&mut line, "upstream_ns", times.upstream.map(nanos))?;
        put(&mut line, "status", call.status)?;
        put(&mut line, "refused", call.refused.map(Reason::word))?;
        put(&mut line, "retry_after_ns", call.retry_after.map(nanos))?;
        put(&mut line, "body_ns", times.body.map(nanos))?;
        put(&mut line, "gave_up_ns", call.status.is_none().then(|| nanos(times.ended - times.arrived)))?;
        line.end()
    }
}

/// Writes a record as a line of JSON.
fn json_line(record: &CallRecord, clock: &Clock) -> io::Result<Vec<u8>> {
    let mut bytes = json_in_clear(serde_json::to_vec(&LogLine(record, clock))?);
    bytes.push(b'\n');
    Ok(bytes)
}

fn put<M: SerializeMap>(line: &mut M, name: &'static str, value: Option<impl Serialize>) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| line.serialize_entry(name, &value))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn hash(hash: u64) -> String {
    format!("{hash:016x}")
}

/// The most entries waiting for the disk: those of about a second on a busy gate, 2 MiB.
const PENDING: usize = 8192;

/// The longest wait for the disk at the end of the process.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn record(user_agent: &str) -> CallRecord {
        CallRecord {
            gate: "kubernetes".into(),
            host: None,
            class: CallClass { name: "default".into(), lane: "normal", shadow: false },
            flow: 7,
            verb: "update",
            method: Method::PUT,
            trace: None,
            asked: CallTarget {
                group: "apps".into(),
                resource: "deployments".into(),
                user_agent: user_agent.into(),
                ..CallTarget::default()
            },
            key: Some(Key { object: 1, collection: 2, facet: 3 }),
            waited: Some((Reason::Bucket, Duration::from_millis(20))),
            status: Some(200),
            refused: None,
            retry_after: None,
            times: CallTimes {
                arrived: Moment::from_millis(5),
                granted: Some(Moment::from_millis(24)),
                sent: Some(Moment::from_millis(25)),
                body: Some(Duration::from_nanos(7)),
                ended: Moment::from_millis(30),
                ..CallTimes::default()
            },
        }
    }

    #[tokio::test]
    async fn a_line_is_json_and_leaves_out_what_is_not_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("calls.jsonl");
        let log = CallLog::open(Some(&path), None, Clock::start()).expect("opens");
        log.record(record("manager"));
        log.flushed().await;
        let text = std::fs::read_to_string(&path).expect("readable");
        let line: serde_json::Value = serde_json::from_str(text.trim()).expect("JSON");
        assert_eq!((&line["granted_ns"], &line["sent_ns"]), (&24_000_000.into(), &25_000_000.into()));
        assert_eq!(line["waited_for"], "bucket");
        assert_eq!(line["resource"], "deployments");
        assert_eq!((&line["body_ns"], &line["facet"]), (&7.into(), &"0000000000000003".into()));
        for absent in ["host", "upstream_ns", "refused", "credential", "long_running", "namespace"] {
            assert!(line.get(absent).is_none(), "{absent} in {line}");
        }
    }

    /// A disk that is full for a while.
    #[derive(Default)]
    struct Disk {
        full: AtomicBool,
        written: Mutex<Vec<u8>>,
    }

    impl Disk {
        fn text(&self) -> String {
            String::from_utf8(self.written.lock().expect("no panic").clone()).expect("text")
        }
    }

    impl Write for &Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.full.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.written.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_costs_lines_and_the_log_goes_on_when_there_is_room() {
        let disk = Disk::default();
        disk.full.store(true, Ordering::SeqCst);
        let (lines, entries) = mpsc::channel(10_000);
        let lost = 1_000;
        std::thread::scope(|scope| {
            scope.spawn(|| write(entries, Some(&disk), None, Clock::start()));
            let send = |user_agent| lines.blocking_send(Entry::Call(record(user_agent))).expect("it goes on writing");
            (0..lost).for_each(|_| send("while-full"));
            while lines.capacity() < lines.max_capacity() {
                std::thread::yield_now();
            }
            assert!(disk.text().is_empty());
            disk.full.store(false, Ordering::SeqCst);
            (0..3).for_each(|_| send("afterwards"));
            drop(lines);
        });
        let written = disk.text();
        let of = |user_agent: &str| written.lines().filter(|line| line.contains(user_agent)).count();
        assert_eq!(of("afterwards"), 3, "{written}");
        assert!(of("while-full") < lost, "what does not fit is dropped, not kept");
        for line in written.lines() {
            serde_json::from_str::<serde_json::Value>(line).expect("whole lines only");
        }
    }
}
