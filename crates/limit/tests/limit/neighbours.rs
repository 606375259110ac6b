//! A noisy neighbour costs others a turn, not their share.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_limit::Policy;
use tidegate_limit::moment::Moment;
use tidegate_limit::policy::{ClassPolicy, Cost, QueuePolicy};

use super::world::{Caller, World, bucket, class, ms, open, secs, slots};

/// The time of one token, or of one call in the only slot.
const SERVICE: Duration = Duration::from_millis(100);
const NOISY: u64 = 0;

/// Returns the waits of calls that come at these times, beside the calls of a noisy flow at the
/// times in `noise`.
fn waits(policy: &Policy, calls: &[(Moment, u64)], noise: &[Moment]) -> Vec<Duration> {
    let mut world = World::new(policy.clone());
    let mut all: Vec<(Moment, u64, Option<usize>)> = noise.iter().map(|at| (*at, NOISY, None)).collect();
    all.extend(calls.iter().enumerate().map(|(number, (at, flow))| (*at, *flow, Some(number))));
    all.sort_unstable();
    let mut quiet = vec![0; calls.len()];
    for (at, flow, number) in all {
        serve_to(&mut world, at);
        let call = world.arrive(Caller::new().of_flow(flow));
        if let Some(number) = number {
            quiet[number] = call;
        }
    }
    let end = world.now + secs(3600);
    serve_to(&mut world, end);
    let waited = |call: &usize| world.left_at(*call).expect("it left") - world.calls[*call].arrived;
    let waits = quiet.iter().map(waited).collect();
    world.wind_down();
    waits
}

/// Runs until `to`; calls take [`SERVICE`] upstream.
fn serve_to(world: &mut World, to: Moment) {
    loop {
        let out = world.calls.iter().enumerate().filter(|(_, record)| record.is_out());
        let ends = out.filter_map(|(call, record)| Some((record.left?.0 + SERVICE, call))).min();
        match (world.limiter.next_wakeup(), ends) {
            (Some(wakeup), ends) if wakeup <= to && ends.is_none_or(|(end, _)| wakeup <= end) => {
                world.pass_to(wakeup, &mut || Duration::ZERO);
            }
            (_, Some((end, call))) if end <= to => {
                world.pass_to(end, &mut || Duration::ZERO);
                world.end(call);
            }
            _ => break,
        }
    }
    world.pass_to(to, &mut || Duration::ZERO);
}

fn patient(policy: Policy) -> Policy {
    let queue = QueuePolicy { max_wait: secs(1_000_000), ..policy.queue };
    Policy { queue, ..policy }
}

/// Three flows want the only slot, and the first call costs as much as two others. The flow with the
/// dear call is the one that was there first, so a tie must not fall to it.
#[test]
fn p5_a_dear_call_lets_every_other_flow_have_as_many_turns() {
    let classes = vec![ClassPolicy { cost: Cost { least: 1, most: 2 }, ..class("default") }];
    let mut world = World::new(patient(Policy { in_flight: Some(slots(1)), classes, ..open() }));
    let mut out = world.arrive(Caller::new().of_flow(9));
    world.arrive(Caller { cost: 2, ..Caller::new() });
    for flow in [0, 0, 1, 1, 1, 2, 2, 2] {
        world.arrive(Caller { cost: 1, ..Caller::new().of_flow(flow) });
    }
    let mut order = Vec::new();
    while order.len() < 9 {
        world.end(out);
        world.pass(ms(1));
        out = (0..world.calls.len()).find(|call| world.calls[*call].is_out()).expect("one has the slot");
        order.push(world.calls[out].caller.flow);
    }
    assert_eq!(order, [0, 1, 2, 1, 2, 0, 1, 2, 0]);
}

proptest! {
    #![proptest_config(super::promises::config(12))]

    /// Ten flows have a tenth each; one of them offers a hundred times that.
    #[test]
    fn a_flow_that_offers_a_hundred_times_its_share_adds_a_turn_per_flow_to_the_others_wait(
        gaps in vec((0_u64..2_000, 1_u64..10), 5..40),
        jitter in 0_u64..10,
        by_slot in any::<bool>(),
        in_classes in any::<bool>(),
    ) {
        let mut policy = if by_slot {
            patient(Policy { in_flight: Some(slots(1)), ..open() })
        } else {
            patient(Policy { bucket: Some(bucket(10.0, 1)), ..open() })
        };
        if in_classes {
            policy.classes = vec![ClassPolicy { in_flight: policy.in_flight.take(), bucket: policy.bucket.take(), ..class("default") }];
        }
        let mut now = Moment::from_millis(500);
        let mut calls = Vec::new();
        for (gap, flow) in gaps {
            // No quiet flow offers more than its share.
            now += ms(gap);
            let last = calls.iter().rev().find(|(_, other)| *other == flow).map(|(at, _)| *at);
            if last.is_none_or(|last| now - last >= 10 * SERVICE) {
                calls.push((now, flow));
            }
        }
        let noise: Vec<_> = (0..now.as_nanos() / 10_000_000).map(|n| Moment::from_millis(10 * n + jitter)).collect();
        let without = waits(&policy, &calls, &[]);
        let with = waits(&policy, &calls, &noise);
        for ((call, without), with) in calls.iter().zip(without).zip(with) {
            prop_assert!(with <= without + 9 * SERVICE, "{call:?}: {without:?} alone, {with:?} beside the noise");
        }
    }
}
