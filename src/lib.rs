//! tidegate: a sidecar against rejected API calls. It delays a client's calls, in fair order, so
//! that they keep to a rate.
//!
//! A call is read as verb and resource ([`api`]). These give its class, its flow and its key
//! ([`classify`]). The limiter ([`limit`]), a value without I/O, decides: send it now, let it wait,
//! or refuse it with a retry time. The proxy ([`proxy`]) waits and forwards; [`upstream`] has the
//! connections. ARCHITECTURE.md has the map.

pub extern crate tidegate_call as call;
#[macro_use]
pub extern crate tidegate_limit as limit;
pub extern crate tidegate_status as status;

pub mod admin;
mod app;
pub mod cli;
pub mod demo;
mod otlp;
pub mod release;
pub mod state;
pub mod webhook;

pub use call::{api, classify, dialect, hot};
pub use limit::moment;
pub use tidegate_config::{config, spec, yaml};
pub use tidegate_inject::inject;
pub use tidegate_proxy::proxy;
pub use tidegate_simulate::{chart, simulate};
pub use tidegate_store::store;
pub use tidegate_telemetry::{clock, controls, telemetry};
pub use tidegate_upstream::{clients, credentials, own_client, tls, upstream};

use tidegate_proxy::{bind, body, places};
use tidegate_simulate::{controller, random};
use tidegate_upstream::{Current, error_chain, lock};
