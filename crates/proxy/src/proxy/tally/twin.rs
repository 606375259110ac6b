//! The twin of a gate's limiter: a second limiter that tries out the limits of a candidate
//! configuration. It delays or refuses no call.
//!
//! The twin gets each call's arrival and outcome, and works like a replay of the call log
//! (`tidegate simulate --replay`): it is never late, it always has connections, and it ignores
//! bodies. If the twin sends a call later than the gate did, the answer comes as much later. If the
//! gate refused a call that the twin sends, there is no answer; the twin then assumes the last
//! failure of the call's key, if that key is failing.
//!
//! Its memory is bounded like the limiter's: it stores the calls that wait, those under way at the
//! gate, and at most [`LATER`] calls that it sends later than the gate did.

mod limiter;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::limiter::{Fate, TwinLimiter};
use super::Tally;
use super::shadow::Shadow;
use crate::api::{Answer, Key};
use crate::clock::Clock;
use crate::limit::{Arrival, Preview};
use crate::lock;
use crate::moment::Moment;
use crate::proxy::gate_config::GateConfig;
use crate::status;

/// The twin of a gate's limiter, if the gate has a candidate.
#[derive(Debug, Default)]
pub(crate) struct Twin(Mutex<Option<Box<TwinLimiter>>>);

/// A call's copy at the twin. Dropping it reports the end of the call to the twin.
#[derive(derive_more::Debug)]
#[debug("TwinCall {number:?}")]
pub(crate) struct TwinCall {
    tally: Arc<Tally>,
    /// The start of this copy's twin: after a reload there may be a new twin.
    twin: Moment,
    /// The call's number at the twin; `None` once the twin needs nothing more of the real call.
    number: Option<usize>,
}

/// The upstream's answer to a call, for the twin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TwinAnswer {
    pub(crate) answer: Answer,
    /// The call's key, if it was not known before.
    pub(crate) key: Option<Key>,
    /// The time from sending the call to the response head.
    pub(crate) after: Duration,
    pub(crate) head: Moment,
}

// === impl Twin ===

impl Twin {
    /// Begins a comparison with the candidate of this configuration. If neither the limits nor the
    /// candidate have changed since `before`, the running comparison continues.
    pub(crate) fn compare(&self, config: &GateConfig, before: Option<&GateConfig>, now: Moment) {
        let gate = &config.options.gate;
        let is_same = |before: &GateConfig| {
            let before = &before.options.gate;
            before.candidate == gate.candidate && before.policy == gate.policy
        };
        match &mut *lock(&self.0) {
            Some(twin) if before.is_some_and(is_same) => twin.generation = config.generation,
            twin => *twin = TwinLimiter::new(config, now).map(Box::new),
        }
    }

    /// Plays a call's arrival at the twin. Returns the call's copy; `None` if the twin refused the
    /// call, or if it was classified by another configuration.
    pub(crate) fn arrive(
        tally: &Arc<Tally>,
        config: &GateConfig,
        arrival: &Arrival<'_>,
        at: Moment,
    ) -> Option<TwinCall> {
        let arrive = |twin: &mut TwinLimiter| {
            // A call of another configuration has other classes.
            let number = if twin.generation == config.generation { twin.arrive(arrival, at) } else { None };
            number.map(|_| TwinCall { tally: Arc::clone(tally), twin: twin.since, number })
        };
        tally.twin.with(arrive).flatten()
    }

    /// Counts a wait or a refusal under the gate's own limits (in shadow mode, a would-be one).
    pub(crate) fn count_in_force(&self, count: impl FnOnce(&Shadow)) {
        self.with(|twin| count(&twin.in_force));
    }

    /// Returns the candidate's decision about a call arriving now, without sending it.
    pub(crate) fn preview(&self, arrival: &Arrival<'_>, now: Moment) -> Option<Preview> {
        self.with(|twin| twin.preview(arrival, now))
    }

