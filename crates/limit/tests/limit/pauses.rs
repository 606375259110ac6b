//! Pauses: the upstream asks for one, and no call in the scope leaves before it is over.

use std::time::Duration;

use tidegate_limit::key::Group;
use tidegate_limit::moment::Moment;
use tidegate_limit::outcome::{Answer, Charged, Outcome, Pause, PauseLength};
use tidegate_limit::policy::{Lane, QueuePolicy};
use tidegate_limit::quota::{QuotaId, ResourceId};
use tidegate_limit::snapshot::PauseView;
use tidegate_limit::{Policy, Reason};

use super::world::{Caller, Life, World, at, bucket, class, ms, open, secs};

/// Three classes, of which the last is exempt, and no limits.
fn pausing() -> Policy {
    let exempt = tidegate_limit::policy::ClassPolicy { lane: Lane::Exempt, ..class("exempt") };
    Policy { classes: vec![class("default"), class("other"), exempt], ..open() }
}

fn waits_at_most(policy: Policy, max_wait: Duration) -> Policy {
    let queue = QueuePolicy { max_wait, ..policy.queue };
    Policy { queue, ..policy }
}

fn known(charged: Charged, length: Duration) -> Pause {
    Pause { charged, length: PauseLength::Known(length) }
}

fn growing(charged: Charged) -> Pause {
    Pause { charged, length: PauseLength::Growing { first: secs(60), most: secs(3600) } }
}

/// Sends a call whose answer asks for a pause.
fn paused_by(world: &mut World, caller: Caller, pause: Pause) -> usize {
    let call = world.arrive(caller);
    assert!(world.left_at(call).is_some(), "{:?}", world.calls[call]);
    asks(world, call, pause);
    call
}

fn asks(world: &mut World, call: usize, pause: Pause) {
    world.answer_with(call, Answer { pause: Some(pause), ..Answer::new(Outcome::Neutral, Some(403)) });
}

fn until(world: &World) -> Option<Moment> {
    world.limiter.snapshot(world.now).pauses.first().map(|pause| pause.until)
}

#[test]
fn while_the_gate_pauses_only_exempt_calls_leave_and_then_no_more_than_the_bucket_holds() {
    let mut world = World::new(Policy { bucket: Some(bucket(10.0, 3)), ..pausing() });
    paused_by(&mut world, Caller::new(), known(Charged::All, secs(5)));
    let calls: Vec<_> = (0..6).map(|n| world.arrive(Caller::new().of_class(n % 2))).collect();
    let exempt = world.arrive(Caller::new().of_class(2));
    assert_eq!(world.left_at(exempt), Some(at(0)));
    world.pass(ms(4999));
    assert!(calls.iter().all(|call| world.is_waiting(*call)));
    world.pass(secs(1));
    let mut left: Vec<_> = calls.iter().map(|call| world.left_at(*call).unwrap()).collect();
    left.sort_unstable();
    assert_eq!(left, [5000, 5000, 5000, 5100, 5200, 5300].map(at));
    assert_eq!(world.calls[calls[0]].waited, Some((Reason::Pause, secs(5))));
    world.wind_down();
}

#[test]
fn a_class_pauses_alone() {
    let mut world = World::new(pausing());
    paused_by(&mut world, Caller::new(), known(Charged::Class, secs(5)));
    let (paused, other) = (world.arrive(Caller::new()), world.arrive(Caller::new().of_class(1)));
    assert_eq!(world.left_at(other), Some(at(0)));
    assert_eq!(
        world.limiter.snapshot(world.now).pauses,
        [PauseView {
            quota: QuotaId { holder: 0, resource: ResourceId::of_class("default") },
            until: at(5000),
            heard: false
        }]
    );
    world.pass(secs(6));
    assert_eq!(world.left_at(paused), Some(at(5000)));
    world.wind_down();
}

#[test]
fn a_credential_pauses_alone_though_it_shares_its_flow() {
    let mut world = World::new(pausing());
    let paused = Caller::new().held_by(7);
    paused_by(&mut world, paused, known(Charged::All, secs(5)));
    let (mine, theirs) = (world.arrive(paused), world.arrive(paused.held_by(8)));
    assert_eq!(world.left_at(theirs), Some(at(0)));
    world.pass(secs(6));
    assert_eq!(world.left_at(mine), Some(at(5000)));
    assert_eq!(world.limiter.snapshot(world.now).pauses, []);
    world.wind_down();
}

