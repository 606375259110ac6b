//! A mutating admission webhook adding the sidecar to new pods. It uses the code of `inject`,
//! for pods made by operators, whose YAML passes through no command.
//!
//! It answers one `AdmissionReview` at a time and keeps nothing. It cannot stop a cluster: it
//! leaves out the pods of the system's namespaces and of its own, and by default a pod that cannot
//! have the sidecar is made with a warning. Its certificate comes from files. Or it makes its own,
//! keeps the CA in a Secret for all replicas, and writes it into its configuration.

// In the path of a pod nothing may panic; every exception states its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

mod budget;
mod certificate;
mod options;
mod review;
mod server;

use std::net::SocketAddr;
use std::sync::Arc;

pub use self::certificate::{Certificate, ObjectNames};
pub use self::options::Check;
pub use self::review::{NotReview, review};
pub use self::server::Server;

use crate::inject;

/// The settings of a webhook.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The options for adding the sidecar to any pod; a pod's annotations take precedence.
    pub options: inject::Options,
    /// Checks the limits in a pod's annotations.
    pub check: Check,
    /// What to do with pods that cannot have the sidecar.
    pub policy: Policy,
    /// The webhook's own namespace; pods in it are left out.
    pub namespace: Option<Arc<str>>,
}

/// What to do with pods that ask for the sidecar and cannot have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The pod is made without the sidecar, with a warning.
    Ignore,
    /// The pod is not made, and the error says why.
    Fail,
}
