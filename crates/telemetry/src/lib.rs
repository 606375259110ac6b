//! Metrics, logs and the clock of tidegate.
//!
//! [`telemetry`] has every metric in one table, the format of the log, and the call log. Only
//! [`clock`] reads the time or sleeps. [`controls`] finds characters that would control a terminal.

#[macro_use]
pub extern crate tidegate_limit as limit;

pub mod clock;
pub mod controls;
pub mod telemetry;

use limit::moment;
use tidegate_call::api;
