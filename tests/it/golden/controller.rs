//! Backoff and retry bucket, combined by `max_of`, act as client-go's
//! `DefaultControllerRateLimiter` does, over 10,000 objects.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use serde::Deserialize;
use tidegate::api::Outcome;
use tidegate::limit::policy::{Backoff, Combine, Policy, Strategy};
use tidegate::moment::Moment;

use super::gate::{AGES, Gate, NANO, bucket, key, policy};

#[derive(Deserialize)]
struct File {
    /// The delays of items that fail at once, in ns.
    together: Vec<Run>,
    /// The same with a backoff of a minute for all.
    ending_together: Vec<Run>,
    /// The time since the last row in us, the item, and its delay in ns or -1 for a success.
    retried: Vec<(u64, usize, i64)>,
}

/// Numbers with a constant step: the first, the step, and their count.
#[derive(Deserialize)]
struct Run(u64, u64, u64);

fn delays(runs: &[Run]) -> Vec<Duration> {
    let nanos = runs.iter().flat_map(|Run(first, step, count)| (0..*count).map(move |n| first + n * step));
    nanos.map(Duration::from_nanos).collect()
}

/// 5 ms to 1000 s and 10/s burst 100, the later of the two; a call is held for as long as that
/// takes.
fn default_controller() -> Policy {
    let mut policy = policy();
    policy.retry_bucket = Some(bucket(10.0, 100));
    policy.queue.combine = Combine::MaxOf;
    policy.classes[0].backoff = Backoff {
        strategy: Strategy::Exponential { base: Duration::from_millis(5), max: Duration::from_secs(1000), jitter: 0.0 },
        hold: AGES,
        forget_after: AGES,
    };
    policy
}

/// All objects fail at their first try, and their retries come at once, which is when client-go
/// computes their tokens. Returns the wait of each.
fn failing_together(policy: Policy, count: usize) -> Vec<(usize, Duration)> {
    let mut gate = Gate::new(policy);
    for item in 0..count {
        gate.arrive(item, Some(key(item)), Moment::ZERO).expect("it is healthy");
    }
    gate.left.clear();
    for item in 0..count {
        gate.finish(item, Outcome::Failure, Moment::ZERO);
        gate.arrive(item, Some(key(item)), Moment::ZERO).expect("it is held");
    }
    gate.run_out();
    assert_eq!(gate.left.len(), count);
    gate.left.iter().map(|(item, left)| (*item, left.since_start())).collect()
}

#[track_caller]
fn assert_waits(ours: &[(usize, Duration)], theirs: &[Duration]) {
    let wrong: Vec<_> = ours
        .iter()
        .filter(|(item, ours)| ours.abs_diff(theirs[*item]) > NANO)
        .map(|(item, ours)| format!("item {item}: ours {ours:?}, theirs {:?}", theirs[*item]))
        .collect();
    super::none(&wrong, theirs.len());
}

#[test]
fn ten_thousand_objects_failing_together_wait_as_in_client_go() {
    let theirs = delays(&super::vectors::<File>("controller").together);
    assert_eq!(theirs.len(), 10_000);
    assert_waits(&failing_together(default_controller(), theirs.len()), &theirs);
}

#[test]
fn objects_whose_backoff_ends_together_break_the_retry_buckets_bound_as_in_client_go() {
    let theirs = delays(&super::vectors::<File>("controller").ending_together);
    let ours = failing_together(a_minute(Combine::MaxOf), theirs.len());
    assert_waits(&ours, &theirs);
    let at_once = ours.iter().filter(|(_, waited)| *waited == MINUTE).count();
    assert_eq!(at_once, 100 + 10 * 60, "the burst, and what a minute brings");
}

#[test]
fn objects_whose_backoff_ends_together_keep_the_retry_buckets_bound_in_sequence() {
    let theirs = delays(&super::vectors::<File>("controller").ending_together);
    let ours = failing_together(a_minute(Combine::Sequential), theirs.len());
    // The bucket is full at the end of the backoff: the burst goes, then one every 100 ms.
    for (place, (item, waited)) in ours.iter().enumerate() {
        let tokens_awaited = u32::try_from(place.saturating_sub(99)).expect("it fits");
        assert_eq!(*waited, MINUTE + Duration::from_millis(100) * tokens_awaited, "item {item}, place {place}");
    }
    assert!(ours.iter().any(|(item, waited)| *waited > theirs[*item]), "the bound costs some of them time");
}

/// Every backoff lasts a minute.
fn a_minute(combine: Combine) -> Policy {
    let mut policy = default_controller();
    policy.queue.combine = combine;
    policy.classes[0].backoff.strategy = Strategy::Exponential { base: MINUTE, max: MINUTE, jitter: 0.0 };
    policy
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn objects_that_fail_again_and_again_wait_as_in_client_go() {
    let rows = super::vectors::<File>("controller").retried;
    let failures = rows.iter().filter(|(_, _, delay)| *delay >= 0).count();
    let mut gate = Gate::new(default_controller());
    let mut now = Moment::ZERO;
    // The moment at which each item's retry must leave, according to client-go.
    let mut due: HashMap<usize, Moment> = HashMap::new();
    let mut wrong = Vec::new();
    for (gap, item, delay) in rows {
        now += Duration::from_micros(gap);
        if let Entry::Vacant(first) = due.entry(item) {
            gate.arrive(item, Some(key(item)), now).expect("it is healthy");
            first.insert(now);
        }
        gate.run_until(now);
        check(&mut gate, &mut due, &mut wrong);
        match u64::try_from(delay) {
            Ok(delay) => {
                gate.finish(item, Outcome::Failure, now);
                gate.arrive(item, Some(key(item)), now).expect("it is held");
                due.insert(item, now + Duration::from_nanos(delay));
            }
            Err(_) => gate.finish(item, Outcome::Success, now),
        }
    }
    gate.run_out();
    check(&mut gate, &mut due, &mut wrong);
    super::none(&wrong, failures);
    assert!(failures > 10_000);
}

/// Every call that has left since the last check left at the moment that client-go gives.
fn check(gate: &mut Gate, due: &mut HashMap<usize, Moment>, wrong: &mut Vec<String>) {
    for (item, ours) in gate.left.drain(..) {
        let theirs = due.get(&item).copied().expect("it was due");
        if ours.since_start().abs_diff(theirs.since_start()) > NANO {
            wrong.push(format!("item {item}: ours {ours:?}, theirs {theirs:?}"));
        }
    }
}
