//! The signals: what upstreams say about their own limits, one file per provider.
//!
//! This does no I/O: it gets a response head and at most [`PEEK`] bytes of its body, and returns
//! [`LimitFacts`]. docs/external-apis.md has the source of each. A time of day is relative to the
//! response's own `Date`, because the gate's clock may differ; without a `Date` it is relative to
//! the gate's time, an argument.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};

use crate::limit::outcome::PauseLength;
use crate::limit::quota::ResourceId;

mod aws;
mod azure;
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

pub use self::aws::is_throttling;
pub use self::error::{ErrorBody, ErrorWords};
pub use self::fields::Quota;
pub use self::inflate::{in_clear, is_readable};
pub(super) use self::quota::scarcest;
pub use self::quota::{left, quotas};

/// How many bytes of a body to read. All providers' codes and reasons are in them.
pub const PEEK: usize = 4096;

words! {
    /// A family of signals in upstream responses, by its word in `signals.honour`, metrics and
    /// logs.
    pub enum Signal {
        /// The `Retry-After` header of a failed response.
        RetryAfter = "retry_after",
        /// The `RateLimit` and `RateLimit-Policy` headers, in all forms in use.
        Ietf = "ietf",
        /// GitHub's `x-ratelimit-*` headers and secondary limits.
        Github = "github",
        /// GitLab's `RateLimit-*` headers, with a time of day.
        Gitlab = "gitlab",
        /// Azure Resource Manager's 429s and the calls left in its headers.
        Azure = "azure",
        /// AWS error codes, with any status.
        Aws = "aws",
        /// Okta's `x-rate-limit-*` headers.
        Okta = "okta",
        /// The Docker registry's `ratelimit-*` headers with a time window, and Docker Hub's own
        /// API.
        Docker = "docker",
        /// Google's reasons and `RetryInfo` in an error body.
        Google = "google",
    }
}

/// A set of signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals(u16);

/// A response, as far as signals are read from it.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// The HTTP status.
    pub status: StatusCode,
    /// The response headers.
    pub headers: &'a HeaderMap,
    /// The beginning of the body, uncompressed ([`in_clear`]), if [`wants_body`]; otherwise empty.
    pub body: &'a [u8],
    /// The gate's time of day when the head came, for a response without a `Date`.
    pub wall: Option<SystemTime>,
}

/// What a response says about limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitFacts {
    /// Set if a limit of the upstream refused the call.
    pub refused: Option<(Signal, LimitRefusal)>,
    /// Set if a quota has no more calls left than the reserve for others.
    pub spent: Option<(Signal, SpentQuota)>,
    /// The resource the call was charged to, as the upstream names it.
    pub charged: Option<ResourceId>,
}

/// A refusal of a call by a limit of the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRefusal {
    /// How long to wait before the next attempt.
    pub wait: PauseLength,
    /// The calls the limit concerns.
    pub reach: Reach,
    /// True if there were too many calls, or too fast; false for a limit on the amount of
    /// something.
    pub overload: bool,
}

/// A quota with nothing left but the reserve for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpentQuota {
    /// The time until more calls are allowed.
    pub wait: Duration,
    /// The calls the quota counts.
    pub reach: Reach,
}

/// The part of the API under a limit. `signals.scope` decides whose calls are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only the same call, repeated.
    Key,
    /// The calls of the class.
    Class,
    /// The resource the call is charged to by its provider's rules; the call's class if there are
    /// none.
    Charged,
    /// The resource of this name.
    Named(ResourceId),
    /// The whole API.
    All,
}

/// Returns true if an answer's body may hold a rate-limit signal that its head lacks, and has an
/// encoding that can be read.
pub fn wants_body(honoured: Signals, status: StatusCode, headers: &HeaderMap) -> bool {
    let could = honoured.iter().any(|signal| match signal {
        Signal::Aws => aws::wants_body(status, headers),
        Signal::Github => github::wants_body(status, headers),
        Signal::Google => google::wants_body(status, headers),
        Signal::Azure | Signal::Docker | Signal::Gitlab | Signal::Ietf | Signal::Okta | Signal::RetryAfter => false,
    });
    could && is_readable(headers)
}

