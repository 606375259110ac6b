//! What is known of one call while it is under way.

mod object;

use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::header::USER_AGENT;
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};

use self::object::BodyFindings;
pub(crate) use self::object::WriteAnswer;
use super::in_flight::InFlight;
use crate::api::outcome::AnswerDetails;
use crate::api::{self, Answer, Call, Key, Outcome, PauseLength};
use crate::classify::{ClassifiedCall, Salt};
use crate::clock::Clock;
use crate::limit::quota::{QuotaId, ResourceId};
use crate::limit::{Limiter, Reason, Receipt, Refusal};
use crate::moment::Moment;
use crate::proxy::driver::{Fate, TwinAnswer, TwinCall};
use crate::proxy::failure::CallFailure;
use crate::proxy::gate_config::GateConfig;
use crate::proxy::quotas::QuotaReserve;
use crate::proxy::tally::{CallerRow, Tally};
use crate::telemetry::meters::FailureKind;
use crate::telemetry::{CallClass, CallRecord, CallTarget, CallTimes, Trace, table};

/// The state of one call: its classification, its configuration, and what has happened to it. If it
/// is dropped before `close`, the caller has hung up.
#[derive(Debug)]
pub(crate) struct CallContext {
    pub(crate) config: Arc<GateConfig>,
    pub(crate) method: Method,
    pub(crate) call: ClassifiedCall,
    /// The key of the call, once it is known.
    pub(crate) key: Option<Key>,
    tally: Arc<Tally>,
    pub(crate) caller: CallerRow,
    clock: Clock,
    in_flight: Option<InFlight>,
    /// Header fields for the call log; `None` if there is no log.
    noted: Option<RequestNotes>,
    /// The moments in the life of the call.
    times: CallTimes,
    waited: Option<(Reason, Duration)>,
    refused: Option<Reason>,
    /// The time in the upstream's Retry-After header.
    retry_after: Option<Duration>,
    /// What was found in the request body, if the object is called too often or could not be
    /// created.
    looked: Option<Box<BodyFindings>>,
    closed: bool,
}

/// Header fields of a request for the call log.
#[derive(Debug)]
struct RequestNotes {
    /// The first word of the User-Agent header.
    user_agent: Box<str>,
    trace: Option<Box<Trace>>,
}

impl CallContext {
    /// Opens the context of a call under this configuration.
    pub(crate) fn open(
        config: Arc<GateConfig>,
        tally: Arc<Tally>,
        clock: Clock,
        call: ClassifiedCall,
        request: &Parts,
    ) -> Self {
        let arrived = clock.now();
        let action = call.words.as_deref().map_or("", |words| &words.action);
        let client = call.client.as_deref().unwrap_or_default();
        config.meters.came(call.class);
        Self {
            method: request.method.clone(),
            caller: tally.callers.called([program(&request.headers), action, client], arrived),
            key: call.key.known(),
            in_flight: config.meters.in_flight(call.class).map(InFlight::new),
            noted: config.options.call_log.as_ref().map(|_| RequestNotes::of(&request.headers)),
            config,
            call,
            tally,
            times: CallTimes { arrived, ..CallTimes::default() },
            clock,
            waited: None,
            refused: None,
            retry_after: None,
            looked: None,
            closed: false,
        }
    }

    /// Replaces the configuration and classification, because of a reload before the call was
    /// admitted.
    pub(crate) fn reread(&mut self, config: Arc<GateConfig>, call: ClassifiedCall, headers: &HeaderMap) {
        self.in_flight = config.meters.in_flight(call.class).map(InFlight::new);
        self.noted = config.options.call_log.as_ref().map(|_| RequestNotes::of(headers));
        self.key = call.key.known();
        self.config = config;
        self.call = call;
    }

    /// Returns true if the call's class is in shadow mode: the call is sent at once, and only
    /// counted.
    pub(crate) fn is_in_shadow(&self) -> bool {
        self.config.is_in_shadow(self.call.class)
    }

    /// Records when the limiter is asked about the call, for the call log.
    pub(crate) fn asked(&mut self) {
        self.times.at_door = self.noted.as_ref().map(|_| self.clock.now());
    }

    /// Returns the moment of the call's arrival in the call log.
    pub(crate) fn asked_at(&self) -> Moment {
        self.times.at_door.unwrap_or(self.times.arrived)
    }

