//! The limiter against the slow and obvious one of its tests: the fuzzer's bytes are the dice from which a life is made.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

#[expect(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../../tests/it/limit/lives.rs"]
mod lives;
#[path = "../../tests/it/limit/model.rs"]
mod model;
#[expect(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../../tests/it/limit/world.rs"]
mod world;

/// Dice without an end, or a choice that is thrown again until it fits would be thrown for ever.
fn enough(dice: &[u8]) -> Vec<u8> {
    let mut state = dice.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)) | 1;
    let mut all = dice.to_vec();
    while all.len() < 128 << 10 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        all.extend_from_slice(&state.to_le_bytes());
    }
    all
}

fuzz_target!(|dice: &[u8]| {
    let rng = TestRng::from_seed(RngAlgorithm::PassThrough, &enough(dice));
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let Ok(life) = model::lives().new_tree(&mut runner) else { return };
    let (limits, story) = life.current();
    if let Err(error) = model::agree(limits.clone(), &story) {
        panic!("{error}\n{limits:?}{story:?}");
    }
});
