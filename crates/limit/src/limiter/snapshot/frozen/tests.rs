//! P21: a limiter that goes on for another is never ahead of it.

use std::num::NonZeroU32;

use proptest::prelude::{Just, Strategy as _, any, prop_oneof, proptest};
use proptest::test_runner::Config;
use proptest::{prop_assert, prop_assert_eq};

use super::*;
use crate::key::Group;
use crate::outcome::{Answer, Charged, Outcome, Pause, PauseLength};
use crate::policy::{BucketPolicy, ClassPolicy, Per};
use crate::quota::{CallQuota, ResourceId};
use crate::{Arrival, Backoff, Flow, KeyAnswer, Origin, Policy, Strategy, Verdict};

fn policy(per: Per) -> Policy {
    let some = |number| NonZeroU32::new(number).expect("some");
    let bucket = |rate, burst| Some(BucketPolicy { per, ..BucketPolicy::new(rate, some(burst)) });
    let class =
        |name: &str, own| ClassPolicy { name: name.into(), bucket: own, backoff: BACKOFF, ..ClassPolicy::default() };
    Policy {
        bucket: bucket(3.0, 20),
        retry_bucket: Some(BucketPolicy::new(1.0, some(5))),
        classes: vec![class("default", None), class("slow", bucket(0.2, 4))],
        ..Policy::default()
    }
}

const BACKOFF: Backoff = Backoff {
    strategy: Strategy::Exponential { base: Duration::from_secs(1), max: Duration::from_secs(600), jitter: 0.5 },
    hold: Duration::ZERO,
    forget_after: Duration::from_secs(900),
};

fn limiter(per: Per, now: Moment) -> Limiter {
    let mut limiter = Limiter::new(policy(per), 1, now);
    limiter.add_room(Group::Short, 1_000_000, now);
    limiter
}

/// Something that happens to a limiter.
#[derive(Clone, Copy, Debug)]
enum Event {
    Call { class: u16, who: u64 },
    Failure { object: u64, after: Option<u64> },
    Pause { charged: Charged, who: u64, seconds: u64, grows: bool },
    Pass { millis: u64 },
}

fn events() -> impl proptest::strategy::Strategy<Value = Vec<Event>> {
    let charged = prop_oneof![Just(Charged::All), Just(Charged::Class), Just(Charged::Predicted)];
    let event = prop_oneof![
        5 => (0..2_u16, 1..4_u64).prop_map(|(class, who)| Event::Call { class, who }),
        2 => (0..30_u64, proptest::option::of(0..900_u64)).prop_map(|(object, after)| Event::Failure { object, after }),
        1 => (charged, 0..4_u64, 1..900_u64, any::<bool>())
            .prop_map(|(charged, who, seconds, grows)| Event::Pause { charged, who, seconds, grows }),
        3 => (0..20_000_u64).prop_map(|millis| Event::Pass { millis }),
    ];
    proptest::collection::vec(event, 0..80)
}

fn happen(limiter: &mut Limiter, event: Event, now: &mut Moment) {
    match event {
        Event::Pass { millis } => *now += Duration::from_millis(millis),
        Event::Call { class, who } => drop(call(limiter, ClassId(class), who, *now)),
        Event::Failure { object, after } => {
            let key = Key { object, collection: 1, facet: 0 };
            let after = after.map(Duration::from_secs);
            let outcome = after.map_or(Outcome::Failure, |after| Outcome::Throttled { after });
            let answer = Answer::new(outcome, Some(500));
            let Parts { stage, rules, work, .. } = &mut limiter.parts;
            let left = stage.table().failures();
            let name = || format!("write secrets/n/{object}");
            stage.learn(&KeyAnswer { key, class: ClassId(0), left, answer, name: &name }, rules, work, *now);
        }
        Event::Pause { charged, who, seconds, grows } => {
            let seconds = Duration::from_secs(seconds);
            let length = if grows {
                PauseLength::Growing { first: seconds, most: 4 * seconds }
            } else {
                PauseLength::Known(seconds)
            };
            let quota = CallQuota { holder: who, word: ResourceId(who) };
            let origin = Origin { class: ClassId(1), quota, left: u64::MAX };
            limiter.parts.resources.pauses.begin(Pause { charged, length }, origin, 1, *now);
        }
    }
}

fn call(limiter: &mut Limiter, class: ClassId, who: u64, now: Moment) -> bool {
    let arrival = Arrival { credential: who, ..Arrival::new(class, Flow { id: who, name: &who }) };
    match limiter.arrive(&arrival, now) {
        Verdict::Admit(permit) => {
            std::mem::forget(permit); // it went, and its answer never comes
            true
        }
        Verdict::Wait(ticket) => {
            limiter.leave(ticket, now);
            false
        }
        Verdict::Refuse(_) => false,
    }
}

fn freeze(limiter: &Limiter, now: Moment) -> FrozenLimiter {
    walk(limiter, FreezeWalk::default(), now)
}

fn walk(limiter: &Limiter, mut freezing: FreezeWalk, now: Moment) -> FrozenLimiter {
    loop {
        if let Some(frozen) = limiter.freeze_some(&mut freezing, 1000, now) {
            return frozen;
        }
    }
}

/// The levels of every bucket at a moment.
fn levels(limiter: &Limiter, now: Moment) -> Vec<(FrozenPart, Levels)> {
    limiter.parts.frozen_buckets(now)
}

/// A hundred stories, or as many as `PROPTEST_CASES` says.
fn stories() -> Config {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    Config::with_cases(cases.unwrap_or(100))
}

