//! The limiter's promises, in virtual time: random lives of a gate, judged from the list of what happened.

mod fairness;
mod judge;
mod lives;
mod model;
mod promises;
mod scenarios;
mod world;
