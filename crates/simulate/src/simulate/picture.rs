//! The pictures of a simulation.

use std::time::Duration;

use super::play::Played;
use super::series::{Column, Counts};
use super::tally::Row;
use crate::chart::{Axis, Band, Chart, Level, Mark, Series, Steps, thousands};
use crate::config::scenario::{Failure, Outage, Scenario};
use crate::moment::Moment;

/// The quantity that a picture shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Picture {
    /// Calls per second that reach the API.
    Calls,
    /// The delay before each retry.
    Delays,
    /// The number of retries so far.
    TotalRetries,
    /// The time that the calls of this controller wait.
    Waits(String),
    /// The time since a lease was renewed.
    LeaseAge,
    /// Calls per second of all gates, beside the quota that they share.
    Together,
}

// === impl Picture ===

impl Picture {
    /// Draws a scenario under different limits.
    pub fn chart(&self, scenario: &Scenario, played: &[Played]) -> Chart {
        let length = scenario.length.as_secs_f64();
        let objects: usize = scenario.controllers.iter().map(|controller| controller.objects).sum();
        let (y, at_least, shown) = match self {
            Self::Calls => ("calls per second", 1.0, format!("{} objects", thousands(objects))),
            Self::Delays => ("seconds before it", 0.0, "one object that fails each time".to_owned()),
            Self::TotalRetries => ("retries so far", 10.0, format!("{} objects", thousands(objects))),
            Self::Waits(name) => ("seconds that a call waits", 0.1, format!("calls of {name}")),
            Self::LeaseAge => ("seconds since the last renewal", 1.0, format!("{} objects", thousands(objects))),
            Self::Together => ("calls per second", 1.0, format!("{} gates", scenario.gates())),
        };
        let note = format!("{shown}; tidegate's limiter under a virtual clock");
        let mut chart = Chart::over_time(&scenario.title, note, length, Axis { name: y.to_owned(), at_least });
        if matches!(self, Self::Delays | Self::TotalRetries) {
            chart.steps = Steps::Tenfold;
        } else {
            chart.bands = scenario.upstream.failures.iter().map(|failure| band(failure, scenario.length)).collect();
            chart.bands.extend(scenario.store.outages.iter().map(|outage| away(outage, scenario.length)));
        }
        if *self == Self::Delays {
            chart.x = Axis { name: "number of the retry".to_owned(), at_least: 1.0 };
        }
        let capacity = scenario.upstream.capacity;
        let lease = scenario.leases.first();
        chart.levels.extend(match self {
            Self::Calls => capacity.map(|y| Level { name: format!("the API can serve {y}/s"), y }),
            Self::Together => scenario
                .upstream
                .quota
                .map(|quota| Level { name: format!("the account may make {}/s", quota.rate), y: quota.rate }),
            Self::LeaseAge => {
                lease.map(|lease| Level { name: "leadership is lost".to_owned(), y: lease.deadline.as_secs_f64() })
            }
            _ => None,
        });
        chart.series = played.iter().map(|one| self.series(one)).collect();
        // If all were shaded, they would hide what is behind them.
        if let Some(first) = chart.series.first_mut().filter(|_| chart.steps == Steps::Even) {
            first.mark = Mark::Area;
        }
        chart
    }

    fn series(&self, played: &Played) -> Series {
        let points = match self {
            Self::Calls => rates(&played.rows, played.length),
            Self::Together => means(&rates(&played.rows, played.length)),
            Self::Delays => {
                let delays = delays(&played.retries).take(MOST_DELAYS).enumerate();
                delays.map(|(index, delay)| (count(index as u64 + 1), delay.as_secs_f64())).collect()
            }
            Self::TotalRetries => played.rows.first().map(|row| totals(row, played.length)).unwrap_or_default(),
            Self::Waits(name) => {
                let row = played.rows.iter().find(|row| row.name == *name);
                row.map(waits).unwrap_or_default()
            }
            Self::LeaseAge => played.leases.first().map(|lease| ages(&lease.ages)).unwrap_or_default(),
        };
        Series { name: played.limits.clone(), mark: Mark::Line, points }
    }
}

