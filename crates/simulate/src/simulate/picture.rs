//! The charts of a simulation.

use std::time::Duration;

use super::play::ScenarioRun;
use super::series::{Column, Counts, Series};
use super::tally::Row;
use crate::chart::{self, Axis, Band, Chart, Level, Mark, Steps, thousands};
use crate::config::scenario::Scenario;
use crate::moment::Moment;

/// A kind of chart, by the quantity in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Picture {
    /// Calls per second at the API.
    Calls,
    /// The delay before each retry.
    Delays,
    /// The number of retries so far.
    TotalRetries,
    /// The waits of this controller's calls.
    Waits(&'static str),
    /// The time since a lease was renewed.
    LeaseAge,
    /// Calls per second of all gates, and their shared quota.
    Together,
}

// === impl Picture ===

impl Picture {
    /// Draws a chart of a scenario, with one series for each of the limits.
    pub fn chart(&self, scenario: &Scenario, runs: &[ScenarioRun]) -> Chart {
        let length = scenario.length.as_secs_f64();
        let objects: usize = scenario.controllers.iter().map(|controller| controller.objects).sum();
        let objects = format!("{} objects", thousands(objects));
        let (y, at_least, shown) = match self {
            Self::Calls => ("calls per second", 1.0, objects),
            Self::Delays => ("seconds before it", 0.0, "one object that fails each time".to_owned()),
            Self::TotalRetries => ("retries so far", 10.0, objects),
            Self::Waits(name) => ("seconds that a call waits", 0.1, format!("calls of {name}")),
            Self::LeaseAge => ("seconds since the last renewal", 1.0, objects),
            Self::Together => ("calls per second", 1.0, format!("{} gates", scenario.gates())),
        };
        let note = format!("{shown}; tidegate's limiter under a virtual clock");
        let mut chart = Chart::over_time(&scenario.title, note, length, Axis { name: y.to_owned(), at_least });
        if matches!(self, Self::Delays | Self::TotalRetries) {
            chart.steps = Steps::Tenfold;
        } else {
            let failures = &scenario.upstream.failures;
            let failures = failures.iter().map(|it| (format!("answers {}", it.status), it.from, it.to));
            let outages = scenario.store.outages.iter().map(|it| ("store away".to_owned(), it.from, it.to));
            let band = |(name, from, to): (String, Duration, Duration)| Band {
                name,
                from: from.as_secs_f64(),
                to: to.as_secs_f64().min(length),
            };
            chart.bands = failures.chain(outages).map(band).collect();
        }
        if *self == Self::Delays {
            chart.x = Axis { name: "number of the retry".to_owned(), at_least: 1.0 };
        }
        chart.levels.extend(self.level(scenario));
        chart.series = runs.iter().map(|run| self.series(run)).collect();
        // If all were shaded, they would hide each other.
        if let Some(first) = chart.series.first_mut().filter(|_| chart.steps == Steps::Even) {
            first.mark = Mark::Area;
        }
        chart
    }

    /// Returns the level to compare the numbers with, if this kind of chart has one.
    fn level(&self, scenario: &Scenario) -> Option<Level> {
        let (name, y) = match self {
            Self::Calls => {
                let y = scenario.upstream.capacity?;
                (format!("the API can serve {y}/s"), y)
            }
            Self::Together => {
                let rate = scenario.upstream.quota?.rate;
                (format!("the account may make {rate}/s"), rate)
            }
            Self::LeaseAge => ("leadership is lost".to_owned(), scenario.leases.first()?.deadline.as_secs_f64()),
            Self::Delays | Self::TotalRetries | Self::Waits(_) => return None,
        };
        Some(Level { name, y })
    }

    fn series(&self, run: &ScenarioRun) -> chart::Series {
        let points = match self {
            Self::Calls => rates(&run.rows, run.length, Duration::ZERO),
            Self::Together => rates(&run.rows, run.length, SECOND),
            Self::Delays => {
                let delays = delays(&run.retries).take(MOST_DELAYS).enumerate();
                delays.map(|(index, delay)| (count(index as u64 + 1), delay.as_secs_f64())).collect()
            }
            Self::TotalRetries => run.rows.first().map(|row| totals(row, run.length)).unwrap_or_default(),
            Self::Waits(name) => {
                let row = run.rows.iter().find(|row| row.name == *name);
                row.map(waits).unwrap_or_default()
            }
            Self::LeaseAge => run.leases.first().map(|lease| ages(&lease.ages)).unwrap_or_default(),
        };
        chart::Series { name: run.limits.clone(), mark: Mark::Line, points }
    }
}

/// Returns calls per second over time: a point (seconds, rate) in the middle of each step.
///
/// A step is not shorter than `least`.
pub fn rates(rows: &[Row], length: Duration, least: Duration) -> Vec<(f64, f64)> {
    let series = Series::sum(rows.iter().map(|row| &row.counts), least);
    let mut sums: Vec<u64> = series.steps().map(|(_, counts)| counts[Column::Sent as usize]).collect();
    let steps = length.as_nanos().div_ceil(series.step.as_nanos().max(1));
    let steps = usize::try_from(steps).unwrap_or(usize::MAX).min(MOST_POINTS);
    sums.resize(steps.max(sums.len()), 0);
    let step = series.step.as_secs_f64();
    sums.iter().enumerate().map(|(index, sum)| ((count(index as u64) + 0.5) * step, count(*sum) / step)).collect()
}

/// Returns the time between each retry and the one before it.
pub(super) fn delays(retries: &[Moment]) -> impl Iterator<Item = Duration> {
    let before = std::iter::once(&Moment::ZERO).chain(retries);
    before.zip(retries).map(|(before, retry)| *retry - *before)
}

/// Returns the total number of retries over time: a point (seconds, number) at the end of each
/// step.
fn totals(row: &Row, length: Duration) -> Vec<(f64, f64)> {
    let mut sum = 0;
    let mut points: Vec<_> = row
        .counts
        .steps()
        .map(|(at, counts)| {
            sum += counts[Column::Retries as usize];
            ((at + row.counts.step).as_secs_f64(), count(sum))
        })
        .collect();
    points.push((length.as_secs_f64(), count(sum)));
    points
}

/// Returns mean waiting times: a point (seconds, wait) for each step with sent calls.
fn waits(row: &Row) -> Vec<(f64, f64)> {
    let step = row.counts.step.as_secs_f64();
    let mean = |(at, counts): (Duration, &Counts)| {
        let [sent, waited] = [Column::Sent, Column::Waited].map(|column| count(counts[column as usize]));
        (sent > 0.0).then(|| (at.as_secs_f64() + step / 2.0, waited / 1e6 / sent))
    };
    row.counts.steps().filter_map(mean).collect()
}

/// Returns the age of a lease over time: it rises until each renewal, and then falls to zero.
fn ages(renewals: &[(Duration, Duration)]) -> Vec<(f64, f64)> {
    let mut points = vec![(0.0, 0.0)];
    for (at, age) in renewals {
        let at = at.as_secs_f64();
        points.extend([(at, age.as_secs_f64()), (at, 0.0)]);
    }
    // The very last point is the age at the end, not a renewal.
    points.pop();
    points
}

fn count(number: u64) -> f64 {
    number as f64
}

/// The shortest step for a readable line.
const SECOND: Duration = Duration::from_secs(1);
/// The most delays in a chart. With client-go's default, the 19th delay is the first of full
/// length.
const MOST_DELAYS: usize = 24;
/// The most steps of a series after it is extended with zeros.
const MOST_POINTS: usize = 2000;
