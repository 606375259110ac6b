//! Sends an admitted call and reports its outcome.
//!
//! The limiter gets the outcome at the response head; the slot is held until the body ends. If the
//! caller hangs up before the head, that is reported as an outcome too.

use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, DATE};
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version};

use super::admission::{Admission, PendingCall, Route};
use super::body::{Body, BodyCopy, PeekBody};
use super::driver::{HeldSlot, OwedReceipt};
use super::failure::CallFailure;
use super::observe::CallContext;
use super::parts::GateParts;
use super::revalidate::{Question, Reply};
use super::tally::FailingAnswer;
use crate::api::outcome::{self, AnswerDetails, PausePolicy};
use crate::api::signals::ErrorBody;
use crate::api::{Answer, Key, Outcome, Removal, Scope, Verb, grpc, signals};
use crate::clock::wall_clock;
use crate::dialect::{Form, is_grpc};
use crate::hot;
use crate::limit::outcome::Charged;
use crate::limit::{Limiter, Receipt};
use crate::lock;
use crate::moment::Moment;
use crate::upstream::{BodyPrefix, ResponseBody, SendError, UpgradeAnswer};

/// A sent call without an outcome so far. Dropping it then means that the caller hung up.
struct SentCall<'a> {
    gate: &'a GateParts,
    context: &'a mut CallContext,
    /// The duty to report the outcome; `None` once the limiter has it.
    owed: Option<OwedReceipt>,
    /// The beginning of the request body, if the body names the object of the call.
    kept: Option<BodyPrefix>,
    /// The beginning of the request body, to be compared with those of other calls, if the object
    /// is called too often.
    compared: Option<BodyPrefix>,
    /// The outcome as the response head alone shows it, while the beginning of the body is read.
    so_far: Option<Answer>,
    /// True if the upstream does not count the call when it answers 304.
    is_free_unchanged: bool,
    /// True if the body is to end without an error when the upstream is lost.
    ends_quietly: bool,
}

/// Sends a call and returns the client's response.
///
/// Not an `async fn`: its future would hold the request twice.
pub(crate) fn send<'a>(
    gate: &'a GateParts,
    mut request: PendingCall,
    Admission { permit, route }: Admission,
    context: &'a mut CallContext,
) -> impl Future<Output = Result<Response<Body>, CallFailure>> + Send + use<'a> {
    let ends_quietly = context.call.call.verb == Verb::Watch && request.parts.version == Version::HTTP_2;
    let is_free_unchanged = is_free_unchanged(gate, &request, context);
    let question = ask(gate, &mut request, context);
    let claimed = permit.claimed;
    let request = request.into_outgoing();
    let kept = context.call.key.needs_body().then(|| request.body().kept());
    let compared = context.is_watched().then(|| request.body().kept());
    let (request, owed, slot) = permit.admit(request);
    let receipt = owed.receipt();
    let granted = receipt.map_or(claimed, Receipt::granted);
    context.left(granted, claimed, receipt.and_then(Receipt::waited));
    let owed = Some(owed);
    let mut sent = SentCall { gate, context, owed, kept, compared, so_far: None, is_free_unchanged, ends_quietly };
    async move {
        let response = match route {
            Route::Stream(lease) => gate.upstream.send(lease, request).await,
            Route::Upgrade(connection, switch) => {
                let is_long_running = sent.context.call.call.is_long_running;
                match gate.upstream.upgrade(connection, switch.protocol, is_long_running, request).await {
                    Ok(UpgradeAnswer::Switched(response, upstream)) => {
                        drop(slot); // no one knows how long a tunnel lasts
                        sent.context.head_came();
                        sent.answered(response.status(), response.headers(), &[]);
                        return Ok(response.map(|()| Body::Switched { slot: switch.tunnel(upstream) }));
                    }
                    Ok(UpgradeAnswer::Answered(response)) => Ok(response),
                    Err(error) => Err(error),
                }
            }
        };
        let (head, mut body) = match response {
            Ok(response) => response.map(PeekBody::unread).into_parts(),
            Err(error) => return Err(sent.failed(&error)),
        };
        sent.context.head_came();
        if sent.wants_body(&head) {
            Box::pin(sent.look_into(&head, &mut body)).await; // rare: its room is not every call's
        }
        let beginning = body.beginning();
        let answer = sent.answered(head.status, &head.headers, &signals::in_clear(&head.headers, &beginning));
        let copy = sent.copy(answer, &head);
        // A stream cannot be told from a single answer, and may last for any time.
        let slot = if sent.is_grpc() && is_grpc(&head.headers) { None } else { Some(slot) };
        if slot.is_none() {
            sent.context.follow([None, None]);
        }
        sent.clients_answer(head, body, slot, question, copy)
    }
}

