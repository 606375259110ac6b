//! Work that concerns many waiting calls or many keys is done a little at a time: no operation pays
//! for all of it, and it makes nothing late that was promised.

use tidegate_limit::key::Group;
use tidegate_limit::outcome::{Answer, Charged, Outcome, Pause, PauseLength};
use tidegate_limit::policy::Lane;
use tidegate_limit::{Limiter, LongestQueues, Policy, Reason, Walk};

use super::world::{Caller, Life, Record, World, at, bucket, class, ms, open, secs, slots};

/// More than anything may look at in one go.
const MANY: usize = 3_000;
/// The most that one operation may do to waiting calls: two turns of 80 steps, and the last step's
/// own. Some actions of a caller are two operations.
const AT_MOST: usize = 2 * (2 * 80 + 64);

/// One call holds the only slot, and the others wait for it, in flows of ten.
fn crowd(policy: Policy) -> World {
    let mut world = World::new(Policy { in_flight: Some(slots(1)), ..policy });
    let first = world.arrive(Caller::new());
    assert!(world.left_at(first).is_some());
    for call in 0..MANY {
        world.arrive(Caller { flow: call as u64 / 10, credential: call as u64, ..Caller::new() });
    }
    assert_eq!(world.limiter.waiting(), MANY);
    world
}

/// Finishes the work that was begun. Between two turns of other tasks only a few waits end. Returns
/// the number of pieces.
fn goes_on_in_pieces(world: &mut World) -> usize {
    let (mut pieces, mut before) = (1, MANY);
    loop {
        let waiting = world.limiter.waiting();
        assert!(before - waiting <= AT_MOST, "{} of {MANY} waits ended in one go", before - waiting);
        before = waiting;
        if !world.limiter.is_behind() {
            return pieces;
        }
        assert_eq!(world.limiter.next_wakeup(), Some(world.now), "and the driver knows that there is more to do");
        world.limiter.advance(world.now);
        pieces += 1;
    }
}

/// Every caller looks for its grant.
fn claim_all(world: &mut World) {
    (0..world.calls.len()).for_each(|call| world.claim(call));
}

#[test]
fn a_bypass_lets_everyone_go_a_few_at_a_time() {
    let mut world = crowd(open());
    world.prompt = false;
    world.limiter.set_bypass(true, world.now);
    let late = world.arrive(Caller::new());
    assert!(world.left_at(late).is_some(), "a newcomer does not wait for that");
    assert!(goes_on_in_pieces(&mut world) > MANY / AT_MOST);
    claim_all(&mut world);
    assert!((0..world.calls.len()).all(|call| world.left_at(call).is_some()));
}

#[test]
fn a_bypass_that_ends_early_lets_no_more_go() {
    let mut world = crowd(open());
    world.limiter.set_bypass(true, world.now);
    world.limiter.set_bypass(false, world.now);
    world.limiter.advance(world.now);
    assert!(world.limiter.waiting() > MANY - 3 * AT_MOST, "{}", world.limiter.waiting());
    world.wind_down();
}

#[test]
fn a_group_without_connections_is_told_a_few_at_a_time_and_those_who_come_later_are_not() {
    let mut world = crowd(open());
    world.prompt = false;
    world.limiter.fail_group(Group::Short, world.now);
    let late = world.arrive(Caller::new());
    goes_on_in_pieces(&mut world);
    claim_all(&mut world);
    let told = world.calls.iter().filter(|call| matches!(call.life, Life::Unconnected)).count();
    assert_eq!((told, world.is_waiting(late)), (MANY, true));
    world.wind_down();
}

#[test]
fn a_pause_holds_everyone_at_once_and_tells_those_it_concerns_in_vain_a_few_at_a_time() {
    let mut world = crowd(open());
    let pause = Some(Pause { charged: Charged::All, length: PauseLength::Known(secs(7200)) });
    world.prompt = false;
    world.answer_with(0, Answer { pause, ..Answer::new(Outcome::Neutral, Some(429)) });
    goes_on_in_pieces(&mut world);
    claim_all(&mut world);
    for call in 1..=MANY {
        assert_eq!(world.refusal(call).map(|refusal| refusal.reason), Some(Reason::Pause), "call {call}");
    }
}

