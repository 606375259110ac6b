//! The proxy: listeners, the path of a request, and the driver of the limiter between them.
//!
//! A [`Gate`] is one listener and one upstream with the limits between them. `stack` has the path
//! in one place, `admission` the waiting, `driver` the limiter in real time; `guard`, `observe` and
//! `respond` are the layers around. `egress` is a forward proxy, which makes a gate for each host
//! and port it is asked for.

// In the path of a call nothing may panic: what could is written down with its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

mod admission;
mod body;
mod driver;
mod egress;
mod events;
mod failure;
mod forward;
mod gate;
mod gate_config;
mod gauges;
mod guard;
mod hosts;
mod hub;
mod listener;
mod observe;
mod options;
mod parts;
mod pauses;
mod peer;
mod quotas;
mod respond;
mod revalidate;
mod section;
mod share;
mod siblings;
mod stack;
mod stores;
mod tally;
mod tunnel;
mod view;

pub use self::egress::CLEAR;
pub use self::egress::{
    Directory, EgressListener, EgressOptions, Fate, First, Host, Origin, TargetError, first, judge,
};
pub use self::gate::Gate;
pub use self::hub::{Hub, HubCluster, HubClusters, NoCluster, OpenCluster};
pub use self::options::{Options, Past};
pub use self::stores::{Done, Stores};
pub use crate::bind::BindError;
pub use crate::limit::snapshot::{Changes, Gap};
pub use crate::spec::{Listen, RetryAfter};

#[cfg(test)]
#[path = "proxy/tests/conservation.rs"]
mod conservation;
