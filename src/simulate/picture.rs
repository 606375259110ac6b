//! The pictures of a simulation.

use std::time::Duration;

use super::{
    play::Played,
    tally::{Row, What},
};
use crate::{
    chart::{Axis, Band, Chart, Level, Mark, Series, Steps, thousands},
    config::scenario::Scenario,
    moment::Moment,
};

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
}

// === impl Picture ===

impl Picture {
    /// Draws a scenario under different limits.
    #[must_use]
    pub fn chart(&self, scenario: &Scenario, played: &[Played]) -> Chart {
        let length = scenario.length.as_secs_f64();
        let mut chart = Chart {
            title: scenario.title.clone(),
            note: self.note(scenario),
            x: Axis { name: "seconds".to_owned(), at_least: length },
            y: Axis { name: "calls per second".to_owned(), at_least: 1.0 },
            steps: Steps::Even,
            series: Vec::new(),
            bands: Vec::new(),
            levels: Vec::new(),
        };
        for (index, one) in played.iter().enumerate() {
            let points = self.points(one);
            // If all were shaded, they would hide what is behind them.
            let is_area = index == 0 && matches!(self, Self::Calls | Self::Waits(_) | Self::LeaseAge);
            let mark = if is_area { Mark::Area } else { Mark::Line };
            chart.series.push(Series { name: one.limits.clone(), mark, points });
        }
        match self {
            Self::Calls => {
                let capacity = scenario.upstream.capacity;
                chart.levels.extend(capacity.map(|y| Level { name: format!("the API can serve {y}/s"), y }));
            }
            Self::Delays => {
                chart.x = Axis { name: "number of the retry".to_owned(), at_least: 1.0 };
                chart.y = Axis { name: "seconds before it".to_owned(), at_least: 0.0 };
                chart.steps = Steps::Tenfold;
            }
            Self::TotalRetries => {
                chart.y = Axis { name: "retries so far".to_owned(), at_least: 10.0 };
                chart.steps = Steps::Tenfold;
            }
            Self::Waits(_) => {
                chart.y = Axis { name: "seconds that a call waits".to_owned(), at_least: 0.1 };
            }
            Self::LeaseAge => {
                chart.y = Axis { name: "seconds since the last renewal".to_owned(), at_least: 1.0 };
                let deadline = scenario.leases.first().map(|lease| lease.deadline.as_secs_f64());
                chart.levels.extend(deadline.map(|y| Level { name: "leadership is lost".to_owned(), y }));
            }
        }
        if !matches!(self, Self::Delays | Self::TotalRetries) {
            chart.bands = bands(scenario);
        }
        chart
    }

    fn note(&self, scenario: &Scenario) -> String {
        let objects: usize = scenario.controllers.iter().map(|controller| controller.objects).sum();
        let objects = thousands(objects as u64);
        let what = match self {
            Self::Calls | Self::TotalRetries | Self::LeaseAge => format!("{objects} objects"),
            Self::Delays => "one object that fails each time".to_owned(),
            Self::Waits(name) => format!("calls of {name}"),
        };
        format!("{what}; tidegate's limiter under a virtual clock")
    }

    fn points(&self, played: &Played) -> Vec<(f64, f64)> {
        match self {
            Self::Calls => rates(&played.rows, played.length),
            Self::Delays => delays(&played.retries),
            Self::TotalRetries => totals(&played.rows, played.length),
            Self::Waits(name) => {
                let row = played.rows.iter().find(|row| row.name == *name);
                row.map(waits).unwrap_or_default()
            }
            Self::LeaseAge => played.leases.first().map(|lease| ages(&lease.ages)).unwrap_or_default(),
        }
    }
}

fn bands(scenario: &Scenario) -> Vec<Band> {
    let band = |failure: &crate::config::scenario::Failure| Band {
        name: format!("answers {}", failure.status),
        from: failure.from.as_secs_f64(),
        to: failure.to.min(scenario.length).as_secs_f64(),
    };
    scenario.upstream.failures.iter().map(band).collect()
}

