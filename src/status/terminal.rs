//! The status as text, for a terminal or a pipe.

use super::{
    Gate, Status, page,
    spark::characters,
    text::{ago, clock, number, plain, rejected_by, span, until},
};

/// The width and colours of the text.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Columns.
    pub width: usize,
    /// True if colours may be used.
    pub colour: bool,
}

/// The lines of the text.
struct Lines {
    look: Look,
    text: String,
}

/// Renders the whole status.
#[must_use]
pub fn text(status: &Status, look: Look) -> String {
    let mut lines = Lines { look, text: String::new() };
    let ready = if status.waiting_for.is_empty() {
        "ready".to_owned()
    } else {
        format!("waiting for {}", status.waiting_for.join(", "))
    };
    lines.add(
        "",
        &format!(
            "tidegate {}  up {}  {ready}  {}  config {} for {}",
            status.version,
            span(status.uptime_seconds),
            clock(status.now_ms),
            status.config.hash,
            ago(status.config.since_ms, status.now_ms).trim_end_matches(" ago"),
        ),
    );
    if let Some(reload) = status.config.last_reload.as_ref().filter(|reload| !reload.reasons.is_empty()) {
        lines.add(
            BAD,
            &format!(
                "the configuration was not taken over {} ({}): {}",
                ago(reload.at_ms, status.now_ms),
                reload.result,
                reload.reasons.join("; ")
            ),
        );
    }
    for gate in &status.gates {
        self::gate(&mut lines, gate, status);
    }
    lines.text
}

fn gate(lines: &mut Lines, gate: &Gate, status: &Status) {
    lines.add("", "");
    lines.add(STRONG, &format!("{}  {} -> {}", gate.name, gate.listen.join(" "), gate.upstream));
    if let Some(bypass) = &gate.bypass {
        lines.add(
            BAD,
            &format!(
                "  BYPASS: everything is let through; ends {} ({} calls so far)",
                until(bypass.until_ms, status.now_ms),
                gate.bypassed
            ),
        );
    }
    let trouble = gate.is_cut_off() || gate.rejected_lately(status.now_ms).next().is_some();
    let state = match () {
        () if trouble => BAD,
        () if gate.waiting > 0 || gate.keys_failing > 0 || !gate.pauses.is_empty() => WARN,
        () => GOOD,
    };
    for says in page::why(gate, status.now_ms) {
        lines.add(state, &format!("  {says}"));
    }
    let history = &gate.history;
    let room = lines.look.width.saturating_sub(44).clamp(10, 60);
    #[expect(clippy::cast_precision_loss, reason = "calls of a few seconds are exact in a double")]
    let rate = |values: &[u64]| {
        number(values.last().copied().unwrap_or_default() as f64 / f64::from(history.step_seconds.max(1)))
    };
    let figures = [
        ("admitted", format!("{}/s", rate(&history.admitted)), format!("{} in all", gate.admitted), &history.admitted),
        ("waiting", gate.waiting.to_string(), format!("{} held", gate.held), &history.waiting),
        ("refused", format!("{}/s", rate(&history.refused)), format!("{} in all", gate.refused), &history.refused),
    ];
    for (name, now, all, values) in figures {
        lines.add("", &format!("  {name:<9} {now:>9}  {all:>18}  {}", characters(values, room)));
    }
    tables(lines, gate, status);
}

fn tables(lines: &mut Lines, gate: &Gate, status: &Status) {
    let now = status.now_ms;
    let rows = gate.buckets.iter().map(|bucket| {
        let part = if bucket.part > 0 { format!(" #{}", bucket.part) } else { String::new() };
        let slowed =
            if bucket.rate < bucket.full_rate { format!(" (of {})", number(bucket.full_rate)) } else { String::new() };
        [
            format!("{}{part}", bucket.name),
            format!("{} of {}", number(bucket.level.floor().max(0.0)), bucket.burst),
            format!("{}/s{slowed}", number(bucket.rate)),
        ]
    });
    lines.table(["Bucket", "Tokens", "Rate"], rows.collect());
    let rows = gate.queues.iter().map(|queue| {
        let retries = if queue.retry { " (retries)" } else { "" };
        [
            queue.class.clone(),
            format!("{}{retries}", queue.flow),
            queue.waiting.to_string(),
            span(queue.oldest_seconds),
            queue.reason.clone(),
        ]
    });
    lines.table(["Class", "Flow", "Waiting", "Oldest", "For"], rows.collect());
    let rows = gate.keys.iter().map(|key| {
        let status = key.status.map_or_else(|| "lost".to_owned(), |status| status.to_string());
        [
            key.key.clone(),
            key.failures.to_string(),
            format!("{status}, {}", ago(key.failed_at_ms, now)),
            until(key.next_at_ms, now),
        ]
    });
    lines.table(["Failing keys", "Failed", "Last answer", "Next try"], rows.collect());
    if gate.keys.is_empty() && gate.keys_failing > 0 {
        lines.add(
            "",
            &format!("  {} failing; names are shown on the control socket (admin.show_names)", gate.keys_failing),
        );
    }
    lines.table(
        ["Pauses", "End"],
        gate.pauses.iter().map(|pause| [pause.who.clone(), until(pause.until_ms, now)]).collect(),
    );
    let rows = gate.refusals.iter().map(|refusal| {
        [
            refusal.call.clone(),
            refusal.count.to_string(),
            refusal.reason.clone(),
            ago(refusal.at_ms, now),
            span(refusal.retry_in_seconds),
        ]
    });
    lines.table(["Refused calls", "Times", "Because of", "Last", "Told to wait"], rows.collect());
    let rows = gate.rejections.iter().map(|rejection| {
        [rejected_by(&rejection.by).to_owned(), rejection.count.to_string(), ago(rejection.at_ms, now)]
    });
    lines.table(["Turned away by the upstream", "Times", "Last"], rows.collect());
    let rows = gate.connections.iter().map(|group| {
        [
            group.group.clone(),
            group.connections.to_string(),
            group.used.to_string(),
            group.free.to_string(),
            group.down.clone().unwrap_or_default(),
        ]
    });
    lines.table(["Upstream", "Connections", "Calls", "Room", "Down"], rows.collect());
}

