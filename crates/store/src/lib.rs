//! Token buckets shared by processes, on Valkey or Redis, or in the memory of one process.

pub mod store;

use tidegate_config::spec;
use tidegate_limit::{self as limit, moment};
use tidegate_telemetry::{clock, telemetry};
use tidegate_upstream::{credentials, tls};
