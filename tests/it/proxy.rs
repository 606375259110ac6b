//! Requests through a gate, from a client to an upstream in this process.

pub(crate) mod bodies;
pub(crate) mod denials;
pub(crate) mod early;
pub(crate) mod external;
pub(crate) mod failures;
pub(crate) mod fidelity;
pub(crate) mod forms;
pub(crate) mod grpc;
pub(crate) mod hangups;
pub(crate) mod hot;
pub(crate) mod keys;
pub(crate) mod names;
pub(crate) mod privileges;
pub(crate) mod refusals;
pub(crate) mod revalidate;
pub(crate) mod shadow;
pub(crate) mod signals;
pub(crate) mod tls;
pub(crate) mod trailers;
pub(crate) mod transparency;
pub(crate) mod upgrade_limits;
pub(crate) mod upgrades;
