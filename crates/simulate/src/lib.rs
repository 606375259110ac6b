//! Simulations of a gate: controllers and an API under a virtual clock, and charts of the results.
//!
//! [`simulate`] runs scenarios and replays logs through the limiter that the proxy runs.
//! [`controller`] has a controller's workqueue and lease. [`chart`] draws the result.

mod agenda;
pub mod chart;
pub mod controller;
pub mod random;
pub mod simulate;

use tidegate_call::{api, classify, hot};
use tidegate_config::{config, spec};
use tidegate_limit::{self as limit, moment};
use tidegate_status as status;
