//! A retry bucket that opens as the upstream heals: few retries while they fail, all that the gate's
//! bucket bears once they succeed, and few again at once after a relapse.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_limit::moment::Moment;
use tidegate_limit::outcome::Outcome;
use tidegate_limit::policy::{Backoff, BucketPolicy, Strategy as Delays};
use tidegate_limit::{Policy, Preview, Reason};

use super::world::{Caller, World, bucket, ms, open, secs};

/// What a closed bucket lets through in a second.
const CLOSED: f64 = 2.0;
/// The tokens that a success gives.
const GIVEN: f64 = 10.0;

/// A gate with this bucket, whose retry bucket opens.
fn opening(rate: f64, burst: u32) -> Policy {
    let retries = BucketPolicy { opens: true, ..bucket(CLOSED, 20) };
    let mut policy = Policy { bucket: Some(bucket(rate, burst)), retry_bucket: Some(retries), ..open() };
    policy.queue.max_wait = secs(8);
    policy
}

fn fail(world: &mut World, call: usize) {
    world.answer(call, Outcome::Failure);
    world.end(call);
}

fn succeed(world: &mut World, call: usize) {
    world.answer(call, Outcome::Success);
    world.end(call);
}

/// A world in which these keys have failed, and may be tried again.
fn failing(policy: Policy, keys: u64) -> World {
    let mut world = World::new(policy);
    for key in 0..keys {
        let call = world.arrive(Caller::new().of_key(2 + 2 * key));
        world.pass(secs(1));
        fail(&mut world, call);
    }
    world.pass(secs(2));
    world
}

fn retry(world: &mut World, key: u64) -> usize {
    world.arrive(Caller::new().of_key(2 + 2 * key))
}

#[test]
fn while_every_retry_fails_few_leave() {
    let mut world = failing(opening(100.0, 100), 50);
    let mut left = 0;
    for key in 0..40 {
        let call = retry(&mut world, key);
        match world.refusal(call) {
            Some(refusal) => assert_eq!((refusal.reason, refusal.waited), (Reason::RetryBucket, Duration::ZERO)),
            None => {
                left += 1;
                fail(&mut world, call);
            }
        }
    }
    assert_eq!(left, 6, "one failure alone may be that object's own; five in a row are not; and the twentieth after");
    for key in 40..50 {
        world.pass(ms(250));
        let call = retry(&mut world, key);
        if world.refusal(call).is_none() {
            left += 1;
            fail(&mut world, call);
        }
    }
    assert_eq!(left, 6 + 5, "two a second");
    world.wind_down();
}

#[test]
fn a_small_bucket_bears_as_many_failures_after_a_rest_as_it_has_tokens() {
    for burst in 1..=7 {
        let retries = BucketPolicy { opens: true, ..bucket(CLOSED, burst) };
        let mut world = failing(Policy { retry_bucket: Some(retries), ..opening(100.0, 100) }, 10);
        for round in 0..3 {
            let mut left = 0;
            for key in 0..10 {
                let call = retry(&mut world, key);
                if world.refusal(call).is_none() {
                    left += 1;
                    fail(&mut world, call);
                }
            }
            assert_eq!(left, burst.min(5), "round {round} of a burst of {burst}");
            world.pass(secs(10));
        }
        world.wind_down();
    }
}

#[test]
fn retries_that_succeed_wait_for_the_gates_bucket_as_healthy_calls_do() {
    let mut world = failing(opening(10.0, 5), 60);
    let first = retry(&mut world, 0);
    succeed(&mut world, first);
    let now = world.now;
    let retries: Vec<usize> = (1..60).map(|key| retry(&mut world, key)).collect();
    assert!(retries.iter().all(|call| world.refusal(*call).is_none()), "all of them can leave within 8 s");
    for _ in 0..80 {
        world.pass(ms(100));
        for call in &retries {
            if world.calls[*call].is_out() {
                succeed(&mut world, *call);
            }
        }
    }
    let last = retries.iter().map(|call| world.left_at(*call).expect("it has left")).max();
    // Four of the burst are left at first.
    assert_eq!(last, Some(now + ms(5500)));
    world.wind_down();
}

