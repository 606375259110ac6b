//! The state of a process as data: the JSON of `/status`, and the source of the page and of
//! `tidegate top`.
//!
//! The shape is stable: fields may be added, but none is renamed or given another meaning. Times
//! are milliseconds since 1970, durations are seconds. It has no secrets (P12), and names of objects
//! only if [`Status::names_shown`] is true.

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
pub use self::egress::{EgressHandshakes, EgressRefusals, EgressStatus, Tunnels};
pub use self::explained::{Decided, Explanation};
pub use self::hot::HotObject;
pub use self::pause::kept;
pub use self::shadow::{Candidate, Shadow, ShadowCalls};
pub use self::stores::StoreStatus;

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
    /// The unfinished tasks before the process is ready; empty once it is.
    pub waiting_for: Vec<String>,
    /// True if names of objects are in here.
    pub names_shown: bool,
    /// The configuration.
    pub config: Config,
    /// The gates, by name.
    pub gates: Vec<GateStatus>,
    /// The egress listener, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressStatus>,
    /// The stores of shared buckets, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<StoreStatus>,
}

/// A gate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GateStatus {
    /// Its name.
    pub name: String,
    /// `kubernetes` or `http`.
    pub kind: String,
    /// Its own addresses.
    pub listen: Vec<String>,
    /// The upstream of its calls.
    pub upstream: String,
    /// The host, if the gate is one of several behind the egress listener; else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The bypass, while everything is admitted.
    pub bypass: Option<Bypass>,
    /// The decisions about calls in shadow: all, or those of some classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Shadow>,
    /// The decisions of the limits in force and of the candidate beside them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Candidate>,
    /// The calls sent since the start.
    pub admitted: u64,
    /// The calls refused since the start.
    pub refused: u64,
    /// The calls admitted by a bypass since the start.
    pub bypassed: u64,
    /// The responses since the start with links past the gate.
    pub links_passed: u64,
    /// The calls since the start with an unchanged, cached response.
    pub revalidated: u64,
    /// The bytes of the cached responses.
    pub kept_bytes: usize,
    /// The waiting calls, in queues or for their keys.
    pub waiting: usize,
    /// The bytes of the waiting calls' bodies.
    pub waiting_bytes: usize,
    /// The waiting calls held by their keys.
    pub held: usize,
    /// The gate's slots.
    pub slots: Slots,
    /// Every bucket.
    pub buckets: Vec<Bucket>,
    /// Every class.
    pub classes: Vec<Class>,
    /// The queues with waiting calls, longest first; not more than a hundred.
    pub queues: Vec<Queue>,
    /// The number of failing keys; `keys` may have fewer.
    pub keys_failing: usize,
    /// The failing keys with a trial on its way.
    pub trials: usize,
    /// The failing keys, the next to be tried first; not more than a hundred.
    pub keys: Vec<FailingKey>,
    /// The objects called too often or in vain; not more than a hundred.
    pub hot: Vec<HotObject>,
    /// The pauses.
    pub pauses: Vec<Pause>,
    /// The upstream's own quotas, by its last responses.
    pub quotas: Vec<UpstreamQuota>,
    /// Connections to the upstream, by group.
    pub connections: Vec<Connections>,
    /// The last refusals, latest first; equal ones are counted together.
    pub refusals: Vec<Refusal>,
    /// The calls rejected by the upstream itself since the start, by the part of it.
    pub rejections: Vec<Rejection>,
    /// The latency of the upstream; absent if it has not answered lately.
    pub latency: Option<Latency>,
    /// The calling programs, those with most calls first; not more than 21. Empty if names are not
    /// shown.
    pub callers: Vec<CallerStatus>,
    /// The history of the last ten minutes.
    pub history: History,
}

/// A bypass: everything is admitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bypass {
    /// Its end.
    pub until_ms: u64,
}

/// A quota of the upstream, by its last response.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UpstreamQuota {
    /// The part of the API, in the upstream's words.
    pub resource: String,
    /// The hash of the credential or account; empty if the gate does not tell callers apart.
    pub account: String,
    /// Its size, if known.
    pub limit: Option<u64>,
    /// The calls left.
    pub remaining: u64,
    /// The moment of its reset, if known.
    pub resets_ms: Option<u64>,
    /// The moment of the response.
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

/// A bucket, or one part of a split bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// `gate`, `retry`, or `class NAME`.
    pub name: String,
    /// The part of a bucket split by flow or credential: 1 and up; otherwise 0.
    pub part: usize,
    /// Tokens per second now.
    pub rate: f64,
    /// Tokens per second if nothing slows it down.
    pub full_rate: f64,
    /// The most tokens.
    pub burst: u32,
    /// Tokens now; below zero if some are promised.
    pub level: f64,
    /// Its state at the other gates, if it is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedBucket>,
}

