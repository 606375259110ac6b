//! The result of a replay as text: the calls as recorded, and as they would have been.

use std::time::Duration;

use serde_json::{Value, json};

use super::{ReadCounts, ReplayResult, Replays};
use crate::chart::{Axis, Chart, Mark, Series, short, thousands};
use crate::limit::Reason;
use crate::simulate::picture::rates;
use crate::simulate::report::{csv_of, lease_json, peak, row_json};
use crate::simulate::tally::Row;
use crate::status::text::cut;

/// Formats the table: a block for each class, with a line for each number and a column for each of
/// the limits.
pub fn table(replays: &Replays) -> String {
    let columns = &replays.replayed;
    let mut text = line("", columns.iter().map(|one| cut(&one.limits, WIDTH - 2, '~')));
    let mut names: Vec<&str> = columns.iter().flat_map(|one| &one.rows).map(|row| row.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let rows: Vec<Option<&Row>> = columns.iter().map(|one| one.rows.iter().find(|row| row.name == name)).collect();
        block(&mut text, name, &rows);
    }
    if columns.iter().any(|one| one.holders > 0) {
        text.push_str("leases\n");
        let mut row =
            |name: &str, of: &dyn Fn(&ReplayResult) -> String| text.push_str(&line(name, columns.iter().map(of)));
        row("leases, renewals", &|one| format!("{}, {}", thousands(one.holders), thousands(one.leases.renewals)));
        row("longest without a renewal", &|one| short(one.leases.longest));
        row("times past 10 s", &|one| thousands(one.leases.lost));
    }
    text
}

/// Writes the block of one class.
fn block(text: &mut String, name: &str, rows: &[Option<&Row>]) {
    *text += &format!("{name}\n");
    let mut row = |name: &str, of: &dyn Fn(&Row) -> String| {
        text.push_str(&line(name, rows.iter().map(|row| row.map_or_else(|| "-".to_owned(), of))));
    };
    row("calls", &|row| thousands(row.arrived));
    row("sent upstream", &|row| thousands(row.sent));
    row("most sent in a second", &|row| thousands(peak(row)));
    row("wait p50", &|row| short(row.waits.quantile(500)));
    row("wait p99", &|row| short(row.waits.quantile(990)));
    row("wait max", &|row| short(row.waits.max));
    row("refused", &|row| thousands(row.refusals()));
    for reason in Reason::ALL {
        let of = |row: &Row| row.refusals_by_reason().find(|(other, _)| *other == reason).map_or(0, |(_, count)| count);
        if rows.iter().flatten().any(|row| of(row) > 0) {
            row(&format!("  {reason}"), &|row| thousands(of(row)));
        }
    }
    if rows.iter().flatten().any(|row| row.gave_up > 0) {
        row("clients that gave up", &|row| thousands(row.gave_up));
    }
}

fn line(name: &str, values: impl Iterator<Item = String>) -> String {
    let mut line = if name.is_empty() { format!("{:28}", "") } else { format!("  {name:<26}") };
    for value in values {
        line += &format!("{value:>WIDTH$}");
    }
    format!("{}\n", line.trim_end())
}

/// Returns remarks about the log, each a sentence.
pub fn remarks(read: &ReadCounts) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut say = |count: u64, what: &str| {
        if count > 0 {
            remarks.push(format!("{} {what}", thousands(count)));
        }
    };
    let others: u64 = read.other_gates.values().sum();
    let names: Vec<&str> = read.other_gates.keys().map(String::as_str).collect();
    say(others, &format!("lines are of other gates: {}.", names.join(", ")));
    say(read.other_callers, "calls are of other callers.");
    say(read.aside, "calls never came to a limit (no connection, or answered with another's answer) and are left out.");
    say(read.late, "calls were so far out of order that they are replayed late.");
    say(read.other_logs, "lines are of other logs.");
    say(read.unreadable, &format!("lines cannot be read: {}.", read.examples.join("; ")));
    remarks
}

/// Draws calls per second, as recorded and as they would have been.
pub fn chart(replays: &Replays, log: &str) -> Chart {
    let length = replays.replayed.first().map_or(0.0, |one| one.length.as_secs_f64());
    let note = format!("{} recorded calls of {log}, replayed under a virtual clock", thousands(calls(replays)));
    let y = Axis { name: "calls per second".to_owned(), at_least: 1.0 };
    let mut chart = Chart::over_time("Calls per second that are sent upstream", note, length, y);
    for one in &replays.replayed {
        let mark = if chart.series.is_empty() { Mark::Area } else { Mark::Line };
        chart.series.push(Series {
            name: one.limits.clone(),
            mark,
            points: rates(&one.rows, one.length, Duration::ZERO),
        });
    }
    chart
}

/// Returns the number of replayed calls.
pub fn calls(replays: &Replays) -> u64 {
    replays.replayed.first().map_or(0, |one| one.rows.iter().map(|row| row.arrived).sum())
}

/// Formats the counts over time as CSV: a line for each of the limits, each class and each step.
pub fn csv(replays: &Replays) -> String {
    csv_of("class", replays.replayed.iter().map(|one| (one.limits.as_str(), one.rows.as_slice())))
}

/// Returns the numbers of the table, for programs. Durations are in seconds.
pub fn json(replays: &Replays) -> Value {
    let one = |one: &ReplayResult| {
        json!({
            "limits": one.limits,
            "length": one.length.as_secs_f64(),
            "classes": one.rows.iter().map(row_json).collect::<Vec<_>>(),
            "lease_holders": one.holders,
            "leases": lease_json(&one.leases),
        })
    };
    let read = &replays.read;
    json!({
        "log": {
            "lines": read.lines,
            "other_gates": read.other_gates,
            "aside": read.aside,
            "late": read.late,
            "other_logs": read.other_logs,
            "unreadable": read.unreadable,
            "examples": read.examples,
        },
        "replayed": replays.replayed.iter().map(one).collect::<Vec<_>>(),
    })
}

/// The width of a column in the table, in characters.
const WIDTH: usize = 17;
