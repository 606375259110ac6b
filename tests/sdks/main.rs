//! The SDKs of AWS, Azure, Google and GitHub behind a gate that speaks their provider's dialect.
//!
//! A refusal must be retried where the SDK retries, and be reported as its own throttling error
//! when attempts run out; a failure of the upstream as its own service error. SDKs are fetched once
//! into a per-user cache, with their versions pinned in `clients/` and `go/`; a test whose SDK
//! cannot be had says that it was skipped, and `TIDEGATE_REQUIRE_KUBERNETES=1` makes that a
//! failure.

#[path = "../support/fetched.rs"]
mod fetched;
mod gate;
#[path = "../support/ports.rs"]
mod ports;
mod programs;
mod refused;
mod upstream;
