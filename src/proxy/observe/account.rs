//! What is known of one call while it is under way.

use std::{sync::Arc, time::Duration};

use http::{Method, StatusCode};

use crate::{
    api::{Key, Signal, Verb},
    classify::Classified,
    clock::Clock,
    limit::{ClassId, Reason},
    moment::Moment,
    proxy::{
        failure::Failure,
        tally::Tally,
        terms::{Current, Terms},
    },
    telemetry::{CallRecord, meters::FailureKind},
};

/// Opens accounts.
#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) terms: Arc<Current>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) clock: Clock,
}

/// What is known of one call while it is under way. Dropped before it is closed: the caller left.
#[derive(Debug)]
pub(crate) struct Account {
    observer: Arc<Observer>,
    /// The terms that the call goes by, to its end.
    terms: Arc<Terms>,
    arrived: Moment,
    /// Once the call is classified.
    call: Option<Noted>,
    waited: Option<(Reason, Duration)>,
    sent: Option<Moment>,
    upstream: Option<Duration>,
    refused: Option<Reason>,
    /// It was answered without being sent, after this long.
    coalesced: Option<Duration>,
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
    resource: Option<(Box<str>, Box<str>)>,
    in_flight: Option<InFlight>,
}

/// Where a gate that only plays says what would have been.
#[derive(Debug)]
pub(crate) struct AsIf {
    terms: Arc<Terms>,
    class: ClassId,
}

/// Counts as in flight until dropped.
#[derive(Debug)]
pub(crate) struct InFlight {
    gauge: metrics::Gauge,
}

// === impl Account ===

impl Account {
    pub(crate) fn open(observer: &Arc<Observer>) -> Self {
        Self {
            observer: Arc::clone(observer),
            terms: observer.terms.get(),
            arrived: observer.clock.now(),
            call: None,
            waited: None,
            sent: None,
            upstream: None,
            refused: None,
            coalesced: None,
            closed: false,
        }
    }

    /// The terms that the call goes by.
    pub(crate) fn terms(&self) -> &Arc<Terms> {
        &self.terms
    }

    /// The call goes by the terms in force now: it is yet to be admitted, and its class may mean another under them.
    pub(crate) fn renew(&mut self) {
        self.call = None;
        self.terms = self.observer.terms.get();
    }

    /// The call is classified.
    pub(crate) fn classified(&mut self, classified: &Classified) {
        let call = &classified.call;
        let resource = self.terms.log.as_ref().map(|_| (call.group().into(), call.resource().into()));
        self.call = Some(Noted {
            class: classified.class,
            verb: call.verb(),
            long_running: call.is_long_running(),
            flow: classified.flow,
            key: classified.key.known(),
            resource,
            in_flight: self.terms.meters.in_flight(classified.class).map(InFlight::new),
        });
    }

    /// The key came to be known.
    pub(crate) fn keyed(&mut self, key: Key) {
        if let Some(call) = &mut self.call {
            call.key = Some(key);
        }
    }

    /// The call has left, at the moment that its permit was claimed.
    pub(crate) fn left(&mut self, claimed: Moment, waited: Option<(Reason, Duration)>, method: &Method) {
        self.sent = Some(claimed);
        self.waited = waited;
        self.observer.tally.admitted();
        if let (Some(call), Some((reason, wait))) = (&self.call, waited) {
            self.terms.meters.waited(call.class, reason, wait, method.as_str());
        }
    }

    /// Where to say what would have become of the call.
    pub(crate) fn as_if(&self, class: ClassId) -> AsIf {
        AsIf { terms: Arc::clone(&self.terms), class }
    }

    /// The call is answered with the answer to another, which was the same call.
    pub(crate) fn coalesced(&mut self, now: Moment) {
        self.coalesced = Some(now - self.arrived);
        if let Some(call) = &self.call {
            self.terms.meters.coalesced(call.class);
        }
    }

