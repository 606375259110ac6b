//! Hot objects, called too often or in vain, with their callers and the kind of loop.
//!
//! Pure, as the limiter is: the time is an argument, and news for the log are returned. A [`Sketch`]
//! counts the calls of each object in bounded memory. [`Loops`] watches those that it finds too often,
//! and finds the kind of loop. Objects are numbers here (salted hashes); only the few that are
//! watched have names.

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
