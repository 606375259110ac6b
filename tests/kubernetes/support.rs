//! The basis of the tests: the control plane, the gate in front of it, clients and the audit log.

pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod fake_clock;
pub(crate) mod gate;
pub(crate) mod in_pod;
pub(crate) mod installed;
pub(crate) mod large;
pub(crate) mod pods;
pub(crate) mod programs;
pub(crate) mod webhook;
pub(crate) mod widgets;

use std::time::Duration;

pub(crate) use testing::{audit, binaries, control_plane, process, turn};

pub(crate) use crate::fetched::{now, say};
pub(crate) use crate::wait::{pause, wait_for};

/// Runs the asynchronous part of a test in its own runtime.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be built")
        .block_on(work)
}

/// The value below which the given fraction of the samples lies.
pub(crate) fn quantile(samples: &[Duration], fraction: f64) -> Duration {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    assert!(!sorted.is_empty(), "a quantile of nothing");
    let last = sorted.len() - 1;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index into a few thousand samples"
    )]
    let index = (last as f64 * fraction).round() as usize;
    sorted[index.min(last)]
}