/// Returns calls per second, at the middle of each step of the series.
pub(super) fn rates(rows: &[Row], length: Duration) -> Vec<(f64, f64)> {
    let Some(step) = rows.iter().map(|row| row.counts.step()).max() else { return Vec::new() };
    let mut sums: Vec<u64> = Vec::new();
    for row in rows {
        let mut counts = row.counts.clone();
        counts.at_least(step);
        for (index, (_, counts)) in counts.steps().enumerate() {
            if index >= sums.len() {
                sums.resize(index + 1, 0);
            }
            sums[index] += counts[What::Sent as usize];
        }
    }
    let steps = usize::try_from(length.as_nanos().div_ceil(step.as_nanos().max(1))).unwrap_or(usize::MAX);
    sums.resize(sums.len().max(steps.min(MOST_POINTS)), 0);
    let step = step.as_secs_f64();
    sums.iter().enumerate().map(|(index, sum)| ((many(index) + 0.5) * step, count(*sum) / step)).collect()
}

fn delays(retries: &[Moment]) -> Vec<(f64, f64)> {
    let mut before = Moment::ZERO;
    let mut points = Vec::new();
    for (index, retry) in retries.iter().take(MOST_DELAYS).enumerate() {
        points.push((many(index + 1), (*retry - before).as_secs_f64()));
        before = *retry;
    }
    points
}

/// Returns a staircase: the count at the start of each step, and at its end.
fn totals(rows: &[Row], length: Duration) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut sum = 0;
    for row in rows.iter().take(1) {
        let step = row.counts.step().as_secs_f64();
        for (at, counts) in row.counts.steps() {
            sum += counts[What::Retries as usize];
            let at = at.as_secs_f64();
            if points.last().is_none_or(|(_, last)| (last - count(sum)).abs() > 0.5) {
                if let Some((_, last)) = points.last().copied() {
                    points.push((at, last));
                }
                points.push((at, count(sum)));
            }
            points.push((at + step, count(sum)));
        }
    }
    points.push((length.as_secs_f64(), count(sum)));
    // A level stretch needs only its two ends.
    let mut short: Vec<(f64, f64)> = Vec::new();
    for point in points {
        if let [.., (_, one), (at, other)] = &mut short[..]
            && (*one - point.1).abs() < 0.5
            && (*other - point.1).abs() < 0.5
        {
            *at = point.0;
            continue;
        }
        short.push(point);
    }
    short
}

/// Returns the mean wait of the calls that left in each step.
fn waits(row: &Row) -> Vec<(f64, f64)> {
    let step = row.counts.step().as_secs_f64();
    let left = row.counts.steps().filter(|(_, counts)| counts[What::Sent as usize] > 0);
    let mean = |counts: &[u64; What::COLUMNS.len()]| {
        count(counts[What::Waited as usize]) / 1e6 / count(counts[What::Sent as usize])
    };
    left.map(|(at, counts)| (at.as_secs_f64() + step / 2.0, mean(counts))).collect()
}

/// Returns a sawtooth: up to the age at a renewal, then down to zero.
fn ages(renewals: &[(Duration, Duration)]) -> Vec<(f64, f64)> {
    let mut points = vec![(0.0, 0.0)];
    for (at, age) in renewals {
        let at = at.as_secs_f64();
        points.push((at, age.as_secs_f64()));
        points.push((at, 0.0));
    }
    // The very last point is the age at the end, not a renewal.
    points.pop();
    points
}

#[expect(clippy::cast_precision_loss, reason = "for a picture")]
fn count(number: u64) -> f64 {
    number as f64
}

fn many(number: usize) -> f64 {
    count(u64::try_from(number).unwrap_or(u64::MAX))
}

/// The most delays that are drawn. The longest delay of client-go's default is the 19th.
const MOST_DELAYS: usize = 24;
/// The most steps up to which a series that ends early is filled with zeros.
const MOST_POINTS: usize = 2000;