proptest! {
    #![proptest_config(stories())]

    #[test]
    fn p21_after_a_restart_nothing_comes_sooner_than_it_would_have(
        before in events(),
        unseen in events(),
        gap in 0..1_000_000_u64,
        crashes in any::<bool>(),
        per in prop_oneof![Just(Per::Gate), Just(Per::Credential)],
    ) {
        let mut now = Moment::from_millis(5_000_000);
        let mut old = limiter(per, now);
        before.into_iter().for_each(|event| happen(&mut old, event, &mut now));
        let (frozen, froze_at) = (freeze(&old, now), now);
        if crashes {
            // It goes on for a while that nobody sees.
            for event in unseen.into_iter().filter(|event| !matches!(event, Event::Failure { .. } | Event::Pause { .. })) {
                if now - froze_at < Duration::from_secs(5) {
                    happen(&mut old, event, &mut now);
                }
            }
        }
        let seen = now - froze_at;
        now += Duration::from_millis(gap);
        let gap = Gap { length: now - froze_at, unseen: crashes.then_some(seen) };
        // The next process has a clock of its own.
        let here = Moment::from_millis(7);
        let mut new = limiter(per, here);
        new.thaw(&frozen, gap, here);

        for (_, key, state) in old.keys().list(now) {
            let left = state.ready_at - now;
            let restored = new.keys().find(&key, here).map(|(_, state)| state);
            prop_assert!(left.is_zero() || restored.is_some_and(|new| new.ready_at - here >= left && new.failures == state.failures));
        }
        let ends = |limiter: &Limiter, now| limiter.parts.resources.pauses.freeze(now);
        prop_assert_eq!(ends(&old, now), ends(&new, here));
        let rates = policy(per);
        for ((place, was), (_, is)) in levels(&old, now).into_iter().zip(levels(&new, here)) {
            let full = f64::from(match &place {
                FrozenPart::Gate => rates.bucket,
                FrozenPart::Retries => rates.retry_bucket,
                FrozenPart::Class(_) => rates.classes[1].bucket,
            }.expect("a bucket").burst.get());
            let of = |levels: &Levels, who: u64| levels.parts.iter().find(|(part, _)| *part == who).map_or(full, |(_, level)| *level);
            // With nothing unseen it is the very level; else what may have been spent is not there.
            prop_assert!(is.whole <= was.whole + 1e-6, "{place:?}: {was:?}, {is:?}");
            prop_assert!(crashes || (is.whole - was.whole).abs() < 1e-6, "{place:?}: {was:?}, {is:?}");
            for (who, is) in &is.parts {
                prop_assert!(*is <= of(&was, *who) + 1e-6, "{place:?}: {was:?}, {is:?}");
            }
        }
    }
}

#[test]
fn a_process_that_crashes_in_a_loop_has_one_burst_and_not_one_for_each_crash() {
    for per in [Per::Gate, Per::Credential] {
        let here = Moment::from_millis(1);
        let mut limiter_now = limiter(per, here);
        let (mut sent, rounds, each) = (0, 50, Duration::from_secs(2));
        for _ in 0..rounds {
            let frozen = freeze(&limiter_now, here); // written at the start, and then it crashes
            while call(&mut limiter_now, ClassId(0), 1, here) {
                sent += 1;
            }
            limiter_now = limiter(per, here);
            limiter_now.thaw(&frozen, Gap { length: each, unseen: Some(Duration::from_secs(7)) }, here);
        }
        assert_eq!(sent, 20, "the burst; nothing of the time that it may have run is counted");
    }
}

#[test]
fn a_restored_key_has_no_name_until_it_fails_again() {
    let now = Moment::from_millis(1000);
    let mut old = limiter(Per::Gate, now);
    happen(&mut old, Event::Failure { object: 3, after: Some(60) }, &mut { now });
    let mut new = limiter(Per::Gate, now);
    new.thaw(&freeze(&old, now), Gap { length: Duration::ZERO, unseen: None }, now);
    let name = |limiter: &Limiter| limiter.next_tried(1, now)[0].0.clone();
    assert_eq!(name(&old), "write secrets/n/3");
    assert!(name(&new).starts_with("restored "), "{}", name(&new));
    assert_eq!(new.forget(&|known| known == name(&old), now), 0);
    happen(&mut new, Event::Failure { object: 3, after: None }, &mut { now });
    assert_eq!(name(&new), "write secrets/n/3");
    assert_eq!(new.next_tried(1, now)[0].2.failures, 2);
}

#[test]
fn in_the_same_process_a_key_keeps_its_name() {
    let now = Moment::from_millis(1000);
    let mut old = limiter(Per::Gate, now);
    happen(&mut old, Event::Failure { object: 3, after: Some(60) }, &mut { now });
    let mut new = limiter(Per::Gate, now);
    new.thaw(&walk(&old, FreezeWalk::with_names(), now), Gap { length: Duration::ZERO, unseen: None }, now);
    assert_eq!(new.next_tried(1, now)[0].0, "write secrets/n/3");
}

#[test]
fn of_many_keys_those_that_wait_longest_are_kept() {
    let now = Moment::from_millis(1000);
    let mut old = limiter(Per::Gate, now);
    for object in 0..500 {
        happen(&mut old, Event::Failure { object, after: Some(object) }, &mut { now });
    }
    let mut freezing = FreezeWalk::default();
    let frozen = std::iter::repeat_with(|| old.freeze_some(&mut freezing, 100, now)).find_map(|some| some);
    let keys = frozen.expect("it ends").keys;
    assert_eq!(keys.len(), 100);
    assert!(keys.iter().all(|key| key.key.object >= 400), "{:?}", keys.last());
}
