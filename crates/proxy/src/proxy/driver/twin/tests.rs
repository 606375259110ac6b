//! A candidate's twin, by calls at given milliseconds.

use std::num::NonZeroU32;

use super::*;
use crate::clock::Clock;
use crate::limit::Flow;
use crate::limit::policy::{BucketPolicy, InFlight, Strategy};
use crate::lock;
use crate::proxy::conservation;
use crate::proxy::driver::Driver;
use crate::proxy::stores::Stores;
use crate::status;
use crate::telemetry::{CallLog, GateMeters};

const FLOW: Flow<'static> = Flow { id: 1, name: &"flow" };
const GOOD: Answer = Answer::new(Outcome::Success, Some(200));
const BAD: Answer = Answer::new(Outcome::Failure, Some(503));

fn ms(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

/// A configuration of the generation 0 with a candidate.
fn config(change: impl FnOnce(&mut Policy)) -> Arc<GateConfig> {
    Arc::new(plain(change))
}

fn plain(change: impl FnOnce(&mut Policy)) -> GateConfig {
    let (log, _) = tokio::sync::mpsc::channel(1);
    let mut options = conservation::options(1, ([127, 0, 0, 1], 1).into(), CallLog::to(log));
    let mut candidate = Policy { bucket: None, retry_bucket: None, in_flight: None, ..options.gate.policy.clone() };
    candidate.queue.max_wait = Duration::from_secs(8);
    let bucket = BucketPolicy::new(1e6, NonZeroU32::MAX);
    candidate.classes[1].bucket = Some(bucket);
    change(&mut candidate);
    options.gate.candidate = Some(Arc::new(candidate));
    let meters = GateMeters::new("twin".into(), "host".into(), &options.gate.policy);
    GateConfig::new(options, 0, meters)
}

/// A gate with a twin.
struct TwinGate {
    driver: Driver,
    tally: Arc<Tally>,
}

impl TwinGate {
    /// Applies a configuration to the twin, at a millisecond.
    fn compare(&self, config: &GateConfig, before: Option<&GateConfig>, at: u64) {
        let state = &mut *self.driver.lock();
        state.generation = config.generation;
        state.renew_twins(config, before, &self.tally, ms(at));
    }

    fn tell(&self) -> Option<status::Candidate> {
        lock(&self.tally.comparison).as_ref().map(|comparison| comparison.tell(self.driver.clock()))
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Twin) -> T) -> Option<T> {
        self.driver.lock().candidate.as_deref_mut().map(use_it)
    }
}

fn gate(config: &GateConfig) -> TwinGate {
    let clock = Clock::start();
    let limiter = Limiter::new(config.options.gate.policy.clone(), 1, ms(0));
    let driver = Driver::new("twin".into(), limiter, 0, Stores::default(), clock);
    let gate = TwinGate { driver, tally: Arc::new(Tally::new("twin", clock)) };
    gate.compare(config, None, 0);
    gate
}

fn key(object: u64) -> Key {
    Key { object, collection: 1, facet: 1 }
}

fn arrive(gate: &TwinGate, config: &Arc<GateConfig>, object: u64, at: u64) -> Option<TwinCall> {
    let arrival = Arrival { key: Some(key(object)), group: Group::Short, ..Arrival::new(ClassId(1), FLOW) };
    let (_, [_, candidate]) = gate.driver.play(config, &arrival, &|| 0, ms(at)).ok()?;
    candidate
}

/// Returns what the candidate has counted: waits, and refusals.
fn counts(gate: &TwinGate) -> [u64; 2] {
    let told = gate.tell().expect("a candidate").candidate.calls;
    [told.would_have_waited, told.would_have_been_refused]
}

fn play(gate: &TwinGate, until: u64) {
    while gate.with(|twin| twin.play(ms(until))) == Some(true) {}
}

/// Reports an answer to a call, sent and answered at these milliseconds.
fn answered(call: &mut TwinCall, answer: Answer, sent: u64, head: u64) {
    let after = ms(head) - ms(sent);
    call.report(Fate::Answered(TwinAnswer { answer, key: None, name: String::new(), after }), ms(head));
}

fn one_slot(policy: &mut Policy) {
    policy.in_flight = Some(InFlight::new(NonZeroU32::MIN));
}