#[test]
fn answers_that_were_under_way_together_begin_one_pause() {
    let mut world = World::new(pausing());
    let calls: Vec<_> = (0..10).map(|_| world.arrive(Caller::new())).collect();
    for call in &calls[..9] {
        asks(&mut world, *call, growing(Charged::All));
        world.pass(ms(100));
    }
    assert_eq!(until(&world), Some(at(60_000)), "once, from the first");
    asks(&mut world, calls[9], known(Charged::All, secs(90)));
    assert_eq!(until(&world), Some(at(90_900)), "a longer one wins");
    world.wind_down();
}

#[test]
fn it_pauses_twice_as_long_when_it_happens_again_before_a_success() {
    let mut world = World::new(pausing());
    let again = |world: &mut World| {
        let before = world.now;
        paused_by(world, Caller::new(), growing(Charged::All));
        let until = until(world).unwrap();
        world.pass_to(until, &mut || Duration::ZERO);
        until - before
    };
    assert_eq!([again(&mut world), again(&mut world), again(&mut world)], [60, 120, 240].map(secs));
    let success = world.arrive(Caller::new().of_key(5));
    world.answer(success, Outcome::Success);
    assert_eq!([again(&mut world), again(&mut world)], [60, 120].map(secs));
    world.wind_down();
}

#[test]
fn a_pause_beyond_the_longest_wait_is_refused_at_the_door_and_ends_the_waits_that_it_makes_vain() {
    let mut policy = waits_at_most(pausing(), secs(8));
    policy.bucket = Some(bucket(1.0, 1));
    let mut world = World::new(policy);
    let first = world.arrive(Caller::new());
    let (waits, patient) = (world.arrive(Caller::new()), world.arrive(Caller { patient: true, ..Caller::new() }));
    asks(&mut world, first, known(Charged::All, secs(60)));
    let refusal = world.refusal(waits).expect("it cannot make it");
    assert_eq!((refusal.reason, refusal.waited), (Reason::Pause, Duration::ZERO));
    assert!(refusal.retry_at >= at(60_000));
    assert!(world.is_waiting(patient));
    let late = world.arrive(Caller::new());
    let refusal = world.refusal(late).expect("it cannot make it");
    assert_eq!((refusal.reason, refusal.retry_at), (Reason::Pause, at(61_000)), "behind the patient one");
    world.pass(secs(55));
    let hurried = world.arrive(Caller { timeout: Some(secs(8)), ..Caller::new() });
    assert_eq!(world.refusal(hurried).map(|refusal| refusal.reason), Some(Reason::Deadline));
    let in_time = world.arrive(Caller::new());
    assert!(world.is_waiting(in_time));
    world.wind_down();
}

#[test]
fn refuse_only_is_no_wait_for_a_pause_either() {
    let mut world = World::new(waits_at_most(pausing(), Duration::ZERO));
    paused_by(&mut world, Caller::new(), known(Charged::All, secs(1)));
    let call = world.arrive(Caller::new());
    let refusal = world.refusal(call).expect("nobody waits");
    assert_eq!((refusal.reason, refusal.retry_at), (Reason::Pause, at(1000)));
    world.wind_down();
}

#[test]
fn a_turn_that_nobody_has_claimed_when_a_pause_begins_is_taken_back() {
    let mut policy = waits_at_most(pausing(), secs(8));
    policy.bucket = Some(bucket(1.0, 1));
    let mut world = World::new(policy);
    world.prompt = false;
    let calls: Vec<_> = (0..3).map(|_| world.arrive(Caller::new())).collect();
    world.pass(secs(1));
    assert!(matches!(world.calls[calls[1]].life, Life::Granted(_)));
    asks(&mut world, calls[0], known(Charged::All, secs(5)));
    world.claim(calls[1]);
    assert!(world.is_waiting(calls[1]));
    world.prompt = true;
    world.pass(secs(6));
    assert_eq!((world.left_at(calls[1]), world.left_at(calls[2])), (Some(at(6000)), Some(at(7000))));
    world.prompt = false;
    let last = world.arrive(Caller::new());
    world.pass(secs(2));
    assert!(matches!(world.calls[last].life, Life::Granted(_)));
    asks(&mut world, calls[1], known(Charged::All, secs(60)));
    world.claim(last);
    assert_eq!(world.refusal(last).map(|refusal| refusal.reason), Some(Reason::Pause));
    world.wind_down();
}

