//! What is known of one call while it is under way.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, LazyLock},
    time::Duration,
};

use http::{HeaderMap, Method, StatusCode, header::USER_AGENT};

use super::as_if::AsIf;
use crate::{
    api::{self, Answer, Call, Key, Outcome, PauseLength, Rejection, Signal, Verb},
    classify::Classified,
    clock::Clock,
    limit::{ClassId, Reason},
    moment::Moment,
    proxy::{
        failure::Failure,
        gate_config::{CurrentConfig, GateConfig},
        tally::Tally,
    },
    telemetry::{
        Asked, CallLog, CallRecord,
        meters::{Decision, FailureKind},
    },
};

/// Opens accounts.
#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) config: Arc<CurrentConfig>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) clock: Clock,
}

/// What is known of one call while it is under way. Dropped before it is closed: the caller left.
#[derive(Debug)]
pub(crate) struct Account {
    observer: Arc<Observer>,
    /// The terms that the call goes by, to its end.
    config: Arc<GateConfig>,
    arrived: Moment,
    /// When the limiter was asked. Only for the log.
    at_door: Option<Moment>,
    /// Once the call is classified.
    call: Option<Noted>,
    waited: Option<(Reason, Duration)>,
    left: Option<(Moment, Moment)>,
    upstream: Option<Duration>,
    refused: Option<Reason>,
    /// It was answered without being sent, after this long.
    coalesced: Option<Duration>,
    /// How long the upstream said to wait.
    retry_after: Option<Duration>,
    closed: bool,
}

/// What the classifier said, as far as it is reported.
#[derive(Debug)]
struct Noted {
    class: ClassId,
    verb: Verb,
    long_running: bool,
    flow: u64,
    key: Option<Key>,
    /// Kept only for the log.
    asked: Option<Asked>,
    /// Which object it concerns, where nothing is remembered of it. Only for the log.
    object: Option<Key>,
    in_flight: Option<InFlight>,
}

/// Counts as in flight until dropped; then the log has its line.
#[derive(Debug)]
pub(crate) struct InFlight {
    gauge: metrics::Gauge,
    line: Option<Box<Pending>>,
}

/// A line of the log that lacks the end of the body.
#[derive(Debug)]
struct Pending {
    log: CallLog,
    record: CallRecord,
    clock: Clock,
    /// When the client was answered.
    since: Moment,
}

// === impl Account ===

impl Account {
    pub(crate) fn open(observer: &Arc<Observer>) -> Self {
        Self {
            observer: Arc::clone(observer),
            config: observer.config.get(),
            arrived: observer.clock.now(),
            at_door: None,
            call: None,
            waited: None,
            left: None,
            upstream: None,
            refused: None,
            coalesced: None,
            retry_after: None,
            closed: false,
        }
    }

    /// The terms that the call goes by.
    pub(crate) fn config(&self) -> &Arc<GateConfig> {
        &self.config
    }

    /// The call goes by the terms in force now: it is yet to be admitted, and its class may mean another under them.
    pub(crate) fn renew(&mut self) {
        self.call = None;
        self.config = self.observer.config.get();
    }

    /// The call is classified.
    pub(crate) fn classified(&mut self, classified: &Classified, headers: &HeaderMap) {
        let call = &classified.call;
        let asked = self.config.log.as_ref().map(|_| asked(classified, headers));
        self.call = Some(Noted {
            class: classified.class,
            verb: call.verb(),
            long_running: call.is_long_running(),
            flow: classified.flow,
            key: classified.key.known(),
            object: asked.as_ref().and_then(|_| object(call)),
            asked,
            in_flight: self.config.meters.in_flight(classified.class).map(InFlight::new),
        });
    }

    /// The key came to be known.
    pub(crate) fn keyed(&mut self, key: Key) {
        if let Some(call) = &mut self.call {
            call.key = Some(key);
        }
    }

    /// The limiter is about to be asked.
    pub(crate) fn at_door(&mut self) {
        self.at_door = self.config.log.as_ref().map(|_| self.observer.clock.now());
    }