// === impl Lines ===

impl Lines {
    /// Adds one line, cut at the width of the screen.
    fn add(&mut self, colour: &str, line: &str) {
        let line = plain(line);
        let cut: String = match line.char_indices().nth(self.look.width) {
            Some(_) => line.chars().take(self.look.width.saturating_sub(1)).chain(['\u{2026}']).collect(),
            None => line,
        };
        if self.look.colour && !colour.is_empty() {
            self.text.push_str(&format!("{colour}{cut}{PLAIN}\n"));
        } else {
            self.text.push_str(&format!("{cut}\n"));
        }
    }

    /// Adds a table; nothing if there is no row. All columns except the first are as wide as they
    /// must be.
    fn table<const N: usize>(&mut self, heads: [&str; N], rows: Vec<[String; N]>) {
        if rows.is_empty() {
            return;
        }
        let heads = heads.map(str::to_owned);
        let rows: Vec<[String; N]> = rows.into_iter().map(|row| row.map(|cell| plain(&cell))).collect();
        let width = |column: usize| {
            rows.iter()
                .chain([&heads])
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or_default()
        };
        let widths: Vec<usize> = (0..N).map(width).collect();
        let others: usize = widths.iter().skip(1).map(|width| width + 2).sum();
        let first = widths.first().copied().unwrap_or_default().min(self.look.width.saturating_sub(others + 2).max(16));
        self.add("", "");
        for (place, row) in [&heads].into_iter().chain(&rows).enumerate() {
            let mut line = String::from("  ");
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let width = if column == 0 { first } else { *width };
                let cell: String = match cell.char_indices().nth(width) {
                    Some(_) => cell.chars().take(width.saturating_sub(1)).chain(['\u{2026}']).collect(),
                    None => cell.clone(),
                };
                line.push_str(&format!("{cell:<width$}  "));
            }
            self.add(if place == 0 { DIM } else { "" }, line.trim_end());
        }
    }
}

const STRONG: &str = "\u{1b}[1m";
const DIM: &str = "\u{1b}[2m";
const GOOD: &str = "\u{1b}[32m";
const WARN: &str = "\u{1b}[33m";
const BAD: &str = "\u{1b}[31m";
const PLAIN: &str = "\u{1b}[0m";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Bucket, History, Key, Queue};

    fn status(name: &str) -> Status {
        let gate = Gate {
            name: name.to_owned(),
            waiting: 2,
            keys_failing: 1,
            buckets: vec![Bucket {
                name: "gate".to_owned(),
                rate: 50.0,
                full_rate: 50.0,
                burst: 100,
                level: 0.3,
                part: 0,
            }],
            queues: vec![Queue {
                class: "default".to_owned(),
                flow: name.to_owned(),
                waiting: 2,
                oldest_seconds: 1.5,
                reason: "bucket".to_owned(),
                retry: false,
            }],
            keys: vec![Key { key: name.repeat(30), failures: 3, status: None, failed_at_ms: 1_000, next_at_ms: 9_000 }],
            history: History { step_seconds: 5, admitted: vec![5, 250], refused: vec![0, 0], waiting: vec![0, 2] },
            ..Gate::default()
        };
        Status { now_ms: 5_000, gates: vec![gate], ..Status::default() }
    }

    #[test]
    fn who_waits_and_why_is_told_within_the_width() {
        let text = text(&status("pods"), Look { width: 80, colour: false });
        for wanted in
            ["2 calls wait, the longest for 1.5 s", "0 of 100", "50/s", "lost, 4.0 s ago", "in 4.0 s", "bucket"]
        {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn no_name_steers_the_terminal() {
        let text = text(&status("a\u{1b}[2J\n"), Look { width: 200, colour: true });
        assert!(!text.contains("\u{1b}[2J") && text.contains("\\u{1b}[2J\\n"), "{text}");
    }
}