/// Its turn had come before, so that a later call could go; when the pause is over it is first
/// again.
#[test]
fn a_turn_that_was_taken_back_is_the_next_one_though_others_left_meanwhile() {
    let mut world = World::new(waits_at_most(pausing(), secs(8)));
    world.prompt = false;
    let first = world.arrive(Caller::new());
    asks(&mut world, first, known(Charged::All, secs(1)));
    let early = world.arrive(Caller::new());
    world.pass(secs(1));
    assert!(matches!(world.calls[early].life, Life::Granted(_)));
    let meanwhile = world.arrive(Caller::new());
    assert_eq!(world.left_at(meanwhile), Some(at(1000)));
    asks(&mut world, meanwhile, known(Charged::All, secs(1)));
    world.claim(early);
    assert!(world.is_waiting(early));
    let late = world.arrive(Caller::new());
    world.prompt = true;
    world.pass(secs(2));
    assert_eq!((world.left_at(early), world.left_at(late)), (Some(at(2000)), Some(at(2000))));
    assert!(world.calls[early].left < world.calls[late].left, "the turn that was taken back comes first");
    world.wind_down();
}

#[test]
fn a_retry_that_has_its_token_waits_for_a_pause_as_a_healthy_call_does() {
    let mut policy = Policy { retry_bucket: Some(bucket(1.0, 5)), ..pausing() };
    policy.classes[0].backoff.strategy =
        tidegate_limit::policy::Strategy::Exponential { base: ms(10), max: ms(10), jitter: 0.0 };
    let mut world = World::new(policy);
    let failed = world.arrive(Caller::new().of_key(3));
    world.answer(failed, Outcome::Failure);
    world.pass(ms(10));
    paused_by(&mut world, Caller::new(), known(Charged::All, secs(5)));
    let retry = world.arrive(Caller::new().of_key(3));
    world.pass(secs(6));
    assert_eq!(world.left_at(retry), Some(at(5010)));
    world.wind_down();
}

#[test]
fn a_reload_ends_no_pause() {
    let mut world = World::new(pausing());
    paused_by(&mut world, Caller::new().of_class(1), known(Charged::Class, secs(5)));
    let call = world.arrive(Caller::new().of_class(1));
    let mut next = Policy { bucket: Some(bucket(100.0, 5)), ..pausing() };
    next.classes.swap(0, 1);
    world.reload(next, 0);
    let other = world.arrive(Caller::new().of_class(1));
    assert_eq!(world.left_at(other), Some(at(0)), "the class that is now second");
    world.pass(secs(6));
    assert_eq!(world.left_at(call), Some(at(5000)));
    world.wind_down();
}

#[test]
fn nobody_dials_for_calls_that_pause() {
    let mut world = World::new(pausing());
    paused_by(&mut world, Caller::new(), known(Charged::All, secs(5)));
    world.room(Group::Short, -(1 << 40));
    world.arrive(Caller::new());
    assert_eq!(world.limiter.wants_room(Group::Short), 0);
    assert_eq!(world.limiter.next_wakeup(), Some(at(5000)), "then a connection is wanted");
    world.pass(secs(5));
    assert_eq!(world.limiter.wants_room(Group::Short), 1);
    world.wind_down();
}

#[test]
fn a_call_without_room_asks_for_it_as_soon_as_its_token_is_there() {
    let mut world = World::without_room(Policy { bucket: Some(bucket(1.0, 1)), ..open() });
    world.room(Group::Short, 1);
    world.arrive(Caller::new());
    world.arrive(Caller::new());
    assert_eq!((world.limiter.wants_room(Group::Short), world.limiter.next_wakeup()), (0, Some(at(1000))));
    world.pass(secs(1));
    assert_eq!(world.limiter.wants_room(Group::Short), 1);
    world.wind_down();
}

#[test]
fn pauses_can_be_lifted_by_hand() {
    let mut world = World::new(Policy { bucket: Some(bucket(1.0, 2)), ..pausing() });
    paused_by(&mut world, Caller::new().held_by(2), growing(Charged::All));
    paused_by(&mut world, Caller::new().held_by(1), known(Charged::All, secs(30)));
    let call = world.arrive(Caller::new().held_by(2));
    world.pass(secs(2));
    assert_eq!(world.limiter.lift_pauses(false, world.now), 2);
    world.notice();
    assert_eq!((world.left_at(call), until(&world)), (Some(at(2000)), None));
    world.wind_down();
}