/// Adds `If-None-Match` or `If-Modified-Since` to a request, if its class stores answers and the
/// gate has one to this request.
fn ask(gate: &GateParts, request: &mut PendingCall, context: &CallContext) -> Option<Question> {
    let keeps = context.config.options.gate.answers.revalidation.classes.get(usize::from(context.call.class.0));
    let asks =
        keeps == Some(&true) && !context.is_in_shadow() && !context.call.call.is_long_running && request.is_bare();
    let version = || [gate.upstream.injector().mark().unwrap_or_default(), gate.upstream.certificate_changes()];
    if asks { gate.answers.ask(&mut request.parts, version()) } else { None }
}

/// Returns true if the upstream does not count a 304 answer to the call, as GitHub does for callers
/// with credentials.
fn is_free_unchanged(gate: &GateParts, request: &PendingCall, context: &CallContext) -> bool {
    let is_known = || request.parts.headers.contains_key(AUTHORIZATION) || gate.upstream.injector().mark().is_some();
    context.config.options.gate.policy.uncounted.is_some() && is_known()
}

// === impl SentCall ===

impl SentCall<'_> {
    /// Returns true for a gRPC call on a gate configured for a cloud provider's API.
    fn is_grpc(&self) -> bool {
        self.context.call.form == Some(Form::Grpc)
    }

    /// Returns true if the response head does not show the outcome, so that the beginning of the
    /// body must be read.
    fn wants_body(&self, head: &Parts) -> bool {
        let CallContext { config, call, .. } = &*self.context;
        outcome::wants_body(&config.options.gate.answers.throttling, &call.call, head.status, &head.headers)
    }

    /// Reads the beginning of the response body. If the caller hangs up meanwhile, the outcome is
    /// that of the head alone.
    async fn look_into(&mut self, head: &Parts, body: &mut PeekBody<ResponseBody>) {
        self.so_far = Some(self.told(head.status, &head.headers, &[]).answer);
        body.peek(self.gate.driver.clock()).await;
    }

    /// Determines the outcome from the response head and what was read of the body, and reports it
    /// to the limiter.
    fn answered(&mut self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Answer {
        let told = self.told(status, headers, body);
        self.context.learned(&told);
        self.look_at_body(status);
        if self.is_free_unchanged && status == StatusCode::NOT_MODIFIED {
            self.tell(&Limiter::refund);
        }
        self.note_quotas(status, headers);
        if let Some(word) = told.charged
            && self.owed.as_ref().and_then(OwedReceipt::receipt).is_some_and(|receipt| !receipt.was_predicted(word))
        {
            let action = self.context.call.quota.action;
            self.tell(&|limiter, receipt, now| limiter.learn_resource(receipt, action, word, now));
        }
        if let Some(signal) = told.signal {
            let call = &self.context.call.call;
            tracing::debug!(?call, signal = signal.word(), answer = ?told.answer, "the upstream signalled a limit");
            if told.answer.pause.is_some() {
                *lock(&self.gate.last_signal) = Some(signal);
            }
        }
        if let Some(key) = self.report(told.answer) {
            self.context.key = Some(key);
        }
        told.answer
    }

    /// Returns a copy of the beginning of the body, made as the body flows: of an error for the
    /// status page, or of a written object for its version.
    fn copy(&mut self, answer: Answer, head: &Parts) -> Option<BodyCopy> {
        let failing = self.failing(answer, &head.headers).map(|failing| BodyCopy::Failing(Box::new(failing)));
        failing.or_else(|| Some(BodyCopy::Written(Box::new(self.context.written(head.status, &head.headers)?))))
    }

    /// Returns a record of an error response. `None` if the response is no failure or the key is
    /// unknown.
    fn failing(&self, answer: Answer, headers: &HeaderMap) -> Option<FailingAnswer> {
        matches!(answer.outcome, Outcome::Failure | Outcome::Throttled { .. }).then_some(())?;
        let tally = Arc::clone(&self.gate.tally);
        let key = self.context.key?;
        Some(FailingAnswer { tally, key, status: answer.status, body: ErrorBody::after(headers) })
    }

    /// Inspects the request body if its object is called too often, or could not be created.
    fn look_at_body(&mut self, status: StatusCode) {
        if let Some(kept) = self.compared.take() {
            let body = kept.bytes().concat();
            let content = if kept.is_whole() { hot::digest(&body, &self.gate.hasher) } else { hot::Content::default() };
            self.context.digested(content);
        }
        if self.context.made_nothing(status)
            && let Some(kept) = &self.kept
        {
            let body = kept.bytes().concat();
            let key = self.context.call.key.with_body(&body, kept.is_whole(), &self.gate.hasher);
            self.context.would_have_made(key, &body);
        }
    }

    /// Records the upstream's quotas from the response, for the status page and for gates with
    /// shared buckets.
    fn note_quotas(&self, status: StatusCode, headers: &HeaderMap) {
        let CallContext { config, call, .. } = &*self.context;
        let honoured = config.options.gate.answers.throttling.honour;
        if honoured.tell_quotas() {
            let wall = (!headers.contains_key(DATE)).then(wall_clock);
            let response = signals::Response { status, headers, body: &[], wall };
            let quotas = signals::quotas(honoured, &response);
            let PausePolicy { scope, reserve, .. } = config.options.gate.answers.throttling;
            if !config.options.gate.policy.shared.is_empty()
                && scope != Scope::Key
                && let Some(left) = signals::left(honoured, &quotas, reserve)
            {
                let charged = if scope == Scope::Class { Charged::Class } else { Charged::All };
                self.tell(&|limiter, receipt, now| limiter.note_left(receipt, charged, left, now));
            }
            let whose = if call.quota.holder == 0 { call.credential } else { call.quota.holder };
            self.gate.tally.quotas.note(quotas, whose, self.context.caller.row(), self.gate.driver.clock().now());
        }
    }

    /// Returns the response for the client: the stored answer if the upstream confirmed it,
    /// otherwise the upstream's. A new response may be copied to the store as it flows.
    fn clients_answer(
        &mut self,
        head: Parts,
        body: PeekBody<ResponseBody>,
        slot: Option<HeldSlot>,
        question: Option<Question>,
        copy: Option<BodyCopy>,
    ) -> Result<Response<Body>, CallFailure> {
        match question.map_or(Reply::Pass, |question| question.answered(&head)) {
            Reply::Unchanged(mut head, data) => {
                head.headers.insert(CACHE, HeaderValue::from_static("revalidated"));
                self.context.revalidated();
                Ok(Response::from_parts(*head, Body::kept(data)))
            }
            Reply::Unproven(request) => Err(CallFailure::Unproven(request)),
            meaning => {
                let ends_quietly = self.ends_quietly && head.status == StatusCode::OK;
                let mut response = Response::from_parts(head, Body::upstream(body, slot, ends_quietly));
                let kept = if let Reply::New(keeping) = meaning { Some(BodyCopy::Kept(keeping)) } else { None };
                kept.or(copy).into_iter().for_each(|copy| response.body_mut().keep(copy));
                Ok(response)
            }
        }
    }

    /// Determines what a response means: whether the call's key failed, and whether the upstream
    /// asks for a pause.
    fn told(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> AnswerDetails {
        let CallContext { config, call, .. } = &*self.context;
        let grpc = if self.is_grpc() { grpc::in_http(status, headers) } else { None };
        let (status, headers) = grpc.as_ref().map_or((status, headers), |(status, headers)| (*status, headers));
        let wall = (!headers.contains_key(DATE)).then(wall_clock);
        let response = signals::Response { status, headers, body, wall };
        let told = outcome::answer(
            config.failures(call.class),
            &config.options.gate.answers.throttling,
            &call.call,
            &response,
        );
        let answer = if call.key_is_of_object { told.answer } else { told.answer.of_no_object() };
        AnswerDetails { answer, ..told }
    }

    /// Reports a call without a response head, and returns the failure for the client.
    fn failed(&mut self, error: &SendError) -> CallFailure {
        let CallContext { config, call, .. } = &*self.context;
        tracing::debug!(call = ?call.call, %error, "a call got no response");
        let lost = || outcome::lost(config.failures(call.class), &call.call);
        let (failure, answer) = match error {
            SendError::Unsent { .. } => (CallFailure::Unconnected(None), NOTHING),
            SendError::Unconnected(source) => (CallFailure::Unconnected(Some(Arc::clone(source))), NOTHING),
            SendError::Client { .. } => (CallFailure::Client, NOTHING),
            SendError::Lost { .. } => (CallFailure::Lost, lost()),
            SendError::Timeout(after) => (CallFailure::Timeout(*after), lost()),
        };
        self.report(answer);
        failure
    }

    /// Tells something about the call to the limiters: the one in force, and that of calls in shadow
    /// mode.
    fn tell(&self, apply: &dyn Fn(&mut Limiter, &Receipt, Moment)) {
        self.owed.iter().for_each(|owed| owed.tell(apply));
        self.context.tell_shadow(apply);
    }

    /// Reports the outcome to the limiter. Returns the call's key if it was unknown until now.
    fn report(&mut self, answer: Answer) -> Option<Key> {
        let owed = self.owed.take()?;
        let (key, start) = self.key_from_body(&owed, answer);
        self.context.answered(answer, key, start.as_deref());
        owed.finish(answer, key, &|| self.context.call.key_name(start.as_deref()));
        key
    }

    /// Reads the call's key from the request body, and returns it with the beginning of that body.
    /// Does so only if the outcome matters for a key: after a failure, or after a success while
    /// some key of the same collection is failing. The key is `None` if it was known before.
    fn key_from_body(&self, owed: &OwedReceipt, answer: Answer) -> (Option<Key>, Option<Vec<u8>>) {
        let (Some(kept), source) = (&self.kept, &self.context.call.key) else { return (None, None) };
        let is_in_shadow = self.context.is_in_shadow();
        let is_failing = |all| self.gate.driver.look_as(is_in_shadow, |limiter, _| limiter.keys().any_failing_in(all));
        let concerned = match answer.outcome {
            Outcome::Failure | Outcome::Throttled { .. } => true,
            Outcome::Success => source.collection().is_some_and(is_failing),
            Outcome::Abandoned | Outcome::Neutral => answer.gone != Removal::Nothing,
        };
        if !concerned {
            return (None, None);
        }
        let start = kept.bytes().concat();
        let key = source.with_body(&start, kept.is_whole(), &self.gate.hasher);
        (key.filter(|_| owed.receipt().and_then(Receipt::key).is_none()), Some(start))
    }
}

impl Drop for SentCall<'_> {
    fn drop(&mut self) {
        if self.owed.is_some() {
            let CallContext { config, call, .. } = &*self.context;
            let upstream_for = self.context.upstream_for().unwrap_or(Duration::ZERO);
            let left = || outcome::left(config.failures(call.class), &call.call, upstream_for);
            let answer = self.so_far.unwrap_or_else(left);
            self.report(answer);
        }
    }
}

/// The header of a stored answer, sent after the upstream confirmed it.
const CACHE: HeaderName = HeaderName::from_static("tidegate-cache");
/// The outcome if nothing was learned about the upstream.
const NOTHING: Answer = Answer::new(Outcome::Abandoned, None);
