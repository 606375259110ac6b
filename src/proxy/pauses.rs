//! Logs when the upstream has asked for a pause, on which signal, and when it is over: one line
//! each.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::parts::GateParts;
use crate::{
    limit::snapshot::{PauseView, Paused},
    telemetry::GateMeters,
};

/// The pauses whose beginning is logged already.
#[derive(Debug, Default)]
struct PauseLog {
    known: Vec<Paused>,
}

/// Looks every second until it is `over`: shorter pauses show in the metrics.
pub(super) async fn watch(gate: Arc<GateParts>, over: CancellationToken) {
    let (mut log, clock) = (PauseLog::default(), gate.driver.clock());
    loop {
        tokio::select! {
            () = clock.sleep(EVERY) => log.look(&gate),
            () = over.cancelled() => return,
        }
    }
}

// === impl PauseLog ===

impl PauseLog {
    /// Looks at the limiter, and logs what has changed since the last look.
    fn look(&mut self, gate: &GateParts) {
        let Some(signal) = gate.last_signal.get().map(|signal| signal.word()) else { return };
        let (now, pauses) = gate.driver.look(|limiter, now| (now, limiter.pauses(now)));
        let meters = &gate.config.get().meters;
        let gate = &**meters.gate();
        for PauseView { who, until } in self.begun(&pauses) {
            let (who, lasts) = (name(who, meters), until - now);
            tracing::info!(gate, signal, who, ?lasts, "upstream asked for a pause");
        }
        for who in self.over(&pauses) {
            tracing::info!(gate, who = name(who, meters), "the pause is over");
        }
    }

    /// Returns the pauses that have begun since the last look.
    fn begun(&mut self, pauses: &[PauseView]) -> Vec<PauseView> {
        let new: Vec<PauseView> = pauses.iter().filter(|pause| !self.known.contains(&pause.who)).copied().collect();
        self.known.extend(new.iter().map(|pause| pause.who));
        new
    }

    /// Returns the pauses that have ended since the last look.
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
}
