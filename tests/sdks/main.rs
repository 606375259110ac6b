//! The SDKs of AWS, Azure, Google, GitHub and others behind a gate that speaks their provider's dialect.
//!
//! A refusal must be retried where the SDK retries, and be reported as its own throttling error
//! when attempts run out; a failure of the upstream as its own service error; and a signature must
//! stay good. Each SDK is a program (`clients/`, `go/`, `rust/`, `cert-manager/`) that makes the calls it is told to. They
//! are fetched once into a per-user cache, with their versions pinned; a test whose SDK cannot be
//! had says that it was skipped, and `TIDEGATE_LIVE=1` makes that a failure.

mod ack;
mod fickle;
mod gate;
mod github;
mod grpc;
mod hub;
mod intercepted;
mod kept;
mod matrix;
mod operators;
mod pod;
mod programs;
mod quotas;
mod reached;
mod recorded;
mod refused;
mod relay;
mod signed;
mod stage;
mod suite;
mod telemetry;
mod upstream;
mod wire;

use testing::{admin, fetched, java, live, ports, wait, window};
