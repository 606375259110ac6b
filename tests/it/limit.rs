//! The limiter's promises, in virtual time: random lives of a gate, judged from the list of what happened.

mod scenarios;
mod world;