#[test]
fn lifted_pauses_let_everyone_go_a_few_at_a_time() {
    let mut world = World::new(open());
    for who in 1..=900 {
        let call = world.arrive(Caller::new().held_by(who));
        let pause = Some(Pause { charged: Charged::All, length: PauseLength::Known(secs(600)) });
        world.answer_with(call, Answer { pause, ..Answer::new(Outcome::Neutral, Some(429)) });
        world.end(call);
    }
    for call in 0..MANY {
        world.arrive(Caller::new().held_by(1 + call as u64 % 900));
    }
    assert_eq!(world.limiter.waiting(), MANY);
    assert_eq!(world.limiter.lift_pauses(false, world.now), 900);
    goes_on_in_pieces(&mut world);
    assert_eq!(world.limiter.waiting(), 0);
}

#[test]
fn waits_that_end_together_end_a_few_at_a_time() {
    let mut world = crowd(open());
    world.now = at(3_700_000);
    world.limiter.advance(world.now);
    goes_on_in_pieces(&mut world);
    claim_all(&mut world);
    assert!((1..=MANY).all(|call| world.refusal(call).is_some_and(|refusal| refusal.reason == Reason::Slot)));
}

#[test]
fn the_line_of_a_key_that_is_forgotten_goes_a_few_at_a_time_and_in_order() {
    let mut policy = open();
    policy.classes[0].backoff.hold = secs(3600);
    let mut world = World::new(policy);
    let failed = world.arrive(Caller::new().of_key(2));
    world.answer(failed, Outcome::Failure);
    for _ in 0..MANY {
        world.arrive(Caller::new().of_key(2));
    }
    assert_eq!(world.limiter.forget(&|_| true, world.now), 1);
    goes_on_in_pieces(&mut world);
    assert_eq!(world.limiter.waiting(), 0);
    let mut granted = Vec::new();
    while let Some(ticket) = world.limiter.next_event() {
        granted.push(world.calls.iter().position(|call| matches!(call.life, Life::Waiting(its) if its == ticket)));
    }
    assert!(granted.is_sorted() && granted.len() == MANY);
}

#[test]
fn a_reload_moves_everyone_a_few_at_a_time_and_nobody_loses_a_place() {
    let mut world = crowd(open());
    let mut next = open();
    next.classes.push(class("other"));
    next.bucket = Some(bucket(1e6, 10_000));
    world.limiter.reconfigure(Policy { in_flight: Some(slots(2)), ..next.clone() }, world.now);
    assert!(world.limiter.is_behind(), "not all at once");
    assert_eq!(world.limiter.waiting(), MANY, "nobody left before everyone had moved: there is a free slot");
    // Meanwhile a call comes, in a flow where none waits, and another leaves.
    let late = world.arrive(Caller::new().of_flow(1 << 40));
    assert!(world.is_waiting(late), "past nobody");
    world.hang_up(17);
    let mut pieces = 0;
    while world.limiter.is_behind() {
        world.limiter.advance(world.now);
        pieces += 1;
    }
    assert!(pieces >= MANY / (2 * AT_MOST), "{pieces}");
    // One by one: the first of a flow goes before later ones.
    world.room(Group::Short, 0);
    while let Some(out) = world.calls.iter().position(Record::is_out) {
        world.answer(out, Outcome::Success);
        // Meanwhile a token of the new bucket comes.
        world.now += ms(1);
        world.end(out);
    }
    for flow in 0..MANY / 10 {
        let order: Vec<_> = (1..=10)
            .filter(|call| flow * 10 + call != 17)
            .map(|call| world.calls[flow * 10 + call].left.expect("it left").1)
            .collect();
        assert!(order.is_sorted(), "flow {flow}: {order:?}");
    }
    assert!(world.left_at(late).is_some());
    world.wind_down();
}

#[test]
fn exempt_calls_go_at_once_while_a_reload_moves_others() {
    let mut leases = class("leases");
    leases.lane = Lane::Exempt;
    let mut policy = open();
    policy.classes.push(leases);
    let mut world = crowd(policy.clone());
    policy.queue.max_wait = secs(7200);
    world.limiter.reconfigure(Policy { in_flight: Some(slots(1)), ..policy }, world.now);
    assert!(world.limiter.is_behind());
    let lease = world.arrive(Caller::new().of_class(1));
    assert!(world.left_at(lease).is_some() && world.limiter.is_behind());
    world.wind_down();
}

