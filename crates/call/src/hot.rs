//! Hot objects (called too often or in vain), with their callers and the kind of loop.
//!
//! A loop is a caller, such as a controller, that repeats calls of an object again and again. This
//! code does no I/O: the time is an argument, and log entries are returned. A [`Sketch`] counts the
//! calls of each object in bounded memory. [`Loops`] records the calls of hot objects, and
//! determines the kind of loop; the rules for calls in vain are those of a [`Detector`], which reads
//! logs too. Objects are numbers here (salted hashes); names are kept only for what may be a loop.

// In the path of a call nothing may panic: every exception states its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

mod body;
mod denied;
mod detector;
mod found;
mod loops;
mod repeats;
mod seen;
mod watched;
mod written;

#[cfg(test)]
mod tests;

pub use self::body::{digest, is_time};
pub use self::detector::Detector;
pub use self::found::{FoundLoop, HotCaller, LoopKind, News};
pub use self::loops::{Loops, in_direction};
pub use self::repeats::Proof;
pub use self::seen::{Act, CallNames, Content, ObjectCall, RefusalKind};
pub use crate::limit::sketch::{Pace, PerKey, Sketch, in_class};
