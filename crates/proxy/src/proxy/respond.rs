//! The gate's own answers, sent instead of an upstream response.
//!
//! On Kubernetes gates it is a `metav1.Status`, on others `application/problem+json`; it names the
//! gate, the class, the reason and the wait.

mod quotas;
mod text;

use std::fmt::Display;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};

pub(crate) use self::quotas::add_quotas;
pub(crate) use self::text::add_timing;
use self::text::{OwnAnswer, message};
use super::body::Body;
use super::failure::CallFailure;
use super::observe::CallContext;
use crate::api::Verb;
use crate::classify::ApiKind;
use crate::clock::Clock;
use crate::credentials::CredentialRefusal;
use crate::dialect::{Denial, DenialResponse, Form};
use crate::limit::{Reason, Refusal};
use crate::upstream::DialFailure;

/// Makes the gate's own answers.
#[derive(Debug)]
pub(crate) struct Responder {
    pub(crate) gate: Arc<str>,
    kind: ApiKind,
    clock: Clock,
    /// The number of refusals so far. A hash of it varies Retry-After: no two processes vary in the
    /// same way, and no lock is needed.
    refusals: AtomicU64,
    hasher: RandomState,
}

// === impl Responder ===

impl Responder {
    pub(crate) fn new(gate: Arc<str>, kind: ApiKind, clock: Clock) -> Self {
        Self { gate, kind, clock, refusals: AtomicU64::new(0), hasher: RandomState::new() }
    }

    /// Returns the gate's own answer to a call without a response from the upstream.
    pub(crate) fn answer(&self, failure: &CallFailure, context: &CallContext) -> Response<Body> {
        let class = context.config.meters.class_name(context.call.class);
        let method = &context.method;
        let answer = if let CallFailure::Refused(refusal) = failure {
            self.refusal(refusal, class, context)
        } else {
            let (status, retry_after) = own_failure(failure, context.call.call.verb, method);
            let message = format!("tidegate: gate {:?}, class {class:?}: {failure}", self.gate);
            OwnAnswer { retry_after, in_header: true, ..OwnAnswer::new(status, message) }
        };
        match context.call.form.filter(|_| speaks_of_the_upstream(failure)) {
            Some(form) => self.build_in(form, &answer, context),
            None => self.build(&answer, method),
        }
    }

    /// Returns the answer to a request that the guard refused.
    pub(crate) fn turned_away(&self, status: StatusCode, violation: &dyn Display, method: &Method) -> Response<Body> {
        let message = format!("tidegate: gate {:?}: {violation}", self.gate);
        self.build(&OwnAnswer::new(status, message), method)
    }

    /// Returns the answer to a call whose handling has panicked.
    pub(crate) fn broken(&self) -> Response<Body> {
        let message = format!("tidegate: gate {:?}: a panic in the gate itself; its log has the cause", self.gate);
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        self.build(&OwnAnswer::new(status, message), &Method::GET)
    }

    fn refusal(&self, refusal: &Refusal, class: &str, context: &CallContext) -> OwnAnswer {
        let policy = context.config.options.gate.refusals.retry_after;
        let kept = if refusal.reason == Reason::Pause { context.kept(refusal.retry_at) } else { None };
        let now = self.clock.now();
        let wait = whole_seconds(refusal.retry_at - now);
        let retry_after = Some(self.spread(wait, refusal.reason));
        let in_header = policy.is_on(refusal.reason, self.kind);
        let message = message(&self.gate, class, refusal, kept, now);
        let status = StatusCode::TOO_MANY_REQUESTS;
        OwnAnswer { status, reason: Some(refusal.reason), retry_after, in_header, message }
    }