#[test]
fn a_retry_that_would_wait_too_long_for_the_gates_bucket_is_refused_even_if_others_succeed() {
    let mut world = failing(opening(10.0, 5), 100);
    let first = retry(&mut world, 0);
    succeed(&mut world, first);
    let refused = (1..100).filter_map(|key| {
        let call = retry(&mut world, key);
        world.refusal(call)
    });
    let reasons: Vec<Reason> = refused.map(|refusal| refusal.reason).collect();
    assert!(!reasons.is_empty() && reasons.iter().all(|reason| *reason == Reason::Bucket), "{reasons:?}");
}

#[test]
fn a_relapse_frees_the_workers_that_wait() {
    let mut world = failing(opening(10.0, 5), 60);
    let first = retry(&mut world, 0);
    succeed(&mut world, first);
    let retries: Vec<usize> = (1..60).map(|key| retry(&mut world, key)).collect();
    let mut failed = 0;
    while failed < 20 {
        for call in &retries {
            if world.calls[*call].is_out() {
                fail(&mut world, *call);
                failed += 1;
            }
        }
        world.pass(ms(100));
    }
    world.pass(ms(100));
    assert!(retries.iter().all(|call| !world.is_waiting(*call)), "20 failures in a row are no accident");
    let refused: Vec<Reason> = retries.iter().filter_map(|call| Some(world.refusal(*call)?.reason)).collect();
    assert!(refused.len() >= 30 && refused.iter().all(|reason| *reason == Reason::RetryBucket), "{refused:?}");
    world.wind_down();
}

/// A controller with client-go's classic limiter: it tries ten objects a second, in the same order
/// again and again, so that a round of 500 objects takes 50 s and an outage of 330 s more than six of
/// them. Returns the tries that failed, without the first of each object, and the refusals after the
/// first success.
fn classic_rounds() -> (usize, Vec<Reason>) {
    let strategy = Delays::Exponential { base: secs(1), max: secs(60), jitter: 0.0 };
    let retries = BucketPolicy { opens: true, ..bucket(2.5, 100) };
    let mut policy = Policy { bucket: Some(bucket(50.0, 100)), retry_bucket: Some(retries), ..open() };
    policy.classes[0].backoff = Backoff { strategy, hold: ms(100), forget_after: secs(120) };
    let (mut world, mut in_vain, mut healed, mut refused) = (World::new(policy), 0, false, Vec::new());
    for (round, key) in (0..8).flat_map(|round| (0..500).map(move |key| (round, key))) {
        let call = retry(&mut world, key);
        world.pass(ms(100));
        let is_down = world.now < Moment::from_millis(330_000);
        match world.refusal(call) {
            Some(refusal) if healed => refused.push(refusal.reason),
            Some(_) => {}
            None if is_down => {
                in_vain += usize::from(round > 0);
                fail(&mut world, call);
            }
            None => {
                succeed(&mut world, call);
                healed = true;
            }
        }
    }
    world.wind_down();
    (in_vain, refused)
}

/// An object that is tried more rarely than `forget_after` is not taken for healthy as long as the
/// gate itself refuses its tries.
#[test]
fn objects_that_are_tried_rarely_get_no_more_than_the_bucket_has() {
    let (in_vain, _) = classic_rounds();
    assert!(in_vain <= 100 + 330 * 5 / 2, "{in_vain}");
}

/// The tries of an outage go round: no object fails so often that it is in its backoff when all
/// others are back.
#[test]
fn few_tokens_go_round() {
    let (_, refused) = classic_rounds();
    assert!(refused.is_empty(), "{} refused, first for {:?}", refused.len(), refused[0]);
}

/// A world with no retry token, of which two come in a second. The keys 0 to 4 have failed three times
/// each, and 10 to 13 once. A retry of 10 was refused.
fn tokens_are_few(policy: Policy) -> World {
    let mut world = failing(policy, 14);
    for keys in [0..5, 0..5, 5..10] {
        let is_last = keys.start == 5;
        for key in keys {
            let call = retry(&mut world, key);
            fail(&mut world, call);
        }
        world.pass(if is_last { ms(250) } else { secs(10) });
    }
    let refused = retry(&mut world, 10);
    let refusal = world.refusal(refused).map(|refusal| (refusal.reason, refusal.retry_at - world.now));
    assert_eq!(refusal, Some((Reason::RetryBucket, ms(250))), "there is none");
    world
}

