//! The state of a process as data: the shape of `/status` as JSON, from which the page and
//! `tidegate top` are made.
//!
//! The shape is stable: fields may be added, but none is renamed or given another meaning. Times
//! are milliseconds since 1970, durations are seconds. No secret is ever in it (P12); names of
//! objects are in it only if [`Status::names_shown`] says so.

mod config;
mod egress;
mod explained;
mod hot;
mod lists;
pub mod page;
mod pause;
mod shadow;
mod spark;
mod stores;
mod summary;
pub mod terminal;
pub mod text;

use serde::{Deserialize, Serialize};

pub use self::config::{Config, Reload};
pub use self::egress::{Egress, EgressHandshakes, EgressRefusals, Tunnels};
pub use self::explained::Explained;
pub use self::hot::HotObject;
pub use self::pause::kept;
pub use self::shadow::{Shadow, ShadowCalls};
pub use self::stores::Store;

/// The whole process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The version of tidegate.
    pub version: String,
    /// The id of the process.
    pub pid: u32,
    /// The moment of this status.
    pub now_ms: u64,
    /// The time since the process started.
    pub uptime_seconds: f64,
    /// The tasks that must finish before the process is ready; empty once it is.
    pub waiting_for: Vec<String>,
    /// True if names of objects are in here.
    pub names_shown: bool,
    /// The configuration.
    pub config: Config,
    /// The gates, by name.
    pub gates: Vec<Gate>,
    /// The egress listener, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
    /// The stores of shared buckets, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<Store>,
}

/// A gate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// Its name.
    pub name: String,
    /// `kubernetes` or `http`.
    pub kind: String,
    /// The addresses at which it listens.
    pub listen: Vec<String>,
    /// The upstream of its calls.
    pub upstream: String,
    /// The host, if the gate is one of several behind the egress listener; else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The bypass, while everything is admitted.
    pub bypass: Option<Bypass>,
    /// What the limits would have done, on a gate that is only a shadow and holds nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Shadow>,
    /// Counts since the start: calls that left, were refused, and were admitted by a bypass.
    pub admitted: u64,
    /// See `admitted`.
    pub refused: u64,
    /// See `admitted`.
    pub bypassed: u64,
    /// Answers of an external API, since the start, with links that lead past the gate.
    #[serde(default)]
    pub links_passed: u64,
    /// Calls, since the start, whose answer was kept and had not changed.
    #[serde(default)]
    pub revalidated: u64,
    /// The bytes of the answers that are kept.
    #[serde(default)]
    pub kept_bytes: usize,
    /// Calls that wait, in queues or for their keys.
    pub waiting: usize,
    /// The bytes of the waiting calls' bodies.
    pub waiting_bytes: usize,
    /// The waiting calls that are in no queue: their keys hold them.
    pub held: usize,
    /// The gate's slots.
    pub slots: Slots,
    /// Every bucket.
    pub buckets: Vec<Bucket>,
    /// Every class.
    pub classes: Vec<Class>,
    /// Queues in which calls wait, longest first; not more than a hundred.
    pub queues: Vec<Queue>,
    /// The number of failing keys; `keys` may have fewer.
    pub keys_failing: usize,
    /// The failing keys whose trial is out.
    pub trials: usize,
    /// Failing keys, the next to be tried first; not more than a hundred.
    pub keys: Vec<Key>,
    /// Objects that are called too often or in vain; not more than a hundred.
    #[serde(default)]
    pub hot: Vec<HotObject>,
    /// Pauses that the upstream asked for.
    pub pauses: Vec<Pause>,
    /// The upstream's own quotas, as its answers told them last.
    #[serde(default)]
    pub quotas: Vec<Quota>,
    /// Connections to the upstream, by group.
    pub connections: Vec<Connections>,
    /// The last refusals, latest first; equal ones are counted together.
    pub refusals: Vec<Refusal>,
    /// The calls that the upstream itself turned away since the start, by the part of it that did
    /// so.
    pub rejections: Vec<Rejection>,
    /// The time that the upstream takes to answer; absent if it has not answered lately.
    pub latency: Option<Latency>,
    /// The programs that call, those with most calls first; not more than 21. Empty where names are
    /// not shown.
    pub callers: Vec<Caller>,
    /// The history of the last ten minutes.
    pub history: History,
}

/// A bypass: everything is admitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bypass {
    /// The moment at which it ends by itself.
    pub until_ms: u64,
}

/// A quota of the upstream's, as an answer told it last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quota {
    /// The part of the API that it is for, in the upstream's words.
    pub resource: String,
    /// The digits that tell the gate's callers apart, by credential or account; empty if it does
    /// not.
    pub account: String,
    /// Its size, if the upstream told it.
    pub limit: Option<u64>,
    /// The calls that were left.
    pub remaining: u64,
    /// The moment at which it is whole again, if the upstream told it.
    pub resets_ms: Option<u64>,
    /// The moment of the answer.
    pub seen_ms: u64,
}

/// Places among the calls in flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slots {
    /// The slots taken.
    pub used: u32,
    /// The most slots; absent if there is no limit.
    pub max: Option<u32>,
}