/// A bucket shared with other gates, as seen by this gate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SharedBucket {
    /// Its name at all gates.
    pub name: String,
    /// Its store; empty for the memory of this process.
    pub store: String,
    /// `shared`; while the store is away, `fallback` (at this gate's part of the rate) or
    /// `stopped`.
    pub state: String,
    /// The number of parts, if it is split by account, action or credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<usize>,
    /// The gates of its most used part, by the last answer of the store.
    pub members: u32,
    /// The tokens in the store after its last answer, of the part with the fewest; below zero if some
    /// are promised.
    pub level: f64,
    /// The tokens held by this gate, of all parts.
    pub held: usize,
    /// Tokens per second of the slowest part now: of this gate alone while the store is away, else of
    /// all gates together.
    pub rate: f64,
    /// The milliseconds until a call can have a token, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_ms: Option<u64>,
    /// True if another gate has stricter limits; they hold for all.
    pub differs: bool,
}

/// A class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// `exempt`, `high`, `normal` or `low`.
    pub lane: String,
    /// True if its calls pass at once, and are only counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// Calls since these limits came into force, of all hosts.
    pub calls: u64,
    /// Calls in its queues.
    pub waiting: usize,
    /// Its slots.
    pub slots: Slots,
}

/// A queue with waiting calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Its class.
    pub class: String,
    /// Its flow; empty if it could be a name and names are not shown.
    pub flow: String,
    /// True for the queue of retries.
    pub retry: bool,
    /// Calls in it.
    pub waiting: usize,
    /// The wait of its first call.
    pub oldest_seconds: f64,
    /// The reason for the wait: one of the reasons of refusals.
    pub reason: String,
}

/// A failing key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FailingKey {
    /// Its name for `tidegate forget`; empty if names are not shown.
    pub key: String,
    /// Failures in a row.
    pub failures: u32,
    /// The status of the last failure; absent if the call was sent and lost.
    pub status: Option<u16>,
    /// The upstream's own code for it, such as `InternalError`; empty if it gave none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// The upstream's own message; empty if it gave none, or if names are not shown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The moment of the last failure.
    pub failed_at_ms: u64,
    /// The earliest moment of the next try.
    pub next_at_ms: u64,
}

/// A pause: the upstream asked for it, or it keeps a reserve of a quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pause {
    /// The scope of the pause: `gate`, `class NAME` or `credential HASH`.
    pub who: String,
    /// Its end.
    pub until_ms: u64,
    /// `shared` if the upstream asked another gate; empty if it asked this one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub from: String,
    /// The calls left of the upstream's quota, if the pause keeps a reserve (`signals.reserve`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<u64>,
    /// The size of the quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// Connections to the upstream of one group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Connections {
    /// `leases`, `short` or `long_running`.
    pub group: String,
    /// Connections for calls.
    pub connections: usize,
    /// Calls on them.
    pub used: usize,
    /// Room for more calls on them.
    pub free: usize,
    /// The reason why there is no connection.
    pub down: Option<String>,
}

/// Equal refusals.
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
    /// The Retry-After of the last one, sent or not.
    pub retry_in_seconds: f64,
}

/// Calls rejected by the upstream, not by the gate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rejection {
    /// `priority_and_fairness`, `rate_limit`, `disruption_budget` or `credentials`.
    pub by: String,
    /// The number of calls.
    pub count: u64,
    /// The moment of the last one.
    pub at_ms: u64,
}

/// The time until the head of a response, over the last minute or two, without watches and the like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The number of calls.
    pub calls: u64,
    /// The median.
    pub median_seconds: f64,
    /// The 99th percentile.
    pub p99_seconds: f64,
}

/// A calling program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallerStatus {
    /// The first word of its user agent; empty if it sends none, `all others` for those without a
    /// row of their own.
    pub user_agent: String,
    /// The action of the calls in their provider's words, on a gate with a dialect; else empty.
    pub action: String,
    /// The name of the client, on a gate with known clients; else empty.
    pub client: String,
    /// Its calls since the start.
    pub calls: u64,
    /// Its refused calls.
    pub refused: u64,
    /// The moment of the last one.
    pub last_ms: u64,
}

/// The recent past, oldest first; all lists are equally long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// The time between two values.
    pub step_seconds: u32,
    /// Calls sent in each step.
    pub admitted: Vec<u64>,
    /// Calls refused in each step.
    pub refused: Vec<u64>,
    /// The most waiting calls in each step.
    pub waiting: Vec<u64>,
}

impl History {
    /// Returns a value as calls per second, for readers.
    #[expect(clippy::cast_precision_loss, reason = "calls of a few seconds are exact in a double")]
    fn rate(&self, value: Option<&u64>) -> String {
        text::number(value.copied().unwrap_or_default() as f64 / f64::from(self.step_seconds.max(1)))
    }
}