    /// The response head came.
    pub(crate) fn answered(&mut self, now: Moment) {
        let took = self.sent.map(|sent| now - sent);
        self.upstream = took;
        if let (Some(call), Some(took)) = (&self.call, took)
            && !call.long_running
        {
            self.terms.meters.upstream_took(call.class, took);
        }
    }

    /// The call will not leave.
    pub(crate) fn could_not(&mut self, failure: &Failure, call: &Classified) {
        match failure {
            Failure::Refused(refusal) => {
                self.refused = Some(refusal.reason);
                self.waited = (!refusal.waited.is_zero()).then_some((refusal.reason, refusal.waited));
                let (group, resource) = (call.call.group(), call.call.resource());
                self.terms.meters.refused(call.class, refusal.reason, group, resource);
                self.observer.tally.refused(self.terms.meters.class_name(call.class), refusal, call);
            }
            Failure::Unconnected(_) => self.failed(FailureKind::Unconnected),
            Failure::Client | Failure::Forbidden(_) | Failure::Lost | Failure::Timeout(_) => {}
        }
    }

    /// The gate could not complete the call.
    pub(crate) fn failed(&self, kind: FailureKind) {
        if let Some(call) = &self.call {
            self.terms.meters.failed(call.class, kind);
        }
    }

    /// What the upstream said of its limits was acted on.
    pub(crate) fn signalled(&self, signal: Signal) {
        if let Some(call) = &self.call {
            self.terms.meters.signalled(call.class, signal);
        }
    }

    /// How long a limit held the call before it left or was answered, and which.
    pub(crate) fn held(&self) -> Option<(&'static str, Duration)> {
        if let Some(wait) = self.coalesced {
            return Some(("coalesced", wait));
        }
        let limited = |reason| reason != Reason::Slot || self.terms.limits_slots;
        let held = self.waited.filter(|(reason, _)| self.sent.is_some() && limited(*reason));
        held.map(|(reason, wait)| (reason.word(), wait))
    }

    /// The class's name, once there is one.
    pub(crate) fn class_name(&self) -> &str {
        self.call.as_ref().map_or("", |call| self.terms.meters.class_name(call.class))
    }

    /// The client is answered. The call counts as in flight for as long as what is returned lives.
    pub(crate) fn close(mut self, status: StatusCode) -> Option<InFlight> {
        self.closed = true;
        if let Some(call) = &self.call {
            self.terms.meters.answered(call.class, call.verb, status.as_u16());
        }
        self.write(Some(status.as_u16()));
        self.call.as_mut().and_then(|call| call.in_flight.take())
    }

    fn write(&mut self, status: Option<u16>) {
        let (Some(log), Some(call)) = (&self.terms.log, &mut self.call) else {
            return;
        };
        log.record(CallRecord {
            arrived: self.arrived,
            gate: Arc::clone(self.terms.meters.gate()),
            class: self.terms.meters.class_name(call.class).into(),
            lane: self.terms.meters.lane(call.class),
            flow: call.flow,
            verb: call.verb.word(),
            resource: call.resource.take().unwrap_or_default(),
            key: call.key.map(|key| key.object),
            waited: self.waited,
            sent: self.sent,
            upstream: self.upstream,
            status,
            refused: self.refused,
        });
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        if let (Some(call), None, None) = (&self.call, self.sent, self.coalesced) {
            self.terms.meters.hung_up(call.class);
        }
        self.write(None);
    }
}

// === impl AsIf ===

impl AsIf {
    /// The call would have left after this wait.
    pub(crate) fn waited(&self, reason: Reason, wait: Duration) {
        self.terms.meters.would_have_waited(self.class, reason, wait);
    }

    /// The call would have been refused.
    pub(crate) fn refused(&self, reason: Reason) {
        self.terms.meters.would_have_refused(self.class, reason);
    }
}

// === impl InFlight ===

impl InFlight {
    fn new(gauge: metrics::Gauge) -> Self {
        gauge.increment(1.0);
        Self { gauge }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.gauge.decrement(1.0);
    }
}
