//! The results of the demo as a picture and sentences.

use std::time::Duration;

use super::record::RunRecord;
use super::scene::{BURST, CAPACITY, KINDS, OBJECTS, RATE, Scene};
use crate::chart::{Axis, Band, Chart, Level, Mark, Series, short, thousands};
use crate::moment::Moment;
use crate::simulate::rates;

/// The results of the two runs.
#[derive(Clone, Debug)]
pub(crate) struct DemoResult {
    /// The options of both runs.
    pub(super) scene: Scene,
    /// The run without the gate.
    pub(super) without: RunRecord,
    /// The run with the gate.
    pub(super) with: RunRecord,
}

/// The number of points of each line in the picture.
const POINTS: u32 = 50;

/// The shortest stall of the machine to report.
const STALLED: Duration = Duration::from_millis(250);

// === impl DemoResult ===

impl DemoResult {
    /// Describes the runs before they start.
    pub(crate) fn prologue(scene: &Scene) -> String {
        let objects = thousands(OBJECTS * KINDS.len());
        let controllers = KINDS.len();
        let [from, to] = scene.trouble_seconds();
        format!(
            "{controllers} controllers keep {objects} objects reconciled against an API server that can serve {CAPACITY} calls a second. \
             From second {from:.1} to {to:.1} the admission webhook of half of the objects is down, and writing them fails. \
             The same herd runs for {:.0} s without the gate, then with it (rate {RATE}/s, burst {BURST}).",
            scene.length.as_secs_f64(),
        )
    }

    /// Draws the calls per second at the API, with and without the gate.
    pub(crate) fn chart(&self) -> Chart {
        let [from, to] = self.scene.trouble_seconds();
        let note = format!(
            "counted by the API itself; {} controllers, {} objects, the same sequence of changes in both runs",
            KINDS.len(),
            thousands(OBJECTS * KINDS.len())
        );
        let y = Axis { name: "calls per second".to_owned(), at_least: f64::from(RATE) };
        let length = self.scene.length.as_secs_f64();
        Chart {
            series: vec![
                self.series("without the gate", Mark::Area, &self.without),
                self.series(&format!("with the gate ({RATE}/s)"), Mark::Line, &self.with),
            ],
            bands: vec![Band { name: "webhook down".to_owned(), from, to }],
            levels: vec![Level { name: format!("the API can serve {CAPACITY}/s"), y: f64::from(CAPACITY) }],
            ..Chart::over_time("Calls per second that reached the API", note, length, y)
        }
    }

    fn series(&self, name: &str, mark: Mark, record: &RunRecord) -> Series {
        let points = rates(std::slice::from_ref(&record.calls), self.scene.length, self.scene.length / POINTS);
        Series { name: name.to_owned(), mark, points }
    }

    /// Describes the results in sentences.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let healthy = |record: &RunRecord| short(record.healthy.quantile(990));
        let mut sentences = vec![
            format!(
                "Without the gate up to {} calls in one second reached an API that can serve {CAPACITY}, {} calls in all; {}",
                thousands(self.without.peak.most),
                thousands(self.without.calls.sent),
                self.trouble(&self.without),
            ),
            format!(
                "With the gate never more than {} calls in one second did, {} in all; {} While the webhook was down, \
                 99% of the healthy objects were reconciled within {} of their change (without the gate: {}).",
                thousands(self.with.peak.most),
                thousands(self.with.calls.sent),
                self.trouble(&self.with),
                healthy(&self.with),
                healthy(&self.without),
            ),
        ];
        let stalled = self.without.stalled.max(self.with.stalled);
        if stalled > STALLED {
            sentences.push(format!(
                "This machine was busy with other things: the demo stood still for up to {}, so its times say less than usual.",
                short(stalled)
            ));
        }
        sentences
    }

    /// Describes the failures in a run, and how long they lasted after the webhook was repaired.
    fn trouble(&self, record: &RunRecord) -> String {
        let healed = self.scene.trouble().end;
        let recovery = match record.reconciled_after(healed) {
            Some(settled) => {
                format!("Everything was reconciled {} after the webhook was back", short(settled - healed))
            }
            None => {
                let overdue = thousands(record.backlog.last().map_or(0, |last| last.overdue));
                let after = short((Moment::ZERO + self.scene.length) - healed);
                format!("{after} after the webhook was back {overdue} objects were still not reconciled")
            }
        };
        let RunRecord { calls, renewals, late, .. } = record;
        let errors = thousands(calls.failed);
        format!("{errors} of them failed. {recovery}, and {late} of {renewals} lease renewals were late or failed.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::record::Backlog;

    fn played() -> DemoResult {
        let run = |at, overdue| RunRecord {
            backlog: vec![Backlog { at: Moment::from_millis(at), overdue }],
            ..RunRecord::new()
        };
        let mut without = run(9900, 1234);
        (0..2000).for_each(|at| without.called(Moment::from_millis(at)));
        let with = run(7000, 0);
        DemoResult { scene: Scene { length: Duration::from_secs(10), seed: 1 }, without, with }
    }

    #[test]
    fn the_sentences_hold_what_was_measured() {
        let text = played().sentences().join("\n");
        assert!(text.contains("up to 1,000 calls in one second"), "{text}");
        assert!(text.contains("1,234 objects were still not reconciled"), "{text}");
        assert!(text.contains("reconciled 2.0 s after the webhook was back"), "{text}");
    }
}
