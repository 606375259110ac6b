//! The observations, as a picture and as sentences. Every number in them was measured in this very
//! run.

use std::time::Duration;

use super::{
    record::{Converged, Seen, What},
    scene::{BURST, CAPACITY, KINDS, OBJECTS, RATE, Scene},
    table::short,
};
use crate::{
    chart::{Axis, Band, Chart, Level, Mark, Series, Steps, thousands},
    moment::Moment,
};

/// The two runs.
#[derive(Clone, Debug)]
pub struct Played {
    /// The scene that was played.
    pub scene: Scene,
    /// The herd straight against the API.
    pub without: Seen,
    /// The herd through the gate.
    pub with: Seen,
}

/// The number of points of each line in the picture.
const POINTS: u32 = 50;

/// A stall of this length shows in the table's times.
const STALLED: Duration = Duration::from_millis(250);

// === impl Played ===

impl Played {
    /// Describes the run that is about to start, for a reader who waits.
    #[must_use]
    pub fn prologue(scene: &Scene) -> String {
        let (objects, controllers) = (thousands(OBJECTS * KINDS.len()), KINDS.len());
        let (from, to) = (scene.trouble_from().since_start(), scene.trouble_to().since_start());
        format!(
            "{controllers} controllers keep {objects} objects reconciled against an API server that can serve {CAPACITY} calls a second. \
             From second {:.1} to {:.1} the admission webhook of half of the objects is down, and writing them fails. \
             The same herd runs for {:.0} s without the gate, then with it (rate {RATE}/s, burst {BURST}).",
            from.as_secs_f64(),
            to.as_secs_f64(),
            scene.length.as_secs_f64(),
        )
    }

    /// Draws calls per second that reached the API, with and without the gate.
    #[must_use]
    pub fn chart(&self) -> Chart {
        let (from, to) = (self.scene.trouble_from().since_start(), self.scene.trouble_to().since_start());
        Chart {
            title: "Calls per second that reached the API".to_owned(),
            note: format!(
                "counted by the API itself; {} controllers, {} objects, the same sequence of changes in both runs",
                KINDS.len(),
                thousands(OBJECTS * KINDS.len())
            ),
            x: Axis { name: "seconds".to_owned(), at_least: self.scene.length.as_secs_f64() },
            y: Axis { name: "calls per second".to_owned(), at_least: f64::from(RATE) },
            steps: Steps::Even,
            series: vec![
                self.series("without the gate", Mark::Area, &self.without),
                self.series(&format!("with the gate ({RATE}/s)"), Mark::Line, &self.with),
            ],
            bands: vec![Band { name: "webhook down".to_owned(), from: from.as_secs_f64(), to: to.as_secs_f64() }],
            levels: vec![Level { name: format!("the API can serve {CAPACITY}/s"), y: f64::from(CAPACITY) }],
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a few thousand calls")]
    fn series(&self, name: &str, mark: Mark, seen: &Seen) -> Series {
        let width = self.scene.length / POINTS;
        let mut counts = vec![0_usize; POINTS as usize];
        for call in &seen.arrived {
            let index = call.at.since_start().as_nanos() / width.as_nanos().max(1);
            if let Some(count) = usize::try_from(index).ok().and_then(|index| counts.get_mut(index)) {
                *count += 1;
            }
        }
        let middle = |index: usize| (index as f64 + 0.5) * width.as_secs_f64();
        let points =
            counts.iter().enumerate().map(|(index, count)| (middle(index), *count as f64 / width.as_secs_f64()));
        Series { name: name.to_owned(), mark, points: points.collect() }
    }

    /// Describes the observations, in sentences.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = vec![self.without_the_gate(), self.with_the_gate()];
        let stalled = self.without.stalled.max(self.with.stalled);
        if stalled > STALLED {
            sentences.push(format!(
                "This machine was busy with other things: the demo stood still for up to {}, so its times say less than usual.",
                short(Some(stalled))
            ));
        }
        sentences
    }

    fn without_the_gate(&self) -> String {
        let seen = &self.without;
        format!(
            "Without the gate up to {} calls in one second reached an API that can serve {CAPACITY}, {} calls in all; {} of them failed. \
             {}, and {} of {} lease renewals were late or failed.",
            thousands(peak(seen)),
            thousands(seen.arrived.len()),
            thousands(errors(seen)),
            self.recovery(seen),
            seen.late_renewals(),
            seen.renewals.len(),
        )
    }

    fn with_the_gate(&self) -> String {
        let seen = &self.with;
        let healthy = |run: &Seen| {
            let (from, to) = (self.scene.trouble_from(), self.scene.trouble_to());
            short(run.convergence(0.99, from, to, |it: &Converged| !it.guarded))
        };
        format!(
            "With the gate never more than {} calls in one second did, {} in all; {} of them failed. {}, and {} of {} lease renewals were \
             late or failed. While the webhook was down, 99% of the healthy objects were reconciled within {} of their change (without the gate: {}).",
            thousands(peak(seen)),
            thousands(seen.arrived.len()),
            thousands(errors(seen)),
            self.recovery(seen),
            seen.late_renewals(),
            seen.renewals.len(),
            healthy(seen),
            healthy(&self.without),
        )
    }

    /// Describes for how long the trouble outlived its cause.
    fn recovery(&self, seen: &Seen) -> String {
        let healed = self.scene.trouble_to();
        match seen.reconciled_after(healed) {
            Some(settled) => {
                format!("Everything was reconciled {} after the webhook was back", short(Some(settled - healed)))
            }
            None => {
                let overdue = seen.backlog.last().map_or(0, |last| last.overdue);
                let after = (Moment::ZERO + self.scene.length) - healed;
                let after = short(Some(after));
                format!("{after} after the webhook was back {} objects were still not reconciled", thousands(overdue))
            }
        }
    }
}

/// Returns the most calls in any one second, without watches, which are opened once.
fn peak(seen: &Seen) -> usize {
    seen.most_calls(Duration::from_secs(1), &[What::Call, What::Lease])
}

fn errors(seen: &Seen) -> usize {
    seen.arrived.iter().filter(|call| call.status >= 500 || call.status == 429).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::record::{Arrived, Backlog};

    fn played() -> Played {
        let call = |at| Arrived { at: Moment::from_millis(at), what: What::Call, status: 500 };
        let without = Seen {
            arrived: (0..2000).map(call).collect(),
            backlog: vec![Backlog { at: Moment::from_millis(9900), overdue: 1234 }],
            ..Seen::default()
        };
        let with = Seen { backlog: vec![Backlog { at: Moment::from_millis(7000), overdue: 0 }], ..Seen::default() };
        Played { scene: Scene { length: Duration::from_secs(10), seed: 1 }, without, with }
    }

    #[test]
    fn the_sentences_hold_what_was_measured() {
        let text = played().sentences().join("\n");
        assert!(text.contains("up to 1,000 calls in one second"), "{text}");
        assert!(text.contains("1,234 objects were still not reconciled"), "{text}");
        assert!(text.contains("reconciled 2.0 s after the webhook was back"), "{text}");
    }

    #[test]
    fn the_picture_counts_every_call_once() {
        let chart = played().chart();
        let width = 10.0 / f64::from(POINTS);
        let calls: f64 = chart.series[0].points.iter().map(|point| point.1 * width).sum();
        assert!((calls - 2000.0).abs() < 1e-6, "{calls}");
    }
}
