//! The shape of the configuration: every key there is, with its type. What the values mean together is checked later.

use serde::Deserialize;

use super::{
    field::{Field, Listed, Named, Section},
    leaf::{Anything, Bytes, List, OneOrMore, OrAuto, OrOff, Span, Texts, Word, Words},
    presets::Preset,
    settings,
};
use crate::{
    api::Scope,
    classify::{FairBy, Kind},
    limit::policy::{Combine, Lane, Per},
};

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct File {
    pub(super) admin: Section<Admin>,
    pub(super) log: Section<Log>,
    pub(super) shutdown: Section<Shutdown>,
    pub(super) gates: Named<Gate>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct Admin {
    pub(super) listen: Field<String>,
    pub(super) show_names: Field<Word<settings::ShowNames>>,
    pub(super) socket: Field<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct Log {
    pub(super) format: Field<Word<Format>>,
    pub(super) level: Field<String>,
    pub(super) calls: Field<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct Shutdown {
    pub(super) drain: Field<Span>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct Gate {
    pub(super) kind: Field<Word<Kind>>,
    pub(super) listen: Field<OneOrMore>,
    pub(super) upstream: Field<String>,
    pub(super) preset: Field<Word<Preset>>,
    pub(super) max_reconcile_rate: Field<u32>,
    pub(super) credentials: Field<Word<settings::Credentials>>,
    pub(super) impersonation: Field<Word<Impersonation>>,
    pub(super) retry_after: Field<Word<settings::RetryAfter>>,
    pub(super) shadow: Field<bool>,
    pub(super) allowed_hosts: Field<List>,
    pub(super) host: Field<String>,
    pub(super) rewrite_links: Field<bool>,
    pub(super) key: Field<Anything>,
    pub(super) one_at_a_time: Field<bool>,
    pub(super) bucket: Section<Bucket>,
    pub(super) retry_bucket: Section<Bucket>,
    pub(super) backoff: Section<Backoff>,
    pub(super) queue: Section<Queue>,
    pub(super) in_flight: Section<InFlight>,
    pub(super) signals: Section<Signals>,
    pub(super) timeouts: Section<Timeouts>,
    pub(super) classes: Listed<Class>,
    pub(super) tls: Section<Tls>,
    pub(super) upstream_tls: Section<UpstreamTls>,
    pub(super) credential: Section<Credential>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct Bucket {
    pub(super) rate: Field<f64>,
    pub(super) burst: Field<u32>,
    pub(super) per: Field<Word<Per>>,
    pub(super) start: Field<Word<Start>>,
    pub(super) adapt: Section<Adapt>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct Adapt {
    pub(super) floor: Field<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct Backoff {
    pub(super) strategy: Field<Word<StrategyWord>>,
    pub(super) base: Field<Span>,
    pub(super) max: Field<Span>,
    pub(super) jitter: Field<f64>,
    pub(super) fast: Field<Span>,
    pub(super) slow: Field<Span>,
    pub(super) fast_attempts: Field<u32>,
    pub(super) hold: Field<Span>,
    pub(super) forget_after: Field<OrAuto>,
    pub(super) failures: Field<List>,
    pub(super) max_keys: Field<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct Queue {
    pub(super) max_wait: Field<Span>,
    pub(super) max_waiting: Field<u64>,
    pub(super) max_waiting_bytes: Field<Bytes>,
    pub(super) fair_by: Field<Word<FairBy>>,
    pub(super) combine: Field<Word<Combine>>,
    pub(super) coalesce: Field<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct InFlight {
    pub(super) max: Field<u32>,
    pub(super) per: Field<Word<Per>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct Signals {
    pub(super) honour: Field<List>,
    pub(super) scope: Field<Word<Scope>>,
    pub(super) max_pause: Field<Span>,
    pub(super) reserve: Field<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct Timeouts {
    pub(super) connect: Field<Span>,
    pub(super) response: Field<OrOff>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct Class {
    pub(super) name: Field<String>,
    #[serde(rename = "match")]
    pub(super) matching: Section<Match>,
    pub(super) lane: Field<Word<Lane>>,
    pub(super) bucket: Section<Bucket>,
    pub(super) within: Field<String>,
    pub(super) own_bucket_only: Field<bool>,
    pub(super) backoff: Section<Backoff>,
    pub(super) in_flight: Section<InFlight>,
    pub(super) meter_long_running: Field<bool>,
    pub(super) key: Field<Anything>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct Match {
    pub(super) verbs: Field<List>,
    pub(super) groups: Field<List>,
    pub(super) resources: Field<List>,
    pub(super) namespaces: Field<List>,
    pub(super) names: Field<List>,
    pub(super) subresources: Field<List>,
    pub(super) methods: Field<List>,
    pub(super) paths: Field<List>,
    pub(super) user_agents: Field<List>,
    pub(super) headers: Field<Texts>,
    pub(super) query: Field<Texts>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct Tls {
    pub(super) mode: Field<Word<Mode>>,
    pub(super) names: Field<List>,
    pub(super) cert: Field<String>,
    pub(super) key: Field<String>,
    pub(super) write_to: Field<String>,
    pub(super) client_ca: Field<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct UpstreamTls {
    pub(super) ca: Field<String>,
    pub(super) cert: Field<String>,
    pub(super) key: Field<String>,
    pub(super) server_name: Field<String>,
    pub(super) insecure: Field<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(super) struct Credential {
    pub(super) header: Field<String>,
    pub(super) prefix: Field<String>,
    pub(super) file: Field<String>,
}

/// Log lines as text or JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
}

/// What happens to `Impersonate-*` headers with inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Impersonation {
    Reject,
    Allow,
}

/// Whether a bucket starts full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Full,
    Empty,
}

/// The backoff's strategy, without its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StrategyWord {
    Exponential,
    FastSlow,
    Off,
}

/// Where the listener's certificate comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    SelfSigned,
    Files,
}

/// Declares the words of closed lists.
macro_rules! words {
    ($($type:ty { $($word:literal => $meaning:expr),+ $(,)? })+) => {
        $(impl Words for $type {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, $meaning)),+];
        })+
    };
}

words! {
    Format { "text" => Self::Text, "json" => Self::Json }
    Impersonation { "reject" => Self::Reject, "allow" => Self::Allow }
    Start { "full" => Self::Full, "empty" => Self::Empty }
    StrategyWord { "exponential" => Self::Exponential, "fast_slow" => Self::FastSlow, "off" => Self::Off }
    Scope { "key" => Self::Key, "class" => Self::Class, "credential" => Self::Credential, "gate" => Self::Gate }
    Mode { "self_signed" => Self::SelfSigned, "files" => Self::Files }
    Kind { "kubernetes" => Self::Kubernetes, "http" => Self::Http }
    Per { "gate" => Self::Gate, "flow" => Self::Flow, "credential" => Self::Credential }
    Combine { "sequential" => Self::Sequential, "max_of" => Self::MaxOf }
    Lane { "exempt" => Self::Exempt, "high" => Self::High, "normal" => Self::Normal, "low" => Self::Low }
    FairBy {
        "none" => Self::None,
        "resource" => Self::Resource,
        "namespace" => Self::Namespace,
        "user_agent" => Self::UserAgent,
        "credential" => Self::Credential,
    }
    settings::Credentials { "auto" => Self::Auto, "pass_through" => Self::PassThrough, "inject" => Self::Inject }
    settings::ShowNames { "auto" => Self::Auto, "always" => Self::Always, "never" => Self::Never }
    settings::RetryAfter { "auto" => Self::Auto, "always" => Self::Always, "never" => Self::Never }
    Preset {
        "sidecar" => Self::Sidecar,
        "client_go" => Self::ClientGo,
        "controller_runtime" => Self::ControllerRuntime,
        "crossplane" => Self::Crossplane,
        "github" => Self::Github,
        "none" => Self::None,
    }
}

/// The word that stands for a meaning.
pub(super) fn word<T: Words + PartialEq>(meaning: T) -> &'static str {
    T::WORDS.iter().find(|(_, candidate)| *candidate == meaning).map_or("", |(word, _)| *word)
}
