//! The application behind the commands: builds gates from a configuration, serves calls, reloads,
//! executes operators' commands, and shuts down.
//!
//! `source` finds the configuration. `prepare` and `gate` build everything that can be built
//! without starting, for `check`, `run` and the demo. `serve` runs the result.

pub(crate) mod control_socket;
mod effective;
pub(crate) mod egress;
pub(crate) mod failure;
pub(crate) mod folder;
pub(crate) mod gate;
pub(crate) mod hub;
pub(crate) mod injection;
mod interception;
pub(crate) mod operations;
pub(crate) mod prepare;
pub(crate) mod reachable;
pub(crate) mod serve;
mod signals;
pub(crate) mod source;
mod state_file;
pub(crate) mod webhook;

mod reload;
mod reloads;

pub(crate) use self::failure::Failure;
