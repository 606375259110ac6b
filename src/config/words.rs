//! The closed lists of words that keys take.

use toml::Value;

use super::cursor::{Cursor, TomlValue};
use super::presets::Preset;
use super::shape::Shape;
use super::values::one_of;
use crate::api::Scope;
use crate::classify::{FairBy, Kind};
use crate::limit::policy::{Combine, Lane, Per};
use crate::spec::{Credentials, RetryAfter, ShowNames};

/// Log lines as text or JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
}

/// Rejects or allows `Impersonate-*` headers with inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Impersonation {
    Reject,
    Allow,
}

/// The tokens in a bucket at the start.
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

/// The source of the listener's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    SelfSigned,
    Files,
}

/// Makes types of keys of enums, by the word for each value.
macro_rules! closed_lists {
    ($($type:ty { $($word:literal => $meaning:ident),+ $(,)? })+) => {
        $(impl TomlValue for $type {
            const SHAPE: Shape = Shape::Word(&[$($word),+]);

            fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
                match one_of(&[$($word),+], value, at)? {
                    $($word => Some(Self::$meaning),)+
                    _ => None,
                }
            }

            fn write(&self) -> Value {
                Value::from(match self {
                    $(Self::$meaning => $word,)+
                })
            }
        })+
    };
}

closed_lists! {
    Format { "text" => Text, "json" => Json }
    Impersonation { "reject" => Reject, "allow" => Allow }
    Start { "full" => Full, "empty" => Empty }
    StrategyWord { "exponential" => Exponential, "fast_slow" => FastSlow, "off" => Off }
    Scope { "key" => Key, "class" => Class, "credential" => Credential, "gate" => Gate }
    Mode { "self_signed" => SelfSigned, "files" => Files }
    Kind { "kubernetes" => Kubernetes, "http" => Http }
    Per { "gate" => Gate, "flow" => Flow, "credential" => Credential }
    Combine { "sequential" => Sequential, "max_of" => MaxOf }
    Lane { "exempt" => Exempt, "high" => High, "normal" => Normal, "low" => Low }
    FairBy {
        "none" => None,
        "resource" => Resource,
        "namespace" => Namespace,
        "user_agent" => UserAgent,
        "credential" => Credential,
    }
    Credentials { "auto" => Auto, "pass_through" => PassThrough, "inject" => Inject }
    ShowNames { "auto" => Auto, "always" => Always, "never" => Never }
    RetryAfter { "auto" => Auto, "always" => Always, "never" => Never }
    Preset {
        "sidecar" => Sidecar,
        "client_go" => ClientGo,
        "controller_runtime" => ControllerRuntime,
        "crossplane" => Crossplane,
        "github" => Github,
        "none" => None,
    }
}
