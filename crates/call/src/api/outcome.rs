//! What a response means for its key and for pauses.
//!
//! A refusal or a wait by the gate itself is neither success nor failure (P4). Nor is a failure to
//! connect: otherwise an outage would leave every key at its longest delay.

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::signals::{self, LimitFacts, LimitRefusal, Reach, Response, Signal, Signals};
use super::{Answer, Call, Outcome, Pause, PauseLength, Removal, Verb, apply};
use crate::limit::outcome::{Charged, QuotaReading};
use crate::limit::quota::{QuotaKind, ResourceId};

/// Which responses and events count as failures of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failures {
    /// The counted HTTP statuses, sorted.
    pub statuses: Vec<u16>,
    /// True if a call counts as failed when it was sent, and then lost or not answered.
    pub transport: bool,
    /// True if a call counts as failed when its caller hangs up without a response, after more than
    /// a second. Long-running calls are excepted: they usually end this way.
    pub left: bool,
}

/// The settings for pauses caused by an upstream's responses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PausePolicy {
    /// True for a kube-apiserver: only its priority and fairness means overload; any other 429 is
    /// about one server, for instance while it shuts down.
    pub kubernetes: bool,
    /// The rate-limit signals to obey.
    pub honour: Signals,
    /// The calls a pause applies to.
    pub scope: Scope,
    /// The longest pause.
    pub max_pause: Duration,
    /// The fraction of an advertised quota to leave to others; from 0 to less than 1.
    pub reserve: f64,
    /// The way the upstream's quotas become full again, if known.
    pub quota: QuotaKind,
    /// True to spend a quota evenly if it would otherwise be used up too soon.
    pub pace: bool,
}

words! {
    /// The calls to stop when the response to one of them asks for a pause.
    #[derive(Default)]
    pub enum Scope {
        /// The calls of the same key.
        #[default]
        Key = "key",
        /// All callers' calls of the same class, or to the part of the API named by the upstream.
        Class = "class",
        /// The calls with the same credential or account.
        Credential = "credential",
        /// All callers' calls: to the whole API, or to the part named by the upstream.
        Gate = "gate",
    }
}

/// The meaning of a response: an answer for the limiter, with its signal and rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerDetails {
    /// What the response means for the limiter.
    pub answer: Answer,
    /// The effective rate-limit signal, for metrics and logs; `None` if there was none.
    pub signal: Option<Signal>,
    /// Why the upstream rejected the call, for metrics and the status page.
    pub rejection: Option<Rejection>,
    /// The resource the call was charged to, as the upstream names it.
    pub charged: Option<ResourceId>,
}

words! {
    /// Why the upstream rejected a call. (If the gate does, the code says "refused".)
    pub enum Rejection {
        /// The upstream does not accept the credentials: 401.
        Credentials = "credentials",
        /// A PodDisruptionBudget forbids an eviction; it is not a limit on calls.
        DisruptionBudget = "disruption_budget",
        /// kube-apiserver is overloaded, by its API priority and fairness.
        PriorityAndFairness = "priority_and_fairness",
        /// Any other limit of the upstream: a 429, or the provider's own form of it.
        RateLimit = "rate_limit",
    }
}

// === impl Rejection ===

impl Rejection {
    fn of(throttling: &PausePolicy, call: &Call, response: &Response<'_>, reading: &LimitFacts) -> Option<Self> {
        let too_much = response.status == StatusCode::TOO_MANY_REQUESTS
            || reading.refused.is_some_and(|(_, refused)| refused.overload && !response.status.is_server_error());
        match response.status {
            // The response of a pod is not about the API.
            _ if call.is_tunnel() => None,
            StatusCode::UNAUTHORIZED => Some(Self::Credentials),
            status if is_budget_refusal(call, status) => Some(Self::DisruptionBudget),
            _ if throttling.kubernetes && is_fair_queueing_at_work(response) => Some(Self::PriorityAndFairness),
            _ => too_much.then_some(Self::RateLimit),
        }
    }
}

