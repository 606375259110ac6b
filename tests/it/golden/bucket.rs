//! Calls leave a bucket after the same delay that `x/time/rate` gives its reservations.

use std::time::Duration;

use serde::Deserialize;
use tidegate::moment::Moment;

use super::gate::{Gate, NANO, bucket, policy};

#[derive(Deserialize)]
struct File {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    rate: f64,
    burst: u32,
    /// The time since the last row, then the delay of each call, in ns.
    reserves: Vec<Vec<u64>>,
}

impl Case {
    /// The arrival and the delay of each call.
    fn calls(&self) -> Vec<(Moment, Duration)> {
        let (mut now, mut calls) = (Moment::ZERO, Vec::new());
        for row in &self.reserves {
            let [gap, delays @ ..] = &row[..] else { panic!("an empty row in {}", self.name) };
            now += Duration::from_nanos(*gap);
            calls.extend(delays.iter().map(|delay| (now, Duration::from_nanos(*delay))));
        }
        calls
    }

    /// True if the time between two tokens is a whole number of nanoseconds.
    fn has_whole_period(&self) -> bool {
        (1e9 / self.rate).fract() == 0.0
    }
}

/// The number of tokens taken since the bucket was last full.
struct Tokens<'a> {
    case: &'a Case,
    level: f64,
    last: Moment,
    taken: u64,
}

impl<'a> Tokens<'a> {
    fn full(case: &'a Case) -> Self {
        Self { case, level: case.burst.into(), last: Moment::ZERO, taken: 0 }
    }

    fn take(&mut self, at: Moment) -> u64 {
        let burst = f64::from(self.case.burst);
        self.level = burst.min(self.level + at.since(self.last).as_secs_f64() * self.case.rate);
        if self.level >= burst {
            self.taken = 0;
        }
        (self.level, self.last) = (self.level - 1.0, at);
        self.taken += 1;
        self.taken
    }
}

#[test]
fn calls_leave_a_bucket_when_their_reservations_would() {
    let cases = super::vectors::<File>("bucket").cases;
    let (mut wrong, mut held) = (Vec::new(), 0);
    for case in &cases {
        let mut policy = policy();
        policy.bucket = Some(bucket(case.rate, case.burst));
        let mut gate = Gate::new(policy);
        let calls = case.calls();
        for (call, (at, _)) in calls.iter().enumerate() {
            gate.arrive(call, None, *at).expect("nobody is refused");
        }
        gate.run_out();
        assert!(gate.left.is_sorted(), "{} at {}/s burst {}: not in order", case.name, case.rate, case.burst);
        assert_eq!(gate.left.len(), calls.len());

        let mut tokens = Tokens::full(case);
        for ((call, left), (at, theirs)) in gate.left.iter().zip(&calls) {
            let ours = left.since(*at);
            // A period is rounded up to whole nanoseconds, so each token since the bucket was last
            // full may be up to one nanosecond late.
            let taken = tokens.take(*at);
            let late = if case.has_whole_period() { 0 } else { taken };
            let (earliest, latest) = (theirs.saturating_sub(NANO), *theirs + NANO + Duration::from_nanos(late));
            if ours < earliest || ours > latest {
                wrong.push(format!(
                    "{} at {}/s burst {}, call {call} at {at:?}: ours {ours:?}, theirs {theirs:?}",
                    case.name, case.rate, case.burst
                ));
            }
        }
        held += calls.len();
    }
    super::none(&wrong, held);
    assert!(held > 10_000, "only {held} calls were held to x/time/rate's");
}
