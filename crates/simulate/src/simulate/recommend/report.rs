//! The recommendation as text: the curve, the buckets as TOML, and the result of their replay.

use super::backlogs::REFILL;
use super::{Per, PortionBucket, Recommendation};
use crate::chart::{Axis, Chart, Mark, Series, short, thousands};
use crate::simulate::replay::ReplayResult;
use crate::status::text::{count, duration, number};

/// Describes the calls read, and lists the curve near its knee if there is only one.
pub fn curve(found: &Recommendation) -> String {
    let mut text = format!("{}; {} more take no token (leases, watches)\n", calls(found), thousands(found.exempt));
    let Some(bucket) = found.buckets.first().filter(|_| found.goal.per.is_none()) else { return text };
    text += "\n  calls/s     burst   most in one second\n";
    let knee = bucket.curve.iter().position(|point| *point == bucket.knee).unwrap_or(0);
    for (index, point) in bucket.curve.iter().enumerate().skip(knee.saturating_sub(AROUND)).take(2 * AROUND + 1) {
        let mark = if index == knee { "   <-" } else { "" };
        text += &format!("{:>9}{:>10}{:>21}{mark}\n", number(point.in_a_second()), point.burst, point.most());
    }
    text
}

/// Draws the smallest burst for each rate, and the bucket.
pub fn chart(found: &Recommendation, bucket: &PortionBucket) -> Chart {
    let least = bucket.curve.last().map_or(0, |point| point.burst);
    // Higher rates have the same burst.
    let shown = bucket.curve.iter().position(|point| point.burst == least).unwrap_or(0) + 1;
    let of = |value: fn(&super::CurvePoint) -> u64| {
        bucket.curve.iter().take(shown).map(|point| (point.in_a_second(), value(point) as f64)).collect()
    };
    let series = |name: &str, mark, points| Series { name: name.to_owned(), mark, points };
    let rate = bucket.knee.in_a_second();
    let burst = bucket.knee.burst as f64;
    let note = format!("{}, {}; none waits over {}", calls(found), counted(found), short(found.goal.wait));
    let y = Axis { name: "calls".to_owned(), at_least: 1.0 };
    let mut chart = Chart::over_time("The smallest burst for each rate", note, rate, y);
    chart.x.name = "rate in calls per second".to_owned();
    chart.series = vec![
        series("burst", Mark::Area, of(|point| point.burst)),
        series("most calls in one second", Mark::Line, of(|point| point.most())),
        series(&toml_of(bucket), Mark::Line, vec![(0.0, burst), (rate, burst), (rate, 0.0)]),
    ];
    chart
}

/// Formats the buckets as TOML, with comments about the choice of each number.
pub fn toml(found: &Recommendation) -> String {
    let blocks: Vec<String> = found.buckets.iter().map(|bucket| found.class(bucket) + &proven(found, bucket)).collect();
    blocks.join("\n")
}

/// Says for which portions there is no bucket, and how many calls are of no portion.
pub fn without(found: &Recommendation) -> Vec<String> {
    let Some(per) = found.goal.per.map(Per::word) else { return Vec::new() };
    let many = format!("{per}s");
    let short = found.without.first();
    let short =
        short.map(|first| format!("No bucket for {}, such as {first}.", count(found.without.len(), per, &many)));
    let rest = || format!("{} calls of more {many} are left out.", thousands(found.left_out));
    short.into_iter().chain((found.left_out > 0).then(rest)).collect()
}

/// Describes what the limiter would have done with the recorded calls under the recommended buckets.
pub fn replayed(found: &Recommendation, replays: &[ReplayResult]) -> String {
    let rows = || replays.iter().flat_map(|one| &one.rows);
    let over: u64 = rows().map(|row| row.waits.over(found.goal.wait)).sum();
    let longest = rows().map(|row| row.waits.max).max().unwrap_or_default();
    let mut text = format!(
        "Replayed under {}: {} of {} calls wait over {}, the longest {}",
        if found.goal.per.is_some() { "them, each alone" } else { "it" },
        thousands(over),
        thousands(found.calls()),
        short(found.goal.wait),
        short(longest),
    );
    for (reason, count) in rows().flat_map(|row| row.refusals_by_reason()) {
        text += &format!("; {} are refused ({reason})", thousands(count));
    }
    text
}

fn calls(found: &Recommendation) -> String {
    let gate = &found.selection.gate;
    let of = if gate.is_empty() { String::new() } else { format!(" of gate {gate}") };
    format!("{} calls{of} in {}", thousands(found.calls()), duration(found.read.length.as_secs_f64()))
}

/// Describes the headroom.
fn counted(found: &Recommendation) -> String {
    let percent = found.goal.headroom;
    format!("each counted as {} (--headroom {percent})", number(1.0 + f64::from(percent) / 100.0))
}

fn toml_of(bucket: &PortionBucket) -> String {
    format!("bucket = {{ rate = {}, burst = {} }}", number(bucket.knee.in_a_second()), bucket.knee.burst)
}

/// Formats a bucket, and the choice of its numbers.
fn proven(found: &Recommendation, bucket: &PortionBucket) -> String {
    format!(
        "{}\n\
         # burst: the smallest with which 0 of {} calls, {}, wait over {}\n\
         # rate: the lowest that refills it in {REFILL} s, with calls in one second within a tenth of the least: at most {}; {} came\n",
        toml_of(bucket),
        thousands(bucket.traffic.calls),
        counted(found),
        short(found.goal.wait),
        thousands(bucket.knee.most()),
        thousands(bucket.traffic.peak.most),
    )
}

// === impl Recommendation ===

impl Recommendation {
    /// Returns the number of calls that have a bucket.
    fn calls(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.traffic.calls).sum()
    }

    /// Formats the head of the class of a portion; empty if there are no portions.
    fn class(&self, bucket: &PortionBucket) -> String {
        let Some(per) = self.goal.per else { return String::new() };
        let gate = Some(&*self.selection.gate).filter(|gate| !gate.is_empty()).unwrap_or("kubernetes");
        let quoted = |text: String| toml::Value::from(text).to_string();
        let of = &bucket.name;
        let plain = of.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        let (name, pattern) = match per {
            Per::Class => (of.clone(), String::new()),
            Per::Namespace => (format!("in_{plain}"), format!("namespaces = [{}]", quoted(of.clone()))),
            Per::Caller => {
                let patterns = [of.clone(), format!("{of}/*")].map(quoted);
                (format!("of_{plain}"), format!("user_agents = [{}]", patterns.join(", ")))
            }
        };
        let matched = if pattern.is_empty() { pattern } else { format!("match = {{ {pattern} }}\n") };
        format!("[[gates.{gate}.classes]]\nname = {}\n{matched}", quoted(name))
    }
}

/// The rows of the curve to list on each side of the knee.
const AROUND: usize = 5;
