//! What a response means for its key.
//!
//! A refusal or a wait by the gate itself never comes here: it is neither success nor failure (P4). Nor does a failure to connect, or an
//! outage would leave every key at its longest delay.

use std::time::Duration;

use http::{HeaderMap, StatusCode};

use super::{Call, Verb, retry_after};

/// What a response means for its key (DESIGN.md, "Outcomes").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The caller left after less than 1 s upstream, or nothing was learned.
    Abandoned,
    /// Counts against the key.
    Failure,
    /// Neither counts nor forgets.
    Neutral,
    /// Forgets the key.
    Success,
    /// Counts as a failure, and nothing of the key leaves before `after` has passed.
    Throttled {
        /// The upstream's own Retry-After.
        after: Duration,
    },
}

/// An outcome with what the refusals it may cause will say about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What it means for the key.
    pub outcome: Outcome,
    /// The status; `None` when the call was sent and then lost.
    pub status: Option<u16>,
    /// The object is gone (a DELETE succeeded, or it is not found): every key of it is forgotten.
    pub object_gone: bool,
    /// The upstream turned the call away because it has too much to do (not an error of its own, not a PodDisruptionBudget): what an
    /// adaptive bucket slows down for.
    pub throttled: bool,
    /// More than the key is to wait.
    pub pause: Option<Pause>,
}

/// What the upstream asked for beyond the key of the call it answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Who waits.
    pub scope: Scope,
    /// How long, from the response head on.
    pub length: PauseLength,
}

/// What pauses when the upstream says wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The calls of the same credential.
    Credential,
    /// The calls of the same class.
    Class,
    /// Every call of the gate that is not exempt.
    Gate,
    /// The calls of the same key: that is [`Outcome::Throttled`], never a [`Pause`].
    Key,
}

/// How long a pause is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseLength {
    /// As long as the upstream said, capped.
    Known(Duration),
    /// The upstream gave no time: `first`, twice as long each time it happens again before a success in the scope, `most` at most.
    Growing {
        /// The first time.
        first: Duration,
        /// Never more.
        most: Duration,
    },
}

/// What counts as failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failures {
    /// Statuses, sorted.
    pub statuses: Vec<u16>,
    /// Sent, then lost or unanswered.
    pub transport: bool,
}

/// What an upstream may ask of us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttling {
    /// Whether its Retry-After is honoured.
    pub honour_retry_after: bool,
    /// The longest pause it can ask for.
    pub max_pause: Duration,
}

// === impl Answer ===

impl Answer {
    /// An answer that concerns nothing but the key of its call.
    #[must_use]
    pub const fn new(outcome: Outcome, status: Option<u16>) -> Self {
        Self { outcome, status, object_gone: false, throttled: false, pause: None }
    }
}

/// What a response head means.
#[must_use]
pub fn answer(
    failures: &Failures,
    throttling: Throttling,
    call: &Call,
    status: StatusCode,
    headers: &HeaderMap,
) -> Answer {
    let failed = failures.statuses.binary_search(&status.as_u16()).is_ok();
    let outcome = match status {
        _ if call.is_tunnel() || is_budget_refusal(call, status) => Outcome::Neutral,
        _ if failed => failure(throttling, headers),
        _ if is_success(status) && call.is_dry_run() => Outcome::Neutral,
        _ if is_success(status) => Outcome::Success,
        _ => Outcome::Neutral,
    };
    let object_gone = !failed && !call.is_tunnel() && !call.is_dry_run() && is_gone(call, status);
    Answer { object_gone, ..Answer::new(outcome, Some(status.as_u16())) }
}

/// What it means that a call was sent and then lost, or not answered in time.
#[must_use]
pub fn lost(failures: &Failures, call: &Call) -> Answer {
    let outcome = if failures.transport && !call.is_tunnel() { Outcome::Failure } else { Outcome::Neutral };
    Answer::new(outcome, None)
}

/// What it means that the caller left before the response head, `upstream_for` after its call was sent.
#[must_use]
pub fn left(call: &Call, upstream_for: Duration) -> Answer {
    let waited_in_vain = upstream_for > PATIENCE && !call.is_tunnel();
    let outcome = if waited_in_vain { Outcome::Failure } else { Outcome::Abandoned };
    Answer::new(outcome, None)
}