    /// Builds an answer in a provider's own format, so that its SDKs retry it.
    fn build_in(&self, form: Form, answer: &OwnAnswer, context: &CallContext) -> Response<Body> {
        let nth = self.refusals.fetch_add(1, Ordering::Relaxed);
        let request_id = format!("tidegate-{:016x}", self.hasher.hash_one((nth, "request")));
        let concerns_key = answer.reason.is_some_and(Reason::concerns_key);
        let denial = Denial {
            status: answer.status,
            throttled: answer.reason.is_some(),
            message: &answer.message,
            retry_after: answer.retry_after.filter(|_| answer.in_header).map(Duration::from_secs),
            request_id: &request_id,
            as_secondary_limit: context.config.options.gate.refusals.status == 403 && !concerns_key,
        };
        let DenialResponse { status, headers, body } = form.write(&denial, &context.method);
        let length = body.len();
        let mut response = Response::new(Body::own(body));
        *response.status_mut() = status;
        response.headers_mut().extend(headers);
        if form != Form::Grpc {
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        mark(response.headers_mut(), answer.reason);
        response
    }

    /// Adds up to a fifth to the retry time of a call, unless its key or its deadline is the
    /// reason: otherwise all calls refused together would be retried together.
    fn spread(&self, seconds: u64, reason: Reason) -> u64 {
        if reason.concerns_key() || reason == Reason::Deadline {
            return seconds;
        }
        let nth = self.refusals.fetch_add(1, Ordering::Relaxed);
        seconds + self.hasher.hash_one(nth) % (seconds / 5 + 1)
    }

    fn build(&self, answer: &OwnAnswer, method: &Method) -> Response<Body> {
        let (kind, text) = match self.kind {
            ApiKind::Kubernetes => ("application/json", answer.status_object()),
            ApiKind::Http => ("application/problem+json", answer.problem(&self.gate)),
        };
        let length = text.len();
        let mut response = Response::new(Body::own(if method == Method::HEAD { String::new() } else { text }));
        *response.status_mut() = answer.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        mark(headers, answer.reason);
        if let Some(seconds) = answer.retry_after.filter(|_| answer.in_header) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if answer.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tidegate\""));
        }
        if answer.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
        }
        response
    }
}

/// Returns true if a provider's SDK should see the failure as the upstream's, and may retry. False
/// if the gate refused the client or its request broke off.
fn speaks_of_the_upstream(failure: &CallFailure) -> bool {
    !matches!(failure, CallFailure::Client | CallFailure::Denied(_) | CallFailure::Forbidden(_))
}

/// Adds the headers of the gate's own answers: one against caching, and one with the reason of a
/// refusal.
fn mark(headers: &mut HeaderMap, reason: Option<Reason>) {
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(reason) = reason {
        headers.insert(REFUSAL, HeaderValue::from_static(reason.word()));
    }
}

/// Returns the status and the Retry-After for a failure (docs/internals/design.md, "The gate's own
/// failures"). They are chosen so that clients react nearly as they would without a gate.
fn own_failure(failure: &CallFailure, verb: Verb, method: &Method) -> (StatusCode, Option<u64>) {
    let safe = *method == Method::GET || *method == Method::HEAD;
    match failure {
        CallFailure::Client => (StatusCode::BAD_REQUEST, None),
        CallFailure::Denied(denied) => denied.status(),
        CallFailure::Forbidden(CredentialRefusal::Unauthenticated) => (StatusCode::UNAUTHORIZED, None),
        CallFailure::Forbidden(_) => (StatusCode::FORBIDDEN, None),
        // client-go would have tried a reset GET again by itself; with the header it still does.
        CallFailure::Lost | CallFailure::Unproven(_) => (StatusCode::BAD_GATEWAY, safe.then_some(1)),
        CallFailure::Refused(_) => (StatusCode::TOO_MANY_REQUESTS, None),
        CallFailure::Timeout(_) => (StatusCode::GATEWAY_TIMEOUT, None),
        // A reflector resumes from its last version after a 429; on a 502 it would list everything
        // again.
        CallFailure::Unconnected(_) if verb == Verb::Watch => (StatusCode::TOO_MANY_REQUESTS, None),
        CallFailure::Unconnected(Some(why)) if matches!(why.what, DialFailure::Forbidden(_)) => {
            (StatusCode::FORBIDDEN, None)
        }
        CallFailure::Unconnected(_) => (StatusCode::BAD_GATEWAY, None),
    }
}

