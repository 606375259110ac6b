//! Hot objects, called too often or in vain, with their callers and what kind of loop it is.
//!
//! This does no I/O, as the limiter: the time is an argument, and what is to be logged is returned.
//! A [`Sketch`] counts the calls of each object in bounded memory. [`Loops`] records the calls of
//! those called too often, and determines the kind of loop. Objects are numbers here (salted
//! hashes); only those in a loop have names.

// In the path of a call nothing may panic: every exception states its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

mod body;
mod denied;
mod loops;
mod recent;
mod report;
mod seen;
mod watched;

#[cfg(test)]
mod tests;

pub use self::body::digest;
pub use self::loops::{Loops, in_direction};
pub use self::report::{News, Report};
pub use self::seen::{CallNames, ObjectCall, RefusalKind};
pub use crate::limit::sketch::{Pace, PerKey, Sketch, in_class};
