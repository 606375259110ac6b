//! `tidegate simulate`: the proxy's limiter under a virtual clock.
//!
//! `play` runs the controllers, leases and API of a scenario against a gate; [`replay`] sends a call
//! log through a hypothetical gate, [`recommend`] finds a bucket for it, and [`audit`] says who is loud
//! in it. All drive [`crate::limit::Limiter`] and read calls and answers
//! as the proxy does, so the simulated code is the code that runs. A run depends only on its input
//! and its seed.

pub mod audit;
mod builtin;
mod event_loop;
mod histogram;
mod picture;
mod play;
pub mod recommend;
pub mod replay;
pub mod report;
mod request;
mod series;
mod store;
mod tally;

use crate::spec;

pub use self::builtin::{ALL, Builtin, Setup, WrongParameter, find, usual};
pub use self::histogram::Histogram;
pub use self::picture::{Picture, rates};
pub use self::play::{ScenarioRun, Together, play};
pub use self::tally::{LeaseRow, Peak, Row};

/// Limits to simulate, with a name.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The name of the limits in the results.
    pub name: String,
    /// The settings of a gate with these limits.
    pub gate: spec::Gate,
}
