//! A failing key waits as an item of client-go's limiters does.

use std::cmp;
use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tidegate::api::Outcome;
use tidegate::limit::Reason;
use tidegate::limit::policy::{Backoff, Strategy};
use tidegate::moment::Moment;

use super::gate::{AGES, Gate, NANO, bucket, key, policy};

#[test]
fn a_key_waits_as_an_item_of_client_go_waits() {
    let cases = cases();
    let mut delays = 0;
    for case in cases.iter().filter(|case| case.kind != "max_wait_bucket") {
        let delay = |failures| match case.kind.as_str() {
            "exponential" | "fast_slow" => case.strategy(0).delay(failures),
            // The longest of several limiters: fast/slow first, then exponential.
            "max_of" => cmp::max(case.fast_slow(0).delay(failures), case.exponential(3).delay(failures)),
            "max_wait_exponential" => cmp::min(case.exponential(0).delay(failures), case.duration(2)),
            other => panic!("no limiter is called {other}"),
        };
        let mut failures: HashMap<usize, u32> = HashMap::new();
        for step in &case.steps {
            match step {
                Step::When { item, delay: theirs, times } => {
                    for _ in 0..*times {
                        let failures = failures.entry(*item).or_default();
                        *failures += 1;
                        let theirs = theirs.unwrap_or(LARGEST);
                        assert_eq!(delay(*failures), theirs, "{}, failure {failures} of item {item}", case.name);
                        delays += 1;
                    }
                }
                Step::Forget { item } => drop(failures.remove(item)),
                Step::Requeues { item, count } => {
                    assert_eq!(failures.get(item).copied().unwrap_or_default(), *count, "{}, item {item}", case.name);
                }
            }
        }
    }
    assert!(delays > 20_000, "only {delays} delays were held to client-go's");
}

#[test]
fn a_limiter_lets_a_failing_key_go_exactly_when_client_go_would() {
    let cases = cases();
    let mut driven = 0;
    for case in cases.iter().filter(|case| matches!(case.kind.as_str(), "exponential" | "fast_slow")) {
        // A thousand failures with a few hours each are past the largest time.
        if case.numbers[..2].iter().any(|nanos| *nanos > HOUR) {
            continue;
        }
        let mut policy = policy();
        policy.classes[0].backoff = Backoff { strategy: case.strategy(0), hold: Duration::ZERO, forget_after: AGES };
        drive(case, Gate::new(policy));
        driven += 1;
    }
    assert!(driven > 30, "only {driven} cases were driven through a limiter");
}

/// Lets every item fail (and succeed, for Forget) as soon as it may be tried again, and not a
/// nanosecond earlier.
fn drive(case: &Case, mut gate: Gate) {
    let (mut now, mut call) = (Moment::ZERO, 0);
    let mut attempt = |gate: &mut Gate, item: usize, outcome: Outcome| {
        call += 1;
        if let Some(state) = gate.state(key(item), now) {
            if now < state.ready_at {
                now = Moment::from_nanos(state.ready_at.as_nanos() - 1);
                let refusal = gate.arrive(call, Some(key(item)), now).expect_err("it is a nanosecond early");
                assert_eq!((refusal.reason, refusal.retry_at), (Reason::Backoff, state.ready_at), "{}", case.name);
            }
            now = now.max(state.ready_at);
        }
        gate.arrive(call, Some(key(item)), now).expect("it is time");
        gate.finish(call, outcome, now);
        (gate.state(key(item), now), now)
    };
    for step in &case.steps {
        match step {
            Step::When { item, delay, times } => {
                // A thousand times the maximum proves no more than a hundred times.
                for _ in 0..(*times).min(100) {
                    let (state, now) = attempt(&mut gate, *item, Outcome::Failure);
                    let state = state.expect("it fails");
                    assert_eq!(Some(state.ready_at - now), *delay, "{}, item {item}", case.name);
                }
            }
            Step::Forget { item } => {
                let (state, _) = attempt(&mut gate, *item, Outcome::Success);
                assert_eq!(state, None, "{}, item {item}", case.name);
            }
            Step::Requeues { item, count } if *count <= 100 => {
                let failures = gate.state(key(*item), Moment::ZERO).map_or(0, |state| state.failures);
                assert_eq!(failures, *count, "{}, item {item}", case.name);
            }
            Step::Requeues { .. } => {}
        }
    }
}