    /// Keeps the copies of the call at the gate's twins until this call ends. Copies kept before end
    /// now.
    pub(crate) fn follow(&mut self, copies: [Option<TwinCall>; 2]) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.copies = copies;
        }
    }

    fn copies(&mut self) -> impl Iterator<Item = &mut TwinCall> {
        self.in_flight.iter_mut().flat_map(|in_flight| &mut in_flight.copies).flatten()
    }

    /// Applies a function to the limiter of calls in shadow mode and the call's receipt there.
    pub(crate) fn tell_shadow(&self, apply: &dyn Fn(&mut Limiter, &Receipt, Moment)) {
        let shadow = self.in_flight.as_ref().and_then(|in_flight| in_flight.copies[0].as_ref());
        shadow.into_iter().for_each(|copy| copy.tell(apply));
    }

    /// Reports the outcome of the call to its copies. `body` is the beginning of the request body,
    /// if it was read for the key.
    pub(crate) fn answered(&mut self, answer: Answer, key: Option<Key>, body: Option<&[u8]>) {
        let Some(sent) = self.times.sent.filter(|_| self.copies().next().is_some()) else { return };
        if answer.outcome == Outcome::Abandoned {
            return;
        }
        let after = self.times.upstream.unwrap_or_else(|| self.clock.now() - sent);
        let fails = matches!(answer.outcome, Outcome::Failure | Outcome::Throttled { .. });
        let name = if fails { self.call.key_name(body) } else { String::new() };
        let fate = Fate::Answered(TwinAnswer { answer, key, name, after });
        self.copies().for_each(|copy| copy.report(fate.clone(), sent + after));
    }

    /// Records the sending of the call: the moments of its tokens and of its permit's claim, and
    /// its wait.
    pub(crate) fn left(&mut self, granted: Moment, sent: Moment, waited: Option<(Reason, Duration)>) {
        self.times.granted = Some(granted);
        self.times.sent = Some(sent);
        self.waited = waited;
        self.tally.admitted();
        let meters = &self.config.meters;
        let class = self.call.class;
        if let Some((reason, wait)) = waited {
            meters.waited(class, reason, wait);
            if self.config.options.gate.candidate.is_some() && self.held().is_some() {
                let class = meters.class_name(class);
                self.tally.count_in_force(class, reason, Some(wait));
            }
        }
        meters.limited(class, waited.map_or(Duration::ZERO, |(_, wait)| wait), self.method.as_str());
    }

    /// Returns the time since the call was sent.
    pub(crate) fn upstream_for(&self) -> Option<Duration> {
        self.times.sent.map(|sent| self.clock.now() - sent)
    }

    /// Records the arrival of the response head.
    pub(crate) fn head_came(&mut self) {
        self.times.upstream = self.upstream_for();
        if let Some(took) = self.times.upstream.filter(|_| !self.call.call.is_long_running) {
            self.config.meters.upstream_took(self.call.class, took);
            self.tally.latency.took(took);
        }
    }

    /// Counts a call answered with a stored answer, after the upstream confirmed it.
    pub(crate) fn revalidated(&self) {
        self.config.meters.count(&table::REVALIDATED, self.call.class, &[]);
        self.tally.revalidated();
    }

    /// Records what the upstream's response means.
    pub(crate) fn learned(&mut self, told: &AnswerDetails) {
        let meters = &self.config.meters;
        let class = self.call.class;
        if let Some(by) = told.rejection {
            meters.count(&table::REJECTIONS, class, &[by.word()]);
            self.tally.rejected(by);
        }
        if let Some(signal) = told.signal {
            meters.count(&table::SIGNALS, class, &[signal.word()]);
        }
        let of_key = match told.answer.outcome {
            Outcome::Throttled { after } => Some(after),
            Outcome::Abandoned | Outcome::Failure | Outcome::Neutral | Outcome::Success => None,
        };
        let of_others = told.answer.pause.and_then(|pause| match pause.length {
            PauseLength::Known(length) => Some(length),
            PauseLength::Growing { .. } => None,
        });
        self.retry_after = of_key.max(of_others);
    }

    /// Records why a call got no upstream response.
    pub(crate) fn failed(&mut self, failure: &CallFailure) {
        let kind = match failure {
            CallFailure::Refused(refusal) => return self.refused(refusal),
            CallFailure::Lost | CallFailure::Unproven(_) => FailureKind::Lost,
            CallFailure::Timeout(_) => FailureKind::Timeout,
            CallFailure::Unconnected(_) => FailureKind::Unconnected,
            // Calls of strangers say nothing about an object.
            CallFailure::Denied(_) => return self.key = None,
            CallFailure::Client | CallFailure::Forbidden(_) => return,
        };
        self.config.meters.count(&table::FAILURES, self.call.class, &[kind.word()]);
    }

    /// Returns true if the limiter refused the call.
    pub(crate) const fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    fn refused(&mut self, refusal: &Refusal) {
        self.refused = Some(refusal.reason);
        self.waited = (!refusal.waited.is_zero()).then_some((refusal.reason, refusal.waited));
        let meters = &self.config.meters;
        let class = self.call.class;
        let call = &self.call.call;
        meters.refused(class, refusal.reason, call.group(), call.resource());
        meters.limited(class, refusal.waited, self.method.as_str());
        self.tally.refused(meters.class_name(class), refusal, &self.call, self.caller);
        if self.config.options.gate.candidate.is_some() {
            let class = meters.class_name(class);
            self.tally.count_in_force(class, refusal.reason, None);
        }
        let clock = self.clock;
        self.copies().for_each(|copy| copy.report(Fate::Refused, clock.now()));
    }

    /// Returns the rest of the upstream's quota, if the pause until `ends` only saves it for other
    /// users (`signals.reserve`).
    pub(crate) fn kept(&self, ends: Moment) -> Option<QuotaReserve> {
        let reserve = self.config.options.gate.answers.throttling.reserve;
        let of = QuotaId { holder: self.call.quota.holder, resource: ResourceId::ALL };
        self.tally.quotas.kept(of, reserve, ends, self.clock.now())
    }

    /// Returns why a sent call waited (the name of a limit), and how long; `None` without a wait.
    pub(crate) fn held(&self) -> Option<(&'static str, Duration)> {
        let (reason, wait) = self.waited.filter(|_| self.times.sent.is_some())?;
        (reason != Reason::Slot || self.config.limits_slots).then_some((reason.word(), wait))
    }

    /// Records the answer to the client. The call counts as in flight for as long as the returned
    /// value lives.
    pub(crate) fn close(&mut self, status: StatusCode) -> Option<InFlight> {
        self.closed = true;
        self.count_object(status);
        self.config.meters.answered(self.call.class, self.call.call.verb, status.as_u16());
        if status == StatusCode::SWITCHING_PROTOCOLS {
            self.follow([None, None]); // no one knows how long a tunnel lasts
        }
        let mut in_flight = self.in_flight.take();
        if let (Some(record), Some(log)) = (self.record(Some(status.as_u16())), &self.config.options.call_log) {
            match &mut in_flight {
                // What lasts for as long as the client likes may outlast the log.
                Some(in_flight) if !record.asked.long_running && status != StatusCode::SWITCHING_PROTOCOLS => {
                    in_flight.write(log.clone(), record, self.clock);
                }
                _ => log.record(record),
            }
        }
        in_flight
    }

    /// Returns the call's line for the log; `None` without a log, or if it was returned before. No
    /// status means that the caller hung up.
    fn record(&mut self, status: Option<u16>) -> Option<CallRecord> {
        let RequestNotes { user_agent, trace } = self.noted.take()?;
        let meters = &self.config.meters;
        let class = self.call.class;
        let call = &self.call.call;
        let shadow = self.is_in_shadow();
        Some(CallRecord {
            gate: Arc::clone(&meters.gate),
            host: self.tally.host.clone(),
            class: CallClass { name: meters.class_name(class).into(), lane: meters.lane(class), shadow },
            flow: self.call.flow(),
            verb: call.verb.word(),
            method: self.method.clone(),
            trace,
            asked: CallTarget {
                group: call.group().into(),
                resource: call.resource().into(),
                subresource: call.subresource().into(),
                namespace: call.namespace().into(),
                user_agent,
                credential: self.call.credential,
                client: self.call.client.clone(),
                long_running: call.is_long_running,
                dry_run: call.is_dry_run,
                timeout: call.timeout,
            },
            key: self.key.or_else(|| object(call)),
            waited: self.waited,
            status,
            refused: self.refused,
            retry_after: self.retry_after,
            times: CallTimes { ended: self.clock.now(), ..self.times },
        })
    }
}

