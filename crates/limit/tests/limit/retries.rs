//! Retries and the gate's own bucket: a failing key never makes its controller wait for tokens that
//! healthy calls want.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_limit::outcome::Outcome;
use tidegate_limit::policy::{Combine, InFlight, Per};
use tidegate_limit::{Policy, Preview, Reason};

use super::world::{Caller, Life, World, at, bucket, ms, open, secs, slots};

/// A gate whose retry bucket is no bound, as when `retry_bucket.rate` equals `bucket.rate`.
fn generous(rate: f64, burst: u32) -> Policy {
    Policy { bucket: Some(bucket(rate, burst)), retry_bucket: Some(bucket(1000.0, 1000)), ..open() }
}

fn fail(world: &mut World, keys: std::ops::Range<u64>) {
    for key in keys {
        let call = world.arrive(Caller::new().of_key(key));
        world.answer(call, Outcome::Failure);
        world.end(call);
    }
}

#[test]
fn a_retry_that_would_have_to_wait_for_the_gates_bucket_is_refused_at_once() {
    let mut world = World::new(generous(1.0, 3));
    fail(&mut world, 1..4);
    world.pass(secs(1));
    let healthy = [world.arrive(Caller::new()), world.arrive(Caller::new())];
    assert_eq!(world.left_at(healthy[0]), Some(at(1000)));
    let retry = world.arrive(Caller::new().of_key(1));
    let refusal = world.refusal(retry).expect("the next token is a second away, and not for it");
    assert_eq!((refusal.reason, refusal.waited), (Reason::RetryBucket, Duration::ZERO));
    assert_eq!((refusal.retry_at, refusal.key.map(|key| key.failures)), (at(2000), Some(1)));
    world.pass(secs(1));
    assert_eq!(world.left_at(healthy[1]), Some(at(2000)), "who is healthy waits in turn");
    world.pass(secs(1));
    let again = world.arrive(Caller::new().of_key(1));
    assert_eq!(world.left_at(again), Some(at(3000)), "the refused one was no trial and spent nothing");
    world.wind_down();
}

/// The default bucket with 1,000 failing objects and a retry bucket at its own rate; one worker,
/// which tries whatever its queue has.
#[test]
fn a_worker_with_a_thousand_failing_objects_is_not_held_by_their_retries() {
    let mut policy = Policy { bucket: Some(bucket(50.0, 100)), retry_bucket: Some(bucket(50.0, 100)), ..open() };
    policy.queue.max_wait = secs(8);
    let mut world = World::new(policy);
    for key in 0..1000 {
        world.pass(ms(20));
        fail(&mut world, key..key + 1);
    }
    world.pass(secs(2));
    // Other healthy calls have taken the gate's tokens. The retries come one after the other,
    // because the worker is busy while one is held.
    (0..100).for_each(|_| _ = world.arrive(Caller::new()));
    let begun = world.now;
    for key in 0..1000 {
        let call = world.arrive(Caller::new().of_key(key));
        while world.is_waiting(call) {
            world.pass(ms(1));
        }
        if world.calls[call].is_out() {
            world.answer(call, Outcome::Failure);
            world.end(call);
        }
    }
    assert!(world.now - begun <= ms(100), "{:?}", world.now - begun);
}

#[test]
fn a_retry_that_its_key_lets_go_waits_for_the_gates_bucket_no_longer_than_hold() {
    let mut world = World::new(generous(1.0, 2));
    fail(&mut world, 1..3);
    // Both tokens are spent. The next comes at 1 s, when the backoff ends too, and another at 2 s.
    world.pass(ms(950));
    let held = [world.arrive(Caller::new().of_key(1)), world.arrive(Caller::new().of_key(2))];
    assert!(held.iter().all(|call| world.is_waiting(*call)), "50 ms of backoff are left, and hold is 100 ms");
    world.pass(ms(50));
    assert_eq!(world.left_at(held[0]), Some(at(1000)));
    let refusal = world.refusal(held[1]).expect("the next token is a second away");
    assert_eq!((refusal.reason, refusal.retry_at, refusal.waited), (Reason::RetryBucket, at(2000), ms(50)));
}

#[test]
fn a_retry_past_hold_waits_on_for_a_slot_while_its_tokens_are_there() {
    let policy = Policy { in_flight: Some(slots(1)), ..generous(0.1, 10) };
    let mut world = World::new(policy);
    fail(&mut world, 1..2);
    world.pass(secs(1));
    let holder = world.arrive(Caller::new());
    let retry = world.arrive(Caller::new().of_key(1));
    world.pass(ms(500));
    assert!(world.is_waiting(retry), "hold is over, but what it waits for is a slot");
    world.answer(holder, Outcome::Neutral);
    world.end(holder);
    assert_eq!(world.left_at(retry), Some(at(1500)));
    world.wind_down();
}