/// Returns the meaning of a response head, with the beginning of the body if [`wants_body`].
pub fn answer(failures: &Failures, throttling: &PausePolicy, call: &Call, response: &Response<'_>) -> AnswerDetails {
    let status = response.status;
    let failed = failures.statuses.binary_search(&status.as_u16()).is_ok();
    // A tunnel's response is from a pod, a budget's about an object: neither is about the API.
    let speaks = !call.is_tunnel() && !is_budget_refusal(call, status);
    let reading = if speaks { throttling.read(response) } else { LimitFacts::default() };
    let refused = reading.refused.filter(|_| failed || !is_failure_by_default(status));
    let outcome = match refused {
        Some((_, refused)) => Outcome::Throttled { after: refused.wait.first().min(throttling.max_pause) },
        None if !speaks || call.is_dry_run || apply::is_wrong(call, response) => Outcome::Neutral,
        None if failed => Outcome::Failure,
        None if is_success(status) => Outcome::Success,
        None => Outcome::Neutral,
    };
    let speaks_of_object = !call.is_tunnel() && !call.is_dry_run && !outcome.counts();
    let gone = if speaks_of_object { gone(call, status) } else { Removal::Nothing };
    let (pause, by) = throttling.pause(&reading).unzip();
    let throttled = speaks && throttling.is_overload(response, &reading);
    let signal = by.or_else(|| refused.map(|(signal, _)| signal));
    let quota = if speaks { throttling.quota(response) } else { None };
    let answer = Answer { gone, throttled, pause, quota, ..Answer::new(outcome, Some(status.as_u16())) };
    let rejection = Rejection::of(throttling, call, response, &reading);
    // A quota is paced before it is used up: by then its calls must be known.
    let named = |quota: QuotaReading| if let Charged::Named(word) = quota.charged { Some(word) } else { None };
    let charged = reading.charged.or_else(|| quota.and_then(named));
    AnswerDetails { answer, signal, rejection, charged }
}

/// Returns true if the first [`signals::PEEK`] bytes of the body may say more than the head.
pub fn wants_body(throttling: &PausePolicy, call: &Call, status: StatusCode, headers: &HeaderMap) -> bool {
    let is_fairness = throttling.kubernetes && has_refusals_head(status, headers) && signals::is_readable(headers);
    !call.is_tunnel()
        && (is_fairness || signals::wants_body(throttling.honour, status, headers) || apply::wants_body(call, status))
}

/// Returns the meaning of a call lost after it was sent, or not answered in time.
pub fn lost(failures: &Failures, call: &Call) -> Answer {
    let outcome =
        if failures.transport && !call.is_tunnel() && !call.is_dry_run { Outcome::Failure } else { Outcome::Neutral };
    Answer::new(outcome, None)
}

/// Returns the answer to record when a caller hangs up before the response head. `upstream_for` is
/// the time since the call was sent.
pub fn left(failures: &Failures, call: &Call, upstream_for: Duration) -> Answer {
    let waited_in_vain = failures.left && upstream_for > PATIENCE && !call.is_long_running && !call.is_dry_run;
    let outcome = if waited_in_vain { Outcome::Failure } else { Outcome::Abandoned };
    Answer::new(outcome, None)
}

/// Returns true for a success; 101 answers a watch over WebSocket.
fn is_success(status: StatusCode) -> bool {
    status.is_success() || matches!(status, StatusCode::NOT_MODIFIED | StatusCode::SWITCHING_PROTOCOLS)
}