#[test]
fn the_last_token_is_kept_for_an_object_that_was_tried_less_until_the_next_one_comes() {
    let mut world = tokens_are_few(opening(100.0, 100));
    let refused_after = |world: &mut World, millis, key| {
        world.pass(ms(millis));
        let call = retry(world, key);
        let refusal = world.refusal(call);
        if refusal.is_none() {
            fail(world, call);
        }
        refusal.map(|refusal| (refusal.reason, refusal.retry_at - world.now))
    };
    let short_by = |millis| Some((Reason::RetryBucket, ms(millis)));
    assert_eq!(refused_after(&mut world, 250, 0), short_by(500), "it is kept");
    assert_eq!(refused_after(&mut world, 200, 1), short_by(300), "it is kept");
    assert_eq!(refused_after(&mut world, 0, 11), None, "for one like this");
    assert_eq!(refused_after(&mut world, 100, 12), short_by(200), "there is none");
    assert_eq!(refused_after(&mut world, 700, 2), None, "there are two");
    world.wind_down();
}

/// The same gate, which holds a call at its key for this long.
fn holding(hold: Duration) -> Policy {
    let mut policy = opening(100.0, 100);
    policy.classes[0].backoff.hold = hold;
    policy
}

#[test]
fn a_call_that_may_be_held_until_the_next_token_leaves_the_last_one_too() {
    let mut world = tokens_are_few(holding(secs(2)));
    world.pass(ms(250));
    let until = world.now + ms(500);
    let reason = Reason::RetryBucket;
    assert_eq!(world.preview(Caller::new().of_key(2)), Preview::Waits { reason, until });
    let gives_way = retry(&mut world, 0);
    assert!(world.is_waiting(gives_way), "the token is kept");
    world.pass(ms(100));
    let kept_for = retry(&mut world, 11);
    fail(&mut world, kept_for);
    world.pass(secs(1));
    assert_eq!(world.left_at(gives_way), Some(until), "with the next token any may go");
    world.wind_down();
}

#[test]
fn a_held_call_is_refused_once_the_token_that_it_may_have_comes_too_late() {
    for hold in [ms(600), ms(999)] {
        let mut world = tokens_are_few(holding(hold));
        world.pass(ms(250));
        let gives_way = retry(&mut world, 0);
        assert!(world.is_waiting(gives_way), "the token is kept");
        // This one's answer takes a while, so that the next token is kept as well.
        let kept_for = retry(&mut world, 11);
        assert!(world.calls[kept_for].is_out());
        world.pass(ms(500));
        let refusal = world.refusal(gives_way).expect("it is refused");
        assert_eq!((refusal.reason, refusal.waited), (Reason::RetryBucket, ms(500)), "held for {hold:?}");
        assert_eq!(refusal.retry_at, world.now + ms(500));
        world.wind_down();
    }
}

#[test]
fn a_call_whose_delay_ends_while_it_is_held_leaves_the_last_token_too() {
    let mut policy = holding(secs(2));
    policy.classes[0].backoff.strategy = Delays::Exponential { base: ms(700), max: ms(700), jitter: 0.0 };
    let mut world = tokens_are_few(policy);
    world.pass(ms(750));
    let failed_at = world.now;
    let again = retry(&mut world, 0);
    fail(&mut world, again);
    world.pass(ms(250));
    let refused = retry(&mut world, 11);
    assert_eq!(world.refusal(refused).map(|refusal| refusal.reason), Some(Reason::RetryBucket));
    world.pass(ms(350));
    let held = retry(&mut world, 0);
    world.pass(secs(2));
    // Its delay ends after 700 ms, and tokens come after 500 ms and a second.
    assert_eq!(world.left_at(held), Some(failed_at + secs(1)));
    world.wind_down();
}

/// A gate whose refusals take as long as failures.
fn slow() -> Policy {
    Policy { slow_refusals: true, ..holding(ms(100)) }
}