#[test]
fn a_retry_past_hold_is_refused_when_others_take_the_last_token_of_the_gate() {
    for queued in [false, true] {
        let in_flight = InFlight { per: Per::Flow, ..slots(1) };
        let mut world = World::new(Policy { in_flight: Some(in_flight), ..generous(0.1, 4) });
        fail(&mut world, 1..2);
        world.pass(secs(1));
        let holder = world.arrive(Caller::new());
        let other = world.arrive(Caller::new().of_flow(2));
        let retry = world.arrive(Caller::new().of_key(1));
        let next = queued.then(|| world.arrive(Caller::new().of_flow(2)));
        world.pass(ms(500));
        assert_eq!(world.preview(Caller::new().of_flow(3)), Preview::Goes);
        assert!(world.is_waiting(retry), "a question takes nobody's token");
        match next {
            Some(next) => {
                world.answer(other, Outcome::Neutral);
                world.end(other);
                assert_eq!(world.left_at(next), Some(world.now));
            }
            None => {
                let next = world.arrive(Caller::new().of_flow(3));
                assert_eq!(world.left_at(next), Some(world.now));
            }
        }
        let refusal = world.refusal(retry).expect("it would have to wait for the gate's bucket now");
        assert_eq!((refusal.reason, refusal.waited), (Reason::RetryBucket, ms(500)), "queued: {queued}");
        world.answer(holder, Outcome::Neutral);
        world.wind_down();
    }
}

#[test]
fn in_max_of_a_retry_waits_for_the_gates_bucket_up_to_hold_and_a_refused_one_spends_nothing() {
    for (hold, waits) in [(ms(100), false), (secs(60), true)] {
        let mut policy = Policy { retry_bucket: Some(bucket(0.001, 2)), ..generous(1.0, 2) };
        policy.queue.combine = Combine::MaxOf;
        policy.classes[0].backoff.hold = hold;
        let mut world = World::new(policy);
        fail(&mut world, 1..3);
        world.pass(secs(1));
        world.arrive(Caller::new());
        let retry = world.arrive(Caller::new().of_key(1));
        assert_eq!(world.is_waiting(retry), waits);
        if waits {
            world.pass(secs(1));
            assert_eq!(world.left_at(retry), Some(at(2000)));
            continue;
        }
        let refusal = world.refusal(retry).expect("hold is 100 ms");
        assert_eq!((refusal.reason, refusal.retry_at), (Reason::RetryBucket, at(2000)));
        for key in 1..3 {
            world.pass(secs(1));
            let again = world.arrive(Caller::new().of_key(key));
            assert_eq!(world.left_at(again), Some(world.now), "both retry tokens are there");
        }
        world.wind_down();
    }
}

#[test]
fn a_retry_that_no_retry_bucket_meters_waits_for_the_gates_bucket_like_any_call() {
    let mut world = World::new(Policy { retry_bucket: None, ..generous(1.0, 2) });
    fail(&mut world, 1..2);
    world.pass(secs(1));
    let [_, _] = [world.arrive(Caller::new()), world.arrive(Caller::new())];
    let retry = world.arrive(Caller::new().of_key(1));
    assert!(world.is_waiting(retry));
    world.pass(secs(2));
    assert_eq!(world.left_at(retry), Some(at(2000)));
    world.wind_down();
}

proptest! {
    #![proptest_config(super::promises::config(200))]

    /// With connections and slots for all calls, and for any buckets and any other demand for their
    /// tokens.
    #[test]
    fn a_failing_key_holds_its_calls_for_hold_at_most(
        (rate, burst) in (1.0_f64..60.0, 1_u32..20),
        (retry_rate, retry_burst) in (1.0_f64..100.0, 1_u32..20),
        max_of in any::<bool>(),
        steps in prop::collection::vec((0_u64..400, prop::option::weighted(0.6, 1_u64..8)), 1..150),
    ) {
        let mut policy = Policy {
            bucket: Some(bucket(rate, burst)),
            retry_bucket: Some(bucket(retry_rate, retry_burst)),
            ..open()
        };
        policy.queue.combine = if max_of { Combine::MaxOf } else { Combine::Sequential };
        let mut world = World::new(policy);
        let mut retries = Vec::new();
        for (gap, key) in steps {
            world.pass(ms(gap));
            // Every call that has left is answered: keys fail each time, so that none recovers
            // while its calls are held.
            for call in 0..world.calls.len() {
                if world.calls[call].is_out() {
                    let outcome = if world.calls[call].caller.key.is_some() { Outcome::Failure } else { Outcome::Success };
                    world.answer(call, outcome);
                    world.end(call);
                }
            }
            let caller = Caller { key, ..Caller::new() };
            let failing = key.is_some_and(|key| world.limiter.keys().list(world.now).iter().any(|(_, known, _)| known.object == key));
            let call = world.arrive(caller);
            retries.extend(failing.then_some((call, world.now)));
        }
        world.pass(ms(100));
        for (call, arrived) in retries {
            prop_assert!(!world.is_waiting(call), "call {} waits since {:?}", call, arrived);
            let waited = match &world.calls[call].life {
                Life::Refused(refusal) => {
                    prop_assert!(refusal.reason.concerns_key(), "{:?}", refusal);
                    refusal.waited
                }
                _ => world.left_at(call).map_or(Duration::ZERO, |left| left - arrived),
            };
            prop_assert!(waited <= ms(100), "call {} waited for {:?}", call, waited);
        }
        world.wind_down();
    }
}