#[test]
fn what_client_go_would_clamp_is_refused() {
    for case in cases().iter().filter(|case| case.kind == "max_wait_bucket") {
        let (rate, burst, clamp) = (case.numbers[0], case.numbers[1], case.duration(2));
        let mut policy = policy();
        policy.bucket =
            Some(bucket(u32::try_from(rate).expect("a rate").into(), u32::try_from(burst).expect("a burst")));
        policy.queue.max_wait = clamp;
        let mut gate = Gate::new(policy);
        let mut clamped = 0;
        for step in &case.steps {
            let Step::When { item, delay, .. } = step else { panic!("only When was asked") };
            match gate.arrive(*item, None, Moment::ZERO) {
                // A wait of exactly the longest time is allowed; a nanosecond more or less comes
                // from client-go's floating point.
                Ok(()) => assert!(delay.is_some_and(|delay| delay <= clamp), "{} item {item}", case.name),
                Err(refusal) => {
                    assert_eq!((refusal.reason, *delay), (Reason::Bucket, Some(clamp)), "{} item {item}", case.name);
                    clamped += 1;
                }
            }
        }
        let fit = burst + rate * u64::try_from(clamp.as_millis()).expect("it fits") / 1000;
        assert_eq!(case.steps.len() as u64 - clamped, fit, "{}", case.name);
        gate.run_out();
        for (item, left) in &gate.left {
            let (ours, theirs) = (left.since_start(), case.delay_of(*item));
            assert!(ours.abs_diff(theirs) <= NANO, "{} item {item}: ours {ours:?}, theirs {theirs:?}", case.name);
        }
    }
}

#[test]
fn two_to_the_63_nanoseconds_is_the_maximum() {
    let strategy = Strategy::Exponential { base: Duration::from_nanos(1), max: LARGEST, jitter: 0.0 };
    assert_eq!(strategy.delay(63), Duration::from_nanos(1 << 62));
    assert_eq!(strategy.delay(64), LARGEST, "client-go leaves this one to the machine: negative on amd64");
    assert_eq!(strategy.delay(65), LARGEST);
    let edge = cases().into_iter().find(|case| case.name == "2^63 ns").expect("the case");
    assert!(edge.steps.iter().any(|step| matches!(step, Step::When { delay: None, .. })));
}

/// Go's largest duration.
const LARGEST: Duration = Duration::from_nanos(i64::MAX.unsigned_abs());

const HOUR: u64 = 3_600_000_000_000;

#[derive(Deserialize)]
struct File {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    kind: String,
    numbers: Vec<u64>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(try_from = "Vec<Value>")]
enum Step {
    /// `times` calls of When; a delay of `None` is not the same on every machine.
    When {
        item: usize,
        delay: Option<Duration>,
        times: usize,
    },
    Forget {
        item: usize,
    },
    Requeues {
        item: usize,
        count: u32,
    },
}

fn cases() -> Vec<Case> {
    super::vectors::<File>("backoff").cases
}

// === impl Case ===

impl Case {
    fn strategy(&self, first: usize) -> Strategy {
        if self.kind == "exponential" { self.exponential(first) } else { self.fast_slow(first) }
    }

    fn exponential(&self, first: usize) -> Strategy {
        Strategy::Exponential { base: self.duration(first), max: self.duration(first + 1), jitter: 0.0 }
    }

    fn fast_slow(&self, first: usize) -> Strategy {
        let fast_attempts = u32::try_from(self.numbers[first + 2]).expect("a count");
        Strategy::FastSlow { fast: self.duration(first), slow: self.duration(first + 1), fast_attempts }
    }

    fn duration(&self, at: usize) -> Duration {
        Duration::from_nanos(self.numbers[at])
    }

    /// The delay of an item's only When.
    fn delay_of(&self, call: usize) -> Duration {
        let delay = self.steps.iter().find_map(|step| match step {
            Step::When { item, delay, .. } if *item == call => *delay,
            _ => None,
        });
        delay.expect("it was asked")
    }
}

// === impl Step ===

impl TryFrom<Vec<Value>> for Step {
    type Error = String;

    fn try_from(row: Vec<Value>) -> Result<Self, String> {
        let number =
            |at: usize| row.get(at).and_then(Value::as_u64).ok_or_else(|| format!("no number {at} in {row:?}"));
        let item = usize::try_from(number(1)?).map_err(|error| error.to_string())?;
        match row.first().and_then(Value::as_str) {
            Some("w") => Ok(Self::When {
                item,
                delay: row.get(2).and_then(Value::as_u64).map(Duration::from_nanos),
                times: usize::try_from(number(3)?).map_err(|error| error.to_string())?,
            }),
            Some("f") => Ok(Self::Forget { item }),
            Some("n") => {
                Ok(Self::Requeues { item, count: u32::try_from(number(2)?).map_err(|error| error.to_string())? })
            }
            other => Err(format!("no step is called {other:?}")),
        }
    }
}
