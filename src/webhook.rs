//! A mutating admission webhook that adds the sidecar to pods as they are made, with the code of
//! `inject`: for pods that operators make, whose YAML nobody pipes through a command.
//!
//! It answers one `AdmissionReview` at a time and keeps nothing. What it cannot do never stops a
//! cluster: it does not touch the pods of the system's namespaces and of its own, and unless it is
//! told to, it lets a pod that cannot have the sidecar pass with a warning. Its certificate comes
//! from files, or it makes its own, keeps the CA in a Secret that all replicas share, and writes it
//! into its configuration.

// In the path of a pod nothing may panic; every exception states its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

mod budget;
mod certificate;
mod options;
mod review;
mod server;

use std::net::SocketAddr;
use std::sync::Arc;

pub use self::certificate::{Certificate, Names};
pub use self::options::Check;
pub use self::review::{NotReview, review};
pub use self::server::{ListenError, Server};

use crate::inject;

/// The settings of a webhook.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The options of every injection; a pod's annotations win over them.
    pub options: inject::Options,
    /// Checks the limits that a pod's annotations set.
    pub check: Check,
    /// The fate of a pod that cannot have the sidecar.
    pub policy: Policy,
    /// The namespace that it runs in, whose pods it leaves alone.
    pub namespace: Option<Arc<str>>,
}

/// The fate of a pod that asks for the sidecar and cannot have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// It is made without, and its maker is warned.
    Ignore,
    /// It is not made, and its maker is told why.
    Fail,
}
