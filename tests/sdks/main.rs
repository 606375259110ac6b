//! The SDKs of AWS, Azure, Google and GitHub behind a gate that speaks their provider's dialect.
//!
//! A refusal must be retried where the SDK retries, and be reported as its own throttling error
//! when attempts run out; a failure of the upstream as its own service error; and a signature must
//! stay good. Each SDK is a program (`clients/`, `go/`, `rust/`, `cert-manager/`) that makes the calls it is told to. They
//! are fetched once into a per-user cache, with their versions pinned; a test whose SDK cannot be
//! had says that it was skipped, and `TIDEGATE_LIVE=1` makes that a failure.

mod ack;
#[path = "../support/admin.rs"]
mod admin;
#[path = "../support/fetched.rs"]
mod fetched;
mod fickle;
mod gate;
mod github;
mod grpc;
mod hub;
mod intercepted;
#[path = "../support/java.rs"]
mod java;
mod kept;
mod matrix;
mod operators;
mod plane;
mod pod;
#[path = "../support/ports.rs"]
mod ports;
mod programs;
mod reached;
mod recorded;
mod refused;
mod relay;
mod signed;
mod stage;
mod suite;
mod telemetry;
mod upstream;
#[path = "../support/wait.rs"]
mod wait;
#[path = "../support/window.rs"]
mod window;
mod wire;
