//! The state of a process as data: the JSON of `/status`, from which the status page and `tidegate
//! top` are made.
//!
//! The JSON is stable: fields may be added, but none is renamed or given another meaning. Times are
//! milliseconds since 1970, durations are seconds. It has no secrets (P12), and names of objects
//! only if [`Status::names_shown`] is true.

mod config;
mod egress;
mod explained;
mod facts;
mod hot;
mod lists;
pub mod page;
mod pause;
mod shadow;
pub mod spark;
mod stores;
mod summary;
pub mod terminal;
pub mod text;

use serde::{Deserialize, Serialize};

pub use self::config::{Config, Reload};
pub use self::egress::{EgressHandshakes, EgressRefusals, EgressStatus, Tunnels};
pub use self::explained::{Decided, Explanation};
pub use self::facts::Fact;
pub use self::hot::HotObject;
pub use self::pause::{QuotaSpender, kept};
pub use self::shadow::{Candidate, Shadow, ShadowCalls};
pub use self::stores::StoreStatus;

/// The state of the whole process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The version of tidegate.
    pub version: String,
    /// The id of the process.
    pub pid: u32,
    /// When this status was made.
    pub now_ms: u64,
    /// The time since the process started.
    pub uptime_seconds: f64,
    /// True if this status contains names of objects.
    pub names_shown: bool,
    /// The configuration in force.
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

/// The state of one gate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GateStatus {
    /// The name of the gate.
    pub name: String,
    /// The kind of API: `kubernetes` or `http`.
    pub kind: String,
    /// The addresses of the gate's listeners.
    pub listen: Vec<String>,
    /// The upstream's URL.
    pub upstream: String,
    /// The upstream's host, if the gate is one of several made for hosts of the egress listener;
    /// otherwise empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Set while an operator lets every call pass without limits.
    pub bypass: Option<Bypass>,
    /// What the limits would have done to calls in shadow mode: to all, or to those of some
    /// classes. Absent if no class is in shadow mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Shadow>,
    /// The comparison of the current limits with a candidate's, if the gate has a candidate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Candidate>,
    /// The calls sent since the start.
    pub admitted: u64,
    /// The calls refused since the start.
    pub refused: u64,
    /// The calls sent without limits during an operator's bypass, since the start.
    pub bypassed: u64,
    /// The calls answered with a stored response, confirmed by the upstream, since the start.
    pub revalidated: u64,
    /// The memory taken by stored responses, in bytes.
    pub kept_bytes: usize,
    /// The number of waiting calls: in queues, or because their keys are failing.
    pub waiting: usize,
    /// The memory taken by the heads and bodies of waiting calls, in bytes.
    pub waiting_bytes: usize,
    /// The number of calls waiting because their keys are failing.
    pub held: usize,
    /// The calls in flight, and their limit.
    pub slots: Slots,
    /// Every bucket of the gate.
    pub buckets: Vec<Bucket>,
    /// Every class of the gate.
    pub classes: Vec<Class>,
    /// The queues with waiting calls, longest first; not more than a hundred.
    pub queues: Vec<Queue>,
    /// The number of failing keys; `keys` may have fewer.
    pub keys_failing: usize,
    /// The number of trials: calls testing whether a failing key works again, waiting or sent.
    pub trials: usize,
    /// The failing keys, the next to be tested first; not more than a hundred.
    pub keys: Vec<FailingKey>,
    /// The objects called too often or in vain; not more than a hundred.
    pub hot: Vec<HotObject>,
    /// The pauses in force: asked for by the upstream, or saving the rest of its quota.
    pub pauses: Vec<Pause>,
    /// The upstream's own quotas, as its last responses reported them.
    pub quotas: Vec<UpstreamQuota>,
    /// The connections to the upstream, by group.
    pub connections: Vec<Connections>,
    /// The last refusals, latest first. Refusals of the same kind are counted together.
    pub refusals: Vec<Refusal>,
    /// The calls the upstream itself rejected since the start, by kind of rejection.
    pub rejections: Vec<Rejection>,
    /// The upstream's response times; absent if it has not answered lately.
    pub latency: Option<Latency>,
    /// The calling programs, those with most calls first; not more than 21. Empty if names are not
    /// shown.
    pub callers: Vec<CallerStatus>,
    /// The history of the last ten minutes.
    pub history: History,
}

