//! The semantics, one sentence for each test.

use std::time::Duration;

use tidegate_limit::key::Group;
use tidegate_limit::moment::Moment;
use tidegate_limit::outcome::{Answer, Outcome, Removal};
use tidegate_limit::policy::{BucketPolicy, ClassPolicy, Combine, InFlight, Lane, Per, Strategy};
use tidegate_limit::{Policy, Reason};

use super::world::{Caller, Life, World, at, bucket, class, ms, open, secs, slots};

/// The one key of `World` whose object is its own collection.
const COLLECTION: u64 = 0;

fn metered(rate: f64, burst: u32) -> Policy {
    Policy { bucket: Some(bucket(rate, burst)), ..open() }
}

fn waits_at_most(policy: Policy, max_wait: Duration) -> Policy {
    let queue = tidegate_limit::policy::QueuePolicy { max_wait, ..policy.queue };
    Policy { queue, ..policy }
}

#[test]
fn a_burst_goes_at_once_and_then_one_per_period_in_order() {
    let mut world = World::new(metered(10.0, 3));
    let calls: Vec<_> = (0..8).map(|_| world.arrive(Caller::new())).collect();
    world.pass(secs(10));
    let left: Vec<_> = calls.iter().map(|call| world.left_at(*call).unwrap()).collect();
    assert_eq!(left, [0, 0, 0, 100, 200, 300, 400, 500].map(at));
    assert_eq!(world.calls[7].waited, Some((Reason::Bucket, ms(500))));
    assert_eq!(world.calls[0].waited, None);
    world.wind_down();
}

#[test]
fn a_caller_that_hangs_up_moves_everyone_behind_it_up() {
    let mut world = World::new(metered(1.0, 1));
    let calls: Vec<_> = (0..4).map(|_| world.arrive(Caller::new())).collect();
    world.pass(ms(500));
    world.hang_up(calls[1]);
    world.pass(secs(5));
    assert_eq!(world.left_at(calls[1]), None);
    assert_eq!((world.left_at(calls[2]), world.left_at(calls[3])), (Some(at(1000)), Some(at(2000))));
    world.wind_down();
}

#[test]
fn a_grant_that_nobody_claims_goes_to_the_next_when_its_caller_hangs_up() {
    let mut world = World::new(metered(1.0, 1));
    world.prompt = false;
    let calls: Vec<_> = (0..3).map(|_| world.arrive(Caller::new())).collect();
    world.pass(ms(1000));
    assert!(matches!(world.calls[calls[1]].life, Life::Granted(_)));
    world.pass(ms(300));
    world.hang_up(calls[1]);
    assert_eq!(world.left_at(calls[2]), Some(at(1300)), "the token was there");
    world.wind_down();
}

#[test]
fn flows_take_turns() {
    let mut world = World::new(metered(1.0, 1));
    world.arrive(Caller::new());
    let noisy: Vec<_> = (0..100).map(|_| world.arrive(Caller::new().of_flow(1))).collect();
    let quiet: Vec<_> = (0..2).map(|_| world.arrive(Caller::new().of_flow(2))).collect();
    world.pass(secs(4));
    assert_eq!(world.left_at(noisy[0]), Some(at(1000)));
    assert_eq!(world.left_at(quiet[0]), Some(at(2000)));
    assert_eq!(world.left_at(noisy[1]), Some(at(3000)));
    assert_eq!(world.left_at(quiet[1]), Some(at(4000)));
    world.wind_down();
}

#[test]
fn a_higher_lane_goes_first_and_a_lower_one_gets_every_tenth_turn() {
    let lanes = [("high", Lane::High), ("normal", Lane::Normal), ("low", Lane::Low)];
    let classes = lanes.map(|(name, lane)| ClassPolicy { lane, ..class(name) }).to_vec();
    let mut world = World::new(Policy { classes, ..metered(1.0, 1) });
    world.arrive(Caller::new());
    for class in [2, 1, 0] {
        (0..200).for_each(|_| _ = world.arrive(Caller::new().of_class(class)));
    }
    world.pass(secs(100));
    let mut order: Vec<_> = world.calls.iter().filter_map(|call| Some((call.left?.1, call.caller.class))).collect();
    order.sort_unstable();
    let order: Vec<_> = order.into_iter().skip(1).map(|(_, class)| class).collect();
    assert_eq!(order.len(), 100);
    assert_eq!(&order[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0]);
    for class in [1, 2] {
        let turns: Vec<_> =
            order.iter().enumerate().filter(|(_, other)| **other == class).map(|(turn, _)| turn).collect();
        assert!(turns.windows(2).all(|pair| pair[1] - pair[0] == 10), "class {class}: {turns:?}");
    }
}

