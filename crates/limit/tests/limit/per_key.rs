//! How often one object may be called, where a class enforces it.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use tidegate_limit::key::{Group, Key};
use tidegate_limit::moment::Moment;
use tidegate_limit::outcome::{Answer, Outcome};
use tidegate_limit::policy::{Backoff, ClassPolicy, Lane, Strategy};
use tidegate_limit::sketch::{Pace, PerKey};
use tidegate_limit::{Arrival, ClassId, Flow, Limiter, Policy, Preview, Reason, Verdict};

const CLASS: ClassId = ClassId(0);
const EXEMPT: ClassId = ClassId(1);

/// Writes of one object go twice at once and then every second; reads are not counted.
fn policy(enforce: bool) -> Policy {
    let writes = Pace::new(1.0, NonZeroU32::new(2).expect("two"));
    let per_key = Some(PerKey { writes: Some(writes), reads: None, enforce });
    let (base, max) = (Duration::from_secs(4), Duration::from_secs(60));
    let strategy = Strategy::Exponential { base, max, jitter: 0.0 };
    let backoff = Backoff { strategy, forget_after: 2 * max, ..Backoff::default() };
    let class = |name: &str, lane| ClassPolicy { name: name.into(), lane, backoff, per_key, ..ClassPolicy::default() };
    Policy { classes: vec![class("default", Lane::Normal), class("leases", Lane::Exempt)], ..Policy::default() }
}

fn limiter(enforce: bool) -> Limiter {
    let mut limiter = Limiter::new(policy(enforce), 1, Moment::ZERO);
    limiter.add_room(Group::Short, 1 << 40, Moment::ZERO);
    limiter
}

fn write(object: u64) -> Arrival<'static> {
    Arrival {
        key: Some(Key { object: object << 32 | 1, collection: 0, facet: object }),
        write: true,
        ..Arrival::new(CLASS, Flow { id: 0, name: &"flow" })
    }
}

fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

/// A call comes and is answered at once. Returns the moment to come back at, if it is refused.
fn call(limiter: &mut Limiter, arrival: &Arrival<'_>, outcome: Outcome, now: Moment) -> Result<(), (Reason, Moment)> {
    match limiter.arrive(arrival, now) {
        Verdict::Admit(permit) => {
            let (_, receipt, slot) = permit.admit(());
            limiter.release(slot, now);
            limiter.finish(receipt, Answer::new(outcome, Some(500)), None, &String::new, now);
            Ok(())
        }
        Verdict::Refuse(refusal) => Err((refusal.reason, refusal.retry_at)),
        Verdict::Wait(_) => panic!("no call waits for its object"),
    }
}

fn succeeds(limiter: &mut Limiter, arrival: &Arrival<'_>, now: Moment) -> Result<(), (Reason, Moment)> {
    call(limiter, arrival, Outcome::Success, now)
}

#[test]
fn a_loop_goes_at_its_pace_and_no_other_object_notices() {
    let mut limiter = limiter(true);
    let (mut went, mut others) = (0, 0);
    for step in 0..1200_u64 {
        let now = at(step * 100);
        match succeeds(&mut limiter, &write(1), now) {
            Ok(()) => went += 1,
            Err((reason, retry_at)) => {
                assert_eq!(reason, Reason::PerKey);
                assert!(retry_at > now && retry_at <= now + Duration::from_secs(1), "{retry_at:?} at {now:?}");
            }
        }
        others += u32::from(succeeds(&mut limiter, &write(2 + step % 30), now).is_ok());
    }
    assert_eq!(went, 2 + 119, "two at once, and one in each of the two minutes' seconds after");
    assert_eq!(others, 1200);
}

#[test]
fn reads_leases_and_a_gate_that_only_observes_are_never_held() {
    let mut limiter = limiter(true);
    let reads = Arrival { write: false, reads: true, ..write(1) };
    let exempt = Arrival { class: EXEMPT, ..write(1) };
    let list = Arrival { key: Some(Key { object: 7, collection: 7, facet: 7 }), ..write(1) };
    let unknown = Arrival { key: None, ..write(1) };
    for step in 0..1000 {
        for arrival in [&reads, &exempt, &list, &unknown] {
            assert_eq!(succeeds(&mut limiter, arrival, at(step)), Ok(()), "{arrival:?}");
        }
    }
    let mut observes = self::limiter(false);
    assert!((0..1000).all(|step| succeeds(&mut observes, &write(1), at(step)).is_ok()));
}

#[test]
fn under_a_bypass_all_goes_and_afterwards_the_pace_holds_again() {
    let mut limiter = limiter(true);
    limiter.set_bypass(true, at(0));
    assert!((0..100).all(|step| succeeds(&mut limiter, &write(1), at(step)).is_ok()));
    limiter.set_bypass(false, at(100));
    let went = (0..100).filter(|step| succeeds(&mut limiter, &write(1), at(100 + step)).is_ok()).count();
    assert_eq!(went, 2);
}

#[test]
fn a_failing_key_has_its_backoff_and_takes_no_token_of_its_object() {
    let mut limiter = limiter(true);
    assert_eq!(call(&mut limiter, &write(1), Outcome::Failure, at(0)), Ok(()));
    for step in 1..400 {
        let refused = succeeds(&mut limiter, &write(1), at(step * 10)).expect_err("its delay is four seconds");
        assert_eq!(refused.0, Reason::Backoff);
    }
    assert_eq!(succeeds(&mut limiter, &write(1), at(4000)), Ok(()), "the trial");
    assert_eq!(succeeds(&mut limiter, &write(1), at(4000)), Ok(()));
    assert_eq!(succeeds(&mut limiter, &write(1), at(4000)), Ok(()), "nothing was spent meanwhile");
    assert_eq!(succeeds(&mut limiter, &write(1), at(4000)).map_err(|refused| refused.0), Err(Reason::PerKey));
}

