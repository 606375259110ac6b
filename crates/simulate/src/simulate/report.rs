//! The result of a simulation as a table of at most 80 columns, as sentences, as CSV and as JSON.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::picture::{Picture, delays};
use super::play::{ScenarioRun, Together};
use super::series::Column;
use super::tally::{LeaseRow, Row};
use crate::chart::{short, thousands};
use crate::status::text::cut;

/// Formats the table: a line for each of the limits and, if there are several, each controller.
pub fn table(played: &[ScenarioRun]) -> String {
    let mut text = String::from(HEADER);
    for one in played {
        let several = one.rows.len() > 1;
        if several {
            text += &format!("{}\n", one.limits);
        }
        for row in &one.rows {
            let name = if several { format!("  {}", row.name) } else { one.limits.clone() };
            text += &format!(
                "{:<28}{:>9}{:>9}{:>8}{:>9}{:>8}{:>8}\n",
                cut(&name, 27, '~'),
                thousands(row.sent),
                thousands(row.retries),
                thousands(peak(row)),
                thousands(row.refusals()),
                short(row.waits.quantile(500)),
                short(row.waits.quantile(990)),
            );
        }
    }
    if played.iter().flat_map(|one| &one.rows).any(|row| row.reconciled.count > 0) {
        text += RECONCILED;
        for (one, row) in played.iter().flat_map(|one| one.rows.iter().map(move |row| (one, row))) {
            let name = if one.rows.len() > 1 { format!("{} / {}", one.limits, row.name) } else { one.limits.clone() };
            text += &format!(
                "{:<28}{:>9}{:>9}{:>9}{:>12}{:>12}\n",
                cut(&name, 27, '~'),
                short(row.reconciled.quantile(500)),
                short(row.reconciled.quantile(990)),
                short(row.reconciled.max),
                thousands(row.reconciled.count),
                thousands(row.unreconciled),
            );
        }
    }
    if played.iter().any(|one| !one.leases.is_empty()) {
        text += LEASES;
        for (one, lease) in played.iter().flat_map(|one| one.leases.iter().map(move |lease| (one, lease))) {
            let name = cut(&format!("{} / {}", one.limits, lease.name), 39, '~');
            let renewals = thousands(lease.renewals);
            let lost = thousands(lease.lost);
            text += &format!("{name:<40}{renewals:>9}{:>22}{lost:>8}\n", short(lease.longest));
        }
    }
    text
}

/// Returns remarkable findings in the results, each a sentence.
pub fn findings(picture: &Picture, played: &[ScenarioRun]) -> Vec<String> {
    let findings = played.iter().filter_map(|one| Some(format!("{}: {}.", one.limits, finding(picture, one)?)));
    let stopped = played.iter().filter_map(|one| {
        let after = short(one.stopped?.since_start());
        Some(format!(
            "{}: stopped after {after}, as these limits hold nothing back and millions of calls were made.",
            one.limits
        ))
    });
    findings.chain(stopped).collect()
}

fn finding(picture: &Picture, one: &ScenarioRun) -> Option<String> {
    Some(match picture {
        Picture::Delays => {
            let delays: Vec<Duration> = delays(&one.retries).collect();
            let longest = delays.iter().copied().max()?;
            let first = delays.iter().position(|delay| *delay == longest)? + 1;
            let early = one.retries.iter().filter(|retry| retry.since_start() < Duration::from_secs(1)).count();
            let longest = short(longest);
            format!("{early} retries in the first second; the longest wait, {longest}, comes before retry {first}")
        }
        Picture::TotalRetries => {
            let later = one.retries.get(100).map_or_else(String::new, |retry| {
                format!("; the 101st leaves {} after the start", short(retry.since_start()))
            });
            format!(
                "{} retries in the first second ({} calls), {} of them at the first moment{later}",
                thousands(one.retries_in_first_second()),
                thousands(one.calls_in_first_second()),
                thousands(one.first_retries),
            )
        }
        Picture::Calls => {
            let row = one.rows.first()?;
            let end = match row.unreconciled {
                0 => format!("all objects are reconciled, the last after {}", short(row.reconciled.max)),
                late => format!("{} objects are not reconciled at the end", thousands(late)),
            };
            format!("{} calls, {} of them failing; {end}", thousands(row.sent), thousands(row.failed))
        }
        Picture::Waits(name) => {
            let row = one.rows.iter().find(|row| row.name == *name)?;
            let half = short(row.waits.quantile(500));
            let most = short(row.waits.quantile(990));
            let refused = thousands(row.refusals());
            format!("half of the calls of {name} wait {half} at most, 99% {most}; {refused} are refused")
        }
        Picture::Together => together(one)?,
        Picture::LeaseAge => {
            let lease = one.leases.first()?;
            let lost = match lease.lost {
                0 => "leadership is never lost".to_owned(),
                1 => "leadership is lost".to_owned(),
                times => format!("leadership is lost {times} times"),
            };
            format!("at most {} between renewals; {lost}", short(lease.longest))
        }
    })
}

