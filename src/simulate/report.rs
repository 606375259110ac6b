//! The result of a simulation as a table of at most 80 columns, as sentences, as CSV and as JSON.

use std::{fmt::Write as _, time::Duration};

use serde_json::{Value, json};

use super::{
    picture::Picture,
    play::Played,
    tally::{LeaseRow, Row, What},
};
use crate::{chart::thousands, moment::Moment};

/// Writes the table: a line for each of the limits and, if there are several, each controller.
#[must_use]
pub fn table(played: &[Played]) -> String {
    let mut text = String::from(HEADER);
    for one in played {
        let several = one.rows.len() > 1;
        if several {
            put(&mut text, format_args!("{}\n", one.limits));
        }
        for row in &one.rows {
            let name = if several { format!("  {}", row.name) } else { one.limits.clone() };
            let peak = peak(row);
            put(
                &mut text,
                format_args!(
                    "{:<28}{:>9}{:>9}{:>8}{:>9}{:>8}{:>8}\n",
                    cut(&name, 27),
                    thousands(row.sent),
                    thousands(row.retries),
                    thousands(peak),
                    thousands(row.refusals()),
                    short(row.wait(500)),
                    short(row.wait(990)),
                ),
            );
        }
    }
    if played.iter().flat_map(|one| &one.rows).any(|row| row.reconciled.count() > 0) {
        text.push_str(RECONCILED);
        for (name, row) in named(played) {
            put(
                &mut text,
                format_args!(
                    "{:<28}{:>9}{:>9}{:>9}{:>12}{:>12}\n",
                    cut(&name, 27),
                    short(row.convergence(500)),
                    short(row.convergence(990)),
                    short(row.reconciled.max()),
                    thousands(row.reconciled.count()),
                    thousands(row.unreconciled),
                ),
            );
        }
    }
    if played.iter().any(|one| !one.leases.is_empty()) {
        text.push_str(LEASES);
        for one in played {
            for lease in &one.leases {
                put(
                    &mut text,
                    format_args!(
                        "{:<40}{:>9}{:>22}{:>8}\n",
                        cut(&format!("{} / {}", one.limits, lease.name), 39),
                        thousands(lease.renewals),
                        short(lease.longest),
                        thousands(lease.lost),
                    ),
                );
            }
        }
    }
    text
}

/// Returns the remarkable findings about each of the limits, in sentences.
#[must_use]
pub fn findings(picture: &Picture, played: &[Played]) -> Vec<String> {
    let mut sentences: Vec<String> = played.iter().filter_map(|one| finding(picture, one)).collect();
    for one in played {
        sentences.extend(one.stopped.map(|at| {
            format!(
                "{}: stopped after {}, as these limits hold nothing back and millions of calls were made.",
                one.limits,
                short(at.since_start())
            )
        }));
    }
    sentences
}

fn finding(picture: &Picture, one: &Played) -> Option<String> {
    let limits = &one.limits;
    match picture {
        Picture::Delays => {
            let delays = delays(&one.retries);
            let longest = delays.iter().copied().max()?;
            let first = delays.iter().position(|delay| *delay == longest)? + 1;
            let early = in_first_second(&one.retries);
            Some(format!(
                "{limits}: {early} retries in the first second; the longest wait, {}, comes before retry {first}.",
                short(longest)
            ))
        }
        Picture::TotalRetries => {
            let early = one.retries_in_first_second();
            let many = thousands(one.first_retries);
            let later = one.retries.get(100).map_or_else(String::new, |retry| {
                format!("; the 101st leaves {} after the start", short(retry.since_start()))
            });
            Some(format!(
                "{limits}: {} retries in the first second ({} calls), {many} of them at the first moment{later}.",
                thousands(early),
                thousands(one.calls_in_first_second()),
            ))
        }
        Picture::Calls => {
            let row = one.rows.first()?;
            let late = row.unreconciled;
            let end = if late > 0 {
                format!("{} objects are not reconciled at the end", thousands(late))
            } else {
                format!("all objects are reconciled, the last after {}", short(row.reconciled.max()))
            };
            Some(format!("{limits}: {} calls, {} of them in vain; {end}.", thousands(row.sent), thousands(row.failed)))
        }
        Picture::Waits(name) => {
            let row = one.rows.iter().find(|row| row.name == *name)?;
            let (half, most) = (short(row.wait(500)), short(row.wait(990)));
            Some(format!(
                "{limits}: half of the calls of {name} wait {half} at most, 99% {most}; {} are refused.",
                thousands(row.refusals())
            ))
        }
        Picture::LeaseAge => {
            let lease = one.leases.first()?;
            let lost = match lease.lost {
                0 => "leadership is never lost".to_owned(),
                1 => "leadership is lost".to_owned(),
                times => format!("leadership is lost {times} times"),
            };
            Some(format!("{limits}: at most {} between renewals; {lost}.", short(lease.longest)))
        }
    }
}

/// Writes the numbers over time: a line for each of the limits, each controller and each step.
#[must_use]
pub fn csv(played: &[Played]) -> String {
    let mut text = String::from("limits,name,seconds,step_seconds");
    for (_, column) in What::COLUMNS {
        put(&mut text, format_args!(",{column}"));
    }
    text.push('\n');
    for one in played {
        for row in &one.rows {
            csv_of(&mut text, &one.limits, row);
        }
    }
    text
}

