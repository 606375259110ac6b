//! Says when the upstream has made somebody wait, on whose signal, and when that is over: one line each.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{driver::Driver, gate_config::CurrentConfig};
use crate::{
    api::Signal,
    limit::snapshot::{PauseView, Paused},
    telemetry::GateMeters,
};

/// The signal that asked for the last pause; it outlives the answer that it came with.
#[derive(Debug, Default)]
pub(crate) struct LastSignal(AtomicUsize);

/// What has been said so far.
#[derive(Debug, Default)]
struct PauseLog {
    known: Vec<Paused>,
}

/// Looks every second until it is `over`: a pause of less is what the metrics are for.
pub(super) async fn watch(
    driver: Driver,
    last_signal: Arc<LastSignal>,
    config: Arc<CurrentConfig>,
    over: CancellationToken,
) {
    let (mut log, clock) = (PauseLog::default(), driver.clock());
    loop {
        tokio::select! {
            () = clock.sleep(EVERY) => log.look(&driver, &last_signal, &config.get().meters),
            () = over.cancelled() => return,
        }
    }
}

// === impl LastSignal ===

impl LastSignal {
    /// A pause was asked for.
    pub(crate) fn set(&self, signal: Signal) {
        let place = Signal::ALL.iter().position(|known| *known == signal).unwrap_or_default();
        self.0.store(place + 1, Relaxed);
    }

    /// Who asked for the last one, if there ever was one.
    fn get(&self) -> Option<Signal> {
        Signal::ALL.get(self.0.load(Relaxed).checked_sub(1)?).copied()
    }
}

// === impl PauseLog ===

impl PauseLog {
    /// Looks at the limiter, and says what has changed since the last look.
    fn look(&mut self, driver: &Driver, last_signal: &LastSignal, meters: &GateMeters) {
        let Some(signal) = last_signal.get() else { return };
        let (now, pauses) = driver.look(|limiter, now| (now, limiter.pauses(now)));
        for PauseView { who, until } in self.begun(&pauses) {
            let (who, lasts) = (name(who, meters), until - now);
            tracing::info!(
                gate = &**meters.gate(),
                signal = signal.word(),
                who,
                ?lasts,
                "the upstream said wait: paused"
            );
        }
        for who in self.over(&pauses) {
            tracing::info!(gate = &**meters.gate(), who = name(who, meters), "the pause is over");
        }
    }

    /// Pauses that were not known, and are now.
    fn begun(&mut self, pauses: &[PauseView]) -> Vec<PauseView> {
        let new: Vec<PauseView> = pauses.iter().filter(|pause| !self.known.contains(&pause.who)).copied().collect();
        self.known.extend(new.iter().map(|pause| pause.who));
        new
    }

    /// Pauses that were known, and are over.
    fn over(&mut self, pauses: &[PauseView]) -> Vec<Paused> {
        let is_on = |who: &Paused| pauses.iter().any(|pause| pause.who == *who);
        self.known.extract_if(.., |who| !is_on(who)).collect()
    }
}

fn name(who: Paused, meters: &GateMeters) -> String {
    match who {
        Paused::Class(class) => format!("class {}", meters.class_name(class)),
        Paused::Credential(_) => "one credential".to_owned(),
        Paused::OtherCredentials => "many credentials".to_owned(),
        Paused::Gate => "gate".to_owned(),
    }
}

const EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{limit::ClassId, moment::Moment};

    #[test]
    fn each_pause_is_told_when_it_begins_and_when_it_ends() {
        let pause = |who| PauseView { who, until: Moment::from_millis(1000) };
        let (gate, class) = (pause(Paused::Gate), pause(Paused::Class(ClassId(1))));
        let mut log = PauseLog::default();
        assert_eq!(log.begun(&[gate]), [gate]);
        assert_eq!((log.begun(&[gate, class]), log.over(&[gate, class])), (vec![class], vec![]));
        assert_eq!((log.begun(&[class]), log.over(&[class])), (vec![], vec![Paused::Gate]));
        assert_eq!(log.over(&[]), [Paused::Class(ClassId(1))]);
        assert_eq!(log.begun(&[gate]), [gate], "again");
    }

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