    /// The call has left: when its tokens were taken, and when its permit was claimed.
    pub(crate) fn left(&mut self, at: (Moment, Moment), waited: Option<(Reason, Duration)>, method: &Method) {
        self.left = Some(at);
        self.waited = waited;
        self.observer.tally.admitted();
        let Some(call) = &self.call else { return };
        if let Some((reason, wait)) = waited {
            self.config.meters.waited(call.class, reason, wait);
        }
        self.config.meters.limited(call.class, waited.map_or(Duration::ZERO, |(_, wait)| wait), method.as_str());
    }

    /// The limiter was asked, and said this.
    pub(crate) fn decided(&self, class: ClassId, decision: Decision) {
        self.config.meters.decided(class, decision);
    }

    /// Where to say what would have become of the call.
    pub(crate) fn as_if(&self, class: ClassId) -> AsIf {
        AsIf::new(&self.config, class)
    }

    /// The call is answered with the answer to another, which was the same call.
    pub(crate) fn coalesced(&mut self, now: Moment) {
        self.coalesced = Some(now - self.arrived);
        if let Some(call) = &self.call {
            self.config.meters.coalesced(call.class);
        }
    }

    /// The response head came.
    pub(crate) fn answered(&mut self, now: Moment) {
        let took = self.left.map(|(_, sent)| now - sent);
        self.upstream = took;
        if let (Some(call), Some(took)) = (&self.call, took)
            && !call.long_running
        {
            self.config.meters.upstream_took(call.class, took);
        }
    }

    /// What the upstream's answer meant: for which key, if that came to be known only now, and how long to wait by whatever signal.
    pub(crate) fn learned(&mut self, answer: &Answer, key: Option<Key>) {
        key.into_iter().for_each(|key| self.keyed(key));
        let of_key = match answer.outcome {
            Outcome::Throttled { after } => Some(after),
            Outcome::Abandoned | Outcome::Failure | Outcome::Neutral | Outcome::Success => None,
        };
        let of_others = answer.pause.and_then(|pause| match pause.length {
            PauseLength::Known(length) => Some(length),
            PauseLength::Growing { .. } => None,
        });
        self.retry_after = of_key.max(of_others);
    }

    /// The call will not leave.
    pub(crate) fn could_not(&mut self, failure: &Failure, call: &Classified, method: &Method) {
        match failure {
            Failure::Refused(refusal) => {
                self.refused = Some(refusal.reason);
                self.waited = (!refusal.waited.is_zero()).then_some((refusal.reason, refusal.waited));
                let (group, resource) = (call.call.group(), call.call.resource());
                self.config.meters.refused(call.class, refusal.reason, group, resource);
                self.config.meters.limited(call.class, refusal.waited, method.as_str());
                self.observer.tally.refused(self.config.meters.class_name(call.class), refusal, call);
            }
            Failure::Unconnected(_) => self.failed(FailureKind::Unconnected),
            Failure::Client | Failure::Forbidden(_) | Failure::Lost | Failure::Timeout(_) => {}
        }
    }

    /// The gate could not complete the call.
    pub(crate) fn failed(&self, kind: FailureKind) {
        if let Some(call) = &self.call {
            self.config.meters.failed(call.class, kind);
        }
    }

    /// The upstream turned the call away.
    pub(crate) fn rejected(&self, by: Rejection) {
        if let Some(call) = &self.call {
            self.config.meters.rejected(call.class, by);
            self.observer.tally.rejected(by);
        }
    }

    /// What the upstream said of its limits was acted on.
    pub(crate) fn signalled(&self, signal: Signal) {
        if let Some(call) = &self.call {
            self.config.meters.signalled(call.class, signal);
        }
    }

    /// How long a limit held the call before it left or was answered, and which.
    pub(crate) fn held(&self) -> Option<(&'static str, Duration)> {
        if let Some(wait) = self.coalesced {
            return Some(("coalesced", wait));
        }
        let limited = |reason| reason != Reason::Slot || self.config.limits_slots;
        let held = self.waited.filter(|(reason, _)| self.left.is_some() && limited(*reason));
        held.map(|(reason, wait)| (reason.word(), wait))
    }

