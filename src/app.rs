//! The application behind the commands: it turns a configuration into gates that carry calls, take
//! reloads and orders, and shut down in order.
//!
//! `source` finds the configuration. `prepare` and `gate` build everything from it that can be
//! built without starting; `check`, `run` and the demo all use them, so that they cannot disagree.
//! `serve` runs the result.

pub(crate) mod control_socket;
mod effective;
pub(crate) mod egress;
pub(crate) mod failure;
pub(crate) mod folder;
pub(crate) mod gate;
pub(crate) mod injection;
mod interception;
pub(crate) mod operations;
pub(crate) mod prepare;
pub(crate) mod reachable;
pub(crate) mod serve;
pub(crate) mod source;
mod state_file;
pub(crate) mod webhook;

mod memory;
mod reload;
mod reloads;

pub(crate) use self::failure::Failure;
