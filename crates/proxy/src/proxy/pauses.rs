//! Logs each pause with one line at its beginning, with its cause, and one at its end.

use super::parts::GateParts;
use super::quotas::QuotaReserve;
use crate::api::Signal;
use crate::limit::quota::QuotaId;
use crate::limit::snapshot::PauseView;
use crate::lock;
use crate::status::text::duration;

/// The pauses with a logged beginning. A pause shorter than a second may fall between two checks,
/// and then appears only in the metrics.
#[derive(Debug, Default)]
pub(super) struct PauseLog {
    known: Vec<QuotaId>,
}

impl PauseLog {
    /// Logs the pauses that began or ended since the last check.
    pub(super) fn look(&mut self, gate: &GateParts) {
        let signal = lock(&gate.last_signal).map_or("", Signal::word);
        let (now, pauses) = gate.driver.look(|limiter, now| (now, limiter.pauses(now)));
        let config = gate.config.get();
        let quotas = &gate.tally.quotas;
        let name = |quota| quotas.describe(quota, &config.options.gate.policy);
        let gate = &*config.meters.gate;
        let (begun, over) = changes(&mut self.known, &pauses);
        for PauseView { quota, until, heard } in begun {
            let kept = quotas.kept(quota, config.options.gate.answers.throttling.reserve, until, now);
            let who = name(quota);
            let lasts = duration((until - now).as_secs_f64());
            if heard {
                tracing::info!(gate, who, lasts, "pausing: a gate that shares this bucket was asked for a pause");
            } else if let Some(QuotaReserve { left, limit }) = kept {
                tracing::info!(
                    gate,
                    signal,
                    who,
                    lasts,
                    left,
                    limit,
                    "pausing: what is left of the upstream's quota is reserved (signals.reserve)"
                );
            } else {
                tracing::info!(gate, signal, who, lasts, "pausing: the upstream asked for it");
            }
        }
        for quota in over {
            tracing::info!(gate, who = name(quota), "the pause is over: calls go on");
        }
    }
}

/// Returns the new pauses and the ended ones, and updates `known`.
fn changes(known: &mut Vec<QuotaId>, pauses: &[PauseView]) -> (Vec<PauseView>, Vec<QuotaId>) {
    let over = known.extract_if(.., |quota| !pauses.iter().any(|pause| pause.quota == *quota)).collect();
    let begun: Vec<PauseView> = pauses.iter().filter(|pause| !known.contains(&pause.quota)).copied().collect();
    known.extend(begun.iter().map(|pause| pause.quota));
    (begun, over)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::quota::ResourceId;
    use crate::moment::Moment;

    #[test]
    fn each_pause_is_told_when_it_begins_and_when_it_ends() {
        let pause = |quota| PauseView { quota, until: Moment::from_millis(1000), heard: false };
        let class_quota = QuotaId { holder: 0, resource: ResourceId::of_class("reads") };
        let (gate, class) = (pause(QuotaId::ALL), pause(class_quota));
        let mut known = Vec::new();
        assert_eq!(changes(&mut known, &[gate]), (vec![gate], vec![]));
        assert_eq!(changes(&mut known, &[gate, class]), (vec![class], vec![]));
        assert_eq!(changes(&mut known, &[class]), (vec![], vec![QuotaId::ALL]));
        assert_eq!(changes(&mut known, &[]), (vec![], vec![class_quota]));
        assert_eq!(changes(&mut known, &[gate]), (vec![gate], vec![]), "again");
    }
}
