//! Reads what a call to an API means, and what its response means.
//!
//! [`api`] reads a request as the API reads it, and what its response means. [`dialect`] reads a
//! cloud provider's request. [`classify`] gives a call its class, flow and key. [`hot`] finds
//! objects that are called too often. Nothing here performs I/O.

#[macro_use]
pub extern crate tidegate_limit as limit;

pub mod api;
pub mod classify;
pub mod dialect;
pub mod hot;

pub use limit::moment;