    /// The class's name, once there is one.
    pub(crate) fn class_name(&self) -> &str {
        self.call.as_ref().map_or("", |call| self.config.meters.class_name(call.class))
    }

    /// The client is answered. The call counts as in flight for as long as what is returned lives.
    pub(crate) fn close(mut self, status: StatusCode) -> Option<InFlight> {
        self.closed = true;
        if let Some(call) = &self.call {
            self.config.meters.answered(call.class, call.verb, status.as_u16());
        }
        let in_flight = self.call.as_mut().and_then(|call| call.in_flight.take());
        let Some(log) = self.config.log.clone() else { return in_flight };
        let Some(record) = self.record(Some(status.as_u16()), None) else { return in_flight };
        let now = self.observer.clock.now();
        match in_flight {
            // What lasts for as long as the client likes may outlast the log.
            Some(mut in_flight) if !record.asked.long_running => {
                let pending = Pending { log, record, clock: self.observer.clock, since: now };
                in_flight.line = Some(Box::new(pending));
                Some(in_flight)
            }
            in_flight => {
                log.record(record);
                in_flight
            }
        }
    }

    /// The call's line, if there is a log.
    fn record(&mut self, status: Option<u16>, gave_up: Option<Duration>) -> Option<CallRecord> {
        let call = self.call.as_mut()?;
        Some(CallRecord {
            arrived: self.arrived,
            at_door: self.at_door,
            gate: Arc::clone(self.config.meters.gate()),
            class: self.config.meters.class_name(call.class).into(),
            lane: self.config.meters.lane(call.class),
            flow: call.flow,
            verb: call.verb.word(),
            asked: call.asked.take()?,
            key: call.key.or(call.object),
            waited: self.waited,
            granted: self.left.map(|(granted, _)| granted),
            sent: self.left.map(|(_, sent)| sent),
            upstream: self.upstream,
            status,
            refused: self.refused,
            retry_after: self.retry_after,
            body: None,
            gave_up,
            coalesced: self.coalesced,
        })
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        if let (Some(call), None, None) = (&self.call, self.left, self.coalesced) {
            self.config.meters.hung_up(call.class);
        }
        let Some(log) = self.config.log.clone() else { return };
        let gave_up = self.observer.clock.now() - self.arrived;
        if let Some(record) = self.record(None, Some(gave_up)) {
            log.record(record);
        }
    }
}

/// What a call asks for, for the log.
fn asked(classified: &Classified, headers: &HeaderMap) -> Asked {
    let call = &classified.call;
    let agent = headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    let agent = agent.split(' ').next().filter(|word| word.len() <= LONGEST_AGENT).unwrap_or_default();
    Asked {
        group: call.group().into(),
        resource: call.resource().into(),
        subresource: call.subresource().into(),
        namespace: call.namespace().into(),
        user_agent: agent.into(),
        credential: classified.credential,
        long_running: call.is_long_running(),
        dry_run: call.is_dry_run(),
        timeout: call.timeout(),
    }
}

/// The identity of a named object and of what is done to it, good within this process as that of a key is.
fn object(call: &Call) -> Option<Key> {
    static SALT: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let collection = (call.group(), call.resource(), call.namespace());
    let facet = (call.verb().is_read(), call.subresource());
    (call.is_resource() && !call.name().is_empty()).then(|| Key {
        object: SALT.hash_one((collection, call.name())),
        collection: SALT.hash_one(collection),
        facet: api::facet(SALT.hash_one(facet), call.verb().is_delete()),
    })
}

/// A longer word is no name of a program.
const LONGEST_AGENT: usize = 128;

// === impl InFlight ===

impl InFlight {
    fn new(gauge: metrics::Gauge) -> Self {
        gauge.increment(1.0);
        Self { gauge, line: None }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.gauge.decrement(1.0);
        if let Some(pending) = self.line.take() {
            let Pending { log, mut record, clock, since } = *pending;
            record.body = record.sent.map(|_| clock.now() - since);
            log.record(record);
        }
    }
}
