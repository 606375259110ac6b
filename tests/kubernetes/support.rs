//! The basis of the tests: the control plane, the gate in front of it, clients and the audit log.

pub(crate) mod audit;
pub(crate) mod binaries;
pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod control_plane;
pub(crate) mod gate;
pub(crate) mod in_pod;
pub(crate) mod installed;
pub(crate) mod large;
pub(crate) mod pods;
pub(crate) mod process;
pub(crate) mod programs;
pub(crate) mod relay;
pub(crate) mod turn;
pub(crate) mod webhook;
pub(crate) mod widgets;

use std::time::Duration;

pub(crate) use crate::fetched::{now, say};

/// Repeats `check` until it returns something; panics with `what` when `within` has passed.
pub(crate) fn wait_for<T>(what: &str, within: Duration, mut check: impl FnMut() -> Option<T>) -> T {
    let start = now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(start.elapsed() < within, "not within {within:?}: {what}");
        pause(Duration::from_millis(20));
    }
}

/// Lets real time pass, between two looks or because a test is about a time.
#[expect(clippy::disallowed_methods, reason = "a real control plane runs on real time")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

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
