//! What a call is: the request read as the API reads it, and what its response means.
//!
//! `kubernetes` reads paths as kube-apiserver's `RequestInfo` does, `plain` reads external APIs by method and path. Nothing here performs
//! I/O. A [`Call`] is a *decoded copy* for matching and naming: what is forwarded is always the client's own bytes.

pub mod call;
pub mod outcome;

pub use self::{
    call::{Call, Group, Key, Verb},
    outcome::{Answer, Outcome},
};
