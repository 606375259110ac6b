//! What a call is: the request read as the API reads it, and what its response means.
//!
//! `kubernetes` reads paths as kube-apiserver's `RequestInfo` does, `plain` reads external APIs by method and path. Nothing here performs
//! I/O. A [`Call`] is a *decoded copy* for matching and naming: what is forwarded is always the client's own bytes.

// In the path of a call nothing may panic: what could is written down with its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

pub mod apply;
pub mod call;
pub mod duration;
pub mod key;
pub mod kubernetes;
pub mod names;
pub mod outcome;
mod path;
pub mod plain;
mod query;
mod selector;
pub mod signals;

pub use self::{
    call::{Call, Verb},
    key::{Group, Key, facet, written_facet},
    outcome::{Answer, Failures, Gone, Outcome, Pause, PauseLength, Rejection, Scope, Throttling},
    signals::{Signal, Signals},
};

/// The well-formed pairs of a query in order, escapes undone.
pub fn query_pairs(
    query: Option<&str>,
) -> impl Iterator<Item = (std::borrow::Cow<'_, str>, std::borrow::Cow<'_, str>)> {
    query::pairs(query).map(|(name, value)| (query::unescape(name), query::unescape(value)))
}