/// A failure, with the time that the upstream names.
fn failure(throttling: Throttling, headers: &HeaderMap) -> Outcome {
    match retry_after::read(headers).filter(|_| throttling.honour_retry_after) {
        Some(after) => Outcome::Throttled { after: after.min(throttling.max_pause) },
        None => Outcome::Failure,
    }
}

/// 101 answers a watch over WebSocket.
fn is_success(status: StatusCode) -> bool {
    status.is_success() || matches!(status, StatusCode::NOT_MODIFIED | StatusCode::SWITCHING_PROTOCOLS)
}

/// An eviction's 429 is a PodDisruptionBudget at work, not a server in trouble.
fn is_budget_refusal(call: &Call, status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS && call.verb() == Verb::Create && call.subresource() == "eviction"
}

/// Whether the object that the call names is not there any more. On an external API the path is the object, except for a POST.
fn is_gone(call: &Call, status: StatusCode) -> bool {
    let names_object = if call.is_resource() { !call.name().is_empty() } else { call.verb() != Verb::Create };
    match status {
        StatusCode::NOT_FOUND => names_object && call.verb() != Verb::Watch && call.verb() != Verb::List,
        _ => is_success(status) && names_object && call.verb() == Verb::Delete && call.subresource().is_empty(),
    }
}

