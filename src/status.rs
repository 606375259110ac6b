//! What a process is doing, as data: the shape of `/status` as JSON, and what the page and `tidegate top` are made of.
//!
//! The shape is stable: fields may be added, none is renamed or given another meaning. Times are milliseconds since 1970, lengths of time
//! seconds. No secret is ever in it (P12); names of objects are in it only where [`Status::names_shown`] says so.

pub mod page;
mod spark;
pub mod terminal;
pub mod text;

use serde::{Deserialize, Serialize};

/// The whole process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Of tidegate.
    pub version: String,
    /// Of the process.
    pub pid: u32,
    /// The moment.
    pub now_ms: u64,
    /// Since the process started.
    pub uptime_seconds: f64,
    /// What it waits for before it is ready; empty when it is.
    pub waiting_for: Vec<String>,
    /// Whether names of objects are in here.
    pub names_shown: bool,
    /// The configuration.
    pub config: Config,
    /// By name.
    pub gates: Vec<Gate>,
}

/// The configuration in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Equal where the effective configuration is: twelve hexadecimal digits.
    pub hash: String,
    /// When it came into force.
    pub since_ms: u64,
    /// The last attempt to change it.
    pub last_reload: Option<Reload>,
}

/// An attempt to change the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reload {
    /// `applied`, `unchanged`, `invalid` or `restart_needed`; with the last two nothing was changed.
    pub result: String,
    /// When.
    pub at_ms: u64,
    /// Why it was not taken over.
    pub reasons: Vec<String>,
}

/// A gate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// Its name.
    pub name: String,
    /// `kubernetes` or `http`.
    pub kind: String,
    /// Where it listens.
    pub listen: Vec<String>,
    /// Where calls go.
    pub upstream: String,
    /// Set while everything is let through.
    pub bypass: Option<Bypass>,
    /// Since the start: calls that left, were refused, and were let through while everything was.
    pub admitted: u64,
    /// See `admitted`.
    pub refused: u64,
    /// See `admitted`.
    pub bypassed: u64,
    /// Calls that wait, in queues or for their keys.
    pub waiting: usize,
    /// Bytes of their bodies.
    pub waiting_bytes: usize,
    /// Of those who wait, how many are in no queue: their keys hold them.
    pub held: usize,
    /// The gate's slots.
    pub slots: Slots,
    /// Every bucket.
    pub buckets: Vec<Bucket>,
    /// Every class.
    pub classes: Vec<Class>,
    /// Queues in which somebody waits, longest first; not more than a hundred.
    pub queues: Vec<Queue>,
    /// Keys that fail; `keys` may have fewer.
    pub keys_failing: usize,
    /// Of these, those whose trial is out.
    pub trials: usize,
    /// Failing keys, the next to be tried first; not more than a hundred. Empty where names are not shown.
    pub keys: Vec<Key>,
    /// Pauses that the upstream asked for.
    pub pauses: Vec<Pause>,
    /// Connections to the upstream, by group.
    pub connections: Vec<Connections>,
    /// The last refusals, latest first, equal ones counted together.
    pub refusals: Vec<Refusal>,
    /// What the upstream itself turned away since the start, by whom there.
    pub rejections: Vec<Rejection>,
    /// The last ten minutes.
    pub history: History,
}

/// Everything is let through.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bypass {
    /// When it ends by itself.
    pub until_ms: u64,
}

/// Places among the calls in flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slots {
    /// Taken.
    pub used: u32,
    /// At most; absent for no limit.
    pub max: Option<u32>,
}

/// A bucket, or one part of a bucket that is split.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// `gate`, `retry`, or `class NAME`.
    pub name: String,
    /// Which part of it, where it is split by flow or credential: 1 and up; 0 where it is not.
    pub part: usize,
    /// Tokens per second now.
    pub rate: f64,
    /// Tokens per second when nothing slows it down.
    pub full_rate: f64,
    /// Tokens at most.
    pub burst: u32,
    /// Tokens now; below zero when some are promised.
    pub level: f64,
}

/// A class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// `exempt`, `high`, `normal` or `low`.
    pub lane: String,
    /// Calls in its queues.
    pub waiting: usize,
    /// Its slots.
    pub slots: Slots,
}

/// A queue in which somebody waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Its class.
    pub class: String,
    /// Its flow; empty where names are not shown and this could be one.
    pub flow: String,
    /// Whether it is the queue of retries.
    pub retry: bool,
    /// Calls in it.
    pub waiting: usize,
    /// How long its first call has waited.
    pub oldest_seconds: f64,
    /// What it waits for: one of the reasons of refusals.
    pub reason: String,
}