    /// Plays all of the twin's events until now, a few at a time.
    pub(crate) async fn catch_up(&self, now: Moment) {
        while self.with(|twin| twin.play(now)) == Some(true) {
            tokio::task::yield_now().await;
        }
    }

    /// Returns the comparison for the status.
    pub(super) fn tell(&self, clock: Clock) -> Option<status::Candidate> {
        self.with(|twin| status::Candidate {
            since_ms: clock.wall(twin.since),
            calls: twin.calls,
            in_force: twin.in_force.tell(),
            candidate: twin.candidate.tell(),
        })
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut TwinLimiter) -> T) -> Option<T> {
        lock(&self.0).as_deref_mut().map(use_it)
    }
}

// === impl TwinCall ===

impl TwinCall {
    /// Reports the call's answer to the twin.
    pub(crate) fn answered(&mut self, answer: TwinAnswer) {
        self.report(Fate::Answered(answer), |_| answer.head);
    }

    /// Reports a refusal of the call under the gate's own limits.
    pub(crate) fn refused(&mut self) {
        self.report(Fate::Refused, Clock::now);
    }

    fn report(&mut self, fate: Fate, at: impl FnOnce(&Clock) -> Moment) {
        let Some(number) = self.number else { return };
        let tally = &self.tally;
        let report = |twin: &mut TwinLimiter| twin.since == self.twin && twin.report(number, fate, at(&tally.clock));
        if tally.twin.with(report) != Some(true) {
            self.number = None;
        }
    }
}

impl Drop for TwinCall {
    fn drop(&mut self) {
        self.report(Fate::Ended, Clock::now);
    }
}