/// A caller that leaves later than this after its call was sent had reason to: the call counts as failed.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Method, Uri};

    use super::*;
    use crate::api::{kubernetes, plain};

    const MOST: Throttling = Throttling { honour_retry_after: true, max_pause: Duration::from_secs(900) };

    fn failures() -> Failures {
        Failures { statuses: vec![429, 500, 502, 503, 504], transport: true }
    }

    fn call(line: &str) -> Call {
        let (method, target) = line.split_once(' ').unwrap();
        kubernetes::read(&method.parse().unwrap(), &target.parse().unwrap())
    }

    fn after(line: &str, status: u16, retry_after: Option<&'static str>) -> Answer {
        let mut headers = HeaderMap::new();
        if let Some(value) = retry_after {
            headers.insert("retry-after", HeaderValue::from_static(value));
        }
        answer(&failures(), MOST, &call(line), StatusCode::from_u16(status).unwrap(), &headers)
    }

    #[test]
    fn statuses_mean_what_the_design_says() {
        let get = "GET /api/v1/namespaces/a/pods/p";
        for (line, status, outcome) in [
            (get, 200, Outcome::Success),
            (get, 304, Outcome::Success),
            (get, 301, Outcome::Neutral),
            (get, 400, Outcome::Neutral),
            (get, 401, Outcome::Neutral),
            (get, 403, Outcome::Neutral),
            (get, 404, Outcome::Neutral),
            (get, 409, Outcome::Neutral),
            (get, 422, Outcome::Neutral),
            (get, 429, Outcome::Failure),
            (get, 500, Outcome::Failure),
            (get, 501, Outcome::Neutral),
            (get, 502, Outcome::Failure),
            (get, 503, Outcome::Failure),
            (get, 504, Outcome::Failure),
            ("PUT /api/v1/namespaces/a/pods/p?dryRun=All", 200, Outcome::Neutral),
            ("PUT /api/v1/namespaces/a/pods/p?dryRun=All", 500, Outcome::Failure),
            ("POST /api/v1/namespaces/a/pods/p/eviction", 429, Outcome::Neutral),
            ("POST /api/v1/namespaces/a/pods/p/eviction", 500, Outcome::Failure),
            ("POST /api/v1/namespaces/a/pods/p/eviction", 201, Outcome::Success),
            ("GET /api/v1/namespaces/a/pods/p/proxy/x", 500, Outcome::Neutral),
            ("GET /api/v1/namespaces/a/pods/p/proxy/x", 200, Outcome::Neutral),
            ("POST /api/v1/namespaces/a/pods/p/exec", 101, Outcome::Neutral),
            ("GET /api/v1/namespaces/a/pods/p/log?follow=1", 500, Outcome::Failure),
            ("GET /api/v1/pods?watch=1", 500, Outcome::Failure),
            ("GET /api/v1/pods?watch=1", 101, Outcome::Success),
        ] {
            assert_eq!(after(line, status, None).outcome, outcome, "{line} {status}");
            assert_eq!(after(line, status, None).status, Some(status));
        }
    }

    #[test]
    fn retry_after_sets_the_earliest_time_of_a_failure_only() {
        let get = "GET /api/v1/namespaces/a/pods/p";
        let throttled = |secs| Outcome::Throttled { after: Duration::from_secs(secs) };
        assert_eq!(after(get, 429, Some("7")).outcome, throttled(7));
        assert_eq!(after(get, 503, Some("0")).outcome, throttled(0));
        assert_eq!(after(get, 429, Some("99999999999999999999")).outcome, throttled(900), "at most max_pause");
        assert_eq!(after(get, 429, Some("soon")).outcome, Outcome::Failure);
        assert_eq!(after(get, 200, Some("7")).outcome, Outcome::Success);
        assert_eq!(after(get, 403, Some("7")).outcome, Outcome::Neutral);
        assert_eq!(after("POST /api/v1/namespaces/a/pods/p/eviction", 429, Some("10")).outcome, Outcome::Neutral);
        let deaf = Throttling { honour_retry_after: false, ..MOST };
        let headers = HeaderMap::from_iter([(http::header::RETRY_AFTER, HeaderValue::from_static("7"))]);
        assert_eq!(
            answer(&failures(), deaf, &call(get), StatusCode::TOO_MANY_REQUESTS, &headers).outcome,
            Outcome::Failure
        );
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        for (line, status, gone) in [
            ("DELETE /api/v1/namespaces/a/pods/p", 200, true),
            ("DELETE /api/v1/namespaces/a/pods/p?dryRun=All", 200, false),
            ("DELETE /api/v1/namespaces/a/pods", 200, false),
            ("DELETE /api/v1/namespaces/a/pods/p", 409, false),
            ("GET /api/v1/namespaces/a/pods/p", 404, true),
            ("PUT /api/v1/namespaces/a/pods/p/status", 404, true),
            ("GET /api/v1/namespaces/a/pods", 404, false),
            ("GET /api/v1/pods?watch=1&fieldSelector=metadata.name=p", 404, false),
            ("POST /api/v1/namespaces/a/pods", 404, false),
            ("GET /api/v1/namespaces/a/pods/p/proxy/x", 404, false),
            ("GET /api/v1/namespaces/a/pods/p", 200, false),
        ] {
            assert_eq!(after(line, status, None).object_gone, gone, "{line} {status}");
        }
        let external = |method, status| {
            let call = plain::read(&method, &Uri::from_static("/repos/a/b"));
            answer(&failures(), MOST, &call, status, &HeaderMap::new()).object_gone
        };
        assert!(external(Method::DELETE, StatusCode::NO_CONTENT));
        assert!(external(Method::GET, StatusCode::NOT_FOUND));
        assert!(!external(Method::POST, StatusCode::NOT_FOUND));
    }

    #[test]
    fn a_status_that_was_made_a_failure_is_one() {
        let strict = Failures { statuses: vec![404, 409], transport: false };
        let get = call("GET /api/v1/namespaces/a/pods/p");
        let read = answer(&strict, MOST, &get, StatusCode::NOT_FOUND, &HeaderMap::new());
        assert_eq!((read.outcome, read.object_gone), (Outcome::Failure, false));
        assert_eq!(lost(&strict, &get).outcome, Outcome::Neutral);
    }

    #[test]
    fn losing_and_leaving_count_where_something_was_learned() {
        let get = call("GET /api/v1/namespaces/a/pods/p");
        let exec = call("POST /api/v1/namespaces/a/pods/p/exec");
        assert_eq!((lost(&failures(), &get).outcome, lost(&failures(), &get).status), (Outcome::Failure, None));
        assert_eq!(lost(&failures(), &exec).outcome, Outcome::Neutral);
        assert_eq!(left(&get, Duration::from_millis(1000)).outcome, Outcome::Abandoned);
        assert_eq!(left(&get, Duration::from_millis(1001)).outcome, Outcome::Failure);
        assert_eq!(left(&exec, Duration::from_secs(60)).outcome, Outcome::Abandoned);
    }
}