/// A bucket, or one part of a bucket that is split.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// `gate`, `retry`, or `class NAME`.
    pub name: String,
    /// The part of the bucket, if it is split by flow or credential: 1 and up; otherwise 0.
    pub part: usize,
    /// Tokens per second now.
    pub rate: f64,
    /// Tokens per second if nothing slows it down.
    pub full_rate: f64,
    /// The most tokens.
    pub burst: u32,
    /// Tokens now; below zero when some are promised.
    pub level: f64,
    /// Its state at the other gates that use it, if it is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<Shared>,
}

/// A bucket that other gates use too, as this gate sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shared {
    /// The name that all gates use.
    pub name: String,
    /// The store that keeps it; empty for the memory of this process.
    pub store: String,
    /// `shared`; while the store is away, `fallback` (at this gate's part of the rate) or
    /// `stopped`.
    pub state: String,
    /// The parts that are told apart now, if it is split by account, action or credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<usize>,
    /// The gates that use it, by the last answer of the store; of the part that most use.
    pub members: u32,
    /// The tokens in the store after its last answer; below zero when some are promised. Of the
    /// part that has fewest.
    pub level: f64,
    /// The tokens that this gate holds, of all parts.
    pub held: usize,
    /// Tokens per second now: while the store is away those of this gate alone, otherwise those of
    /// all gates together. Of the slowest part.
    #[serde(default)]
    pub rate: f64,
    /// The milliseconds until a call can have a token, as far as that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_ms: Option<u64>,
    /// True if another gate has stricter limits, which hold for all.
    pub differs: bool,
}

/// A class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// `exempt`, `high`, `normal` or `low`.
    pub lane: String,
    /// Calls that came since these limits are in force; those of all hosts, where there are several.
    #[serde(default)]
    pub calls: u64,
    /// Calls in its queues.
    pub waiting: usize,
    /// Its slots.
    pub slots: Slots,
}

/// A queue in which calls wait.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Its class.
    pub class: String,
    /// Its flow; empty if names are not shown and this could be one.
    pub flow: String,
    /// True for the queue of retries.
    pub retry: bool,
    /// Calls in it.
    pub waiting: usize,
    /// The time that its first call has waited.
    pub oldest_seconds: f64,
    /// The reason for the wait: one of the reasons of refusals.
    pub reason: String,
}

/// A failing key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Key {
    /// Its name, which `tidegate forget` takes; empty if names are not shown.
    pub key: String,
    /// Failures in a row.
    pub failures: u32,
    /// The status of the last failure; absent if the call was sent and lost.
    pub status: Option<u16>,
    /// The upstream's own code for it, such as `InternalError`; empty if it gave none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// The upstream's own words about it; empty if it gave none, or if names are not shown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The moment of the last failure.
    pub failed_at_ms: u64,
    /// The moment at which it may be tried next.
    pub next_at_ms: u64,
}

/// A pause that the upstream asked for, or that keeps a reserve of its quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pause {
    /// The scope of the pause: `gate`, `class NAME` or `credential HASH`.
    pub who: String,
    /// The moment it ends.
    pub until_ms: u64,
    /// `shared` if another gate told of it; otherwise the upstream asked this one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub from: String,
    /// The calls that are left of the upstream's quota, if the pause only keeps them for others
    /// (`signals.reserve`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<u64>,
    /// The size of that quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
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
    /// The reason why there is no connection, while that is so.
    pub down: Option<String>,
}

/// Calls that were refused alike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// The moment of the last one.
    pub at_ms: u64,
    /// The number of calls.
    pub count: u64,
    /// Their class.
    pub class: String,
    /// One of the reasons of refusals.
    pub reason: String,
    /// Their key if names are shown, else verb and resource.
    pub call: String,
    /// The time that the last one was told to stay away, or would have been.
    pub retry_in_seconds: f64,
}

/// Calls that the upstream turned away, not the gate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rejection {
    /// `priority_and_fairness`, `rate_limit`, `disruption_budget` or `credentials`.
    pub by: String,
    /// The number of calls.
    pub count: u64,
    /// The moment of the last one.
    pub at_ms: u64,
}

/// The time until the head of an answer, over the last minute or two; watches and the like do not
/// count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The number of calls.
    pub calls: u64,
    /// The time within which half of them were answered.
    pub median_seconds: f64,
    /// The time within which 99 of 100 were answered.
    pub p99_seconds: f64,
}

/// A program that calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Caller {
    /// The first word of its user agent; empty if it sends none, `all others` for those without a
    /// row of their own.
    pub user_agent: String,
    /// The action of the calls in their provider's words, on a gate with a dialect; else empty.
    #[serde(default)]
    pub action: String,
    /// The name of the client, on a gate that knows its clients; else empty.
    #[serde(default)]
    pub client: String,
    /// Its calls since the start.
    pub calls: u64,
    /// Those of them that were refused.
    pub refused: u64,
    /// The moment of the last one.
    pub last_ms: u64,
}

/// The recent past, oldest first; all lists are equally long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// The time between two values.
    pub step_seconds: u32,
    /// Calls that left in each step.
    pub admitted: Vec<u64>,
    /// Calls refused in each step.
    pub refused: Vec<u64>,
    /// The most calls that waited at once in each step.
    pub waiting: Vec<u64>,
}

impl History {
    /// Returns a value as calls per second, for readers.
    #[expect(clippy::cast_precision_loss, reason = "calls of a few seconds are exact in a double")]
    fn rate(&self, value: Option<&u64>) -> String {
        text::number(value.copied().unwrap_or_default() as f64 / f64::from(self.step_seconds.max(1)))
    }
}