#[test]
fn an_empty_class_bucket_does_not_stop_other_classes() {
    let slow = ClassPolicy { bucket: Some(bucket(0.1, 1)), ..class("slow") };
    let mut world = World::new(Policy { classes: vec![slow, class("default")], ..metered(10.0, 1) });
    for _ in 0..3 {
        world.arrive(Caller::new());
    }
    let others: Vec<_> = (0..5).map(|_| world.arrive(Caller::new().of_class(1))).collect();
    world.pass(secs(1));
    assert!(others.iter().all(|call| world.left_at(*call).is_some()));
    assert!(world.is_waiting(1) && world.is_waiting(2));
    world.pass(secs(9));
    assert_eq!(world.left_at(1), Some(at(10_000)));
    assert_eq!(world.calls[1].waited, Some((Reason::ClassBucket, secs(10))));
    world.wind_down();
}

#[test]
fn a_class_within_another_charges_both_and_own_bucket_only_spares_the_gates() {
    let ec2 = ClassPolicy { within: Some(tidegate_limit::ClassId(1)), own_bucket_only: true, ..class("ec2") };
    let aws = ClassPolicy { bucket: Some(bucket(1.0, 2)), ..class("aws") };
    let mut world = World::new(Policy { classes: vec![ec2, aws, class("default")], ..metered(0.001, 1) });
    world.arrive(Caller::new().of_class(2));
    let calls: Vec<_> = (0..3).map(|_| world.arrive(Caller::new())).collect();
    world.pass(secs(1));
    assert_eq!(calls.iter().map(|call| world.left_at(*call)).collect::<Vec<_>>(), [0, 0, 1000].map(|t| Some(at(t))));
}

#[test]
fn slots_live_to_the_end_of_the_body() {
    let mut world = World::new(Policy { in_flight: Some(slots(2)), ..open() });
    let calls: Vec<_> = (0..4).map(|_| world.arrive(Caller::new())).collect();
    world.pass(secs(1));
    world.answer(calls[0], Outcome::Success);
    assert!(world.is_waiting(calls[2]), "an answer is not the end of its body");
    world.end(calls[0]);
    assert_eq!(world.left_at(calls[2]), Some(at(1000)));
    assert_eq!(world.calls[calls[2]].waited, Some((Reason::Slot, secs(1))));
    world.wind_down();
}

#[test]
fn nobody_leaves_without_room_and_watches_do_not_take_the_others_room() {
    let mut world = World::without_room(open());
    let short = world.arrive(Caller::new());
    let watch = Caller { group: Group::LongRunning, long_running: true, ..Caller::new() };
    let watches: Vec<_> = (0..3).map(|_| world.arrive(watch)).collect();
    assert_eq!((world.limiter.wants_room(Group::Short), world.limiter.wants_room(Group::LongRunning)), (1, 3));
    world.room(Group::LongRunning, 2);
    assert_eq!(watches.iter().filter(|call| world.left_at(**call).is_some()).count(), 2);
    assert!(world.is_waiting(short));
    world.room(Group::Short, 1);
    assert!(!world.is_waiting(short));
    assert_eq!((world.limiter.wants_room(Group::Short), world.limiter.wants_room(Group::LongRunning)), (0, 1));
    world.wind_down();
}

#[test]
fn only_calls_that_could_go_want_room() {
    let mut world = World::without_room(metered(1.0, 2));
    (0..5).for_each(|_| _ = world.arrive(Caller::new()));
    assert_eq!(world.limiter.wants_room(Group::Short), 2, "there are two tokens");
    world.room(Group::Short, 5);
    assert_eq!(world.limiter.wants_room(Group::Short), 0);
    world.room(Group::Short, -10);
    assert_eq!(world.limiter.wants_room(Group::Short), 0, "no token, so no connection would help");
    world.pass(secs(1));
    world.limiter.advance(world.now);
    assert_eq!(world.limiter.wants_room(Group::Short), 1);
}

#[test]
fn a_failed_dial_ends_the_wait_of_its_group_only() {
    let mut world = World::without_room(open());
    let short = world.arrive(Caller::new().of_key(7));
    let watch = world.arrive(Caller { group: Group::LongRunning, ..Caller::new() });
    world.fail_group(Group::Short);
    assert!(matches!(world.calls[short].life, Life::Unconnected));
    assert!(world.is_waiting(watch));
    assert!(world.limiter.keys().is_empty(), "failing to connect counts against no key");
    world.wind_down();
}

#[test]
fn a_call_that_found_no_connection_is_first_again_and_in_order() {
    let mut world = World::without_room(metered(1000.0, 10));
    let calls: Vec<_> = (0..5).map(|_| world.arrive(Caller::new())).collect();
    world.room(Group::Short, 3);
    for call in [1, 0, 2] {
        world.take_back(calls[call], true);
    }
    assert!(calls.iter().all(|call| world.is_waiting(*call)));
    world.room(Group::Short, 5);
    let mut order: Vec<_> = calls.iter().map(|call| (world.calls[*call].left.unwrap().1, *call)).collect();
    order.sort_unstable();
    assert_eq!(order.iter().map(|(_, call)| *call).collect::<Vec<_>>(), calls);
    world.wind_down();
}

