//! The limiter against the slow and obvious one of its tests: the fuzzer's bytes are the dice from which a life is made.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

#[path = "../../tests/it/limit/lives.rs"]
mod lives;
#[path = "../../tests/it/limit/model.rs"]
mod model;
#[path = "../../tests/it/limit/world.rs"]
mod world;

fuzz_target!(|dice: &[u8]| {
    // Without dice every choice is the first.
    let rng = TestRng::from_seed(RngAlgorithm::PassThrough, dice);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let Ok(life) = model::lives().new_tree(&mut runner) else { return };
    let (limits, story) = life.current();
    if let Err(error) = model::agree(limits.clone(), &story) {
        panic!("{error}\n{limits:?}{story:?}");
    }
});
