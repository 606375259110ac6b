//! The limiter against the slow and simple model of its tests: the fuzzer's bytes are the seed of
//! the random choices that make up a run.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

#[expect(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../../crates/limit/tests/limit/lives.rs"]
mod lives;
#[path = "../../crates/limit/tests/limit/model.rs"]
mod model;
#[expect(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../../crates/limit/tests/limit/world.rs"]
mod world;

/// Makes a seed in which every byte counts. The bytes themselves cannot be the random choices:
/// proptest halves what is left with every choice among choices, and loops without end once nothing
/// is left.
fn seed(bytes: &[u8]) -> [u8; 32] {
    let mut seed = [0; 32];
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for (place, byte) in bytes.iter().chain(&[0; 32]).enumerate() {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        seed[place % 32] ^= (sum >> 32) as u8;
    }
    seed
}

fuzz_target!(|bytes: &[u8]| {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed(bytes));
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let Ok(life) = model::lives().new_tree(&mut runner) else { return };
    let (limits, story) = life.current();
    if let Err(error) = model::agree(limits.clone(), &story) {
        panic!("{error}\n{limits:?}{story:?}");
    }
});
