//! Sends an admitted call and learns what came of it.
//!
//! The innermost layer: takes a [`Departure`], which only admission makes. The outcome is told at the response head; the slot rides on in
//! the body. A caller who leaves before the head is an outcome too.

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderMap, Request, Response, StatusCode, Version, header::DATE, request::Parts, response};
use hyper::upgrade::OnUpgrade;

use super::{
    admission::{Door, body_key},
    body::{Body, Peeked},
    coalesce::{Capture, Leader},
    driver::{HeldPermit, HeldSlot, OwedReceipt},
    failure::Failure,
    gate_config::GateConfig,
    observe::Account,
    tunnel::Switch,
};
use crate::{
    api::{
        Answer, Gone, Key, Outcome, Verb,
        outcome::{self, Told},
        signals,
    },
    classify::Classified,
    clock::wall_clock,
    limit::Admitted,
    moment::Moment,
    telemetry::meters::FailureKind,
    upstream::{Dedicated, Kept, Outgoing, SendError, StreamLease, Streaming, Upgraded, Upstream},
};

/// A call that may leave, and all it leaves with.
#[derive(Debug)]
pub(crate) struct Departure {
    way: Way,
    request: Admitted<Request<Outgoing>>,
    sent: Sent,
    slot: HeldSlot,
    /// A watch over HTTP/2: what it ends in when the upstream is lost is told apart in [`Body::upstream`].
    ends_quietly: bool,
    /// Others wait for the same answer.
    leader: Option<Leader>,
}

/// What a call leaves on.
#[derive(Debug)]
pub(crate) enum Way {
    /// A stream of a connection that others use too.
    Stream(StreamLease),
    /// A connection of its own, to become a tunnel if the upstream agrees.
    Upgrade(Dedicated, Switch),
}

/// A call that was sent and is owed an outcome. Dropped: the caller left.
struct Sent {
    door: Arc<Door>,
    /// Taken when the outcome is told.
    owed: Option<OwedReceipt>,
    call: Classified,
    /// Kept only where the key is in the body.
    kept: Option<Kept>,
    at: Moment,
    /// The terms that the call's class belongs to.
    config: Arc<GateConfig>,
    /// What the head alone means, while its body is looked at.
    so_far: Option<Answer>,
}

/// Sends what was admitted. No tower service: its future cannot be named, and would cost a second box beside admission's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forward;

impl Forward {
    /// Sends the call; an answer, or why there is none.
    pub(crate) fn send(
        self,
        departure: Departure,
        account: &mut Account,
    ) -> impl Future<Output = Result<Response<Body>, Failure>> + Send {
        departure.send(account)
    }
}

// === impl Departure ===

impl Departure {
    pub(crate) fn new(
        door: &Arc<Door>,
        parts: Parts,
        call: Classified,
        body: Outgoing,
        permit: HeldPermit,
        way: Way,
        account: &mut Account,
    ) -> Self {
        let at = permit.claimed();
        let method = parts.method.clone();
        let ends_quietly = call.call.verb() == Verb::Watch && parts.version == Version::HTTP_2;
        let kept = call.key.needs_body().then(|| body.kept());
        let (request, owed, slot) = permit.admit(Request::from_parts(parts, body));
        account.left((owed.granted().unwrap_or(at), at), owed.waited(), &method);
        let config = Arc::clone(account.config());
        let sent = Sent { door: Arc::clone(door), owed: Some(owed), call, kept, at, config, so_far: None };
        Self { way, request, sent, slot, ends_quietly, leader: None }
    }

    /// The same call, whose answer others wait for.
    pub(crate) fn leads(self, leader: Option<Leader>) -> Self {
        Self { leader, ..self }
    }

    fn send(self, account: &mut Account) -> impl Future<Output = Result<Response<Body>, Failure>> + Send {
        let Self { way, request, mut sent, slot, ends_quietly, leader } = self;
        async move {
            let arrived = match send(&sent.door.upstream, way, request).await {
                Ok(arrived) => arrived,
                Err(error) => return Err(sent.failed(&error, account)),
            };
            account.answered(sent.door.driver.clock().now());
            let (mut response, learned) = match arrived {
                Arrived::Answer(response) => {
                    let (head, mut body) = response.map(Peeked::unread).into_parts();
                    if sent.wants_body(&head) {
                        Box::pin(sent.look_into(&head, &mut body)).await; // rare: its room is not every call's
                    }
                    let learned = sent.answered(&head, &body, account);
                    let ends_quietly = ends_quietly && head.status == StatusCode::OK;
                    (Response::from_parts(head, Body::upstream(body, slot, ends_quietly)), learned)
                }
                Arrived::Switch(response, switch, upstream) => {
                    let learned = sent.switched(&response);
                    (response.map(|()| Body::Switched { desk: switch.tunnel(upstream, slot) }), learned)
                }
            };
            account.learned(&learned.answer, learned.key);
            let (outcome, kind) = (learned.answer.outcome, sent.config.rules.kind());
            // A failure is the answer to one attempt, not to a question: the next may do better.
            let leader = leader.filter(|_| matches!(outcome, Outcome::Success | Outcome::Neutral));
            if let Some(capture) = leader.and_then(|leader| Capture::begin(leader, &response, kind)) {
                response.body_mut().keep(capture);
            }
            Ok(response)
        }
    }
}

/// What an answer told.
struct Learned {
    answer: Answer,
    /// The key that it concerns, if that came to be known only now.
    key: Option<Key>,
}

