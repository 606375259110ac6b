//! The proxy of tidegate: listeners, the path of a request, and the code driving the limiter.
//!
//! [`proxy`] has gates and the egress listener. [`places`] bounds the connections of any listener,
//! [`bind`] has bind errors and Unix sockets, [`body`] reads the bodies that a server discards.

#[macro_use]
pub extern crate tidegate_limit as limit;

#[macro_use]
mod words;

pub mod bind;
pub mod body;
pub mod places;
pub mod proxy;

use tidegate_call::{api, classify, dialect, hot};
use tidegate_config::spec;
use tidegate_limit::moment;
use tidegate_status as status;
use tidegate_telemetry::{clock, telemetry};
use tidegate_upstream::{Current, clients, credentials, error_chain, lock, tls, upstream};