impl RequestNotes {
    fn of(headers: &HeaderMap) -> Self {
        Self { user_agent: program(headers).into(), trace: Trace::of(headers).map(Box::new) }
    }
}

impl Drop for CallContext {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        if self.times.sent.is_none() {
            self.config.meters.count(&table::HANGUPS, self.call.class, &[]);
        }
        if let (Some(record), Some(log)) = (self.record(None), &self.config.options.call_log) {
            log.record(record);
        }
    }
}

/// Returns the name of the calling program: the first word of the User-Agent.
fn program(headers: &HeaderMap) -> &str {
    let agent = headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    agent.split(' ').next().filter(|word| word.len() <= LONGEST_AGENT).unwrap_or_default()
}

/// Returns a hash of a named object and of the operation on it, for the log lines of calls without
/// a key. Like a key's hash it has a meaning only within this process.
fn object(call: &Call) -> Option<Key> {
    let collection = (call.group(), call.resource(), call.namespace());
    let facet = (call.verb.is_read(), call.subresource());
    (call.is_resource && !call.name().is_empty()).then(|| Key {
        object: SALT.hash_one((collection, call.name())),
        collection: SALT.hash_one(collection),
        facet: api::facet(SALT.hash_one(facet), call.verb.is_delete()),
    })
}

/// The salt of hashes that no key has.
static SALT: LazyLock<Salt> = LazyLock::new(Salt::random);
/// The longest name of a program; a longer word is something else.
const LONGEST_AGENT: usize = 128;
