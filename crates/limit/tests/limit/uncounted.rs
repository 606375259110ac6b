//! P1 where the upstream does not count every call: what it counts keeps to the bucket, and all of
//! them to the bucket and the bound on what comes back.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_limit::Policy;
use tidegate_limit::moment::Moment;
use tidegate_limit::outcome::Outcome;
use tidegate_limit::policy::QueuePolicy;

use super::world::{Caller, World, bucket, ms, open, secs};

/// True if in no time more calls left than these buckets together let out.
fn keeps_to(left: &[Moment], buckets: &[(f64, u32)]) -> bool {
    let most = |seconds: f64| -> f64 { buckets.iter().map(|(rate, burst)| f64::from(*burst) + rate * seconds).sum() };
    (0..left.len()).all(|first| {
        (first..left.len()).all(|last| {
            let calls = u32::try_from(last - first + 1).expect("few");
            f64::from(calls) <= most((left[last] - left[first]).as_secs_f64()) + 1e-6
        })
    })
}

proptest! {
    #[test]
    fn p1_what_is_counted_keeps_to_the_bucket_and_the_rest_to_its_bound(
        (rate, burst) in (prop_oneof![Just(0.5), Just(1.25), Just(7.0)], 1_u32..8),
        (free_rate, free_burst) in (prop_oneof![Just(0.3), Just(7.0)], 1_u32..8),
        steps in vec((0_u64..700, 0_u64..400, 0_u8..4), 1..120),
    ) {
        let queue = QueuePolicy { max_wait: secs(1_000_000), ..open().queue };
        let uncounted = Some(bucket(free_rate, free_burst));
        let mut world = World::new(Policy { bucket: Some(bucket(rate, burst)), uncounted, queue, ..open() });
        let mut due: Vec<(Moment, usize, bool)> = Vec::new();
        let (mut counted, mut all) = (Vec::new(), Vec::new());
        let mut calls: Vec<(usize, u64, bool)> = Vec::new();
        for (gap, takes, is_counted) in steps {
            world.pass(ms(gap));
            calls.push((world.arrive(Caller::new()), takes, is_counted == 0));
            // Those that have left are answered when their time has come.
            calls.retain(|(call, takes, is_counted)| match world.left_at(*call) {
                Some(left) => {
                    due.push((left + ms(*takes), *call, *is_counted));
                    false
                }
                None => true,
            });
            let now = world.now;
            for (_, call, is_counted) in due.extract_if(.., |(at, ..)| *at <= now) {
                if !is_counted {
                    world.refund(call);
                }
                world.answer(call, Outcome::Success);
                world.end(call);
                let left = world.left_at(call).expect("it left");
                all.push(left);
                counted.extend(is_counted.then_some(left));
            }
        }
        all.sort_unstable();
        counted.sort_unstable();
        prop_assert!(keeps_to(&counted, &[(rate, burst)]), "{counted:?}");
        prop_assert!(keeps_to(&all, &[(rate, burst), (free_rate, free_burst)]), "{all:?}");
    }
}

#[test]
fn what_is_not_counted_makes_room_for_others_at_once() {
    let uncounted = Some(bucket(0.001, 5));
    let mut world = World::new(Policy { bucket: Some(bucket(0.001, 1)), uncounted, ..open() });
    for nth in 0..6 {
        let call = world.arrive(Caller::new());
        assert!(world.left_at(call).is_some(), "call {nth}");
        world.refund(call);
        world.answer(call, Outcome::Success);
        world.end(call);
    }
    let call = world.arrive(Caller::new());
    assert!(world.left_at(call).is_none(), "five came back, and no more");
    world.wind_down();
}
