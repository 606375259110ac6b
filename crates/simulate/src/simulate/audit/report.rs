//! The findings of an audit, as text and as JSON.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Audit, CallerTotals, FoundLoop, LateRenewal, LoopKind, PeakSeries, WhatIf};
use crate::chart::{short, thousands};
use crate::hot::CallNames;
use crate::simulate::replay;
use crate::status::text::{bytes, clock, number, printable};

/// Writes the table of the loudest callers.
pub fn callers(found: &Audit) -> String {
    let line = |cells: [String; 10], name: &str| {
        let padded = cells.iter().zip(WIDTHS).map(|(cell, width)| format!("{cell:>width$}"));
        format!("{}  {name}\n", padded.collect::<String>())
    };
    let mut text = line(COLUMNS.map(str::to_owned), "caller");
    for caller in found.callers.iter().take(LOUDEST) {
        text += &line(cells(caller, found), &printable(&caller.name));
    }
    let others = found.callers.len().saturating_sub(LOUDEST);
    if others > 0 {
        text += &format!("and {} more\n", thousands(others));
    }
    text
}

/// Returns the numbers of a caller, in the order of the columns.
pub(super) fn cells(caller: &CallerTotals, found: &Audit) -> [String; 10] {
    let all: u64 = found.callers.iter().map(|caller| caller.calls).sum();
    [
        thousands(caller.calls),
        percent(caller.calls, all),
        number(caller.calls as f64 / found.read.length.as_secs_f64().max(1.0)),
        caller.peak.to_string(),
        percent(caller.writes, caller.calls),
        percent(caller.rejected, caller.calls),
        percent(caller.failed, caller.calls),
        thousands(caller.throttled),
        thousands(caller.calls.saturating_mul(DAY) / found.read.length.as_secs().max(1)),
        bytes(usize::try_from(caller.bytes).unwrap_or(usize::MAX)),
    ]
}

/// Returns everything else, each finding as a sentence.
pub fn sentences(found: &Audit) -> Vec<String> {
    let mut said: Vec<String> =
        found.loops.iter().take(MOST_LOOPS).map(|found| format!("Loop: {}", says(found))).collect();
    said.extend(more_loops(found));
    said.push(worst(found));
    said.extend(leases(found));
    said.extend(limits(found));
    said.extend(replay::report::remarks(&found.read));
    said
}

/// Says that there are no loops, or how many are not shown.
pub(super) fn more_loops(found: &Audit) -> Vec<String> {
    match found.loops.len() {
        0 => vec!["No loops: nothing is repeated in vain.".to_owned()],
        loops if loops > MOST_LOOPS => vec![format!("{} more loops: see --json.", thousands(loops - MOST_LOOPS))],
        _ => Vec::new(),
    }
}

/// Describes the worst second.
pub(super) fn worst(found: &Audit) -> String {
    let worst = &found.worst;
    let callers: Vec<_> =
        worst.callers.iter().map(|(name, calls)| format!("{} of {name}", thousands(*calls))).collect();
    format!(
        "Worst second, {}: {} calls, {} of them lists and new watches; {}.",
        time(found, worst.at),
        thousands(worst.calls),
        thousands(worst.lists),
        callers.join(", ")
    )
}

/// Describes the latest leases.
pub(super) fn leases(found: &Audit) -> Vec<String> {
    let says = |late: &LateRenewal| {
        format!(
            "Lease {} was not renewed for {} until {}; after 15 s without a renewal a leader is usually replaced.",
            late.lease,
            short(late.gap),
            time(found, late.at)
        )
    };
    found.late.iter().take(MOST_LEASES).map(says).collect()
}

/// Says what a bucket would have done to the loudest callers.
pub(super) fn limits(found: &Audit) -> Vec<String> {
    found.what_if.iter().map(WhatIf::says).collect()
}

/// Formats a time of the log.
pub(super) fn time(found: &Audit, after: Duration) -> String {
    clock(u64::try_from((found.begins + after).as_millis()).unwrap_or(u64::MAX))
}

