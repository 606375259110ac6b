//! Reads a request as the API reads it, and what its response means.
//!
//! `kubernetes` reads paths as kube-apiserver's `RequestInfo` does, `external` reads other APIs by
//! method and path. Nothing here performs I/O. A [`Call`] is a *decoded copy* for matching and
//! naming: the gate always forwards the client's own bytes.

// In the path of a call nothing may panic: every exception states its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

pub mod apply;
pub mod call;
pub mod duration;
pub mod external;
pub mod grpc;
pub mod kubernetes;
pub mod names;
pub mod outcome;
mod path;
mod protobuf;
mod query;
mod selector;
pub mod signals;

pub use self::call::{Call, Verb};
pub use self::outcome::{Failures, PausePolicy, Rejection, Scope};
pub use self::query::query_pairs;
pub(crate) use self::query::unescape;
pub use self::signals::{Signal, Signals};
pub use crate::limit::key::{Group, Key, facet, written_facet};
pub use crate::limit::outcome::{Answer, Outcome, Pause, PauseLength, Removal};
