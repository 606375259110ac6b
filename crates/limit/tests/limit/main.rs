//! The limiter's promises, in virtual time: random runs of a gate, judged from the record of what
//! happened.

mod adaptive;
mod fairness;
mod fleet;
mod house;
mod judge;
mod lives;
mod model;
mod neighbours;
mod one_by_one;
mod opening;
mod pace;
mod pauses;
mod per_key;
mod promises;
mod quotas;
mod retries;
mod scenarios;
mod shared;
mod shared_histories;
mod shared_parts;
mod slices;
mod uncounted;
mod world;
mod writes;

/// The number of random histories of shared buckets: `PROPTEST_CASES`, which CI sets to 1,000.
fn shared_cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(100)
}
