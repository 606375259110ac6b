//! Limits that the random runs cannot tell from their absence, one by one.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_limit::moment::Moment;
use tidegate_limit::outcome::Outcome;
use tidegate_limit::policy::{BucketPolicy, ClassPolicy, Per, Strategy};
use tidegate_limit::{Policy, Reason};

use super::world::{Caller, World, at, bucket, class, ms, open, secs, slots};

fn backing_off(strategy: Strategy) -> Policy {
    let mut policy = open();
    policy.classes[0].backoff.strategy = strategy;
    policy
}

/// The key's next delay, after one more failure.
fn fails(world: &mut World, caller: Caller) -> Duration {
    let call = world.arrive(caller);
    assert!(world.left_at(call).is_some(), "{:?}", world.calls[call]);
    world.answer(call, Outcome::Failure);
    let failed = world.now;
    let refused = world.arrive(Caller { timeout: Some(Duration::ZERO), ..caller });
    let refusal = world.refusal(refused).expect("it backs off");
    world.pass_to(refusal.retry_at, &mut || Duration::ZERO);
    refusal.retry_at - failed
}

#[test]
fn fast_slow_is_fast_for_a_few_failures_and_then_slow() {
    let strategy = Strategy::FastSlow { fast: ms(20), slow: secs(10), fast_attempts: 2 };
    let mut world = World::new(backing_off(strategy));
    let delays: Vec<_> = (0..4).map(|_| fails(&mut world, Caller::new().of_key(2))).collect();
    assert_eq!(delays, [ms(20), ms(20), secs(10), secs(10)]);
    world.wind_down();
}

#[test]
fn jitter_spreads_keys_that_fail_together() {
    let strategy = Strategy::Exponential { base: secs(1), max: secs(60), jitter: 0.5 };
    let mut policy = backing_off(strategy);
    policy.max_keys = 1000;
    let mut world = World::new(policy);
    let calls: Vec<_> = (1..500).map(|key| world.arrive(Caller::new().of_key(key))).collect();
    calls.iter().for_each(|call| world.answer(*call, Outcome::Failure));
    let ready: BTreeSet<Moment> = world.limiter.keys().list(at(0)).iter().map(|(.., state)| state.ready_at).collect();
    assert!(ready.len() > 490, "{} moments", ready.len());
    let (first, last) = (*ready.first().unwrap(), *ready.last().unwrap());
    assert!(first >= at(1000) && first < at(1050) && last > at(1450) && last <= at(1500), "{first:?} to {last:?}");
    world.wind_down();
}

#[test]
fn a_bucket_that_starts_empty_has_no_burst_to_give_after_a_restart() {
    for per in [Per::Gate, Per::Flow, Per::Credential] {
        let empty = BucketPolicy { starts_empty: true, per, ..bucket(1.0, 3) };
        let mut world = World::new(Policy { bucket: Some(empty), ..open() });
        world.pass(ms(500));
        let calls: Vec<_> = (0..2).map(|_| world.arrive(Caller::new())).collect();
        world.pass(secs(10));
        assert_eq!(calls.map_left(&world), [at(1000), at(2000)], "{per:?}");
        world.wind_down();
    }
}

#[test]
fn a_key_is_forgotten_so_long_after_its_last_failure() {
    let mut policy = backing_off(Strategy::Exponential { base: secs(1), max: secs(4), jitter: 0.0 });
    policy.classes[0].backoff.forget_after = secs(8);
    let mut world = World::new(policy);
    let caller = Caller::new().of_key(2);
    assert_eq!([fails(&mut world, caller), fails(&mut world, caller)], [1, 2].map(secs));
    world.pass(ms(5_999));
    assert_eq!(world.limiter.keys().list(world.now).len(), 1);
    world.pass(ms(1));
    assert_eq!(fails(&mut world, caller), secs(1), "8 s after its last failure");
    // A controller that comes back more slowly than that never gets further. With `auto` that is
    // two longest delays.
    world.pass(secs(8));
    assert_eq!(fails(&mut world, caller), secs(1));
    world.wind_down();
}

#[test]
fn a_class_has_a_backoff_of_its_own() {
    let slow = Strategy::Exponential { base: secs(5), max: secs(60), jitter: 0.0 };
    let mut policy = Policy { classes: vec![class("default"), class("ec2"), class("careless")], ..open() };
    policy.classes[1].backoff.strategy = slow;
    policy.classes[2].backoff.strategy = Strategy::Off;
    let mut world = World::new(policy);
    assert_eq!(fails(&mut world, Caller::new().of_key(2)), secs(1));
    assert_eq!(fails(&mut world, Caller::new().of_key(4).of_class(1)), secs(5));
    let careless = Caller::new().of_key(6).of_class(2);
    let call = world.arrive(careless);
    world.answer(call, Outcome::Failure);
    let call = world.arrive(careless);
    assert_eq!(world.left_at(call), Some(world.now));
    world.wind_down();
}

#[test]
fn a_class_has_slots_of_its_own_within_the_gates() {
    let few = ClassPolicy { in_flight: Some(slots(1)), ..class("few") };
    let mut world = World::new(Policy { in_flight: Some(slots(2)), classes: vec![few, class("rest")], ..open() });
    let few: Vec<_> = (0..2).map(|_| world.arrive(Caller::new())).collect();
    let rest: Vec<_> = (0..2).map(|_| world.arrive(Caller::new().of_class(1))).collect();
    assert_eq!(
        [few[0], few[1], rest[0], rest[1]].map(|call| world.left_at(call).is_some()),
        [true, false, true, false]
    );
    world.end(rest[0]);
    assert!(world.left_at(rest[1]).is_some() && world.is_waiting(few[1]));
    world.end(few[0]);
    assert!(world.left_at(few[1]).is_some());
    world.wind_down();
}

#[test]
fn slots_and_retries_are_split_by_credential_where_the_policy_says_so() {
    let mut policy = Policy { in_flight: Some(slots(1)), retry_bucket: Some(bucket(0.001, 1)), ..open() };
    policy.in_flight = policy.in_flight.map(|slots| tidegate_limit::policy::InFlight { per: Per::Credential, ..slots });
    policy.retry_bucket = policy.retry_bucket.map(|bucket| BucketPolicy { per: Per::Credential, ..bucket });
    let mut world = World::new(policy);
    let of = |credential| Caller { credential, ..Caller::new() };
    let calls = [1, 1, 2].map(|credential| world.arrive(of(credential)));
    assert_eq!(calls.map(|call| world.left_at(call).is_some()), [true, false, true]);
    calls.iter().for_each(|call| world.end(*call));
    let trials = [1, 1, 2].map(|credential| {
        let caller = of(credential).of_key(10 * world.calls.len() as u64);
        let call = world.arrive(caller);
        world.answer(call, Outcome::Failure);
        world.end(call);
        caller
    });
    world.pass(secs(1));
    let trials = trials.map(|caller| {
        let call = world.arrive(caller);
        world.answer(call, Outcome::Neutral);
        world.end(call);
        world.refusal(call).map(|refusal| refusal.reason)
    });
    assert_eq!(trials, [None, Some(Reason::RetryBucket), None]);
    world.wind_down();
}

/// The moments at which calls left.
trait MapLeft {
    fn map_left(&self, world: &World) -> Vec<Moment>;
}

impl MapLeft for Vec<usize> {
    fn map_left(&self, world: &World) -> Vec<Moment> {
        self.iter().map(|call| world.left_at(*call).expect("it left")).collect()
    }
}
