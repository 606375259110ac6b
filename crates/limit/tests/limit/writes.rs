//! One write of a key at a time, failing or not.

use std::time::Duration;

use tidegate_limit::key::Group;
use tidegate_limit::outcome::Outcome;
use tidegate_limit::policy::{Lane, Strategy};
use tidegate_limit::{Policy, Reason};

use super::world::{Caller, World, at, bucket, class, ms, open, secs};

/// Keys of reads are even, those of writes odd.
const WRITE: u64 = 7;
const READ: u64 = 8;

fn one_at_a_time() -> Policy {
    Policy { one_at_a_time: true, ..open() }
}

#[test]
fn a_second_write_of_a_healthy_key_waits_for_the_first_and_others_do_not() {
    let mut world = World::new(one_at_a_time());
    let first = world.arrive(Caller::new().of_key(WRITE));
    let second = world.arrive(Caller::new().of_key(WRITE));
    let third = world.arrive(Caller::new().of_key(WRITE));
    for other in
        [Caller::new().of_key(WRITE + 2), Caller::new().of_key(READ), Caller::new().of_key(READ), Caller::new()]
    {
        let call = world.arrive(other);
        assert_eq!(world.left_at(call), Some(at(0)), "{other:?}");
    }
    assert_eq!(world.limiter.snapshot(world.now).writes, 2);
    world.pass(ms(30));
    world.answer(first, Outcome::Success);
    assert_eq!((world.left_at(second), world.left_at(third)), (Some(at(30)), None), "at the response head, in order");
    assert_eq!(world.calls[second].waited, Some((Reason::OneAtATime, ms(30))));
    world.pass(ms(30));
    world.answer(second, Outcome::Neutral);
    assert_eq!(world.left_at(third), Some(at(60)));
    world.wind_down();
}

#[test]
fn a_write_behind_another_waits_no_longer_than_hold() {
    let mut world = World::new(one_at_a_time());
    let first = world.arrive(Caller::new().of_key(WRITE));
    let second = world.arrive(Caller::new().of_key(WRITE));
    world.pass(ms(99));
    assert!(world.is_waiting(second));
    world.pass(ms(1));
    let refusal = world.refusal(second).expect("its hold is over");
    assert_eq!((refusal.reason, refusal.waited, refusal.key), (Reason::OneAtATime, ms(100), None));
    let mut policy = one_at_a_time();
    policy.classes[0].backoff.hold = Duration::ZERO;
    world.reload(policy, 0);
    let third = world.arrive(Caller::new().of_key(WRITE));
    assert_eq!(world.refusal(third).map(|refusal| (refusal.reason, refusal.waited)), Some((Reason::OneAtATime, ms(0))));
    world.answer(first, Outcome::Success);
    let fourth = world.arrive(Caller::new().of_key(WRITE));
    assert!(world.left_at(fourth).is_some());
    world.wind_down();
}

#[test]
fn a_trial_waits_for_a_write_that_was_out_before_its_key_failed() {
    let mut policy = one_at_a_time();
    policy.classes[0].backoff.strategy = Strategy::Exponential { base: ms(10), max: ms(10), jitter: 0.0 };
    let mut world = World::new(Policy { one_at_a_time: false, ..policy.clone() });
    let first = world.arrive(Caller::new().of_key(WRITE));
    world.reload(policy, 0);
    let second = world.arrive(Caller::new().of_key(WRITE));
    assert!(world.left_at(second).is_some(), "the first left when nobody counted");
    world.answer(first, Outcome::Failure);
    world.pass(ms(10));
    let trial = world.arrive(Caller::new().of_key(WRITE));
    assert!(world.is_waiting(trial));
    world.pass(ms(50));
    world.answer(second, Outcome::Neutral);
    assert_eq!((world.left_at(trial), world.calls[trial].waited), (Some(at(60)), Some((Reason::OneAtATime, ms(50)))));
    world.wind_down();
}

#[test]
fn a_write_that_is_given_up_lets_the_next_one_go() {
    let mut world = World::new(Policy { bucket: Some(bucket(10.0, 1)), ..one_at_a_time() });
    world.arrive(Caller::new());
    let queued = world.arrive(Caller::new().of_key(WRITE));
    let next = world.arrive(Caller::new().of_key(WRITE));
    world.hang_up(queued);
    world.pass(ms(100));
    assert_eq!(world.left_at(next), Some(at(100)));
    world.take_back(next, true);
    let behind = world.arrive(Caller::new().of_key(WRITE));
    world.pass(ms(50));
    assert_eq!((world.left_at(next), world.left_at(behind)), (Some(at(100)), None), "it came back and went again");
    world.take_back(next, false);
    world.pass(ms(50));
    assert_eq!(world.left_at(behind), Some(at(150)), "its token went back too");
    world.answer(behind, Outcome::Success);
    assert_eq!(world.limiter.snapshot(world.now).writes, 0);
    world.wind_down();
}

#[test]
fn it_holds_without_backoff_too_and_never_for_exempt_calls() {
    let mut policy = one_at_a_time();
    policy.classes[0].backoff.strategy = Strategy::Off;
    policy.classes.push(tidegate_limit::policy::ClassPolicy { lane: Lane::Exempt, ..class("exempt") });
    let mut world = World::new(policy);
    let first = world.arrive(Caller::new().of_key(WRITE));
    let second = world.arrive(Caller::new().of_key(WRITE));
    assert!(world.is_waiting(second));
    let leases = [Caller::new().of_key(WRITE).of_class(1); 2].map(|lease| world.arrive(lease));
    assert!(leases.iter().all(|lease| world.left_at(*lease).is_some()));
    world.answer(first, Outcome::Failure);
    assert_eq!(world.left_at(second), Some(at(0)));
    assert!(world.limiter.keys().is_empty(), "nothing is remembered");
    world.wind_down();
}

#[test]
fn switched_off_it_lets_everyone_go() {
    let mut world = World::new(one_at_a_time());
    world.arrive(Caller::new().of_key(WRITE));
    let waiting: Vec<_> = (0..3).map(|_| world.arrive(Caller::new().of_key(WRITE))).collect();
    world.reload(open(), 0);
    assert!(waiting.iter().all(|call| world.left_at(*call) == Some(at(0))));
    world.fail_group(Group::Short);
    world.pass(secs(1));
    world.wind_down();
}

#[test]
fn a_delete_is_one_of_the_writes_of_its_object_and_takes_turns_with_the_others() {
    let mut world = World::new(one_at_a_time());
    let (write, delete) = (Caller::new().of_key(WRITE), Caller::new().of_key(WRITE).deleting());
    let first = world.arrive(write);
    let [second, removes, third] = [write, delete, write].map(|caller| world.arrive(caller));
    assert_eq!(world.limiter.snapshot(world.now).writes, 1);
    world.pass(ms(10));
    world.answer(first, Outcome::Failure);
    assert_eq!(world.left_at(removes), Some(at(10)), "the failure concerns the writes, not the delete");
    assert!([second, third].iter().all(|call| world.refusal(*call).is_some()), "a second is more than hold");
    world.pass(secs(1));
    let trial = world.arrive(write);
    assert!(world.is_waiting(trial), "the delete is still out");
    world.pass(ms(20));
    world.answer(removes, Outcome::Failure);
    assert_eq!(world.left_at(trial), Some(at(1030)));
    assert!(world.refusal(world.calls.len() - 1).is_none());
    let again = world.arrive(delete);
    let refusal = world.refusal(again).expect("it fails by itself");
    assert_eq!((refusal.reason, refusal.retry_at), (Reason::Backoff, at(2030)));
    world.wind_down();
}
