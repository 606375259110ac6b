//! What an upstream says about its own limits, in the words of each provider.
//!
//! Pure: a response head and at most [`PEEK`] bytes of its body in, a [`Reading`] out. One file per
//! family; docs/signals.md says where each was read. Times are reckoned against the response's own
//! `Date`, because our clock may differ from the upstream's; without a `Date`, against the gate's,
//! which is passed in.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, header::RETRY_AFTER};

mod aws;
mod azure;
mod docker;
mod fields;
mod github;
mod gitlab;
mod google;
mod ietf;
mod inflate;
mod json;
mod okta;
mod retry_after;

pub use self::inflate::in_clear;

/// How much of a body is looked at. The codes and reasons of all providers stand at its beginning.
pub const PEEK: usize = 4096;

/// A family of signals, by its word in `signals.honour`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// `Retry-After` on a failure.
    RetryAfter,
    /// `RateLimit` and `RateLimit-Policy`, in all forms that are about.
    Ietf,
    /// `x-ratelimit-*` and secondary limits.
    Github,
    /// `RateLimit-*` with a time of day.
    Gitlab,
    /// Azure Resource Manager.
    Azure,
    /// Error codes, in whatever status.
    Aws,
    /// `x-rate-limit-*`.
    Okta,
    /// The registry's `ratelimit-*` with a window, and the Hub's own API.
    Docker,
    /// Reasons and `RetryInfo` in the error body.
    Google,
}

/// A set of signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals(u16);

/// A response as far as signals look at it.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// Its status.
    pub status: StatusCode,
    /// Its head.
    pub headers: &'a HeaderMap,
    /// The beginning of its body, [`in_clear`], where [`wants_body`] asked for it; else empty.
    pub body: &'a [u8],
    /// The gate's own time of day when the head came, to reckon by where there is no `Date`.
    pub wall: Option<SystemTime>,
}

/// What a response says about limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The call was turned away for a limit.
    pub refused: Option<(Signal, Refused)>,
    /// A quota is used up but for the reserve.
    pub spent: Option<(Signal, Spent)>,
}

/// A call was turned away for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// When it may come again.
    pub wait: Wait,
    /// Whom else the limit concerns.
    pub reach: Reach,
    /// Too many calls, or too fast; not a limit on how much there may be of something.
    pub overload: bool,
}

/// A quota is used up but for the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// Until there is more.
    pub wait: Duration,
    /// Whom it concerns.
    pub reach: Reach,
}

/// When a refused call may come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The upstream said.
    For(Duration),
    /// It did not: `first`, then twice as long each time, `most` at most.
    Growing {
        /// The first time.
        first: Duration,
        /// Never more.
        most: Duration,
    },
}

/// Whom a limit concerns at most, however wide `signals.scope` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// The same call again.
    Key,
    /// A part of the API: calls of the class.
    Class,
    /// Whatever `signals.scope` says.
    All,
}

/// Whether the beginning of the body could tell more than the head does, and can be read.
#[must_use]
pub fn wants_body(honoured: Signals, status: StatusCode, headers: &HeaderMap) -> bool {
    let could = honoured.iter().any(|signal| match signal {
        Signal::Aws => aws::wants_body(status, headers),
        Signal::Github => github::wants_body(status, headers),
        Signal::Google => google::wants_body(status, headers),
        Signal::Azure | Signal::Docker | Signal::Gitlab | Signal::Ietf | Signal::Okta | Signal::RetryAfter => false,
    });
    could && inflate::is_readable(headers)
}

/// What a response says. `reserve` is the fraction of a quota that is left to others.
#[must_use]
pub fn read(honoured: Signals, reserve: f64, response: &Response<'_>) -> Reading {
    let mut reading = Reading::default();
    // Providers first: they know whom their Retry-After concerns.
    for signal in honoured.iter().filter(|signal| *signal != Signal::RetryAfter) {
        let (refused, spent) = family(signal)(response, reserve);
        reading.refused = reading.refused.or_else(|| refused.map(|refused| (signal, refused)));
        let longer = spent.filter(|new| reading.spent.is_none_or(|(_, known)| known.wait < new.wait));
        reading.spent = longer.map(|spent| (signal, spent)).or(reading.spent);
    }
    if reading.refused.is_none() && honoured.contains(Signal::RetryAfter) {
        reading.refused = retry_after::refused(response).map(|refused| (Signal::RetryAfter, refused));
    }
    reading
}

/// What a family reads: a refusal, and a quota that is used up but for a fraction.
type Family = fn(&Response<'_>, f64) -> (Option<Refused>, Option<Spent>);

fn family(signal: Signal) -> Family {
    match signal {
        Signal::RetryAfter => |response, _| (retry_after::refused(response), None),
        Signal::Ietf => |response, reserve| (ietf::refused(response), ietf::spent(response, reserve)),
        Signal::Github => |response, reserve| (github::refused(response), github::spent(response, reserve)),
        Signal::Gitlab => |response, reserve| (gitlab::refused(response), gitlab::spent(response, reserve)),
        Signal::Azure => |response, _| (azure::refused(response), azure::spent(response)),
        Signal::Aws => |response, _| (aws::refused(response), None),
        Signal::Okta => |response, reserve| (okta::refused(response), okta::spent(response, reserve)),
        Signal::Docker => |response, reserve| (docker::refused(response), docker::spent(response, reserve)),
        Signal::Google => |response, _| (google::refused(response), None),
    }
}

// === impl Signal ===

impl Signal {
    /// Every signal, in the order of the manual.
    pub const ALL: [Self; 9] = [
        Self::RetryAfter,
        Self::Ietf,
        Self::Github,
        Self::Gitlab,
        Self::Azure,
        Self::Aws,
        Self::Okta,
        Self::Docker,
        Self::Google,
    ];

    /// Its word in configuration, metrics and logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::RetryAfter => "retry_after",
            Self::Ietf => "ietf",
            Self::Github => "github",
            Self::Gitlab => "gitlab",
            Self::Azure => "azure",
            Self::Aws => "aws",
            Self::Okta => "okta",
            Self::Docker => "docker",
            Self::Google => "google",
        }
    }

    /// Whether it tells how much of a quota is left, so that some of it can be reserved.
    #[must_use]
    pub const fn tells_quota(self) -> bool {
        matches!(self, Self::Docker | Self::Github | Self::Gitlab | Self::Ietf | Self::Okta)
    }
}

// === impl Signals ===

impl Signals {
    /// Whether a signal is in it.
    #[must_use]
    pub const fn contains(self, signal: Signal) -> bool {
        self.0 & (1 << signal as u16) != 0
    }

    /// The signals in it.
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
    /// What its Retry-After says.
    fn retry_after(&self) -> Option<Duration> {
        retry_after::read(self)
    }

    /// Whether it has a Retry-After at all.
    fn has_retry_after(&self) -> bool {
        self.headers.contains_key(RETRY_AFTER)
    }
}

// === impl Refused ===

impl Refused {
    /// Everyone waits for so long.
    const fn all(wait: Duration) -> Self {
        Self { wait: Wait::For(wait), reach: Reach::All, overload: true }
    }

    /// Everyone waits, and nobody said for how long.
    const fn growing(first: Duration, most: Duration) -> Self {
        Self { wait: Wait::Growing { first, most }, reach: Reach::All, overload: true }
    }

    const fn within(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }
}

#[cfg(test)]
mod tests;