#[test]
fn a_call_that_is_sent_later_is_answered_as_much_later() {
    let config = config(one_slot);
    let gate = gate(&config);
    // In force the calls leave at once, and their answers take 100 ms.
    let mut calls: Vec<_> = (0..3).map(|call| arrive(&gate, &config, call, call)).collect();
    for (at, call) in (0..).zip(calls.iter_mut().flatten()) {
        answered(call, GOOD, at, at + 100);
    }
    for (at, call) in (0..).zip(calls) {
        call.expect("it goes or waits").report(Fate::Ended, ms(at + 110));
    }
    assert_eq!(counts(&gate), [1, 0], "the second has had the slot since 110 ms");
    play(&gate, 219);
    assert_eq!(counts(&gate), [1, 0], "its answer comes 100 ms later, and the body takes 10 ms");
    play(&gate, 220);
    assert_eq!(counts(&gate), [2, 0]);
    let seconds = gate.tell().and_then(|told| told.candidate.calls.p99_seconds);
    assert!(seconds.is_some_and(|seconds| (0.2..0.26).contains(&seconds)), "{seconds:?}: 218 ms");
}

#[test]
fn a_call_that_is_refused_in_force_fails_again_if_its_key_fails() {
    let config = config(|policy| {
        let (base, max) = (Duration::from_secs(1), Duration::from_secs(60));
        policy.classes[1].backoff.strategy = Strategy::Exponential { base, max, jitter: 0.0 };
        policy.classes[1].backoff.hold = Duration::ZERO;
    });
    let gate = gate(&config);
    let mut first = arrive(&gate, &config, 1, 0).expect("it goes");
    answered(&mut first, BAD, 0, 5);
    drop(first);
    let mut retry = arrive(&gate, &config, 1, 2000).expect("the delay is over");
    retry.report(Fate::Refused, ms(2000));
    assert!(arrive(&gate, &config, 1, 3500).is_none(), "two seconds after the second failure");
    assert_eq!(counts(&gate), [0, 1]);
    assert!(arrive(&gate, &config, 2, 3500).is_some(), "another object is well");
}

#[test]
fn callers_that_leave_hold_nothing_at_the_twin() {
    let config = config(one_slot);
    let gate = gate(&config);
    for at in 0..1000 {
        let calls: Vec<_> = (0..10).map(|call| arrive(&gate, &config, call, at)).collect();
        drop(calls);
    }
    assert_eq!(gate.with(|twin| twin.copies.len()), Some(0));
    let waited = counts(&gate);
    drop(arrive(&gate, &config, 1, 5000).expect("it goes"));
    assert_eq!(counts(&gate), waited, "it goes at once");
}

#[test]
fn a_reload_begins_anew_with_other_limits_and_goes_on_with_the_same() {
    let before = config(one_slot);
    let gate = gate(&before);
    let first = arrive(&gate, &before, 1, 0).expect("it goes");
    let waits = arrive(&gate, &before, 2, 1).expect("it waits");
    let same = Arc::new(GateConfig { generation: 1, ..plain(one_slot) });
    gate.compare(&same, Some(&before), 5);
    assert!(arrive(&gate, &before, 3, 6).is_none(), "it was read under older rules");
    drop(arrive(&gate, &same, 3, 6).expect("it waits"));
    let calls = |gate: &TwinGate| gate.tell().map(|told| told.calls);
    assert_eq!(calls(&gate), Some(3));
    let wider = |policy: &mut Policy| policy.in_flight = Some(InFlight::new(NonZeroU32::MAX));
    let other = Arc::new(GateConfig { generation: 2, ..plain(wider) });
    gate.compare(&other, Some(&same), 10);
    assert_eq!(calls(&gate), Some(0));
    let third = arrive(&gate, &other, 4, 11).expect("it goes");
    drop((first, waits));
    assert_eq!(
        gate.with(|twin| twin.limiter.overview(ms(11)).slots.used),
        Some(1),
        "calls of the first twin end nowhere"
    );
    drop(third);
    let mut none = GateConfig { generation: 3, ..plain(|_| {}) };
    none.options.gate.candidate = None;
    let none = Arc::new(none);
    gate.compare(&none, Some(&other), 20);
    assert_eq!((calls(&gate), arrive(&gate, &none, 5, 21).is_none()), (None, true));
}
