//! Buckets that several gates share through a store.

pub(crate) mod clocks;
pub(crate) mod failovers;
pub(crate) mod fleet;
pub(crate) mod lies;
pub(crate) mod outages;
pub(crate) mod relay;
pub(crate) mod relays;
pub(crate) mod reloads;
pub(crate) mod service;
pub(crate) mod store;
