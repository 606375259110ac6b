//! The status as text, for a terminal or a pipe.

use super::lists::{Cell, List, lists};
use super::summary::BAD;
use super::text::{ago, clock, duration, printable, until};
use super::{Gate, Status};
use crate::chart::{cut, sparkline};

/// The width and colours of the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// Columns.
    pub(crate) width: usize,
    /// True if colours may be used.
    pub(crate) colour: bool,
}

/// The lines of the text.
struct Lines {
    look: Look,
    text: String,
}

/// Renders the whole status.
pub(crate) fn text(status: &Status, look: Look) -> String {
    let mut lines = Lines { look, text: String::new() };
    let ready = match status.waiting_for.as_slice() {
        [] => "ready".to_owned(),
        waiting => format!("waiting for {}", waiting.join(", ")),
    };
    let head = format!(
        "tidegate {}  up {}  {ready}  {}  config {} for {}",
        status.version,
        duration(status.uptime_seconds),
        clock(status.now_ms),
        status.config.hash,
        ago(status.config.since_ms, status.now_ms).trim_end_matches(" ago"),
    );
    lines.add("", &head);
    if let Some(reload) = status.config.last_reload.as_ref().filter(|reload| !reload.reasons.is_empty()) {
        let (when, reasons) = (ago(reload.at_ms, status.now_ms), reload.reasons.join("; "));
        lines.add(BAD.colour, &format!("the configuration was not taken over {when} ({}): {reasons}", reload.result));
    }
    status.gates.iter().for_each(|gate| lines.gate(gate, status.now_ms));
    lines.text
}

// === impl Lines ===

impl Lines {
    fn gate(&mut self, gate: &Gate, now_ms: u64) {
        self.add("", "");
        self.add(STRONG, &format!("{}  {} -> {}", gate.name, gate.listen.join(" "), gate.upstream));
        if let Some(bypass) = &gate.bypass {
            let (ends, calls) = (until(bypass.until_ms, now_ms), gate.bypassed);
            self.add(BAD.colour, &format!("  BYPASS: everything is let through; ends {ends} ({calls} calls so far)"));
        }
        let colour = gate.state(now_ms).1.colour;
        for says in gate.summary(now_ms) {
            self.add(colour, &format!("  {says}"));
        }
        let history = &gate.history;
        let rate = |values: &[u64]| format!("{}/s", history.rate(values.last()));
        let total = |count| format!("{count} in all");
        let room = self.look.width.saturating_sub(44).clamp(10, 60);
        for (name, now, more, values) in [
            ("admitted", rate(&history.admitted), total(gate.admitted), &history.admitted),
            ("waiting", gate.waiting.to_string(), format!("{} held", gate.held), &history.waiting),
            ("refused", rate(&history.refused), total(gate.refused), &history.refused),
        ] {
            self.add("", &format!("  {name:<9} {now:>9}  {more:>18}  {}", sparkline(values, room)));
        }
        lists(gate, now_ms).for_each(|list| self.table(list));
    }

    /// Adds one line, cut at the width of the screen.
    fn add(&mut self, colour: &str, line: &str) {
        let line = cut(&printable(line), self.look.width, '\u{2026}');
        self.text += &if self.look.colour && !colour.is_empty() {
            format!("{colour}{line}{PLAIN}\n")
        } else {
            format!("{line}\n")
        };
    }

    /// Adds a table, with its heading in the place of the first column's. All columns except the
    /// first are as wide as they must be.
    fn table(&mut self, list: List) {
        let heads = list.columns.iter().enumerate();
        let heads = heads.map(|(place, column)| if place == 0 { list.heading } else { column }.to_owned());
        let rows = list.rows.into_iter().map(|row| row.into_iter().map(|cell| printable(&text_of(cell))).collect());
        let rows: Vec<Vec<String>> = std::iter::once(heads.collect()).chain(rows).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        let mut widths: Vec<usize> = (0..list.columns.len()).map(width).collect();
        let others: usize = widths.iter().skip(1).map(|width| width + 2).sum();
        widths[0] = widths[0].min(self.look.width.saturating_sub(others + 2).max(16));
        self.add("", "");
        for (place, row) in rows.into_iter().enumerate() {
            let cells = row.into_iter().zip(&widths);
            let line: String =
                cells.map(|(cell, width)| format!("  {:<width$}", cut(&cell, *width, '\u{2026}'))).collect();
            self.add(if place == 0 { DIM } else { "" }, line.trim_end());
        }
        if !list.note.is_empty() {
            self.add("", &format!("  {}", list.note));
        }
    }
}

fn text_of(cell: Cell) -> String {
    match cell {
        Cell::Text(text) | Cell::Code(text) | Cell::Word(_, text) | Cell::Level(text, _) => text,
        Cell::Down(why) => format!("down: {why}"),
    }
}

const STRONG: &str = "\u{1b}[1m";
const DIM: &str = "\u{1b}[2m";
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