#[test]
fn a_refusal_takes_as_long_as_the_last_failure_and_at_most_as_long_as_hold() {
    for (took, waited) in [(0, 0), (30, 30), (400, 100)] {
        let mut world = World::new(slow());
        let first = retry(&mut world, 0);
        world.pass(ms(took));
        fail(&mut world, first);
        let (failed_at, again) = (world.now, retry(&mut world, 0));
        world.pass(ms(200));
        let refusal = world.refusal(again).expect("its delay is a second");
        assert_eq!((refusal.reason, refusal.waited), (Reason::Backoff, ms(waited)));
        assert_eq!(refusal.retry_at, failed_at + secs(1));
        world.wind_down();
    }
}

/// A slow gate without a retry token, a trial under way, and a retry that comes after it.
fn last_trial() -> (World, usize, usize) {
    let mut world = failing(slow(), 8);
    let trials: Vec<usize> = (0..6).map(|key| retry(&mut world, key)).collect();
    world.pass(ms(50));
    // Five failures leave no token, however many were there.
    trials[1..].iter().for_each(|call| fail(&mut world, *call));
    let next = retry(&mut world, 6);
    (world, trials[0], next)
}

#[test]
fn a_retry_without_a_token_leaves_once_one_under_way_succeeds() {
    let (mut world, trial, next) = last_trial();
    world.pass(ms(20));
    assert!(world.is_waiting(next), "{:?}", world.refusal(next));
    succeed(&mut world, trial);
    assert_eq!(world.left_at(next), Some(world.now));
    world.wind_down();
}

#[test]
fn a_retry_without_a_token_is_refused_when_it_would_have_failed() {
    let (mut world, trial, next) = last_trial();
    world.pass(ms(20));
    fail(&mut world, trial);
    world.pass(ms(200));
    let refusal = world.refusal(next).map(|refusal| (refusal.reason, refusal.waited));
    assert_eq!(refusal, Some((Reason::RetryBucket, ms(50))));
    world.wind_down();
}

/// The object that was refused may be gone for good.
#[test]
fn a_token_is_kept_for_nobody_once_the_bucket_is_full() {
    let retries = BucketPolicy { opens: true, ..bucket(CLOSED, 1) };
    let mut world = failing(Policy { retry_bucket: Some(retries), ..opening(100.0, 100) }, 3);
    for _ in 0..2 {
        let call = retry(&mut world, 0);
        fail(&mut world, call);
        world.pass(secs(10));
    }
    let tried = retry(&mut world, 1);
    let refused = retry(&mut world, 2);
    assert_eq!(world.refusal(refused).map(|refusal| refusal.reason), Some(Reason::RetryBucket));
    world.answer(tried, Outcome::Neutral);
    world.end(tried);
    world.pass(secs(10));
    let call = retry(&mut world, 0);
    assert_eq!(world.refusal(call), None);
}

#[test]
fn a_watch_that_takes_no_token_gives_way_to_nobody() {
    let mut world = failing(opening(100.0, 100), 7);
    for keys in [0..1, 0..1, 1..6] {
        for key in keys {
            let call = retry(&mut world, key);
            fail(&mut world, call);
        }
        world.pass(secs(10));
    }
    for key in 1..6 {
        let call = retry(&mut world, key);
        fail(&mut world, call);
    }
    let refused = retry(&mut world, 6);
    assert_eq!(world.refusal(refused).map(|refusal| refusal.reason), Some(Reason::RetryBucket));
    world.pass(ms(500));
    let watch = world.arrive(Caller { long_running: true, ..Caller::new().of_key(2) });
    assert_eq!(world.refusal(watch), None);
}

/// An upstream that fails and heals, and the objects of a controller.
#[derive(Clone, Debug)]
struct History {
    /// The lengths of the periods; it is down in the first, and in every second one after that.
    periods: Vec<u64>,
    /// The time to an answer.
    latency: u64,
    objects: u64,
    /// The time after which an object comes back when it was refused or has failed, and when it has
    /// succeeded.
    again: u64,
}

fn histories() -> impl Strategy<Value = History> {
    let periods = prop::collection::vec(prop_oneof![Just(3_000_u64), 500_u64..60_000], 2..7);
    (periods, 10_u64..400, 5_u64..120, 200_u64..3_000).prop_map(|(periods, latency, objects, again)| History {
        periods,
        latency,
        objects,
        again,
    })
}

