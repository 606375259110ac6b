//! Hot objects: which objects are called more often than one object should be, by which clients,
//! and in which way.
//!
//! Pure, as the limiter is: the time is an argument, and what is worth a line in the log is
//! returned. A [`Sketch`] counts the calls of each object in bounded memory. What it finds too
//! often is watched closely by [`Loops`], which tells what kind of loop it is. Objects are numbers
//! here (salted hashes); names come in only for the few that are watched.

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
pub use self::seen::{Names, Refused, Seen};
pub use crate::limit::sketch::{Pace, PerKey, Sketch, in_class};