/// Returns a wait in whole seconds, rounded up, at least one: client-go understands no other
/// Retry-After.
fn whole_seconds(wait: Duration) -> u64 {
    let up = u64::from(wait.subsec_nanos() > 0);
    wait.as_secs().saturating_add(up).clamp(1, LONGEST)
}

const REFUSAL: HeaderName = HeaderName::from_static("tidegate-refusal");
/// The longest retry time, a day: "never" must still be a number to add to a clock.
const LONGEST: u64 = 86_400;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moment::Moment;
    use crate::spec::RetryAfter;

    fn responder(kind: ApiKind) -> Responder {
        Responder::new("kubernetes".into(), kind, Clock::start())
    }

    #[test]
    fn seconds_are_whole_rounded_up_and_never_zero() {
        assert_eq!(whole_seconds(Duration::ZERO), 1);
        assert_eq!(whole_seconds(Duration::from_millis(999)), 1);
        assert_eq!(whole_seconds(Duration::from_millis(1001)), 2);
        assert_eq!(whole_seconds(Duration::from_secs(3)), 3);
        assert_eq!(whole_seconds(Moment::MAX - Moment::ZERO), LONGEST);
    }

    #[test]
    fn who_is_told_when_to_come_back_is_as_the_table_says() {
        for reason in Reason::ALL {
            let key = matches!(
                reason,
                Reason::Backoff | Reason::Trial | Reason::OneAtATime | Reason::PerKey | Reason::RetryBucket
            );
            let kubernetes = RetryAfter::Auto.is_on(reason, ApiKind::Kubernetes);
            let http = RetryAfter::Auto.is_on(reason, ApiKind::Http);
            assert_eq!(kubernetes, !key && reason != Reason::Deadline, "{reason}");
            assert_eq!(http, reason != Reason::Deadline, "{reason}");
            assert!(RetryAfter::Always.is_on(reason, ApiKind::Kubernetes));
            assert!(!RetryAfter::Never.is_on(reason, ApiKind::Kubernetes));
        }
    }

    #[test]
    fn queue_refusals_are_spread_upwards_by_a_fifth_at_most() {
        let responder = responder(ApiKind::Kubernetes);
        let spread: Vec<u64> = (0..200).map(|_| responder.spread(10, Reason::Bucket)).collect();
        assert!(spread.iter().all(|seconds| (10..=12).contains(seconds)), "{spread:?}");
        assert!(spread.contains(&10) && spread.contains(&12), "{spread:?}");
        assert!((0..20).all(|_| responder.spread(10, Reason::Backoff) == 10));
        assert!((0..20).all(|_| responder.spread(1, Reason::Slot) == 1));
    }

    #[test]
    fn a_failure_of_the_gate_means_what_the_direct_failure_would_have() {
        let (get, put) = (Method::GET, Method::PUT);
        assert_eq!(
            own_failure(&CallFailure::Unconnected(None), Verb::Watch, &get),
            (StatusCode::TOO_MANY_REQUESTS, None)
        );
        assert_eq!(own_failure(&CallFailure::Unconnected(None), Verb::List, &get), (StatusCode::BAD_GATEWAY, None));
        assert_eq!(own_failure(&CallFailure::Lost, Verb::Get, &get), (StatusCode::BAD_GATEWAY, Some(1)));
        assert_eq!(own_failure(&CallFailure::Lost, Verb::Watch, &get), (StatusCode::BAD_GATEWAY, Some(1)));
        assert_eq!(own_failure(&CallFailure::Lost, Verb::Update, &put), (StatusCode::BAD_GATEWAY, None));
    }
}
