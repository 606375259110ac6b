//! The signals by which an upstream tells of its own limits, one file per provider.
//!
//! Pure: a response head and at most [`PEEK`] bytes of its body in, a [`Reading`] out.
//! docs/external-apis.md has the source of each. A time of day counts from the response's own `Date`,
//! because the gate's clock may differ from the upstream's; without a `Date` it counts from the
//! gate's, which is passed in.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};

use crate::limit::outcome::PauseLength;

mod aws;
mod azure;
mod cbor;
mod docker;
mod error;
mod fields;
mod github;
mod gitlab;
mod google;
mod ietf;
mod inflate;
mod json;
mod okta;
mod quota;
mod retry_after;

pub use self::error::{ErrorBody, ErrorWords};
pub use self::inflate::{in_clear, is_readable};
pub use self::quota::{Quota, left, quotas};

/// The number of bytes of a body that are looked at. The codes and reasons of all providers are at
/// its beginning.
pub const PEEK: usize = 4096;

words! {
    /// A family of signals. Its word is the one in `signals.honour`, metrics and logs.
    pub enum Signal {
        /// `Retry-After` on a failure.
        RetryAfter = "retry_after",
        /// `RateLimit` and `RateLimit-Policy`, in all forms that are in use.
        Ietf = "ietf",
        /// `x-ratelimit-*` and secondary limits.
        Github = "github",
        /// `RateLimit-*` with a time of day.
        Gitlab = "gitlab",
        /// Azure Resource Manager.
        Azure = "azure",
        /// Error codes, in any status.
        Aws = "aws",
        /// `x-rate-limit-*`.
        Okta = "okta",
        /// The registry's `ratelimit-*` with a window, and the Hub's own API.
        Docker = "docker",
        /// Reasons and `RetryInfo` in the error body.
        Google = "google",
    }
}

/// A set of signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals(u16);

/// The parts of a response that signals look at.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// Its status.
    pub status: StatusCode,
    /// Its head.
    pub headers: &'a HeaderMap,
    /// The beginning of its body, [`in_clear`], if [`wants_body`] asked for it; otherwise empty.
    pub body: &'a [u8],
    /// The gate's own time of day when the head came, for a response without a `Date`.
    pub wall: Option<SystemTime>,
}

/// The facts about limits that a response tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The refusal, if the call was turned away for a limit.
    pub refused: Option<(Signal, Refused)>,
    /// The quota that is used up except for the reserve.
    pub spent: Option<(Signal, Spent)>,
}

/// The refusal of a call for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The wait before the call may come again.
    pub wait: PauseLength,
    /// The calls that the limit concerns.
    pub reach: Reach,
    /// True for too many calls, or too fast; false for a limit on the amount of something.
    pub overload: bool,
}

/// A quota that is used up except for the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// The time until there is more.
    pub wait: Duration,
    /// The calls that the quota concerns.
    pub reach: Reach,
}

/// The calls that a limit concerns at most, however wide `signals.scope` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// The same call again.
    Key,
    /// A part of the API: calls of the class.
    Class,
    /// All calls in `signals.scope`.
    All,
}

/// True if the beginning of the body could tell more than the head does, and can be read.
pub fn wants_body(honoured: Signals, status: StatusCode, headers: &HeaderMap) -> bool {
    let could = honoured.iter().any(|signal| match signal {
        Signal::Aws => aws::wants_body(status, headers),
        Signal::Github => github::wants_body(status, headers),
        Signal::Google => google::wants_body(status, headers),
        Signal::Azure | Signal::Docker | Signal::Gitlab | Signal::Ietf | Signal::Okta | Signal::RetryAfter => false,
    });
    could && is_readable(headers)
}

/// Reads a response. `reserve` is the fraction of a quota that is left to others.
pub fn read(honoured: Signals, reserve: f64, response: &Response<'_>) -> Reading {
    let mut reading = Reading::default();
    // Providers first: they know which calls their Retry-After concerns.
    for signal in honoured.iter().filter(|signal| *signal != Signal::RetryAfter) {
        let (refused, spent) = family(signal, response, reserve);
        reading.refused = reading.refused.or_else(|| refused.map(|refused| (signal, refused)));
        let longer = spent.filter(|new| reading.spent.is_none_or(|(_, known)| known.wait < new.wait));
        reading.spent = longer.map(|spent| (signal, spent)).or(reading.spent);
    }
    if reading.refused.is_none() && honoured.contains(Signal::RetryAfter) {
        reading.refused = retry_after::refused(response).map(|refused| (Signal::RetryAfter, refused));
    }
    reading
}

/// Reads a refusal, and a quota that is used up except for a fraction.
fn family(signal: Signal, response: &Response<'_>, reserve: f64) -> (Option<Refused>, Option<Spent>) {
    match signal {
        Signal::RetryAfter => (retry_after::refused(response), None),
        Signal::Ietf => (ietf::refused(response), ietf::spent(response, reserve)),
        Signal::Github => (github::refused(response), github::spent(response, reserve)),
        Signal::Gitlab => (gitlab::refused(response), ietf::spent(response, reserve)),
        Signal::Azure => (azure::refused(response), azure::spent(response)),
        Signal::Aws => (aws::refused(response), None),
        Signal::Okta => (okta::refused(response), okta::spent(response, reserve)),
        Signal::Docker => (docker::refused(response), docker::spent(response, reserve)),
        Signal::Google => (google::refused(response), None),
    }
}

// === impl Signal ===

impl Signal {
    /// True if it tells how much of a quota is left, so that some of it can be reserved.
    pub const fn tells_quota(self) -> bool {
        matches!(self, Self::Docker | Self::Github | Self::Gitlab | Self::Ietf | Self::Okta)
    }
}

// === impl Signals ===

impl Signals {
    /// True if a signal is in it.
    pub const fn contains(self, signal: Signal) -> bool {
        self.0 & (1 << signal as u16) != 0
    }

    /// True if an answer may tell a quota in the words of one of them.
    pub fn tell_quotas(self) -> bool {
        self.contains(Signal::Azure) || self.iter().any(Signal::tells_quota)
    }

    /// Returns the signals in it.
    pub fn iter(self) -> impl Iterator<Item = Signal> {
        Signal::ALL.into_iter().filter(move |signal| self.contains(*signal))
    }
}

impl FromIterator<Signal> for Signals {
    fn from_iter<I: IntoIterator<Item = Signal>>(signals: I) -> Self {
        Self(signals.into_iter().fold(0, |set, signal| set | 1 << signal as u16))
    }
}

// === impl Response ===

impl Response<'_> {
    /// Ends the reading with `None` unless the call was answered 429.
    fn too_many(&self) -> Option<()> {
        (self.status == StatusCode::TOO_MANY_REQUESTS).then_some(())
    }
}

// === impl Refused ===

impl Refused {
    /// Makes all calls wait for this time.
    const fn all(wait: Duration) -> Self {
        Self { wait: PauseLength::Known(wait), reach: Reach::All, overload: true }
    }

    /// Makes all calls wait for a time that the upstream did not name.
    const fn growing(first: Duration, most: Duration) -> Self {
        Self { wait: PauseLength::Growing { first, most }, reach: Reach::All, overload: true }
    }

    /// Makes all calls wait for the time that the upstream named, if it did.
    fn told(told: Option<Duration>, first: Duration, most: Duration) -> Self {
        told.map_or_else(|| Self::growing(first, most), Self::all)
    }

    const fn within(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }
}

#[cfg(test)]
mod tests;