/// A bypass: an operator lets every call pass without limits for a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bypass {
    /// The end of the bypass.
    pub until_ms: u64,
}

/// A quota of the upstream, as its last response about it reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UpstreamQuota {
    /// The part of the API to which the quota applies, in the upstream's words.
    pub resource: String,
    /// A hash of the credential or account; empty if the gate does not tell callers apart.
    pub account: String,
    /// The number of calls in the whole quota, if known.
    pub limit: Option<u64>,
    /// The number of calls left.
    pub remaining: u64,
    /// When the quota is full again, if known.
    pub resets_ms: Option<u64>,
    /// When the quota is used up at the present rate; absent if it is full again earlier.
    pub runs_out_ms: Option<u64>,
    /// The net use of the quota, in calls per second.
    pub per_second: f64,
    /// The programs spending most of the quota; none if names are hidden.
    pub spenders: Vec<QuotaSpender>,
    /// The time of the response with these figures.
    pub seen_ms: u64,
}

/// Calls in flight, and their limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slots {
    /// The number of calls in flight.
    pub used: u32,
    /// The most calls in flight; absent if there is no limit.
    pub max: Option<u32>,
}

/// A bucket, or one part of a split bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// The owner of the bucket: `gate`, `retry`, or `class NAME`.
    pub name: String,
    /// The number of the part, if the bucket is split by flow or credential: 1 and up; otherwise 0.
    pub part: usize,
    /// Tokens per second now.
    pub rate: f64,
    /// Tokens per second when the upstream does not throttle. While it does, `rate` may be lower.
    pub full_rate: f64,
    /// The most tokens in the bucket.
    pub burst: u32,
    /// The tokens in the bucket now; below zero if future tokens are already reserved for calls.
    pub level: f64,
    /// The state of the bucket in its store, if the gate shares it with other gates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedBucket>,
}

/// A bucket shared with other gates, as this gate knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SharedBucket {
    /// The name of the shared bucket, the same at all its gates.
    pub name: String,
    /// The name of the bucket's store; empty for the memory of this process.
    pub store: String,
    /// `shared`, or the state while the store does not answer: `fallback` (this gate uses its part
    /// of the rate) or `stopped`.
    pub state: String,
    /// The number of parts, if the bucket is split by account, action or credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<usize>,
    /// The number of gates sharing the bucket, from the store's last answer. Of a split bucket, it
    /// is that of the part with most gates.
    pub members: u32,
    /// The tokens in the store, from its last answer; below zero if future tokens are already
    /// promised to gates. Of a split bucket, it is that of the part with the fewest.
    pub level: f64,
    /// The number of tokens this gate has taken from the store and not used yet, in all parts.
    pub held: usize,
    /// Tokens per second now: of all gates together, or of this gate alone while the store does not
    /// answer. Of a split bucket, it is that of the slowest part.
    pub rate: f64,
    /// The milliseconds until a token is free for a call, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_ms: Option<u64>,
    /// True if another gate has stricter limits for this bucket in its configuration. The strictest
    /// apply to all.
    pub differs: bool,
}

/// The state of one class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// The name of the class.
    pub name: String,
    /// The priority of the class: `exempt`, `high`, `normal` or `low`.
    pub lane: String,
    /// True in shadow mode: the calls of the class are sent at once, and what the limits would have
    /// done is only counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// The number of calls since the last change of the limits, for all hosts of the gate together.
    pub calls: u64,
    /// The number of calls in its queues.
    pub waiting: usize,
    /// The calls of the class in flight, and their limit.
    pub slots: Slots,
}

/// A queue with waiting calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// The class of the queue's calls.
    pub class: String,
    /// The flow of the queue's calls; empty if names are not shown and the flow could be one.
    pub flow: String,
    /// True if the queue's calls test failing keys.
    pub retry: bool,
    /// The number of calls in the queue.
    pub waiting: usize,
    /// The wait so far of the queue's first call.
    pub oldest_seconds: f64,
    /// The reason for the wait: one of the reasons of refusals.
    pub reason: String,
}

