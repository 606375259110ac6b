//! The status as text, for a terminal or a pipe.

use super::lists::{List, TableCell, egress_lists, lists, store_list};
use super::summary::BAD;
use super::text::{ago, clock, cut, duration, printable};
use super::{GateStatus, Status};

/// The width and the use of colours for the text.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The width in columns.
    pub width: usize,
    /// True if colours may be used.
    pub colour: bool,
}

/// The lines written so far.
struct Lines {
    look: Look,
    text: String,
}

/// Writes the whole status as text.
pub fn text(status: &Status, look: Look) -> String {
    let mut lines = Lines { look, text: String::new() };
    let head = format!(
        "tidegate {}  up {}  {}  config {} for {}",
        status.version,
        duration(status.uptime_seconds),
        clock(status.now_ms),
        status.config.hash,
        ago(status.config.since_ms, status.now_ms).trim_end_matches(" ago"),
    );
    lines.add("", &head);
    status.reload_fact().iter().for_each(|fact| lines.add(BAD.colour, &fact.says));
    status.worst_first().into_iter().for_each(|gate| lines.gate(gate, status.now_ms));
    if let Some(egress) = &status.egress {
        lines.add("", "");
        lines.add(STRONG, &format!("egress  {}", egress.listen));
        lines.add("", &format!("  {}", egress.summary()));
        egress_lists(egress).for_each(|list| lines.table(list));
    }
    if !status.stores.is_empty() {
        lines.table(store_list(status));
    }
    lines.text
}

// === impl Lines ===

