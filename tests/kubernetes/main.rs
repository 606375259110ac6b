//! The gate against a real kube-apiserver, judged by the server's own audit log.
//!
//! The control plane is built from Go modules once into a per-user cache. Without Go every test here says
//! that it was skipped and passes; `TIDEGATE_REQUIRE_KUBERNETES=1` makes that a failure. A topic per module.

mod backoff;
mod credentials;
mod exec;
mod hangup;
mod kube_rs;
mod kubectl;
mod leader;
mod outage;
mod rate;
mod smoke;
mod streams;
mod support;
mod throttled;
