//! The signals that end the process.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A listener for SIGINT and SIGTERM.
pub(super) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

// === impl StopSignals ===

impl StopSignals {
    pub(super) fn listen() -> anyhow::Result<Self> {
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for the next signal, and returns its name.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

/// Starts to listen for a signal.
pub(super) fn listen(kind: SignalKind) -> anyhow::Result<Signal> {
    signal(kind).context("cannot listen for signals of the operating system")
}