/// A failing key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Key {
    /// Its name; `tidegate forget` takes it.
    pub key: String,
    /// In a row.
    pub failures: u32,
    /// Of the last failure; absent when the call was sent and lost.
    pub status: Option<u16>,
    /// When it failed last.
    pub failed_at_ms: u64,
    /// When it may be tried next.
    pub next_at_ms: u64,
}

/// A pause that the upstream asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pause {
    /// Who waits: `gate`, `class NAME` or `credential HASH`.
    pub who: String,
    /// When it ends.
    pub until_ms: u64,
}

/// Connections to the upstream of one group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Connections {
    /// `leases`, `short` or `long_running`.
    pub group: String,
    /// Connections that take calls.
    pub connections: usize,
    /// Calls on them.
    pub used: usize,
    /// Calls that they could take beyond that.
    pub free: usize,
    /// Why there is none, while that is so.
    pub down: Option<String>,
}

/// Calls that were refused alike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// The last one.
    pub at_ms: u64,
    /// How many.
    pub count: u64,
    /// Their class.
    pub class: String,
    /// One of the reasons of refusals.
    pub reason: String,
    /// Their key where names are shown, else verb and resource.
    pub call: String,
    /// How long the last one was told to stay away, or would have been.
    pub retry_in_seconds: f64,
}

/// Calls that the upstream turned away, not the gate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rejection {
    /// `priority_and_fairness`, `rate_limit`, `disruption_budget` or `credentials`.
    pub by: String,
    /// How many.
    pub count: u64,
    /// The last one.
    pub at_ms: u64,
}

/// What happened lately, oldest first; all lists are equally long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Between two values.
    pub step_seconds: u32,
    /// Calls that left in each step.
    pub admitted: Vec<u64>,
    /// Calls refused in each step.
    pub refused: Vec<u64>,
    /// The most calls that waited at once in each step.
    pub waiting: Vec<u64>,
}

/// What a gate makes of a call, and what would happen to it now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// The gate.
    pub gate: String,
    /// Its class.
    pub class: String,
    /// `exempt`, `high`, `normal` or `low`.
    pub lane: String,
    /// As the gate read it.
    pub verb: String,
    /// Whom fairness is between.
    pub flow: String,
    /// What its failure would be remembered for; absent when nothing would be, or only its body says.
    pub key: Option<String>,
    /// The connections that it would use: `leases`, `short` or `long_running`.
    pub group: String,
    /// It holds no slot and, unless its class says otherwise, takes no token.
    pub long_running: bool,
    /// `goes`, `waits`, `refused` or `unconnected`.
    pub now: String,
    /// Why it would wait or be refused.
    pub reason: Option<String>,
    /// How long it would wait at least, or be told to stay away.
    pub seconds: f64,
    /// What is known of its key, if that fails.
    pub failing: Option<Key>,
    /// What else is so at the gate and concerns the call: sentences.
    pub notes: Vec<String>,
}

/// What happened so long ago is history.
const LATELY_MS: u64 = 60_000;

impl Gate {
    /// Whether something of its limits makes calls wait.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        self.waiting > 0
    }

    /// Whether a group of connections cannot be made.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.connections.iter().any(|group| group.down.is_some())
    }

    /// What the upstream has turned away within the last minute.
    pub fn rejected_lately(&self, now_ms: u64) -> impl Iterator<Item = &Rejection> {
        self.rejections.iter().filter(move |rejection| now_ms.saturating_sub(rejection.at_ms) < LATELY_MS)
    }

    /// Whether no call has come since the start. Leases and health checks count as calls.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.admitted == 0 && self.refused == 0 && self.waiting == 0 && !self.is_cut_off()
    }

    /// What is so at the gate beside waits, refusals and keys, in sentences; the worst first.
    #[must_use]
    pub fn remarks(&self, now_ms: u64) -> Vec<String> {
        let mut says = Vec::new();
        for group in self.connections.iter().filter(|group| group.down.is_some()) {
            let why = group.down.as_deref().unwrap_or_default();
            says.push(format!("No connection for {} calls: {why}.", group.group.replace('_', "-")));
        }
        for rejection in self.rejected_lately(now_ms) {
            let (calls, last) = (text::count(rejection.count, "call", "calls"), text::ago(rejection.at_ms, now_ms));
            says.push(match rejection.by.as_str() {
                "credentials" => format!(
                    "The upstream does not take the credentials: {calls} got 401, the last {last}. tidegate doctor says whose they are."
                ),
                by => format!("The upstream itself turned {calls} away, the last {last}: {}.", text::rejected_by(by)),
            });
        }
        if self.is_untouched() {
            says.push(
                "No call has come yet: is the controller pointed here? tidegate doctor finds what goes past the gate."
                    .to_owned(),
            );
        }
        says
    }
}