/// A failing key: calls of this key have failed, and further ones are delayed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FailingKey {
    /// The name of the key, as `tidegate forget` takes it; empty if names are not shown.
    pub key: String,
    /// The number of failures in a row.
    pub failures: u32,
    /// The HTTP status of the last failure; absent if the call was sent and no response came.
    pub status: Option<u16>,
    /// The upstream's own code for the failure, such as `InternalError`; empty if it gave none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// The upstream's own message; empty if it gave none, or if names are not shown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The time of the last failure.
    pub failed_at_ms: u64,
    /// The earliest time for a call to test the key again.
    pub next_at_ms: u64,
}

/// A pause: some calls are not sent until it ends. The upstream asked for it, or it saves the rest
/// of a quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pause {
    /// The calls that must wait: `gate` (all), `class NAME` or `credential HASH`.
    pub who: String,
    /// When the pause ends.
    pub until_ms: u64,
    /// `shared` if another gate was asked for the pause and passed it on; empty if this gate was
    /// asked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub from: String,
    /// The number of calls left in the upstream's quota, if the pause saves them for other users
    /// (`signals.reserve`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<u64>,
    /// The number of calls in the whole quota, if the pause saves the rest of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// Connections to the upstream of one group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Connections {
    /// The group of connections: `leases`, `short` or `long_running`.
    pub group: String,
    /// The number of open connections.
    pub connections: usize,
    /// The number of calls on the connections.
    pub used: usize,
    /// How many more calls the connections can take.
    pub free: usize,
    /// The reason why no connection can be made; absent if one can.
    pub down: Option<String>,
}

/// Refusals for the same reason, counted together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// The time of the last of these refusals.
    pub at_ms: u64,
    /// The number of calls.
    pub count: u64,
    /// The class of the refused calls.
    pub class: String,
    /// The reason: one of the reasons of refusals.
    pub reason: String,
    /// The key of the calls, or only their verb and resource if names are not shown.
    pub call: String,
    /// The retry time in seconds of the last of these refusals, whether or not the answer had a
    /// Retry-After.
    pub retry_in_seconds: f64,
}

/// Calls rejected by the upstream itself, after the gate had sent them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rejection {
    /// The kind of rejection: `priority_and_fairness`, `rate_limit`, `disruption_budget` or
    /// `credentials`.
    pub by: String,
    /// The number of calls.
    pub count: u64,
    /// The time of the last rejection.
    pub at_ms: u64,
}

/// Statistics of the upstream's response times in the last minute or two. Long calls such as
/// watches are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The number of calls measured.
    pub calls: u64,
    /// The median time.
    pub median_seconds: f64,
    /// The 99th percentile of the times.
    pub p99_seconds: f64,
}

/// A program (by its User-Agent) and the number of its calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallerStatus {
    /// The first word of the program's User-Agent; empty if it sends none, `all others` for
    /// programs that are not counted separately.
    pub user_agent: String,
    /// The cloud provider's name of the calls' action; empty if the gate is not configured for a
    /// provider.
    pub action: String,
    /// The name of the client, if the gate authenticates clients; otherwise empty.
    pub client: String,
    /// The number of calls since the start.
    pub calls: u64,
    /// The number of refused calls among these.
    pub refused: u64,
    /// The time of the last call.
    pub last_ms: u64,
}

/// The last ten minutes in steps, oldest first; all lists are equally long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// The seconds of one step.
    pub step_seconds: u32,
    /// The number of calls sent in each step of the history.
    pub admitted: Vec<u64>,
    /// The number of calls refused in each step of the history.
    pub refused: Vec<u64>,
    /// The most calls waiting at the same time, in each step of the history.
    pub waiting: Vec<u64>,
}

impl History {
    /// Formats a value as calls per second.
    fn rate(&self, value: Option<&u64>) -> String {
        text::number(value.copied().unwrap_or_default() as f64 / f64::from(self.step_seconds.max(1)))
    }
}
