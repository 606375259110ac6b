//! Logs the beginning of each pause with its signal, and its end: one line each.

use super::parts::GateParts;
use super::quotas::QuotaReserve;
use crate::api::Signal;
use crate::limit::snapshot::{PauseTarget, PauseView};
use crate::lock;
use crate::status::text::duration;
use crate::telemetry::GateMeters;

/// The pauses in the log. A pause shorter than the time between two looks shows in the metrics
/// only.
#[derive(Debug, Default)]
pub(super) struct PauseLog {
    known: Vec<PauseTarget>,
}

impl PauseLog {
    /// Looks at the limiter, and logs what has changed since the last look.
    pub(super) fn look(&mut self, gate: &GateParts) {
        let signal = lock(&gate.last_signal).map_or("", Signal::word);
        let (now, pauses) = gate.driver.look(|limiter, now| (now, limiter.pauses(now)));
        let config = gate.config.get();
        let meters = &config.meters;
        let quotas = &gate.tally.quotas;
        let gate = &*meters.gate;
        let (begun, over) = changes(&mut self.known, &pauses);
        for PauseView { who, until, heard } in begun {
            let whose = if let PauseTarget::Credential(whose) = who { Some(whose) } else { None };
            let kept = quotas.kept(whose, config.options.gate.answers.throttling.reserve, until, now);
            let who = name(who, meters);
            let lasts = duration((until - now).as_secs_f64());
            if heard {
                tracing::info!(gate, who, lasts, "pausing: another gate that shares this bucket was told to wait");
            } else if let Some(QuotaReserve { left, limit }) = kept {
                tracing::info!(
                    gate,
                    signal,
                    who,
                    lasts,
                    left,
                    limit,
                    "pausing: signals.reserve keeps what is left of the quota"
                );
            } else {
                tracing::info!(gate, signal, who, lasts, "upstream asked for a pause");
            }
        }
        for who in over {
            tracing::info!(gate, who = name(who, meters), "the pause is over");
        }
    }
}

/// Returns the new pauses and the ended ones, and updates `known`.
fn changes(known: &mut Vec<PauseTarget>, pauses: &[PauseView]) -> (Vec<PauseView>, Vec<PauseTarget>) {
    let over = known.extract_if(.., |who| !pauses.iter().any(|pause| pause.who == *who)).collect();
    let begun: Vec<PauseView> = pauses.iter().filter(|pause| !known.contains(&pause.who)).copied().collect();
    known.extend(begun.iter().map(|pause| pause.who));
    (begun, over)
}

fn name(who: PauseTarget, meters: &GateMeters) -> String {
    match who {
        PauseTarget::Class(class) => format!("class {}", meters.class_name(class)),
        PauseTarget::Credential(_) => "one credential".to_owned(),
        PauseTarget::OtherCredentials => "many credentials".to_owned(),
        PauseTarget::Gate => "gate".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::ClassId;
    use crate::moment::Moment;

    #[test]
    fn each_pause_is_told_when_it_begins_and_when_it_ends() {
        let pause = |who| PauseView { who, until: Moment::from_millis(1000), heard: false };
        let (gate, class) = (pause(PauseTarget::Gate), pause(PauseTarget::Class(ClassId(1))));
        let mut known = Vec::new();
        assert_eq!(changes(&mut known, &[gate]), (vec![gate], vec![]));
        assert_eq!(changes(&mut known, &[gate, class]), (vec![class], vec![]));
        assert_eq!(changes(&mut known, &[class]), (vec![], vec![PauseTarget::Gate]));
        assert_eq!(changes(&mut known, &[]), (vec![], vec![PauseTarget::Class(ClassId(1))]));
        assert_eq!(changes(&mut known, &[gate]), (vec![gate], vec![]), "again");
    }
}