fn band(failure: &Failure, end: Duration) -> Band {
    let name = format!("answers {}", failure.status);
    Band { name, from: failure.from.as_secs_f64(), to: failure.to.min(end).as_secs_f64() }
}

fn away(outage: &Outage, end: Duration) -> Band {
    let name = "store away".to_owned();
    Band { name, from: outage.from.as_secs_f64(), to: outage.to.min(end).as_secs_f64() }
}

/// Returns the means of a second, of which a line can be followed.
fn means(rates: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let step = rates.windows(2).next().map_or(1.0, |two| two[1].0 - two[0].0);
    let many = (1..).take_while(|many| f64::from(*many) * step <= 1.0 + step / 2.0).last().unwrap_or(1);
    let mean = |some: &[(f64, f64)]| {
        let sum = some.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        (sum.0 / count(some.len() as u64), sum.1 / count(some.len() as u64))
    };
    rates.chunks(usize::try_from(many).unwrap_or(1)).map(mean).collect()
}

/// Returns calls per second, at the middle of each step of the series.
pub(super) fn rates(rows: &[Row], length: Duration) -> Vec<(f64, f64)> {
    let Some(step) = rows.iter().map(|row| row.counts.step).max() else { return Vec::new() };
    let steps = usize::try_from(length.as_nanos().div_ceil(step.as_nanos().max(1))).unwrap_or(usize::MAX);
    let mut sums = vec![0_u64; steps.min(MOST_POINTS)];
    for row in rows {
        let mut counts = row.counts.clone();
        counts.at_least(step);
        for (index, (_, counts)) in counts.steps().enumerate() {
            if index >= sums.len() {
                sums.resize(index + 1, 0);
            }
            sums[index] += counts[Column::Sent as usize];
        }
    }
    let step = step.as_secs_f64();
    sums.iter().enumerate().map(|(index, sum)| ((count(index as u64) + 0.5) * step, count(*sum) / step)).collect()
}

/// Returns the time before each retry.
pub(super) fn delays(retries: &[Moment]) -> impl Iterator<Item = Duration> {
    let before = std::iter::once(&Moment::ZERO).chain(retries);
    before.zip(retries).map(|(before, retry)| *retry - *before)
}

/// Returns a staircase: the count at the start of each step, and at its end.
fn totals(row: &Row, length: Duration) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    // A level stretch needs only its two ends.
    let mut add = |x: f64, y: f64| match &mut points[..] {
        [.., (_, one), (last, other)] if (*one - y).abs() < 0.5 && (*other - y).abs() < 0.5 => *last = x,
        _ => points.push((x, y)),
    };
    let step = row.counts.step.as_secs_f64();
    let mut sum = 0;
    for (index, (at, counts)) in row.counts.steps().enumerate() {
        let at = at.as_secs_f64();
        let before = count(sum);
        let retries = counts[Column::Retries as usize];
        sum += retries;
        if retries > 0 && index > 0 {
            add(at, before);
        }
        if retries > 0 || index == 0 {
            add(at, count(sum));
        }
        add(at + step, count(sum));
    }
    add(length.as_secs_f64(), count(sum));
    points
}

/// Returns the mean wait of the calls that left in each step.
fn waits(row: &Row) -> Vec<(f64, f64)> {
    let step = row.counts.step.as_secs_f64();
    let mean = |(at, counts): (Duration, &Counts)| {
        let [sent, waited] = [Column::Sent, Column::Waited].map(|column| count(counts[column as usize]));
        (sent > 0.0).then(|| (at.as_secs_f64() + step / 2.0, waited / 1e6 / sent))
    };
    row.counts.steps().filter_map(mean).collect()
}

/// Returns a sawtooth: up to the age at a renewal, then down to zero.
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

#[expect(clippy::cast_precision_loss, reason = "for a picture")]
fn count(number: u64) -> f64 {
    number as f64
}

/// The most delays that are drawn. The longest delay of client-go's default is the 19th.
const MOST_DELAYS: usize = 24;
/// The most steps up to which a series that ends early is filled with zeros.
const MOST_POINTS: usize = 2000;
