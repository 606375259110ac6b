//! A mutating admission webhook that adds the sidecar to new pods. It does the same as `inject`,
//! for pods created by operators: their YAML never passes through that command.
//!
//! It answers one `AdmissionReview` at a time and stores nothing. It cannot stop a cluster: it
//! ignores pods in the system's namespaces and its own, and by default a pod that cannot have the
//! sidecar is created without it, with a warning. Its certificate comes from files, or from a CA of
//! its own. It stores that CA in a Secret, for all replicas, and publishes it in its webhook
//! configuration.

// In the path of a pod nothing may panic; every exception states its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

mod budget;
mod certificate;
mod namespaces;
mod options;
mod policies;
mod review;
mod server;

use std::net::SocketAddr;
use std::sync::Arc;

pub use self::certificate::{Certificate, ObjectNames};
pub use self::namespaces::Namespaces;
pub use self::options::Check;
pub use self::policies::Policies;
pub use self::review::{NotReview, review};
pub use self::server::Server;

use crate::inject;

/// The settings of a webhook.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The options for adding the sidecar to a pod; the pod's annotations override them.
    pub options: inject::Options,
    /// The function that checks the limits in a pod's annotations.
    pub check: Check,
    /// The policies, which also give the sidecar to pods without a label.
    pub policies: Option<Arc<Policies>>,
    /// The reader of the namespaces that policies are about.
    pub namespaces: Option<Arc<Namespaces>>,
    /// What to do with pods that cannot have the sidecar.
    pub policy: Policy,
    /// The webhook's own namespace; pods in it do not get the sidecar.
    pub namespace: Option<Arc<str>>,
}

words! {
    /// What to do with pods that ask for the sidecar and cannot have it.
    pub enum Policy {
        /// The pod is created without the sidecar, with a warning.
        Ignore = "ignore",
        /// The pod is not created, and the error says why.
        Fail = "fail",
    }
}