/// Returns true for the statuses counting as failures only if the configuration says so. A
/// rate-limit refusal with any other status always counts.
fn is_failure_by_default(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

/// Returns true for an eviction's 429: a PodDisruptionBudget at work, not a server in trouble.
fn is_budget_refusal(call: &Call, status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS && call.verb == Verb::Create && call.subresource() == "eviction"
}

/// Returns the failures to forget after a write with this status to the object itself. On an
/// external API the path is the object.
///
/// A read or a subresource forgets none: get-or-create reads a 404 before each create.
fn gone(call: &Call, status: StatusCode) -> Removal {
    let is_missing = status == StatusCode::NOT_FOUND;
    let is_of_object = call.subresource().is_empty() && !(call.is_resource && call.name().is_empty());
    match call.verb {
        Verb::Delete if is_of_object && (is_missing || is_success(status)) => Removal::Object,
        Verb::Update | Verb::Patch if is_of_object && is_missing => Removal::Key,
        _ => Removal::Nothing,
    }
}

// === impl PausePolicy ===

impl PausePolicy {
    fn read(&self, response: &Response<'_>) -> LimitFacts {
        let mut reading = signals::read(self.honour, self.reserve, response);
        if self.kubernetes && !is_fair_queueing_at_work(response) {
            // It is about one server of several, or one object: other calls need not wait.
            let own = |refused: LimitRefusal| LimitRefusal { reach: Reach::Key, ..refused };
            reading.refused = reading.refused.map(|(signal, refused)| (signal, own(refused)));
        }
        reading
    }

    /// Returns the pause to begin for other calls, and the signal asking for it.
    fn pause(&self, reading: &LimitFacts) -> Option<(Pause, Signal)> {
        let spent = reading.spent.map(|(signal, spent)| (signal, PauseLength::Known(spent.wait), spent.reach));
        let refused = reading.refused.map(|(signal, refused)| (signal, refused.wait, refused.reach));
        let wide = [refused, spent].into_iter().flatten().filter_map(|(signal, wait, reach)| {
            let charged = self.charged(reach)?;
            Some((Pause { charged, length: wait.capped(self.max_pause) }, signal))
        });
        // The upstream's time before a guess, then the longest.
        wide.max_by_key(|(pause, _)| match pause.length {
            PauseLength::Known(length) => (1, length),
            PauseLength::Growing { first, .. } => (0, first),
        })
    }

    /// Returns the scarcest quota in a response.
    fn quota(&self, response: &Response<'_>) -> Option<QuotaReading> {
        if self.scope == Scope::Key || !self.honour.tell_quotas() {
            return None;
        }
        let reading = signals::scarcest(self.honour, self.reserve, response, |reach| self.charged(reach))?;
        let kind = if self.quota == QuotaKind::Unknown { reading.kind } else { self.quota };
        Some(QuotaReading { kind, paces: self.pace, ..reading })
    }

    /// Returns the resource of a pause, if it is wider than the key.
    fn charged(&self, reach: Reach) -> Option<Charged> {
        match (self.scope, reach) {
            (Scope::Key, _) | (_, Reach::Key) => None,
            (_, Reach::Class) | (Scope::Class, Reach::All) => Some(Charged::Class),
            (_, Reach::Charged) => Some(Charged::Predicted),
            (_, Reach::Named(word)) => Some(Charged::Named(word)),
            (_, Reach::All) => Some(Charged::All),
        }
    }

    /// Returns true if the upstream is overloaded. A 5xx alone may mean anything.
    fn is_overload(&self, response: &Response<'_>, reading: &LimitFacts) -> bool {
        if self.kubernetes {
            return is_fair_queueing_at_work(response);
        }
        reading.refused.map_or(response.status == StatusCode::TOO_MANY_REQUESTS, |(_, refused)| refused.overload)
    }
}

/// Returns true if kube-apiserver's priority and fairness refused the call (`tooManyRequests` in
/// `pkg/server/filters/priority-and-fairness.go` of apiserver).
///
/// The headers do not suffice: every response that passed through priority and fairness has them.
/// Any other 429 of kube-apiserver has a Status as its body, and an aggregated API that shuts down
/// has a plain text of its own. If too little of the body is known, the head decides.
fn is_fair_queueing_at_work(response: &Response<'_>) -> bool {
    let body = response.body;
    has_refusals_head(response.status, response.headers) && (body.starts_with(REFUSAL) || REFUSAL.starts_with(body))
}

/// Returns true if a head looks like a refusal by priority and fairness.
fn has_refusals_head(status: StatusCode, headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    status == StatusCode::TOO_MANY_REQUESTS
        && (headers.contains_key(&FLOW_SCHEMA) || headers.contains_key(&PRIORITY_LEVEL))
        && kind.is_some_and(|kind| kind.starts_with(PLAIN_TEXT))
}

/// The headers of priority and fairness. They are statics, because parsing a name costs more than
/// looking it up.
static FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
static PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
/// The media type and the body of a refusal by priority and fairness, as Go's `http.Error` writes
/// them.
const PLAIN_TEXT: &[u8] = b"text/plain";
const REFUSAL: &[u8] = b"Too many requests, please try again later.";

/// The least time since a call was sent for it to count as failed when its caller hangs up.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Method, Uri};

    use super::*;
    use crate::api::{external, kubernetes};

    fn most() -> PausePolicy {
        PausePolicy {
            kubernetes: true,
            honour: [Signal::RetryAfter].into_iter().collect(),
            scope: Scope::Key,
            max_pause: Duration::from_secs(900),
            reserve: 0.0,
            quota: QuotaKind::Unknown,
            pace: false,
        }
    }

    fn head(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let field = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(field).collect()
    }

    fn told(
        throttling: &PausePolicy,
        call: &Call,
        status: u16,
        pairs: &[(&'static str, &'static str)],
    ) -> AnswerDetails {
        let status = StatusCode::from_u16(status).unwrap();
        answer(&failures(), throttling, call, &Response { status, headers: &head(pairs), body: b"", wall: None })
    }

    fn failures() -> Failures {
        Failures { statuses: vec![429, 500, 502, 503, 504], transport: true, left: true }
    }

    fn call(line: &str) -> Call {
        let (method, target) = line.split_once(' ').unwrap();
        kubernetes::read(&method.parse().unwrap(), &target.parse().unwrap())
    }

    fn after(line: &str, status: u16, retry_after: Option<&'static str>) -> Answer {
        let pairs: Vec<_> = retry_after.map(|value| ("retry-after", value)).into_iter().collect();
        told(&most(), &call(line), status, &pairs).answer
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
            ("PUT /api/v1/namespaces/a/pods/p?dryRun=All", 500, Outcome::Neutral),
            ("PUT /api/v1/namespaces/a/pods/p?dryRun=All", 429, Outcome::Neutral),
            ("PUT /api/v1/namespaces/a/pods/p?dryRun=", 500, Outcome::Failure),
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
        let dry = "PUT /api/v1/namespaces/a/pods/p?dryRun=All";
        assert_eq!(
            after(dry, 429, Some("7")).outcome,
            throttled(7),
            "a time that the upstream names is heard all the same"
        );
        let deaf = PausePolicy { honour: Signals::default(), ..most() };
        assert_eq!(told(&deaf, &call(get), 429, &[("retry-after", "7")]).answer.outcome, Outcome::Failure);
    }

    #[test]
    fn a_limit_told_as_a_client_error_counts_as_a_throttle() {
        let throttling = PausePolicy { kubernetes: false, honour: [Signal::Aws].into_iter().collect(), ..most() };
        let post = external::read(&Method::POST, &Uri::from_static("/"));
        let thrown = [("x-amzn-errortype", "ThrottlingException")];
        let thrown = told(&throttling, &post, 400, &thrown);
        assert_eq!(thrown.answer.outcome, Outcome::Throttled { after: Duration::from_secs(1) });
        assert!(thrown.answer.throttled);
        assert_eq!((thrown.answer.pause, thrown.signal), (None, Some(Signal::Aws)), "the scope is the key");
        assert_eq!(told(&throttling, &post, 400, &[]).answer, Answer::new(Outcome::Neutral, Some(400)));
    }

    #[test]
    fn a_wider_scope_widens_no_resource() {
        let get = external::read(&Method::GET, &Uri::from_static("/repos/a/b"));
        let quota = |resource| {
            [
                ("date", "Wed, 17 Jul 2019 00:57:57 GMT"),
                ("x-ratelimit-limit", "5000"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1563325137"),
                ("x-ratelimit-resource", resource),
            ]
        };
        for (scope, resource, all) in [
            (Scope::Gate, "core", Some(Charged::All)),
            (Scope::Credential, "core", Some(Charged::All)),
            (Scope::Credential, "search", Some(Charged::All)),
            (Scope::Class, "core", Some(Charged::Class)),
            (Scope::Key, "core", None),
        ] {
            let named = Charged::Named(ResourceId::named(resource));
            let honour = [Signal::Github].into_iter().collect();
            let throttling = PausePolicy { kubernetes: false, honour, scope, ..most() };
            for status in [200, 403] {
                let pause = told(&throttling, &get, status, &quota(resource)).answer.pause;
                let length = PauseLength::Known(Duration::from_secs(61));
                assert_eq!(pause, all.map(|_| Pause { charged: named, length }), "{scope:?} {resource} {status}");
            }
            let short = PausePolicy { max_pause: Duration::from_secs(5), ..throttling };
            let secondary = told(&short, &get, 429, &[]).answer.pause;
            let most = Duration::from_secs(5);
            let length = PauseLength::Growing { first: most, most };
            assert_eq!(secondary, all.map(|charged| Pause { charged, length }), "never past max_pause");
        }
    }

    #[test]
    fn what_the_upstream_turned_away_says_who_there_did() {
        let get = call("GET /api/v1/namespaces/a/pods/p");
        let evict = call("POST /api/v1/namespaces/a/pods/p/eviction");
        let pod = call("GET /api/v1/namespaces/a/pods/p/proxy/x");
        let fair = [("x-kubernetes-pf-prioritylevel-uid", "u"), ("content-type", "text/plain; charset=utf-8")];
        let kubernetes = most();
        let external = PausePolicy { kubernetes: false, ..kubernetes };
        for (throttling, call, status, pairs, rejection) in [
            (&kubernetes, &get, 429, &fair[..], Some(Rejection::PriorityAndFairness)),
            (&kubernetes, &get, 429, &[], Some(Rejection::RateLimit)),
            (&kubernetes, &evict, 429, &fair, Some(Rejection::DisruptionBudget)),
            (&kubernetes, &get, 401, &fair, Some(Rejection::Credentials)),
            (&kubernetes, &pod, 429, &fair, None),
            (&kubernetes, &get, 503, &fair, None),
            (&kubernetes, &get, 200, &fair, None),
            (&external, &get, 429, &fair, Some(Rejection::RateLimit)),
            (&external, &get, 403, &[], None),
        ] {
            assert_eq!(told(throttling, call, status, pairs).rejection, rejection, "{call:?} {status} {pairs:?}");
        }
    }

    #[test]
    fn only_too_much_to_do_slows_a_bucket_down() {
        let get = call("GET /api/v1/namespaces/a/pods/p");
        let evict = call("POST /api/v1/namespaces/a/pods/p/eviction");
        let pod = call("GET /api/v1/namespaces/a/pods/p/proxy/x");
        let queued = [
            ("x-kubernetes-pf-flowschema-uid", "u"),
            ("content-type", "text/plain; charset=utf-8"),
            ("retry-after", "1"),
        ];
        let stopping = [("retry-after", "5")];
        let gate = PausePolicy { scope: Scope::Gate, ..most() };
        for (call, status, pairs, slows, pauses) in [
            (&get, 429, &queued[..], true, true),
            (&get, 429, &queued[..2], true, false),
            (&get, 429, &stopping, false, false),
            (&get, 503, &queued, false, false),
            (&get, 500, &queued, false, false),
            (&evict, 429, &queued, false, false),
            (&pod, 429, &queued, false, false),
        ] {
            let answer = told(&gate, call, status, pairs).answer;
            assert_eq!((answer.throttled, answer.pause.is_some()), (slows, pauses), "{call:?} {status} {pairs:?}");
        }
        let external = PausePolicy { kubernetes: false, ..gate };
        for (status, slows, pauses) in [(429, true, true), (503, false, true), (500, false, false), (403, false, false)]
        {
            let answer = told(&external, &get, status, &stopping).answer;
            assert_eq!((answer.throttled, answer.pause.is_some()), (slows, pauses), "{status}");
        }
        assert!(told(&external, &get, 429, &[]).answer.throttled);
    }

    #[test]
    fn a_429_that_is_no_failure_leaves_the_key_alone() {
        let lenient = Failures { statuses: vec![503], transport: true, left: true };
        let get = external::read(&Method::GET, &Uri::from_static("/a"));
        let headers = head(&[("retry-after", "7")]);
        let response = Response { status: StatusCode::TOO_MANY_REQUESTS, headers: &headers, body: b"", wall: None };
        let throttling = PausePolicy { kubernetes: false, scope: Scope::Gate, ..most() };
        let told = answer(&lenient, &throttling, &get, &response);
        assert_eq!(told.answer.outcome, Outcome::Neutral);
        assert!(told.answer.pause.is_some(), "the others were asked to wait all the same");
    }

    #[test]
    fn a_delete_ends_the_object_a_404_the_key_of_a_write_and_a_read_nothing() {
        for (line, status, gone) in [
            ("DELETE /api/v1/namespaces/a/pods/p", 200, Removal::Object),
            ("DELETE /api/v1/namespaces/a/pods/p", 202, Removal::Object),
            ("DELETE /api/v1/namespaces/a/pods/p", 404, Removal::Object),
            ("DELETE /api/v1/namespaces/a/pods/p", 409, Removal::Nothing),
            ("DELETE /api/v1/namespaces/a/pods/p", 500, Removal::Nothing),
            ("DELETE /api/v1/namespaces/a/pods/p?dryRun=All", 200, Removal::Nothing),
            ("DELETE /api/v1/namespaces/a/pods/p?dryRun=All", 404, Removal::Nothing),
            ("DELETE /api/v1/namespaces/a/pods/p/x", 404, Removal::Nothing),
            ("DELETE /api/v1/namespaces/a/pods", 200, Removal::Nothing),
            ("DELETE /api/v1/namespaces/a/pods", 404, Removal::Nothing),
            ("PUT /api/v1/namespaces/a/pods/p", 404, Removal::Key),
            ("PUT /api/v1/namespaces/a/pods/p", 200, Removal::Nothing),
            ("PATCH /api/v1/namespaces/a/pods/p", 404, Removal::Key),
            ("PATCH /api/v1/namespaces/a/pods/p?dryRun=All", 404, Removal::Nothing),
            ("PUT /api/v1/namespaces/a/pods/p/status", 404, Removal::Nothing),
            ("PATCH /apis/apps/v1/namespaces/a/deployments/d/scale", 404, Removal::Nothing),
            ("POST /api/v1/namespaces/a/pods/p/eviction", 404, Removal::Nothing),
            ("POST /api/v1/namespaces/a/pods", 404, Removal::Nothing),
            ("GET /api/v1/namespaces/a/pods/p", 404, Removal::Nothing),
            ("GET /api/v1/namespaces/a/pods/p", 200, Removal::Nothing),
            ("GET /api/v1/namespaces/a/pods/p/log", 404, Removal::Nothing),
            ("GET /api/v1/namespaces/a/pods", 404, Removal::Nothing),
            ("GET /api/v1/pods?watch=1&fieldSelector=metadata.name=p", 404, Removal::Nothing),
            ("GET /api/v1/namespaces/a/pods/p/proxy/x", 404, Removal::Nothing),
            ("DELETE /api/v1/namespaces/a/services/s/proxy/x", 200, Removal::Nothing),
        ] {
            assert_eq!(after(line, status, None).gone, gone, "{line} {status}");
        }
        for (method, status, gone) in [
            (Method::DELETE, 204, Removal::Object),
            (Method::DELETE, 404, Removal::Object),
            (Method::PUT, 404, Removal::Key),
            (Method::PATCH, 404, Removal::Key),
            (Method::GET, 404, Removal::Nothing),
            (Method::HEAD, 404, Removal::Nothing),
            (Method::POST, 404, Removal::Nothing),
            (Method::OPTIONS, 404, Removal::Nothing),
        ] {
            let call = external::read(&method, &Uri::from_static("/repos/a/b"));
            assert_eq!(told(&most(), &call, status, &[]).answer.gone, gone, "{method} {status}");
        }
    }

    #[test]
    fn a_status_that_was_made_a_failure_is_one() {
        let strict = Failures { statuses: vec![404, 409], transport: false, left: false };
        let get = call("GET /api/v1/namespaces/a/pods/p");
        for line in ["PUT /api/v1/namespaces/a/pods/p", "DELETE /api/v1/namespaces/a/pods/p"] {
            let response =
                Response { status: StatusCode::NOT_FOUND, headers: &HeaderMap::new(), body: b"", wall: None };
            let read = answer(&strict, &most(), &call(line), &response).answer;
            assert_eq!((read.outcome, read.gone), (Outcome::Failure, Removal::Nothing), "{line}");
        }
        assert_eq!(lost(&strict, &get).outcome, Outcome::Neutral);
    }

    #[test]
    fn an_apply_that_is_wrong_is_neutral_and_any_other_failure_of_one_is_not() {
        let mut patch = call("PATCH /apis/apps/v1/namespaces/a/deployments/d");
        let read = |call: &Call, status: u16, message: &str| {
            let body = format!(r#"{{"kind":"Status","message":"{message}","code":{status}}}"#);
            let status = StatusCode::from_u16(status).unwrap();
            let headers = HeaderMap::new();
            let response = Response { status, headers: &headers, body: body.as_bytes(), wall: None };
            let told = answer(&failures(), &most(), call, &response);
            (wants_body(&most(), call, status, &headers), told.answer.outcome)
        };
        let wrong =
            "failed to create typed patch object (a/d; apps/v1, Kind=Deployment): .x: field not declared in schema";
        assert_eq!(read(&patch, 500, wrong), (false, Outcome::Failure), "another kind of patch");
        patch.is_apply = true;
        assert_eq!(read(&patch, 500, wrong), (true, Outcome::Neutral));
        assert_eq!(read(&patch, 500, "etcdserver: request timed out"), (true, Outcome::Failure));
        assert_eq!(read(&patch, 503, wrong), (false, Outcome::Failure));
        assert_eq!(read(&patch, 200, wrong), (false, Outcome::Success));
    }

    #[test]
    fn losing_and_leaving_count_where_something_was_learned() {
        let get = call("GET /api/v1/namespaces/a/pods/p");
        let exec = call("POST /api/v1/namespaces/a/pods/p/exec");
        assert_eq!((lost(&failures(), &get).outcome, lost(&failures(), &get).status), (Outcome::Failure, None));
        assert_eq!(lost(&failures(), &exec).outcome, Outcome::Neutral);
        assert_eq!(left(&failures(), &get, Duration::from_millis(1000)).outcome, Outcome::Abandoned);
        assert_eq!(left(&failures(), &get, Duration::from_millis(1001)).outcome, Outcome::Failure);
        assert_eq!(left(&failures(), &exec, Duration::from_secs(60)).outcome, Outcome::Abandoned);
        let dry = call("PUT /api/v1/namespaces/a/pods/p?dryRun=All");
        assert_eq!(lost(&failures(), &dry).outcome, Outcome::Neutral);
        assert_eq!(left(&failures(), &dry, Duration::from_secs(60)).outcome, Outcome::Abandoned);
    }

    #[test]
    fn a_caller_that_leaves_a_long_poll_or_a_watch_says_nothing_of_the_upstream() {
        let minute = Duration::from_secs(60);
        let external = Failures { left: false, ..failures() };
        let poll = external::read(&Method::GET, &Uri::from_static("/events?wait=60"));
        assert_eq!(left(&external, &poll, minute).outcome, Outcome::Abandoned);
        assert_eq!(left(&failures(), &poll, minute).outcome, Outcome::Failure, "where the list says so");
        for line in
            ["GET /api/v1/pods?watch=1", "GET /api/v1/watch/pods", "GET /api/v1/namespaces/a/pods/p/log?follow=1"]
        {
            assert_eq!(left(&failures(), &call(line), minute).outcome, Outcome::Abandoned, "{line}");
        }
    }
}
