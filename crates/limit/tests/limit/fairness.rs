//! Fairness over random crowds: the most that a noisy neighbour can cost.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_limit::Policy;

use super::promises::config;
use super::world::{Caller, World, bucket, ms, open, secs};

proptest! {
    #![proptest_config(config(60))]

    /// One flow offers up to a hundred times its share; a quiet one never has more than one call
    /// waiting. A quiet call then waits for its own turn and for at most one turn of every other
    /// flow, never for the crowd.
    #[test]
    fn p5_a_noisy_neighbour_costs_each_quiet_call_one_turn_of_every_flow(
        rate in 1_u32..200,
        flows in 2_u64..8,
        crowd in 1_usize..100,
        gaps in vec(0_u64..50, 10..60),
    ) {
        let period = secs(1).div_f64(f64::from(rate));
        let mut world = World::new(Policy { bucket: Some(bucket(f64::from(rate), 1)), ..open() });
        let mut quiet = Vec::new();
        for (turn, gap) in (0_u64..).zip(gaps) {
            for _ in 0..crowd {
                world.arrive(Caller::new());
            }
            let flow = 1 + turn % (flows - 1).max(1);
            let waits = quiet.iter().any(|call: &usize| world.calls[*call].caller.flow == flow && world.calls[*call].left.is_none());
            if !waits {
                quiet.push(world.arrive(Caller::new().of_flow(flow)));
            }
            world.pass(ms(gap));
        }
        world.pass(secs(60));
        let others = u32::try_from(flows).expect("few");
        for call in quiet {
            let record = &world.calls[call];
            let left = record.left.map(|(at, _)| at);
            prop_assert!(left.is_some(), "flow {} starves", record.caller.flow);
            let waited = left.map_or(Duration::ZERO, |at| at - record.arrived);
            prop_assert!(waited <= period * (others + 1), "flow {} waited {waited:?}, {period:?} each", record.caller.flow);
        }
    }
}