/// Returns the statements of a response about limits. `reserve` is the fraction of a quota to leave
/// to others.
pub fn read(honoured: Signals, reserve: f64, response: &Response<'_>) -> LimitFacts {
    let mut reading = LimitFacts::default();
    // Providers first: they tell which calls a Retry-After is for.
    for signal in honoured.iter().filter(|signal| *signal != Signal::RetryAfter) {
        let (refused, spent) = family(signal, response, reserve);
        reading.refused = reading.refused.or_else(|| refused.map(|refused| (signal, refused)));
        let longer = spent.filter(|new| reading.spent.is_none_or(|(_, known)| known.wait < new.wait));
        reading.spent = longer.map(|spent| (signal, spent)).or(reading.spent);
    }
    let reaches = [reading.refused.map(|(_, refused)| refused.reach), reading.spent.map(|(_, spent)| spent.reach)];
    let named = |reach: &Option<Reach>| if let Some(Reach::Named(word)) = reach { Some(*word) } else { None };
    let github = || Some(response).filter(|_| honoured.contains(Signal::Github)).and_then(github::resource);
    reading.charged = reaches.iter().find_map(named).or_else(github);
    if reading.refused.is_none() && honoured.contains(Signal::RetryAfter) {
        reading.refused = retry_after::refused(response).map(|refused| (Signal::RetryAfter, refused));
    }
    reading
}

/// Reads one family of signals: a refusal, and a quota with nothing left but the reserve.
fn family(signal: Signal, response: &Response<'_>, reserve: f64) -> (Option<LimitRefusal>, Option<SpentQuota>) {
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
    /// Returns true if the signal says how much of a quota is left, so that some can be reserved.
    pub const fn tells_quota(self) -> bool {
        matches!(self, Self::Docker | Self::Github | Self::Gitlab | Self::Ietf | Self::Okta)
    }
}

// === impl Signals ===

impl Signals {
    /// Returns true if the set contains a signal.
    pub const fn contains(self, signal: Signal) -> bool {
        self.0 & (1 << signal as u16) != 0
    }

    /// Returns true if one of the signals says how much of a quota is left.
    pub fn tell_quotas(self) -> bool {
        self.contains(Signal::Azure) || self.iter().any(Signal::tells_quota)
    }

    /// Returns true if one of the signals names the resource a call was charged to.
    pub const fn name_resources(self) -> bool {
        self.contains(Signal::Azure) || self.contains(Signal::Github) || self.contains(Signal::Ietf)
    }

    /// Returns true if one of the signals is not `Retry-After`: the limits behind such signals have
    /// holders (credentials or accounts).
    pub const fn are_of_providers(self) -> bool {
        self.0 & !(1 << Signal::RetryAfter as u16) != 0
    }

    /// Returns the signals.
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
    /// Returns `None` unless the status is 429.
    fn too_many(&self) -> Option<()> {
        (self.status == StatusCode::TOO_MANY_REQUESTS).then_some(())
    }
}

// === impl LimitRefusal ===

impl LimitRefusal {
    /// Makes a refusal of all calls, for this time.
    const fn all(wait: Duration) -> Self {
        Self { wait: PauseLength::Known(wait), reach: Reach::All, overload: true }
    }

    /// Makes a refusal of all calls, for a growing time, because the upstream named none.
    const fn growing(first: Duration, most: Duration) -> Self {
        Self { wait: PauseLength::Growing { first, most }, reach: Reach::All, overload: true }
    }

    /// Makes a refusal of all calls: for the upstream's time or, if it named none, for a growing
    /// time.
    fn told(wait: Option<Duration>, first: Duration, most: Duration) -> Self {
        wait.map_or_else(|| Self::growing(first, most), Self::all)
    }

    const fn within(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }
}

#[cfg(test)]
mod tests;