/// What happened in one period.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    down: bool,
    length: f64,
    /// The retries that left.
    retries: u64,
    /// The moment at which a retry that left in it has succeeded.
    healed: Option<Moment>,
    /// The retries refused for want of a token after that.
    refused: u64,
    /// All retries refused for want of a token.
    passed_over: u64,
    /// The successes of calls that had left before it began.
    late: u64,
}

/// Plays a history in steps of 10 ms.
fn play(history: &History) -> Vec<Seen> {
    let mut policy = opening(50.0, 50);
    let strategy = Delays::Exponential { base: ms(100), max: ms(400), jitter: 0.0 };
    policy.classes[0].backoff = Backoff { strategy, hold: ms(100), forget_after: secs(600) };
    let mut world = World::new(policy);
    let (mut periods, mut begun) = (Vec::new(), Moment::ZERO);
    // For each object the moment at which it comes, or its call; and if it has failed.
    let mut objects: Vec<(Result<Moment, usize>, bool)> =
        (0..history.objects).map(|object| (Ok(Moment::from_millis(7 * object)), false)).collect();
    for (number, length) in history.periods.iter().enumerate() {
        let mut seen = Seen { down: number % 2 == 0, length: ms(*length).as_secs_f64(), ..Seen::default() };
        let ends = begun + ms(*length);
        while world.now < ends {
            for (key, (state, has_failed)) in (0..).zip(&mut objects) {
                step(&mut world, history, key, state, has_failed, begun, &mut seen);
            }
            world.pass(ms(10));
        }
        periods.push(seen);
        begun = ends;
    }
    periods
}

fn step(
    world: &mut World,
    history: &History,
    key: u64,
    state: &mut Result<Moment, usize>,
    has_failed: &mut bool,
    begun: Moment,
    seen: &mut Seen,
) {
    let back = |world: &World| Ok(world.now + ms(history.again));
    match *state {
        Ok(at) if at > world.now => {}
        Ok(_) => *state = Err(retry(world, key)),
        Err(call) if world.is_waiting(call) => {}
        Err(call) => match world.refusal(call) {
            Some(refusal) => {
                let is_late = seen.healed.is_some_and(|at| at < world.calls[call].arrived + refusal.waited);
                let is_passed_over = refusal.reason == Reason::RetryBucket;
                seen.refused += u64::from(is_late && is_passed_over);
                seen.passed_over += u64::from(is_passed_over);
                *state = back(world);
            }
            None => {
                let left = world.left_at(call).expect("it is out");
                if world.now < left + ms(history.latency) {
                    return;
                }
                // The answer is decided when the call leaves.
                let fails = if left >= begun { seen.down } else { !seen.down };
                seen.retries += u64::from(*has_failed && left >= begun);
                if *has_failed && left >= begun && !fails {
                    seen.healed.get_or_insert(world.now);
                }
                if fails {
                    fail(world, call);
                } else {
                    seen.late += u64::from(left < begun);
                    succeed(world, call);
                }
                *has_failed = fails;
                *state = back(world);
            }
        },
    }
}

proptest! {
    #![proptest_config(super::promises::config(100))]

    /// In any time in which the upstream fails, first or later, no more retries leave than the bucket
    /// as it is configured has tokens, and one in twenty; and once a retry has succeeded none is refused for want of a
    /// token until the upstream fails again: it does not oscillate.
    #[test]
    fn a_relapse_costs_no_more_than_the_first_outage_and_nothing_oscillates(history in histories()) {
        for (number, seen) in play(&history).into_iter().enumerate() {
            // What had left before the relapse succeeds in it, and gives as much as any success.
            let late = f64::from(u32::try_from(seen.late).expect("few"));
            let twentieth = f64::from(u32::try_from(seen.passed_over).expect("few")) / 19.0;
            let bound = 20.0 + CLOSED * seen.length + GIVEN * late + twentieth;
            let retries = f64::from(u32::try_from(seen.retries).expect("few"));
            prop_assert!(!seen.down || retries <= bound, "period {number}: {retries} of {bound}");
            prop_assert!(seen.down || seen.refused == 0, "period {number}: {} refused", seen.refused);
        }
    }
}
