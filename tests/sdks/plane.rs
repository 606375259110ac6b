//! A Kubernetes API server for the controllers that run here: the control plane of
//! tests/kubernetes.

#![expect(dead_code, unused_imports, reason = "the tests against Kubernetes use the rest of it")]

#[path = "../kubernetes/support/audit.rs"]
pub(crate) mod audit;
#[path = "../kubernetes/support/binaries.rs"]
pub(crate) mod binaries;
#[path = "../kubernetes/support/control_plane.rs"]
pub(crate) mod control_plane;
#[path = "../kubernetes/support/process.rs"]
pub(crate) mod process;
#[path = "../kubernetes/support/relay.rs"]
pub(crate) mod relay;

pub(crate) use crate::fetched::{now, say};
pub(crate) use crate::wait::wait_for;