#[test]
fn exempt_calls_go_at_once_with_everything_saturated() {
    let exempt = ClassPolicy { lane: Lane::Exempt, ..class("leases") };
    let policy = Policy { in_flight: Some(slots(1)), classes: vec![class("default"), exempt], ..metered(0.001, 1) };
    let mut world = World::without_room(policy);
    (0..100).for_each(|_| _ = world.arrive(Caller::new().of_key(1)));
    for _ in 0..1000 {
        let call = world.arrive(Caller { group: Group::Exempt, ..Caller::new().of_class(1).of_key(1) });
        assert_eq!(world.left_at(call), Some(world.now));
        world.answer(call, Outcome::Failure);
        world.pass(ms(1));
    }
    assert!(world.limiter.keys().is_empty(), "exempt calls have no key");
    assert_eq!(world.limiter.snapshot(world.now).slots.used, 0);
}

#[test]
fn a_key_waits_twice_as_long_after_each_failure_and_a_success_forgets_it() {
    let mut world = World::new(open());
    let mut delays = Vec::new();
    for _ in 0..8 {
        let call = world.arrive(Caller::new().of_key(1));
        assert_eq!(world.left_at(call), Some(world.now));
        world.answer(call, Outcome::Failure);
        let refused = world.arrive(Caller::new().of_key(1));
        let refusal = world.refusal(refused).expect("a second is more than hold");
        assert_eq!(refusal.reason, Reason::Backoff);
        delays.push((refusal.retry_at - world.now).as_secs());
        world.pass_to(refusal.retry_at, &mut || Duration::ZERO);
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(world.limiter.keys().list(world.now)[0].2.failures, 8);
    let call = world.arrive(Caller::new().of_key(1));
    world.answer(call, Outcome::Success);
    assert!(world.limiter.keys().is_empty());
    let call = world.arrive(Caller::new().of_key(1));
    assert_eq!(world.left_at(call), Some(world.now));
}

#[test]
fn a_collection_read_backs_off_five_seconds_at_most() {
    let mut world = World::new(open());
    let mut delays = Vec::new();
    for _ in 0..6 {
        let call = world.arrive(Caller::new().of_key(COLLECTION));
        world.answer(call, Outcome::Failure);
        let refused = world.arrive(Caller::new().of_key(COLLECTION));
        let refusal = world.refusal(refused).expect("a second is more than hold");
        delays.push((refusal.retry_at - world.now).as_secs());
        world.pass_to(refusal.retry_at, &mut || Duration::ZERO);
    }
    assert_eq!(delays, [1, 2, 4, 5, 5, 5], "informers back off by themselves");
}

#[test]
fn a_call_is_held_when_its_backoff_ends_within_hold() {
    let mut world = World::new(open());
    let call = world.arrive(Caller::new().of_key(1));
    world.answer(call, Outcome::Failure);
    world.pass(ms(950));
    let held = world.arrive(Caller::new().of_key(1));
    world.pass(ms(50));
    assert_eq!(world.left_at(held), Some(at(1000)));
    assert_eq!(world.calls[held].waited, Some((Reason::Backoff, ms(50))));
}

#[test]
fn while_a_trial_is_out_others_wait_for_its_outcome_and_no_longer_than_hold() {
    let mut world = World::new(open());
    let first = world.arrive(Caller::new().of_key(1));
    world.answer(first, Outcome::Failure);
    world.pass(secs(1));
    let trial = world.arrive(Caller::new().of_key(1));
    let held = world.arrive(Caller::new().of_key(1));
    assert!(world.is_waiting(held));
    world.pass(ms(100));
    let refusal = world.refusal(held).expect("hold is over");
    assert_eq!((refusal.reason, refusal.retry_at, refusal.waited), (Reason::Trial, at(1100) + secs(2), ms(100)));
    assert_eq!(refusal.key.unwrap().failures, 1);
    let held = [world.arrive(Caller::new().of_key(1)), world.arrive(Caller::new().of_key(1))];
    world.pass(ms(10));
    world.answer(trial, Outcome::Success);
    assert!(held.iter().all(|call| world.left_at(*call) == Some(world.now)), "a success lets everyone go");
}

#[test]
fn a_failed_trial_refuses_those_who_waited_for_it() {
    let mut world = World::new(open());
    let first = world.arrive(Caller::new().of_key(1));
    world.answer(first, Outcome::Failure);
    world.pass(secs(1));
    let trial = world.arrive(Caller::new().of_key(1));
    let held = world.arrive(Caller::new().of_key(1));
    world.answer(trial, Outcome::Throttled { after: secs(30) });
    let refusal = world.refusal(held).expect("thirty seconds are more than hold");
    assert_eq!((refusal.reason, refusal.retry_at), (Reason::Backoff, world.now + secs(30)));
}

#[test]
fn a_trial_that_says_nothing_lets_the_next_one_try() {
    let mut world = World::new(open());
    let first = world.arrive(Caller::new().of_key(1));
    world.answer(first, Outcome::Failure);
    world.pass(secs(1));
    let trial = world.arrive(Caller::new().of_key(1));
    let held = [world.arrive(Caller::new().of_key(1)), world.arrive(Caller::new().of_key(1))];
    world.answer(trial, Outcome::Abandoned);
    assert!(world.left_at(held[0]).is_some() && world.is_waiting(held[1]));
    world.take_back(held[0], false);
    assert!(world.left_at(held[1]).is_some());
    assert_eq!(world.limiter.keys().list(world.now)[0].2.failures, 1, "neither counted");
}

#[test]
fn calls_already_queued_come_back_when_their_key_fails() {
    let mut world = World::new(metered(1.0, 2));
    let out = world.arrive(Caller::new().of_key(1));
    world.arrive(Caller::new());
    let queued = [world.arrive(Caller::new().of_key(1)), world.arrive(Caller::new().of_key(1))];
    let other = world.arrive(Caller::new());
    world.answer(out, Outcome::Failure);
    for call in queued {
        assert_eq!(world.refusal(call).map(|refusal| refusal.reason), Some(Reason::Backoff));
    }
    world.pass(secs(1));
    assert_eq!(world.left_at(other), Some(at(1000)), "and nobody waits behind them");
    world.wind_down();
}

#[test]
fn failures_that_were_under_way_together_count_once() {
    let mut world = World::new(open());
    let calls: Vec<_> = (0..10).map(|_| world.arrive(Caller::new().of_key(1))).collect();
    for call in calls {
        world.answer(call, Outcome::Failure);
        world.pass(ms(1));
    }
    let state = world.limiter.keys().list(world.now)[0].2;
    assert_eq!((state.failures, state.ready_at), (1, at(1000)));
}

#[test]
fn a_failing_write_does_not_hold_up_a_delete_and_a_failing_delete_backs_off_by_itself() {
    let mut world = World::new(open());
    let (write, delete) = (Caller::new().of_key(1), Caller::new().of_key(1).deleting());
    let fails = world.arrive(write);
    world.answer(fails, Outcome::Throttled { after: secs(30) });
    let deletes = world.arrive(delete);
    assert_eq!(world.left_at(deletes), Some(at(0)));
    world.answer(deletes, Outcome::Failure);
    let again = [delete, write].map(|caller| world.arrive(caller));
    let refused = again.map(|call| world.refusal(call).map(|refusal| (refusal.reason, refusal.retry_at)));
    assert_eq!(refused, [Some((Reason::Backoff, at(1_000))), Some((Reason::Backoff, at(30_000)))]);
    world.pass(secs(1));
    let (trial, behind) = (world.arrive(delete), world.arrive(delete));
    assert_eq!((world.left_at(trial), world.is_waiting(behind)), (Some(at(1_000)), true), "one trial at a time");
    world.wind_down();
}

#[test]
fn a_404_to_a_write_forgets_its_failures_and_a_time_that_the_upstream_named_stays() {
    let gone = |gone| Answer { gone, ..Answer::new(Outcome::Neutral, Some(404)) };
    for (answer, named) in
        [(Removal::Key, false), (Removal::Key, true), (Removal::Object, false), (Removal::Object, true)]
    {
        let mut world = World::new(open());
        let [one, other] = [(); 2].map(|()| world.arrive(Caller::new().of_key(1)));
        world.answer(one, if named { Outcome::Throttled { after: secs(30) } } else { Outcome::Failure });
        world.answer_with(other, gone(answer));
        let next = world.arrive(Caller::new().of_key(1));
        let told = world.refusal(next).map(|refusal| (refusal.reason, refusal.retry_at));
        assert_eq!(told, named.then_some((Reason::Backoff, at(30_000))), "{answer:?}");
        world.pass(secs(30));
        let all = [(); 3].map(|()| world.arrive(Caller::new().of_key(1)));
        assert!(all.iter().all(|call| world.left_at(*call) == Some(at(30_000))), "all else is forgotten");
        world.wind_down();
    }
}

#[test]
fn who_waits_for_a_trial_goes_when_its_key_is_forgotten_though_nothing_else_happens() {
    let mut policy = open();
    policy.classes[0].backoff.strategy = Strategy::Exponential { base: secs(1), max: secs(1), jitter: 0.0 };
    (policy.classes[0].backoff.hold, policy.classes[0].backoff.forget_after) = (secs(5), secs(2));
    let mut world = World::new(policy);
    let fails = world.arrive(Caller::new().of_key(1));
    world.answer(fails, Outcome::Failure);
    world.pass(secs(1));
    let (trial, waits) = (world.arrive(Caller::new().of_key(1)), world.arrive(Caller::new().of_key(1)));
    world.pass(secs(4));
    assert_eq!((world.left_at(trial), world.left_at(waits)), (Some(at(1_000)), Some(at(2_000))));
    world.wind_down();
}

#[test]
fn a_deleted_object_takes_all_its_keys_along() {
    let mut world = World::new(open());
    let (fails, deletes) = (world.arrive(Caller::new().of_key(1)), world.arrive(Caller::new().of_key(1)));
    world.answer(fails, Outcome::Failure);
    world.answer_with(deletes, Answer { gone: Removal::Object, ..Answer::new(Outcome::Neutral, Some(404)) });
    assert!(world.limiter.keys().is_empty());
}

#[test]
fn retries_without_a_retry_token_are_refused_and_block_no_healthy_call() {
    let mut world = World::new(Policy { retry_bucket: Some(bucket(1.0, 1)), ..metered(100.0, 100) });
    for key in 0..3 {
        let call = world.arrive(Caller::new().of_key(key));
        world.answer(call, Outcome::Failure);
    }
    world.pass(secs(1));
    let trials: Vec<_> = (0..3).map(|key| world.arrive(Caller::new().of_key(key))).collect();
    assert_eq!(world.left_at(trials[0]), Some(at(1000)));
    for trial in &trials[1..] {
        let refusal = world.refusal(*trial).expect("a second is more than hold");
        assert_eq!((refusal.reason, refusal.retry_at), (Reason::RetryBucket, at(2000)));
    }
    let healthy = world.arrive(Caller::new().of_key(9));
    assert_eq!(world.left_at(healthy), Some(world.now));
    world.pass(secs(1));
    let again = world.arrive(Caller::new().of_key(1));
    assert_eq!(world.left_at(again), Some(world.now), "a refused trial is not out");
}

/// One worker and many failing objects: if each retry were held for the next token, however near,
/// the worker would do nothing else.
#[test]
fn a_retry_that_must_wait_for_its_token_is_refused_and_not_held() {
    let mut world = World::new(Policy { retry_bucket: Some(bucket(20.0, 1)), ..open() });
    for key in 1..4 {
        let call = world.arrive(Caller::new().of_key(key));
        world.answer(call, Outcome::Failure);
    }
    world.pass(secs(1));
    let trials: Vec<_> = (1..4).map(|key| world.arrive(Caller::new().of_key(key))).collect();
    assert_eq!(world.left_at(trials[0]), Some(at(1000)));
    for trial in &trials[1..] {
        let refusal = world.refusal(*trial).expect("the next token is 50 ms away, and hold is 100 ms");
        assert_eq!((refusal.reason, refusal.retry_at), (Reason::RetryBucket, at(1050)));
        assert_eq!(refusal.waited, Duration::ZERO);
    }
}

#[test]
fn a_retry_past_hold_waits_on_only_while_a_retry_token_is_there() {
    let policy = Policy { retry_bucket: Some(bucket(0.01, 1)), in_flight: Some(slots(1)), ..open() };
    let mut world = World::new(policy);
    for key in 0..2 {
        let call = world.arrive(Caller::new().of_key(key));
        world.answer(call, Outcome::Failure);
        world.end(call);
    }
    world.pass(secs(1));
    let holder = world.arrive(Caller::new());
    let trials = [world.arrive(Caller::new().of_key(0)), world.arrive(Caller::new().of_key(1))];
    assert_eq!(
        world.refusal(trials[1]).map(|refusal| refusal.reason),
        Some(Reason::RetryBucket),
        "one token, two retries"
    );
    world.pass(ms(500));
    assert!(world.is_waiting(trials[0]), "hold is over, but what it waits for is a slot");
    world.pass(ms(500));
    world.end(holder);
    assert_eq!(world.left_at(trials[0]), Some(at(2000)));
}

#[test]
fn max_of_reckons_the_retry_token_on_arrival() {
    let mut policy = Policy { retry_bucket: Some(bucket(10.0, 1)), ..open() };
    policy.queue.combine = Combine::MaxOf;
    policy.classes[0].backoff.hold = secs(60);
    let mut world = World::new(policy);
    for key in 0..5 {
        let call = world.arrive(Caller::new().of_key(key));
        world.answer(call, Outcome::Failure);
    }
    // Tokens come at 0, 100, 200, 300 and 400 ms, and the backoff of all ends at 1 s: then all
    // leave together, as client-go's would.
    let retries: Vec<_> = (0..5).map(|key| world.arrive(Caller::new().of_key(key))).collect();
    world.pass(secs(1));
    assert!(retries.iter().all(|call| world.left_at(*call) == Some(at(1000))));
    // Past the backoff the token decides.
    for call in retries {
        world.answer(call, Outcome::Failure);
    }
    world.pass(secs(2));
    let retries: Vec<_> = (0..5).map(|key| world.arrive(Caller::new().of_key(key))).collect();
    world.pass(secs(1));
    assert_eq!(
        retries.iter().map(|call| world.left_at(*call)).collect::<Vec<_>>(),
        [3000, 3100, 3200, 3300, 3400].map(|t| Some(at(t)))
    );
}

#[test]
fn in_max_of_a_refused_or_abandoned_call_spends_no_retry_token() {
    let mut policy = Policy { retry_bucket: Some(bucket(0.001, 1)), ..open() };
    policy.queue.combine = Combine::MaxOf;
    let mut world = World::new(policy);
    for key in 0..2 {
        let call = world.arrive(Caller::new().of_key(key));
        world.answer(call, Outcome::Failure);
    }
    for _ in 0..5 {
        let refused = world.arrive(Caller::new().of_key(0));
        assert_eq!(world.refusal(refused).map(|refusal| refusal.reason), Some(Reason::Backoff));
    }
    world.pass(ms(950));
    let held = world.arrive(Caller::new().of_key(0));
    world.hang_up(held);
    world.pass(ms(50));
    let goes = world.arrive(Caller::new().of_key(1));
    assert_eq!(world.left_at(goes), Some(world.now));
    let none_left = world.arrive(Caller::new().of_key(0));
    assert_eq!(world.refusal(none_left).map(|refusal| refusal.reason), Some(Reason::RetryBucket));
}

#[test]
fn a_certain_wait_past_the_limit_is_refused_at_the_door_with_the_time_it_would_have_taken() {
    let mut world = World::new(waits_at_most(metered(1.0, 1), secs(3)));
    let calls: Vec<_> = (0..6).map(|_| world.arrive(Caller::new())).collect();
    assert!(calls[..4].iter().all(|call| world.refusal(*call).is_none()));
    for call in &calls[4..] {
        let refusal = world.refusal(*call).unwrap();
        assert_eq!((refusal.reason, refusal.retry_at, refusal.waited), (Reason::Bucket, at(4000), Duration::ZERO));
    }
    let patient = world.arrive(Caller { patient: true, ..Caller::new() });
    assert!(world.is_waiting(patient));
    world.pass(secs(3));
    assert_eq!(world.refusal(patient).map(|refusal| (refusal.reason, refusal.waited)), Some((Reason::Bucket, secs(3))));
    world.wind_down();
}

#[test]
fn a_client_in_a_hurry_is_told_that_its_deadline_cannot_be_made() {
    let mut world = World::new(waits_at_most(metered(1.0, 1), secs(8)));
    (0..4).for_each(|_| _ = world.arrive(Caller::new()));
    let hurried = world.arrive(Caller { timeout: Some(secs(7)), ..Caller::new() });
    assert_eq!(
        world.refusal(hurried).map(|refusal| (refusal.reason, refusal.retry_at)),
        Some((Reason::Deadline, at(4000)))
    );
    let in_time = world.arrive(Caller { timeout: Some(secs(8)), ..Caller::new() });
    assert!(world.is_waiting(in_time));
}

#[test]
fn a_new_flow_reckons_with_one_turn_of_every_other() {
    let mut world = World::new(waits_at_most(metered(1.0, 1), secs(10)));
    (0..11).for_each(|flow| _ = world.arrive(Caller::new().of_flow(flow)));
    let late = world.arrive(Caller::new().of_flow(99));
    assert_eq!(world.refusal(late).map(|refusal| refusal.retry_at), Some(at(11_000)));
}

#[test]
fn a_lower_lane_reckons_with_the_higher_ones() {
    let high = ClassPolicy { lane: Lane::High, ..class("high") };
    let mut world =
        World::new(Policy { classes: vec![high, class("default")], ..waits_at_most(metered(1.0, 1), secs(7)) });
    (0..9).for_each(|_| _ = world.arrive(Caller::new()));
    let low = world.arrive(Caller::new().of_class(1));
    assert_eq!(world.refusal(low).map(|refusal| refusal.reason), Some(Reason::Bucket));
}

#[test]
fn refuse_only_is_no_wait_at_all() {
    let policy = Policy { in_flight: Some(slots(1)), ..waits_at_most(metered(1.0, 2), Duration::ZERO) };
    let mut world = World::new(policy);
    let calls: Vec<_> = (0..2).map(|_| world.arrive(Caller::new())).collect();
    assert_eq!(world.refusal(calls[1]).map(|refusal| refusal.reason), Some(Reason::Slot));
    world.end(calls[0]);
    world.arrive(Caller::new());
    let refused = world.arrive(Caller::new());
    assert!(world.refusal(refused).is_some());
    assert_eq!(world.limiter.next_wakeup(), None, "nobody waits");
}

#[test]
fn the_waiting_room_is_bounded_in_calls_and_in_bytes() {
    let mut policy = metered(1.0, 1);
    (policy.queue.max_waiting, policy.queue.max_waiting_bytes) = (3, 100);
    let mut world = World::new(policy);
    let calls: Vec<_> = (0..5).map(|_| world.arrive(Caller::new())).collect();
    let refusal = world.refusal(calls[4]).unwrap();
    assert_eq!((refusal.reason, refusal.retry_at), (Reason::QueueFull, at(1000)));
    let Life::Waiting(ticket) = world.calls[calls[1]].life else { panic!("it waits") };
    assert!(world.limiter.hold_bytes(ticket, 100, world.now).is_ok());
    let Life::Waiting(other) = world.calls[calls[2]].life else { panic!("it waits") };
    let refusal = world.limiter.hold_bytes(other, 1, world.now).unwrap_err();
    assert_eq!(refusal.reason, Reason::BytesFull);
    assert_eq!(world.limiter.snapshot(world.now).waiting, 2, "it has left");
    world.pass(secs(1));
    assert_eq!(
        world.limiter.snapshot(world.now).waiting_bytes,
        0,
        "bytes of calls that went are not held while waiting"
    );
}

#[test]
fn each_flow_has_its_own_bucket_and_slots_where_they_are_split() {
    let per_flow = BucketPolicy { per: Per::Flow, ..bucket(1.0, 1) };
    let split = InFlight { per: Per::Flow, ..slots(2) };
    let mut world = World::new(Policy { bucket: Some(per_flow), in_flight: Some(split), ..open() });
    let calls: Vec<_> =
        (0..2).flat_map(|_| (0..50).map(|flow| Caller::new().of_flow(flow)).collect::<Vec<_>>()).collect();
    let calls: Vec<_> = calls.into_iter().map(|caller| world.arrive(caller)).collect();
    assert!(calls[..50].iter().all(|call| world.left_at(*call) == Some(at(0))));
    world.pass(secs(1));
    assert!(calls[50..].iter().all(|call| world.left_at(*call) == Some(at(1000))));
    let third = world.arrive(Caller::new().of_flow(3));
    world.pass(secs(5));
    assert!(world.is_waiting(third), "two of its flow are in flight");
    world.end(calls[3]);
    assert!(!world.is_waiting(third));
    world.wind_down();
}

#[test]
fn past_a_thousand_flows_the_rest_share_one_bucket() {
    let per_flow = BucketPolicy { per: Per::Flow, ..bucket(1.0, 1) };
    let mut world = World::new(Policy { bucket: Some(per_flow), ..open() });
    let calls: Vec<_> = (0..1100).map(|flow| world.arrive(Caller::new().of_flow(flow))).collect();
    let left = calls.iter().filter(|call| world.left_at(**call).is_some()).count();
    assert_eq!(left, 1001);
    world.pass(secs(2));
    let fresh = world.arrive(Caller::new().of_flow(5000));
    assert_eq!(world.left_at(fresh), Some(world.now), "buckets at rest make way");
}

#[test]
fn one_credentials_empty_bucket_does_not_stop_another_in_the_same_flow() {
    let per_credential = BucketPolicy { per: Per::Credential, ..bucket(0.1, 1) };
    let mut world = World::new(Policy { bucket: Some(per_credential), ..open() });
    let by = |credential| Caller { credential, ..Caller::new() };
    let calls: Vec<_> = [1, 1, 2, 2].map(|credential| world.arrive(by(credential))).to_vec();
    assert_eq!(calls.iter().map(|call| world.left_at(*call).is_some()).collect::<Vec<_>>(), [true, false, true, false]);
    world.pass(secs(10));
    assert!(calls.iter().all(|call| world.left_at(*call).is_some()));
}

#[test]
fn opening_a_watch_costs_a_token_only_where_the_class_says_so() {
    let opens = ClassPolicy { meter_long_running: true, ..class("metered") };
    let mut world =
        World::new(Policy { in_flight: Some(slots(1)), classes: vec![class("free"), opens], ..metered(1.0, 1) });
    let watch = Caller { long_running: true, group: Group::LongRunning, ..Caller::new() };
    for _ in 0..5 {
        let call = world.arrive(watch);
        assert_eq!(world.left_at(call), Some(world.now));
    }
    let first = world.arrive(watch.of_class(1));
    let second = world.arrive(watch.of_class(1));
    assert!(world.left_at(first).is_some() && world.is_waiting(second));
    assert_eq!(world.limiter.snapshot(world.now).slots.used, 0, "watches hold no slot");
}

#[test]
fn strategy_off_remembers_nothing() {
    let mut policy = open();
    policy.classes[0].backoff.strategy = Strategy::Off;
    let mut world = World::new(policy);
    let call = world.arrive(Caller::new().of_key(1));
    world.answer(call, Outcome::Throttled { after: secs(100) });
    assert!(world.limiter.keys().is_empty());
}

#[test]
fn a_reload_is_no_free_burst_and_nobody_loses_a_place() {
    let mut world = World::new(metered(1.0, 10));
    let calls: Vec<_> = (0..30).map(|_| world.arrive(Caller::new())).collect();
    for n in 0..5 {
        world.reload(metered(1.0 + f64::from(n), 10 + n), n as usize);
    }
    assert_eq!(calls.iter().filter(|call| world.left_at(**call).is_some()).count(), 10);
    world.pass(secs(1));
    assert_eq!(calls.iter().filter(|call| world.left_at(**call).is_some()).count(), 15);
    world.reload(open(), 5);
    assert!(calls.iter().all(|call| world.left_at(*call).is_some()), "without a bucket nobody waits");
    let mut order: Vec<_> = calls.iter().map(|call| (world.calls[*call].left.unwrap().1, *call)).collect();
    order.sort_unstable();
    assert_eq!(order.into_iter().map(|(_, call)| call).collect::<Vec<_>>(), calls);
    world.reload(metered(1.0, 10), 6);
    let after: Vec<_> = (0..3).map(|_| world.arrive(Caller::new())).collect();
    assert_eq!(
        after.iter().filter(|call| world.left_at(**call).is_some()).count(),
        1,
        "a new bucket starts with one token"
    );
    world.wind_down();
}

#[test]
fn a_reload_matches_classes_by_name_and_counts_what_is_in_flight() {
    let two = |a: &str, b: &str| vec![class(a), class(b)];
    let mut world = World::new(Policy { classes: two("a", "b"), ..metered(1.0, 5) });
    let flying: Vec<_> = (0..3).map(|_| world.arrive(Caller::new().of_class(1))).collect();
    let mut next = Policy { classes: two("b", "a"), ..metered(1.0, 5) };
    next.classes[0].in_flight = Some(slots(3));
    world.reload(next, 0);
    let waits = world.arrive(Caller::new());
    assert!(world.is_waiting(waits), "three calls of class b are in flight");
    world.end(flying[0]);
    assert!(!world.is_waiting(waits));
    let gone = Policy { classes: vec![class("default")], ..open() };
    world.reload(gone, 1);
    world.wind_down();
}

#[test]
fn waiters_of_a_class_that_became_exempt_go() {
    let mut world = World::without_room(metered(0.1, 1));
    let call = world.arrive(Caller::new());
    let mut next = metered(0.1, 1);
    next.classes[0].lane = Lane::Exempt;
    world.reload(next, 0);
    assert_eq!(world.left_at(call), Some(world.now));
    world.wind_down();
}

#[test]
fn nothing_panics_at_the_ends_of_time_or_with_a_class_that_is_not_there() {
    let mut world = World::new(metered(1e-300, 1));
    world.arrive(Caller { class: 99, timeout: Some(Duration::MAX), ..Caller::new().of_key(1) });
    world.arrive(Caller::new().of_class(99));
    world.now = Moment::MAX;
    let call = world.arrive(Caller::new().of_key(1));
    world.answer(call, Outcome::Throttled { after: Duration::MAX });
    world.answer(0, Outcome::Throttled { after: Duration::MAX });
    world.arrive(Caller::new().of_key(1));
    world.room(Group::Short, i64::MAX);
    world.room(Group::Short, i64::MIN);
    world.wind_down();
}

#[test]
fn a_deadline_while_waiting_names_what_was_waited_for() {
    let mut world = World::new(Policy { in_flight: Some(slots(1)), ..waits_at_most(open(), secs(2)) });
    world.arrive(Caller::new());
    let waits = world.arrive(Caller::new());
    world.pass(secs(2));
    let refusal = world.refusal(waits).unwrap();
    assert_eq!((refusal.reason, refusal.waited), (Reason::Slot, secs(2)));
}

#[test]
fn an_exempt_call_that_comes_back_goes_at_once() {
    let mut world = World::without_room(open());
    let mut exempt = open();
    exempt.classes[0].lane = Lane::Exempt;
    world.reload(exempt, 0);
    let call = world.arrive(Caller::new());
    world.take_back(call, true);
    assert_eq!(world.left_at(call), Some(world.now));
    world.wind_down();
}

#[test]
fn a_bucket_that_nobody_has_used_keeps_its_level_over_a_reload_too() {
    let mut world = World::new(metered(1.0, 3));
    world.reload(metered(1.0, 10), 0);
    let calls: Vec<_> = (0..10).map(|_| world.arrive(Caller::new())).collect();
    assert_eq!(
        calls.iter().filter(|call| world.left_at(**call).is_some()).count(),
        3,
        "a larger burst is room, not tokens"
    );
}

/// An upstream that closes each connection: one is made as soon as nothing else keeps the call.
#[test]
fn the_longer_part_of_a_wait_is_its_reason() {
    for (dial, reason) in [(ms(3), Reason::Bucket), (ms(400), Reason::Bucket), (ms(600), Reason::Slot)] {
        let mut world = World::without_room(Policy { bucket: Some(bucket(2.0, 1)), ..open() });
        let first = world.arrive(Caller::new());
        world.room(Group::Short, 1);
        assert!(world.left_at(first).is_some());
        let other = world.arrive(Caller::new());
        world.pass(ms(500));
        assert_eq!(world.limiter.wants_room(Group::Short), 1, "the token is there");
        world.pass(dial);
        world.room(Group::Short, 1);
        assert_eq!(world.calls[other].waited, Some((reason, ms(500) + dial)), "{dial:?}");
    }
}