#[test]
fn a_second_reload_finishes_the_first() {
    let mut world = crowd(open());
    for max_wait in [10, 20] {
        let mut next = Policy { in_flight: Some(slots(1)), ..open() };
        next.queue.max_wait = secs(max_wait);
        world.limiter.reconfigure(next, world.now);
    }
    while world.limiter.is_behind() {
        world.limiter.advance(world.now);
    }
    world.now = at(19_999);
    world.limiter.advance(world.now);
    assert_eq!(world.limiter.waiting(), MANY);
    world.now = at(20_000);
    while world.limiter.next_wakeup() == Some(world.now) || world.limiter.waiting() == MANY {
        world.limiter.advance(world.now);
    }
    assert_eq!(world.limiter.waiting(), 0);
    world.wind_down();
}

fn failing(keys: u64) -> World {
    let mut world = World::new(Policy { max_keys: 10_000, ..open() });
    for key in 0..keys {
        let call = world.arrive(Caller::new().of_key(2 * key));
        world.answer(call, Outcome::Failure);
        world.end(call);
        world.now = at(key);
    }
    world
}

#[test]
fn keys_are_forgotten_by_hand_a_few_at_a_time_and_all_of_those_that_failed_before() {
    let mut world = failing(2_000);
    let (mut walk, mut forgotten, mut pieces) = (Walk::default(), 0, 0);
    while !walk.is_over() {
        let now = world.limiter.forget_some(&|_| true, &mut walk, world.now);
        assert!(now <= 64, "{now} in one go");
        (forgotten, pieces) = (forgotten + now, pieces + 1);
        if pieces == 3 {
            world.now += secs(1);
            let later = world.arrive(Caller::new().of_key(1_000_000));
            world.answer(later, Outcome::Failure);
        }
    }
    assert_eq!((forgotten, world.limiter.keys().len()), (2_000, 1), "the one that failed after the order stays");
}

#[test]
fn fewer_keys_and_keys_whose_time_is_over_go_a_few_at_a_time() {
    let mut world = failing(2_000);
    let go = |limiter: &mut Limiter, now| {
        let mut pieces = 0;
        while limiter.has_expired_keys(now) {
            let before = limiter.keys().len();
            limiter.advance(now);
            let gone = before - limiter.keys().len();
            // None, if what was dropped earlier is still listed among those whose time is over.
            assert!(gone <= 32, "{gone} in one go");
            pieces += 1;
            assert!(pieces < 1_000, "it comes to an end");
        }
        pieces
    };
    let (first, now) = (world.limiter.next_tried(1, world.now)[0].clone(), world.now);
    world.limiter.reconfigure(Policy { max_keys: 500, ..open() }, now);
    assert!(go(&mut world.limiter, now) > 20);
    assert_eq!(world.limiter.keys().len(), 500);
    assert!(world.limiter.keys().find(&first.1, now).is_none(), "who has least to wait goes first");
    let over = now + secs(1000);
    assert_eq!(world.limiter.snapshot(over).failing_keys, 0, "what is over is not counted");
    assert!(go(&mut world.limiter, over) > 10);
    assert!(world.limiter.keys().is_empty());
}

#[test]
fn what_is_shown_of_many_keys_is_what_a_look_at_all_of_them_would_show() {
    let world = failing(2_000);
    let mut all = world.limiter.keys().list(world.now);
    all.sort_by(|(one, _, this), (other, _, that)| (this.ready_at, one).cmp(&(that.ready_at, other)));
    assert_eq!(world.limiter.next_tried(100, world.now), all[..100]);
    let (name, key, state) = &all[1_234];
    assert_eq!(world.limiter.keys().find(key, world.now), Some((name.clone(), *state)));
}

#[test]
fn the_longest_of_many_queues_are_found_a_thousand_at_a_time() {
    let mut world = World::new(Policy { in_flight: Some(slots(1)), ..open() });
    world.arrive(Caller::new());
    for call in 0..MANY as u64 {
        world.arrive(Caller::new().of_flow(call));
    }
    for _ in 0..3 {
        world.arrive(Caller::new().of_flow(2_500));
    }
    let (mut longest, mut looks) = (LongestQueues::default(), 1);
    while world.limiter.look_at_queues(&mut longest) {
        looks += 1;
    }
    let shown = world.limiter.queue_views(&longest, world.now);
    assert_eq!((shown.len(), shown[0].waiting, shown[0].flow.as_str()), (100, 4, "flow 2500"));
    assert!(looks >= MANY / 1_000, "{looks}");
    assert_eq!(world.limiter.snapshot(world.now).queues, shown);
}