/// What came back.
enum Arrived {
    Answer(Response<Streaming>),
    Switch(Response<()>, Switch, OnUpgrade),
}

async fn send(upstream: &Upstream, way: Way, request: Admitted<Request<Outgoing>>) -> Result<Arrived, SendError> {
    match way {
        Way::Stream(lease) => upstream.send(lease, request).await.map(Arrived::Answer),
        Way::Upgrade(connection, switch) => {
            upstream.upgrade(connection, switch.protocol(), request).await.map(|upgraded| match upgraded {
                Upgraded::Switched(response, bytes) => Arrived::Switch(response, switch, bytes),
                Upgraded::Answered(response) => Arrived::Answer(response),
            })
        }
    }
}

// === impl Sent ===

impl Sent {
    /// Whether only the beginning of the body tells what the response means.
    fn wants_body(&self, head: &response::Parts) -> bool {
        outcome::wants_body(&self.config.throttling, &self.call.call, head.status, &head.headers)
    }

    /// Reads the beginning of the body. Should the caller leave meanwhile, what the head alone means is what was learned.
    async fn look_into(&mut self, head: &response::Parts, body: &mut Peeked<Streaming>) {
        self.so_far = Some(self.told(head.status, &head.headers, &[]).answer);
        body.peek(self.door.driver.clock()).await;
    }

    /// The response head came, and what is wanted of the body; what it means.
    fn answered(&mut self, head: &response::Parts, body: &Peeked<Streaming>, account: &Account) -> Learned {
        let beginning = body.beginning();
        let told = self.told(head.status, &head.headers, &signals::in_clear(&head.headers, &beginning));
        if let Some(by) = told.rejection {
            account.rejected(by);
        }
        if let Some(signal) = told.signal {
            account.signalled(signal);
            tracing::debug!(call = ?self.call.call, signal = signal.word(), answer = ?told.answer, "the upstream said wait");
            if told.answer.pause.is_some() {
                self.door.last_signal.set(signal);
            }
        }
        let key = self.settle(told.answer);
        Learned { answer: told.answer, key }
    }

    /// The upstream agreed to speak another protocol from here on.
    fn switched(&mut self, response: &Response<()>) -> Learned {
        let answer = self.told(response.status(), response.headers(), &[]).answer;
        let key = self.settle(answer);
        Learned { answer, key }
    }

    fn told(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Told {
        let wall = (!headers.contains_key(DATE)).then(wall_clock);
        let response = signals::Response { status, headers, body, wall };
        let told =
            outcome::answer(self.config.failures(self.call.class), &self.config.throttling, &self.call.call, &response);
        let answer = if self.call.key_is_of_object { told.answer } else { told.answer.of_no_object() };
        Told { answer, ..told }
    }

    /// There is no response head; what to tell the client.
    fn failed(&mut self, error: &SendError, account: &Account) -> Failure {
        tracing::debug!(call = ?self.call.call, %error, "a call got no answer");
        match error {
            SendError::Unsent { .. } => {
                account.failed(FailureKind::Unconnected);
                self.settle(NOTHING);
                Failure::Unconnected(None)
            }
            SendError::Unconnected { source } => {
                account.failed(FailureKind::Unconnected);
                self.settle(NOTHING);
                Failure::Unconnected(Some(Arc::clone(source)))
            }
            SendError::Client { .. } => {
                self.settle(NOTHING);
                Failure::Client
            }
            SendError::Lost { .. } => {
                account.failed(FailureKind::Lost);
                self.settle(outcome::lost(self.config.failures(self.call.class), &self.call.call));
                Failure::Lost
            }
            SendError::Timeout { after } => {
                account.failed(FailureKind::Timeout);
                self.settle(outcome::lost(self.config.failures(self.call.class), &self.call.call));
                Failure::Timeout(*after)
            }
        }
    }

    /// Tells the outcome; the key, if it came to be known only now.
    fn settle(&mut self, answer: Answer) -> Option<Key> {
        let owed = self.owed.take()?;
        let (key, start) = self.key_from_body(&owed, answer);
        owed.settle(answer, key, &|| self.call.key_name(start.as_deref()));
        key
    }

    /// The key that was not known when the call left, where the outcome concerns one: after a failure, and after a success while some key of
    /// the collection fails.
    fn key_from_body(&self, owed: &OwedReceipt, answer: Answer) -> (Option<Key>, Option<Vec<u8>>) {
        let concerned = match answer.outcome {
            Outcome::Failure | Outcome::Throttled { .. } => true,
            Outcome::Success => {
                self.call.key.collection().is_some_and(|all| self.door.driver.keys().any_failing_in(all))
            }
            Outcome::Abandoned | Outcome::Neutral => answer.gone != Gone::Nothing,
        };
        match &self.kept {
            Some(kept) if concerned => {
                let (key, start) = body_key(&self.call.key, kept, &self.door.hasher);
                (key.filter(|_| owed.key().is_none()), Some(start))
            }
            _ => (None, None),
        }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if self.owed.is_some() {
            let upstream_for: Duration = self.door.driver.clock().now() - self.at;
            let left = || outcome::left(self.config.failures(self.call.class), &self.call.call, upstream_for);
            self.settle(self.so_far.unwrap_or_else(left));
        }
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sent").field("call", &self.call.call).finish_non_exhaustive()
    }
}

/// Nothing was learned of the upstream.
const NOTHING: Answer = Answer::new(Outcome::Abandoned, None);