/// Returns all findings, for programs. Durations are seconds.
pub fn json(found: &Audit) -> Value {
    let over_time = |over_time: &PeakSeries| json!({ "step": over_time.step(), "most_in_a_second": over_time.peaks() });
    let caller = |caller: &CallerTotals| {
        json!({
            "name": caller.name,
            "calls": caller.calls,
            "writes": caller.writes,
            "rejected": caller.rejected,
            "throttled": caller.throttled,
            "failed": caller.failed,
            "bytes": caller.bytes,
            "peak": caller.peak,
            "over_time": over_time(&caller.over_time),
            "bucket": caller.bucket.map(|bucket| json!({ "rate": bucket.in_a_second(), "burst": bucket.burst })),
        })
    };
    let one = |found: &FoundLoop| {
        json!({
            "kind": found.kind.word(),
            "callers": found.callers.iter().map(|caller| &caller.name).collect::<Vec<_>>(),
            "verb": found.names.verb,
            "resource": found.names.kind,
            "object": found.names.object,
            "objects": found.objects,
            "calls": found.calls,
            "within": found.within.as_secs_f64(),
            "judged": found.judged,
            "in_vain": found.in_vain,
            "unchanged": found.unchanged,
            "status": found.status,
        })
    };
    let what_if = |one: &WhatIf| {
        json!({
            "caller": one.caller,
            "limits": one.limits,
            "calls": one.calls,
            "peak": one.peak,
            "peak_sent": one.peak_sent,
            "waited": one.waited,
            "wait_p99": one.wait_p99.as_secs_f64(),
            "wait_longest": one.wait_longest.as_secs_f64(),
            "refused": one.refused,
        })
    };
    let worst = &found.worst;
    json!({
        "begins": found.begins.as_secs_f64(),
        "length": found.read.length.as_secs_f64(),
        "lines": found.read.lines,
        "unreadable": found.read.unreadable,
        "what_if": found.what_if.iter().map(what_if).collect::<Vec<_>>(),
        "over_time": over_time(&found.over_time),
        "callers": found.callers.iter().map(caller).collect::<Vec<_>>(),
        "loops": found.loops.iter().map(one).collect::<Vec<_>>(),
        "worst_second": {
            "at": worst.at.as_secs(),
            "calls": worst.calls,
            "lists": worst.lists,
            "callers": worst.callers.iter().map(|(name, calls)| json!({ "name": name, "calls": calls })).collect::<Vec<_>>(),
        },
        "late_leases": found.late.iter().map(|late| json!({
            "lease": late.lease,
            "gap": late.gap.as_secs_f64(),
            "at": late.at.as_secs_f64(),
        })).collect::<Vec<_>>(),
    })
}

// === impl WhatIf ===

impl WhatIf {
    fn says(&self) -> String {
        let refused: Vec<_> =
            self.refused.iter().map(|(reason, calls)| format!("{} refused ({reason})", thousands(*calls))).collect();
        format!(
            "A gate before {} with {} would have sent at most {} calls in one second in place of {}; {} of {} calls would have \
             waited, the longest {}, 99 of 100 no longer than {}; {}.",
            self.caller,
            self.limits,
            thousands(self.peak_sent),
            thousands(self.peak),
            thousands(self.waited),
            thousands(self.calls),
            short(self.wait_longest),
            short(self.wait_p99),
            if refused.is_empty() { "none refused".to_owned() } else { refused.join(", ") },
        )
    }
}

/// Describes a loop, with the usual cause.
pub(super) fn says(found: &FoundLoop) -> String {
    let CallNames { object, kind, .. } = &found.names;
    let what = if object.is_empty() { kind.to_string() } else { format!("{object} ({kind})") };
    let cause = match found.kind {
        LoopKind::Unchanged => {
            " Usually the operator writes a status on each reconcile without comparing it, and its own write wakes it."
        }
        LoopKind::Fast if found.judged > 0 => " Most writes changed it.",
        LoopKind::Fast => " The log does not say whether that changed anything; an audit level of Request would.",
        LoopKind::Spread => "",
        LoopKind::TwoWriters => " Each undoes what the other wrote: two owners of one field.",
        LoopKind::Denied => " Trying again does not help: give the right that is missing, or mend the object.",
        LoopKind::AlreadyThere => " Usually a program creates without looking.",
        LoopKind::AlreadyGone => " Usually two programs delete the same objects.",
        LoopKind::EventFlood => " Usually one per reconcile, each with a new name.",
    };
    format!("{what}: {}.{cause}", found.says(true))
}

/// Formats a part of a whole.
pub(super) fn percent(part: u64, whole: u64) -> String {
    format!("{}%", part.saturating_mul(100) / whole.max(1))
}

/// The columns of the table of callers, and their widths in a terminal.
pub(super) const COLUMNS: [&str; 10] =
    ["calls", "share", "calls/s", "peak", "writes", "4xx", "5xx", "429", "entries/day", "log size"];
const WIDTHS: [usize; 10] = [9, 6, 9, 7, 7, 7, 7, 7, 13, 10];
/// The most callers, loops and leases to show.
pub(super) const LOUDEST: usize = 10;
pub(super) const MOST_LOOPS: usize = 20;
const MOST_LEASES: usize = 5;
const DAY: u64 = 86_400;