/// Describes how much of the shared quota was used.
fn together(one: &ScenarioRun) -> Option<String> {
    let Together { quota, sent, over, asks, .. } = one.together;
    let quota = quota?;
    let seconds = one.length.as_secs_f64();
    let used = sent as f64 / (quota.rate * seconds) * 100.0;
    let asked = asks as f64 / seconds;
    let over = match over.ceil() {
        over if over <= 0.0 => "never more than the account may make".to_owned(),
        over => format!("up to {over:.0} calls more than the account may make"),
    };
    let mut shares: Vec<String> = one.rows.iter().map(|row| format!("{}: {}", row.name, thousands(row.sent))).collect();
    if shares.len() > 10 {
        shares = vec![format!("{} gates", shares.len())];
    }
    let asks = if asks == 0 { String::new() } else { format!("; {asked:.1} questions a second to the store") };
    Some(format!("{used:.0}% of the rate is used, {over} ({}){asks}", shares.join(", ")))
}

/// Formats the counts over time as CSV: a line for each of the limits, each controller and each
/// step.
pub fn csv(played: &[ScenarioRun]) -> String {
    csv_of("name", played.iter().map(|one| (one.limits.as_str(), one.rows.as_slice())))
}

/// Formats rows of counts over time as CSV. `name` is the heading of the column with the rows'
/// names.
pub(super) fn csv_of<'a>(name: &str, all: impl Iterator<Item = (&'a str, &'a [Row])>) -> String {
    let mut text = format!("limits,{name},seconds,step_seconds,{}\n", Column::NAMES.join(","));
    for (limits, row) in all.flat_map(|(limits, rows)| rows.iter().map(move |row| (limits, row))) {
        let limits = quoted(limits);
        let name = quoted(&row.name);
        let step = row.counts.step.as_secs_f64();
        for (at, counts) in row.counts.steps() {
            let counts = counts.map(|count| count.to_string()).join(",");
            text += &format!("{limits},{name},{},{step},{counts}\n", at.as_secs_f64());
        }
    }
    text
}

/// Returns the numbers of the table, for programs. Durations are in seconds.
pub fn json(played: &[ScenarioRun]) -> Value {
    let one = |one: &ScenarioRun| {
        json!({
            "limits": one.limits,
            "length": one.length.as_secs_f64(),
            "stopped": one.stopped.map(|at| at.since_start().as_secs_f64()),
            "controllers": one.rows.iter().map(row_json).collect::<Vec<_>>(),
            "gates": one.together.gates,
            "over_quota": one.together.quota.map(|_| one.together.over.max(0.0)),
            "store_asks": one.together.asks,
            "leases": one.leases.iter().map(lease_json).collect::<Vec<_>>(),
            "calls_in_first_second": one.calls_in_first_second(),
            "retries_in_first_second": one.retries_in_first_second(),
        })
    };
    played.iter().map(one).collect()
}

pub(super) fn row_json(row: &Row) -> Value {
    let seconds = |duration: Duration| duration.as_secs_f64();
    let refused: Map<String, Value> =
        row.refusals_by_reason().map(|(reason, count)| (reason.word().to_owned(), count.into())).collect();
    json!({
        "name": row.name,
        "arrived": row.arrived,
        "sent": row.sent,
        "retries": row.retries,
        "failed": row.failed,
        "gave_up": row.gave_up,
        "refused": refused,
        "wait": { "p50": seconds(row.waits.quantile(500)), "p99": seconds(row.waits.quantile(990)), "max": seconds(row.waits.max) },
        "reconciled": {
            "count": row.reconciled.count,
            "p50": seconds(row.reconciled.quantile(500)),
            "p99": seconds(row.reconciled.quantile(990)),
            "max": seconds(row.reconciled.max),
            "missing": row.unreconciled,
        },
    })
}

pub(super) fn lease_json(lease: &LeaseRow) -> Value {
    json!({ "name": lease.name, "renewals": lease.renewals, "longest": lease.longest.as_secs_f64(), "lost": lease.lost })
}

impl ScenarioRun {
    /// Returns the number of calls in the first second.
    pub fn calls_in_first_second(&self) -> u64 {
        self.rows.iter().map(|row| row.early[0]).sum()
    }

    /// Returns the number of retries in the first second.
    pub fn retries_in_first_second(&self) -> u64 {
        self.rows.iter().map(|row| row.early[1]).sum()
    }
}

/// Returns the largest number of calls in one second, as precisely as the steps allow.
pub(super) fn peak(row: &Row) -> u64 {
    let step = row.counts.step.as_nanos().max(1);
    let sent: Vec<u64> = row.counts.steps().map(|(_, counts)| counts[Column::Sent as usize]).collect();
    let second = Duration::from_secs(1).as_nanos();
    let window = usize::try_from(second.div_ceil(step)).unwrap_or(1);
    let most = sent.windows(window.min(sent.len()).max(1)).map(|second| second.iter().sum::<u64>()).max().unwrap_or(0);
    // A step that is longer than a second counts by its mean.
    u64::try_from(u128::from(most) * second / second.max(step)).unwrap_or(u64::MAX)
}

/// Quotes a field of a CSV file.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

const HEADER: &str = "limits                          calls  retries  peak/s  refused p50 wait     p99\n";
const RECONCILED: &str = "\nchange to reconciled              p50      p99      max  reconciled     not yet\n";
const LEASES: &str = "\nleases                                   renewals   longest without one    lost\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_a_csv_file() {
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("plain"), "plain");
    }
}
