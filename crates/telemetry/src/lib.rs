//! What tidegate lets its operators see, and the clock at its edge.
//!
//! [`telemetry`] has every metric in one table, the form of the log, and the call log. [`clock`] is
//! the one place that reads the time or sleeps. [`controls`] keeps characters that steer a terminal
//! out of what is shown.

#[macro_use]
pub extern crate tidegate_limit as limit;

pub mod clock;
pub mod controls;
pub mod telemetry;

use limit::moment;
use tidegate_call::api;