pub(super) fn csv_of(text: &mut String, limits: &str, row: &Row) {
    let step = row.counts.step().as_secs_f64();
    for (at, counts) in row.counts.steps() {
        put(text, format_args!("{},{},{},{step}", quoted(limits), quoted(&row.name), at.as_secs_f64()));
        for (what, _) in What::COLUMNS {
            put(text, format_args!(",{}", counts[what as usize]));
        }
        text.push('\n');
    }
}

/// Returns everything that the table says, for programs. Durations are seconds.
#[must_use]
pub fn json(played: &[Played]) -> Value {
    let one = |one: &Played| {
        json!({
            "limits": one.limits,
            "length": one.length.as_secs_f64(),
            "stopped": one.stopped.map(|at| at.since_start().as_secs_f64()),
            "controllers": one.rows.iter().map(row_json).collect::<Vec<_>>(),
            "leases": one.leases.iter().map(lease_json).collect::<Vec<_>>(),
            "calls_in_first_second": one.calls_in_first_second(),
            "retries_in_first_second": one.retries_in_first_second(),
        })
    };
    Value::Array(played.iter().map(one).collect())
}

pub(super) fn row_json(row: &Row) -> Value {
    let seconds = |duration: Duration| duration.as_secs_f64();
    let refused: serde_json::Map<String, Value> =
        row.refusals_by_reason().map(|(reason, count)| (reason.word().to_owned(), count.into())).collect();
    json!({
        "name": row.name,
        "arrived": row.arrived,
        "sent": row.sent,
        "retries": row.retries,
        "failed": row.failed,
        "gave_up": row.gave_up,
        "refused": refused,
        "wait": { "p50": seconds(row.wait(500)), "p99": seconds(row.wait(990)), "max": seconds(row.longest_wait()) },
        "reconciled": {
            "count": row.reconciled.count(),
            "p50": seconds(row.convergence(500)),
            "p99": seconds(row.convergence(990)),
            "max": seconds(row.reconciled.max()),
            "missing": row.unreconciled,
        },
    })
}

pub(super) fn lease_json(lease: &LeaseRow) -> Value {
    json!({ "name": lease.name, "renewals": lease.renewals, "longest": lease.longest.as_secs_f64(), "lost": lease.lost })
}

impl Played {
    /// Returns the number of calls that left in the first second.
    #[must_use]
    pub fn calls_in_first_second(&self) -> u64 {
        self.rows.iter().map(|row| row.early[0]).sum()
    }

    /// Returns the number of retries that left in the first second.
    #[must_use]
    pub fn retries_in_first_second(&self) -> u64 {
        self.rows.iter().map(|row| row.early[1]).sum()
    }
}

fn in_first_second(retries: &[Moment]) -> usize {
    retries.iter().filter(|retry| retry.since_start() < Duration::from_secs(1)).count()
}

fn delays(retries: &[Moment]) -> Vec<Duration> {
    let before = std::iter::once(Moment::ZERO).chain(retries.iter().copied());
    before.zip(retries).map(|(before, retry)| *retry - before).collect()
}

/// Returns the most calls in one second, as precisely as the steps allow.
pub(super) fn peak(row: &Row) -> u64 {
    let step = row.counts.step().as_nanos().max(1);
    let sent: Vec<u64> = row.counts.steps().map(|(_, counts)| counts[What::Sent as usize]).collect();
    let second = Duration::from_secs(1).as_nanos();
    let window = usize::try_from(second.div_ceil(step)).unwrap_or(1);
    let most = sent.windows(window.min(sent.len()).max(1)).map(|second| second.iter().sum::<u64>()).max().unwrap_or(0);
    // A step that is longer than a second counts by its mean.
    u64::try_from(u128::from(most) * second / second.max(step)).unwrap_or(u64::MAX)
}

fn named(played: &[Played]) -> impl Iterator<Item = (String, &Row)> {
    played.iter().flat_map(|one| {
        let several = one.rows.len() > 1;
        let name = move |row: &Row| if several { format!("{} / {}", one.limits, row.name) } else { one.limits.clone() };
        one.rows.iter().map(move |row| (name(row), row))
    })
}

/// Formats a duration in about three digits.
pub(super) fn short(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match duration {
        Duration::ZERO => "0".to_owned(),
        it if it < Duration::from_micros(950) => format!("{} us", it.as_micros().max(1)),
        it if it < Duration::from_millis(10) && it.subsec_micros() % 1000 >= 50 => format!("{:.1} ms", seconds * 1e3),
        it if it < Duration::from_millis(950) => format!("{:.0} ms", seconds * 1e3),
        it if it < Duration::from_secs(100) => format!("{seconds:.1} s"),
        _ => format!("{seconds:.0} s"),
    }
}

/// Cuts a text to at most `width` characters.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['~']).collect()
}

/// Quotes a field of a CSV file.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

pub(super) fn put(text: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _infallible = text.write_fmt(words);
}

const HEADER: &str = "limits                          calls  retries  peak/s  refused p50 wait     p99\n";
const RECONCILED: &str = "\nchange to reconciled              p50      p99      max  reconciled     not yet\n";
const LEASES: &str = "\nleases                                   renewals   longest without one    lost\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        let shorts = [0, 1, 949, 1000, 2_500, 12_400, 100_000, 1_260_000, 1_000_000_000];
        let shorts = shorts.map(|micros| short(Duration::from_micros(micros)));
        assert_eq!(shorts, ["0", "1 us", "949 us", "1 ms", "2.5 ms", "12 ms", "100 ms", "1.3 s", "1000 s"]);
    }

    #[test]
    fn names_cannot_break_a_csv_file() {
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("plain"), "plain");
    }
}
