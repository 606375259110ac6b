//! The parts of a gate that its calls share.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::{driver, gate_config, respond, revalidate, tally};
use crate::api::Signal;
use crate::classify::Salt;
use crate::clients::Clients;
use crate::upstream::Upstream;

/// The parts of a gate that its calls share.
pub(crate) struct GateParts {
    pub(crate) config: Arc<gate_config::CurrentConfig>,
    pub(crate) tally: Arc<tally::Tally>,
    pub(crate) responder: Arc<respond::Responder>,
    pub(crate) driver: driver::Driver,
    pub(crate) upstream: Upstream,
    /// Makes identical calls that wait one, if the configuration says so.
    /// The answers that are kept, by classes whose answers are.
    pub(crate) answers: revalidate::Answers,
    pub(crate) last_signal: LastSignal,
    /// Tells who makes a call, where the gate asks. Only a restart changes it.
    pub(crate) clients: Option<Arc<Clients>>,
    pub(crate) hasher: Salt,
    /// True if every call is decided, and every call is let through. Only a restart changes it.
    pub(crate) shadow: bool,
}

/// The signal that asked for the last pause; it outlives the answer that it came with.
#[derive(Default)]
pub(crate) struct LastSignal(AtomicUsize);

impl LastSignal {
    pub(crate) fn set(&self, signal: Signal) {
        self.0.store(signal as usize + 1, Relaxed);
    }

    /// Returns the signal, if there ever was a pause.
    pub(crate) fn get(&self) -> Option<Signal> {
        Signal::ALL.get(self.0.load(Relaxed).checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_signal_is_remembered() {
        let last = LastSignal::default();
        assert_eq!(last.get(), None);
        for signal in Signal::ALL {
            last.set(signal);
            assert_eq!(last.get(), Some(signal));
        }
    }
}
