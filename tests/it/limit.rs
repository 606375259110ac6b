//! The limiter's promises, in virtual time: random runs of a gate, judged from the record of what
//! happened.

mod adaptive;
mod fairness;
mod judge;
mod keys;
mod lives;
mod model;
mod neighbours;
mod one_by_one;
mod opening;
mod pauses;
mod promises;
mod retries;
mod scenarios;
mod slices;
mod world;
mod writes;
