//! The limiter's promises, in virtual time: random lives of a gate, judged from the list of what happened.

mod adaptive;
mod judge;
mod lives;
mod model;
mod pauses;
mod promises;
mod scenarios;
mod world;
mod writes;