impl Lines {
    fn gate(&mut self, gate: &GateStatus, now_ms: u64) {
        self.add("", "");
        self.add(STRONG, &format!("{}  {} -> {}", gate.name, gate.listen.join(" "), gate.upstream));
        let colour = gate.state(now_ms).severity.colour;
        for says in gate.summary(now_ms) {
            self.add(colour, &format!("  {says}"));
        }
        let history = &gate.history;
        let rate = |values: &[u64]| format!("{}/s", history.rate(values.last()));
        let total = |count| format!("{count} in all");
        let room = self.look.width.saturating_sub(44).clamp(10, 60);
        let figures = [
            ("admitted", rate(&history.admitted), total(gate.admitted), &history.admitted),
            ("waiting", gate.waiting.to_string(), format!("{} held", gate.held), &history.waiting),
            ("refused", rate(&history.refused), total(gate.refused), &history.refused),
        ];
        // A shadow holds and refuses nothing.
        let shown = if gate.is_shadow() { 1 } else { figures.len() };
        for (name, now, more, values) in figures.into_iter().take(shown) {
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

    /// Adds a table. Its title takes the place of the first column's heading.
    fn table(&mut self, list: List) {
        let heads = list.columns.iter().enumerate();
        let heads = heads.map(|(place, column)| if place == 0 { list.heading } else { column }.to_owned());
        let rows = list.rows.into_iter().map(|row| row.into_iter().map(|cell| printable(&text_of(cell))).collect());
        let rows: Vec<Vec<String>> = std::iter::once(heads.collect()).chain(rows).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        let mut widths: Vec<usize> = (0..list.columns.len()).map(width).collect();
        fit(&mut widths, self.look.width);
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

/// Makes the widest columns narrower until a line fits into `room`.
fn fit(widths: &mut [usize], room: usize) {
    while widths.iter().map(|width| width + 2).sum::<usize>() > room {
        match widths.iter_mut().max() {
            Some(widest) if *widest > NARROWEST => *widest -= 1,
            Some(_) | None => return,
        }
    }
}

fn text_of(cell: TableCell) -> String {
    match cell {
        TableCell::Text(text) | TableCell::Code(text) | TableCell::Word(_, text) | TableCell::Level(text, _) => text,
        TableCell::Time(text, _) | TableCell::State(_, text) | TableCell::Link(_, text) => text,
    }
}

/// The narrowest useful column.
const NARROWEST: usize = 6;
const STRONG: &str = "\u{1b}[1m";
const DIM: &str = "\u{1b}[2m";
const PLAIN: &str = "\u{1b}[0m";

/// Draws the last `width` values as a row of small bars, the greatest of them at full height. A
/// value above zero is always visible.
fn sparkline(values: &[u64], width: usize) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shown = &values[values.len().saturating_sub(width)..];
    let most = shown.iter().max().copied().unwrap_or_default().max(1);
    let level = |value: &u64| usize::try_from((value * 8).div_ceil(most)).unwrap_or_default().min(8);
    shown.iter().map(|value| BARS[level(value)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bucket, FailingKey, History, Queue};

    fn status(name: &str) -> Status {
        let gate = GateStatus {
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
                shared: None,
            }],
            queues: vec![Queue {
                class: "default".to_owned(),
                flow: name.to_owned(),
                waiting: 2,
                oldest_seconds: 1.5,
                reason: "bucket".to_owned(),
                retry: false,
            }],
            keys: vec![FailingKey {
                key: name.repeat(30),
                failures: 3,
                failed_at_ms: 1_000,
                next_at_ms: 9_000,
                ..FailingKey::default()
            }],
            history: History { step_seconds: 5, admitted: vec![5, 250], refused: vec![0, 0], waiting: vec![0, 2] },
            ..GateStatus::default()
        };
        Status { now_ms: 5_000, gates: vec![gate], ..Status::default() }
    }

    #[test]
    fn in_a_row_of_bars_whatever_happened_is_seen() {
        assert_eq!(sparkline(&[0, 1, 1000], 8), " ▁█");
        assert_eq!(sparkline(&[9, 9, 1, 2], 2), "▄█");
        assert_eq!(sparkline(&[0, 0], 8), "  ");
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
    fn every_column_of_a_long_list_is_within_80_columns() {
        let mut status = status("pods");
        status.gates[0].refusals = vec![crate::Refusal {
            at_ms: 1_000,
            count: 12_345,
            class: "a-class-with-a-long-name".to_owned(),
            reason: "one_at_a_time".to_owned(),
            call: "write deployments.apps/production/".repeat(4),
            retry_in_seconds: 61.0,
        }];
        let text = text(&status, Look { width: 80, colour: false });
        let line = text.lines().find(|line| line.contains("12345")).expect("the refusal");
        for wanted in ["write deploy", "one_at_a_time", "4.0 s ago", "after 1 m 1 s"] {
            assert!(line.contains(wanted), "{wanted}: {line}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn the_gate_in_the_worst_state_comes_first() {
        let gate = |name: &str| GateStatus { name: name.to_owned(), admitted: 1, ..GateStatus::default() };
        let failing = GateStatus { keys_failing: 9, ..gate("failing") };
        let busy = GateStatus { waiting: 2, ..gate("busy") };
        let busier = GateStatus { waiting: 30, ..gate("busier") };
        let down = super::super::Connections { down: Some("no route".to_owned()), ..Default::default() };
        let cut_off = GateStatus { connections: vec![down], ..gate("cut_off") };
        let calm = GateStatus {
            history: History { step_seconds: 5, admitted: vec![900], ..History::default() },
            ..gate("calm")
        };
        let gates = vec![gate("idle"), calm, failing, busy, busier, cut_off];
        let text = text(&Status { gates, ..Status::default() }, Look { width: 80, colour: false });
        let place = |name: &str| text.find(&format!("\n{name}  ")).unwrap_or_else(|| panic!("no {name}\n{text}"));
        let places = ["cut_off", "busier", "busy", "failing", "calm", "idle"].map(place);
        assert!(places.is_sorted(), "{places:?}\n{text}");
    }

    #[test]
    fn no_name_steers_the_terminal() {
        let text = text(&status("a\u{1b}[2J\n"), Look { width: 200, colour: true });
        assert!(!text.contains("\u{1b}[2J") && text.contains("\\u{1b}[2J\\n"), "{text}");
    }
}