/// The most stored events of calls sent later by the twin than by the gate.
const LATER: usize = 10_000;

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::api::{Group, Outcome};
    use crate::limit::policy::{BucketPolicy, InFlight, Strategy};
    use crate::limit::{ClassId, Flow, Policy};
    use crate::proxy::conservation;
    use crate::telemetry::{CallLog, GateMeters};

    const FLOW: Flow<'static> = Flow { id: 1, name: &"flow" };
    const GOOD: Answer = Answer::new(Outcome::Success, Some(200));
    const BAD: Answer = Answer::new(Outcome::Failure, Some(503));

    fn ms(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    /// A configuration of the generation 0 with a candidate.
    fn config(change: impl FnOnce(&mut Policy)) -> GateConfig {
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

    fn tally(config: &GateConfig) -> Arc<Tally> {
        let tally = Tally::new("twin", None, Clock::start());
        tally.twin.compare(config, None, ms(0));
        Arc::new(tally)
    }

    fn key(object: u64) -> Key {
        Key { object, collection: 1, facet: 1 }
    }

    fn arrive(tally: &Arc<Tally>, config: &GateConfig, object: u64, at: u64) -> Option<TwinCall> {
        let arrival = Arrival { key: Some(key(object)), group: Group::Short, ..Arrival::new(ClassId(1), FLOW) };
        Twin::arrive(tally, config, &arrival, ms(at))
    }

    /// Returns what the candidate has counted: waits, and refusals.
    fn counts(tally: &Tally) -> [u64; 2] {
        let told = tally.twin.tell(tally.clock).expect("a candidate").candidate.calls;
        [told.would_have_waited, told.would_have_been_refused]
    }

    fn play(tally: &Tally, until: u64) {
        while tally.twin.with(|twin| twin.play(ms(until))) == Some(true) {}
    }

    fn answer(answer: Answer, sent: u64, head: u64) -> TwinAnswer {
        TwinAnswer { answer, key: None, after: ms(head) - ms(sent), head: ms(head) }
    }

    fn one_slot(policy: &mut Policy) {
        policy.in_flight = Some(InFlight::new(NonZeroU32::MIN));
    }

    #[test]
    fn a_call_that_is_sent_later_is_answered_as_much_later() {
        let config = config(one_slot);
        let tally = tally(&config);
        // In force the calls leave at once, and their answers take 100 ms.
        let mut calls: Vec<_> = (0..3).map(|call| arrive(&tally, &config, call, call)).collect();
        for (at, call) in (0..).zip(calls.iter_mut().flatten()) {
            call.answered(answer(GOOD, at, at + 100));
        }
        for (at, call) in (0..).zip(calls) {
            call.expect("it goes or waits").report(Fate::Ended, |_| ms(at + 110));
        }
        assert_eq!(counts(&tally), [1, 0], "the second has had the slot since 110 ms");
        play(&tally, 219);
        assert_eq!(counts(&tally), [1, 0], "its answer comes 100 ms later, and the body takes 10 ms");
        play(&tally, 220);
        assert_eq!(counts(&tally), [2, 0]);
        let seconds = tally.twin.tell(tally.clock).and_then(|told| told.candidate.calls.p99_seconds);
        assert!(seconds.is_some_and(|seconds| (0.2..0.26).contains(&seconds)), "{seconds:?}: 218 ms");
    }

    #[test]
    fn a_call_that_is_refused_in_force_fails_again_if_its_key_fails() {
        let config = config(|policy| {
            let (base, max) = (Duration::from_secs(1), Duration::from_secs(60));
            policy.classes[1].backoff.strategy = Strategy::Exponential { base, max, jitter: 0.0 };
            policy.classes[1].backoff.hold = Duration::ZERO;
        });
        let tally = tally(&config);
        let mut first = arrive(&tally, &config, 1, 0).expect("it goes");
        first.answered(answer(BAD, 0, 5));
        drop(first);
        let mut retry = arrive(&tally, &config, 1, 2000).expect("the delay is over");
        retry.report(Fate::Refused, |_| ms(2000));
        assert!(arrive(&tally, &config, 1, 3500).is_none(), "two seconds after the second failure");
        assert_eq!(counts(&tally), [0, 1]);
        assert!(arrive(&tally, &config, 2, 3500).is_some(), "another object is well");
    }

    #[test]
    fn callers_that_leave_hold_nothing_at_the_twin() {
        let config = config(one_slot);
        let tally = tally(&config);
        for at in 0..1000 {
            let calls: Vec<_> = (0..10).map(|call| arrive(&tally, &config, call, at)).collect();
            drop(calls);
        }
        assert_eq!(tally.twin.with(|twin| twin.calls_held()), Some(0));
        let waited = counts(&tally);
        drop(arrive(&tally, &config, 1, 5000).expect("it goes"));
        assert_eq!(counts(&tally), waited, "it goes at once");
    }

    #[test]
    fn a_reload_begins_anew_with_other_limits_and_goes_on_with_the_same() {
        let before = config(one_slot);
        let tally = tally(&before);
        let first = arrive(&tally, &before, 1, 0).expect("it goes");
        let waits = arrive(&tally, &before, 2, 1).expect("it waits");
        let same = GateConfig { generation: 1, ..config(one_slot) };
        tally.twin.compare(&same, Some(&before), ms(5));
        assert!(arrive(&tally, &before, 3, 6).is_none(), "it was read under older rules");
        drop(arrive(&tally, &same, 3, 6).expect("it waits"));
        let calls = |tally: &Tally| tally.twin.tell(tally.clock).map(|told| told.calls);
        assert_eq!(calls(&tally), Some(3));
        let wider = |policy: &mut Policy| policy.in_flight = Some(InFlight::new(NonZeroU32::MAX));
        let other = GateConfig { generation: 2, ..config(wider) };
        tally.twin.compare(&other, Some(&same), ms(10));
        assert_eq!(calls(&tally), Some(0));
        let third = arrive(&tally, &other, 4, 11).expect("it goes");
        drop((first, waits));
        assert_eq!(tally.twin.with(|twin| twin.slots(ms(11))), Some(1), "calls of the first twin end nowhere");
        drop(third);
        let mut none = GateConfig { generation: 3, ..config(|_| {}) };
        none.options.gate.candidate = None;
        tally.twin.compare(&none, Some(&other), ms(20));
        assert_eq!((calls(&tally), arrive(&tally, &none, 5, 21).is_none()), (None, true));
    }
}
