//! The application behind the commands: a configuration becomes gates that carry calls, take reloads and orders, and come to an orderly end.
//!
//! `source` says where the configuration comes from, `prepare` and `gate` build everything from it that can be built without starting (the
//! same way for `check`, `run` and the demo, so that they cannot disagree), `serve` runs it.

pub(crate) mod failure;
pub(crate) mod folder;
pub(crate) mod gate;
pub(crate) mod operations;
pub(crate) mod prepare;
pub(crate) mod reachable;
pub(crate) mod serve;
pub(crate) mod source;

mod reload;
mod reloads;

pub(crate) use self::failure::Failure;
