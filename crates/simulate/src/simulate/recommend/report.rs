//! The recommendation as text: the curve, the bucket as TOML, and the result of its replay.

use super::Recommendation;
use crate::chart::{short, thousands};
use crate::simulate::replay::Replays;
use crate::status::text::{duration, number};

/// Describes the calls read, and lists the curve near its knee.
#[must_use]
pub fn curve(found: &Recommendation) -> String {
    let gate = &found.selection.gate;
    let mut text = format!(
        "{} calls{} in {}; {} more take no token (leases, watches)\n\n{HEADER}",
        thousands(found.traffic.calls),
        if gate.is_empty() { String::new() } else { format!(" of gate {gate}") },
        duration(found.read.length.as_secs_f64()),
        thousands(found.traffic.exempt),
    );
    let knee = found.curve.iter().position(|point| *point == found.knee).unwrap_or(0);
    for (index, point) in found.curve.iter().enumerate().skip(knee.saturating_sub(AROUND)).take(2 * AROUND + 1) {
        let mark = if index == knee { "   <-" } else { "" };
        text += &format!("{:>9}{:>10}{:>21}{mark}\n", number(point.in_a_second()), point.burst, point.most());
    }
    text
}

/// Formats the bucket as TOML, with comments about the choice of each number.
#[must_use]
pub fn toml(found: &Recommendation) -> String {
    let counted = match found.goal.headroom {
        0 => String::new(),
        percent => format!(", each counted as {} (--headroom {percent}),", number(1.0 + f64::from(percent) / 100.0)),
    };
    format!(
        "bucket = {{ rate = {}, burst = {} }}\n\
         # burst: the smallest with which 0 of {} calls{counted} wait over {}\n\
         # rate: the lowest at which the calls in one second are within a tenth of the least: at most {}; {} came\n",
        number(found.knee.in_a_second()),
        found.knee.burst,
        thousands(found.traffic.calls),
        short(found.goal.wait),
        thousands(found.knee.most()),
        thousands(found.traffic.peak()),
    )
}

/// Describes what the limiter would have done with the recorded calls under the recommended bucket.
#[must_use]
pub fn replayed(found: &Recommendation, replays: &Replays) -> String {
    let rows = replays.replayed.last().map_or(&[][..], |one| &one.rows);
    let over: u64 = rows.iter().map(|row| row.waits.over(found.goal.wait)).sum();
    let longest = rows.iter().map(|row| row.waits.max).max().unwrap_or_default();
    let mut text = format!(
        "Replayed under it: {} of {} calls wait over {}, the longest {}",
        thousands(over),
        thousands(found.traffic.calls),
        short(found.goal.wait),
        short(longest),
    );
    for (reason, count) in rows.iter().flat_map(|row| row.refusals_by_reason()) {
        text += &format!("; {} are refused ({reason})", thousands(count));
    }
    text
}

const HEADER: &str = "  calls/s     burst   most in one second\n";
/// The rows of the curve to list on each side of the knee.
const AROUND: usize = 5;
