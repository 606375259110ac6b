//! Enums written as words in the configuration.

use toml::Value;

use super::cost::Counts;
use super::cursor::{Cursor, TomlValue};
use super::shape::Shape;
use super::values::one_of;
use crate::api::{Scope, Signal};
use crate::classify::{ApiKind, FairBy};
use crate::dialect::Dialect;
use crate::limit::policy::{Combine, Lane, Outage, Per};
use crate::limit::quota::QuotaKind;
use crate::limit::words::Words;
use crate::spec::{Credentials, HostFate, PlainHttp, RetryAfter, ShowNames, Tokens};

words! {
    /// The format of log lines.
    pub(super) enum Format {
        Text = "text",
        Json = "json",
    }

    /// Whether clients may send `Impersonate-*` headers when the gate uses its own credentials.
    pub(super) enum Impersonation {
        Reject = "reject",
        Allow = "allow",
    }

    /// Whether a bucket is full or empty at the start.
    pub(super) enum Start {
        Full = "full",
        Empty = "empty",
    }

    /// The backoff's strategy, without its numbers.
    pub(super) enum StrategyWord {
        Exponential = "exponential",
        FastSlow = "fast_slow",
        Off = "off",
    }

    /// The source of the listener's certificate.
    pub(super) enum Mode {
        SelfSigned = "self_signed",
        Files = "files",
    }
}

/// Implements reading and writing of enums as words.
macro_rules! closed_lists {
    ($($type:ty),+) => {
        $(impl TomlValue for $type {
            const SHAPE: Shape = Shape::Word(Self::WORDS);

            fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
                one_of(Self::WORDS, value, at).and_then(Self::named)
            }

            fn write(&self) -> Value {
                self.word().into()
            }
        })+
    };
}

closed_lists!(
    Format,
    Impersonation,
    Start,
    StrategyWord,
    Scope,
    Signal,
    Mode,
    ApiKind,
    Per,
    Combine,
    Lane,
    FairBy,
    Outage
);
closed_lists!(Counts, QuotaKind, Credentials, ShowNames, RetryAfter, Dialect, HostFate, PlainHttp, Tokens);
