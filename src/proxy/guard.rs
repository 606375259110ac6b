//! The guard.
pub(crate) mod wire;