#[test]
fn a_preview_says_what_would_happen_and_spends_nothing() {
    let mut limiter = limiter(true);
    for _ in 0..10 {
        assert_eq!(limiter.preview(&write(1), at(0)), Preview::Goes);
    }
    assert_eq!(succeeds(&mut limiter, &write(1), at(0)), Ok(()));
    assert_eq!(limiter.preview(&write(1), at(0)), Preview::Goes);
    assert_eq!(succeeds(&mut limiter, &write(1), at(0)), Ok(()));
    for _ in 0..10 {
        let Preview::Refused(refusal) = limiter.preview(&write(1), at(0)) else { panic!("it has used up its pace") };
        assert_eq!((refusal.reason, refusal.retry_at), (Reason::PerKey, at(1000)));
    }
    assert_eq!(succeeds(&mut limiter, &write(1), at(1000)), Ok(()));
}

#[test]
fn a_reload_keeps_what_is_known_and_may_begin_or_end_it() {
    let mut limiter = limiter(true);
    assert!((0..2).all(|_| succeeds(&mut limiter, &write(1), at(0)).is_ok()));
    let more = Policy { max_keys: 7, ..policy(true) };
    limiter.reconfigure(more, at(1));
    assert!(succeeds(&mut limiter, &write(1), at(2)).is_err(), "no burst for free");
    limiter.reconfigure(policy(false), at(3));
    assert_eq!(succeeds(&mut limiter, &write(1), at(4)), Ok(()));
    limiter.reconfigure(policy(true), at(5));
    assert!(succeeds(&mut limiter, &write(1), at(6)).is_err());
    assert_eq!(succeeds(&mut limiter, &write(1), at(1000)), Ok(()));
}

fn pace(rate: f64, burst: u32) -> PerKey {
    PerKey { writes: Some(Pace::new(rate, NonZeroU32::new(burst).expect("some"))), reads: None, enforce: true }
}

/// The calls of an object that go at one moment.
fn went(limiter: &mut Limiter, arrival: &Arrival<'_>, now: Moment) -> usize {
    (0..100).take_while(|_| succeeds(limiter, arrival, now).is_ok()).count()
}

#[test]
fn a_pace_that_is_raised_holds_at_once_and_gives_no_burst_for_free() {
    let with = |per_key| {
        let mut policy = policy(true);
        policy.classes[0].per_key = Some(per_key);
        policy
    };
    let (slow, fast) = (pace(10.0 / 3600.0, 5), pace(5.0, 50));
    let mut limiter = Limiter::new(with(slow), 1, Moment::ZERO);
    limiter.add_room(Group::Short, 1 << 40, Moment::ZERO);
    assert_eq!(went(&mut limiter, &write(1), at(0)), 5);
    assert_eq!(went(&mut limiter, &write(1), at(1000)), 0);
    limiter.reconfigure(with(fast), at(1000));
    assert_eq!(went(&mut limiter, &write(1), at(1000)), 0, "its level is kept");
    assert_eq!(went(&mut limiter, &write(1), at(2000)), 5, "five in a second");
    assert_eq!(went(&mut limiter, &write(1), at(60_000)), 50);
    limiter.reconfigure(with(slow), at(60_000));
    assert_eq!(went(&mut limiter, &write(1), at(61_000)), 0, "its level is kept");
    assert_eq!(went(&mut limiter, &write(1), at(60_000 + 360_000)), 1, "ten in an hour");
    assert_eq!(went(&mut limiter, &write(2), at(60_000 + 360_000)), 5);
}

#[test]
fn a_call_is_refused_only_for_the_calls_of_its_own_class() {
    let mut policy = policy(true);
    policy.classes[0].per_key = Some(pace(10.0 / 3600.0, 5));
    policy.classes.push(ClassPolicy { name: "fast".into(), per_key: Some(pace(5.0, 50)), ..policy.classes[0].clone() });
    let mut limiter = Limiter::new(policy, 1, Moment::ZERO);
    limiter.add_room(Group::Short, 1 << 40, Moment::ZERO);
    let fast = Arrival { class: ClassId(2), ..write(1) };
    assert_eq!(went(&mut limiter, &write(1), at(0)), 5);
    assert_eq!(went(&mut limiter, &fast, at(0)), 50);
    assert_eq!(went(&mut limiter, &write(1), at(0)), 0);
    assert_eq!(went(&mut limiter, &fast, at(1000)), 5);
}

#[test]
fn in_random_histories_no_window_has_too_many_and_no_object_at_its_pace_is_refused() {
    for seed in 1..=50_u64 {
        let (mut limiter, mut random, mut now) = (limiter(true), seed, 0);
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut left: HashMap<u64, Vec<u64>> = HashMap::new();
        for _ in 0..3000 {
            now += next(40);
            // Few are called often, and many now and then.
            let object = if next(2) == 0 { next(3) } else { 3 + next(2000) };
            let times = left.entry(object).or_default();
            match succeeds(&mut limiter, &write(object + 1), at(now)) {
                Ok(()) => times.push(now),
                Err(_) => {
                    let lately = times.iter().filter(|time| **time + 2000 > now).count();
                    assert!(lately >= 2, "object {object} was refused at {now} after {times:?}, seed {seed}");
                }
            }
        }
        for times in left.values() {
            for (first, begin) in times.iter().enumerate() {
                for (count, end) in times[first..].iter().enumerate() {
                    let most = 2 + (end - begin) / 1000;
                    assert!((count as u64) < most, "{} in {} ms, seed {seed}", count + 1, end - begin);
                }
            }
        }
    }
}
