//! Connections to an upstream: how they are dialled, shared and given back.

pub(crate) mod dial;
pub(crate) mod http1;
pub(crate) mod streams;
pub(crate) mod support;
