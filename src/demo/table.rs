//! The table on the screen during the demo: redrawn in place on a terminal, a line a second
//! elsewhere.

use std::{
    fmt,
    io::{self, Write},
    time::Duration,
};

use crate::{chart::thousands, moment::Moment};

/// The window of the table's quantiles: they are about the objects that converged within this time.
pub(super) const RECENTLY: Duration = Duration::from_secs(3);

/// The time between two redraws on a terminal.
const REDRAW: Duration = Duration::from_millis(250);
/// The time between two lines elsewhere.
const LINE: Duration = Duration::from_secs(1);

/// The state of the run at one moment.
#[derive(Clone, Debug)]
pub(super) struct Now {
    pub(super) at: Moment,
    pub(super) length: Duration,
    pub(super) trouble: bool,
    pub(super) calls: usize,
    pub(super) errors: usize,
    pub(super) unanswered: usize,
    pub(super) waiting: usize,
    pub(super) backing_off: usize,
    pub(super) overdue: usize,
    pub(super) median: Option<Duration>,
    pub(super) slowest: Option<Duration>,
    pub(super) late: usize,
    pub(super) renewals: usize,
}

/// The display of a run.
pub struct Table {
    out: Box<dyn Write + Send>,
    /// The width of the terminal, if the table is redrawn in place.
    in_place: Option<usize>,
    colour: bool,
    name: String,
    next: Moment,
    drawn: usize,
    history: Vec<usize>,
}

// === impl Table ===

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("in_place", &self.in_place).field("name", &self.name).finish_non_exhaustive()
    }
}

impl Table {
    /// Creates a table on `out`. `in_place` is the width of a terminal that can redraw; without it,
    /// the table prints a line a second.
    #[must_use]
    pub fn new(out: Box<dyn Write + Send>, in_place: Option<usize>, colour: bool) -> Self {
        Self { out, in_place, colour, name: String::new(), next: Moment::ZERO, drawn: 0, history: Vec::new() }
    }

    pub(super) fn begin(&mut self, name: &str) -> io::Result<()> {
        name.clone_into(&mut self.name);
        self.drawn = 0;
        self.history.clear();
        self.next = Moment::ZERO + self.every();
        if self.in_place.is_none() {
            writeln!(self.out, "\n{name}\n{HEADER}")?;
        } else {
            writeln!(self.out)?;
        }
        self.out.flush()
    }

    pub(super) fn is_due(&self, at: Moment) -> bool {
        at >= self.next
    }

    pub(super) fn show(&mut self, now: &Now) -> io::Result<()> {
        self.next = now.at + self.every();
        self.history.push(now.calls);
        let Some(width) = self.in_place else {
            writeln!(self.out, "{}", line(now))?;
            return self.out.flush();
        };
        let lines = self.panel(now, width);
        let mut text = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
        for line in &lines {
            text.push_str("\x1b[2K");
            text.push_str(line);
            text.push('\n');
        }
        self.drawn = lines.len();
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Ends the table. The last state stays on the screen.
    pub(super) fn end(&mut self, now: &Now) -> io::Result<()> {
        if self.in_place.is_some() { self.show(now) } else { Ok(()) }
    }

    fn every(&self) -> Duration {
        if self.in_place.is_some() { REDRAW } else { LINE }
    }

    fn panel(&self, now: &Now, width: usize) -> Vec<String> {
        let (at, length) = (now.at.since_start().as_secs_f64(), now.length.as_secs_f64());
        let weather = if now.trouble { "the webhook is down" } else { "" };
        let title = format!("{:<18} {at:>5.1} s of {length:.0} s   {weather}", self.name);
        let row = |name: &str, value: String| format!("  {name:<30}{value}");
        let mut lines = vec![
            title,
            row(
                "calls/s reaching the API",
                format!("{:<7} {}", thousands(now.calls), sparks(&self.history, width.saturating_sub(42))),
            ),
            row("errors/s from the API", thousands(now.errors)),
            row("waiting for an answer", thousands(now.unanswered)),
            row("objects waiting for a worker", thousands(now.waiting)),
            row("objects backing off", thousands(now.backing_off)),
            row("unreconciled for over 1 s", thousands(now.overdue)),
            row("change to reconciled", format!("p50 {}   p99 {}", short(now.median), short(now.slowest))),
            row("lease renewals late", format!("{} of {}", now.late, now.renewals)),
        ];
        for line in &mut lines {
            *line = line.chars().take(width).collect();
        }
        if self.colour {
            lines[0] = format!("\x1b[1m{}\x1b[0m", lines[0]);
        }
        lines
    }
}

/// The columns of a line.
const HEADER: &str = "   time  calls/s  errors/s  waiting  backing off  overdue      p50      p99  leases late";

fn line(now: &Now) -> String {
    format!(
        "{:>5.0} s  {:>7}  {:>8}  {:>7}  {:>11}  {:>7}  {:>7}  {:>7}  {} of {}{}",
        now.at.since_start().as_secs_f64(),
        thousands(now.calls),
        thousands(now.errors),
        thousands(now.unanswered + now.waiting),
        thousands(now.backing_off),
        thousands(now.overdue),
        short(now.median),
        short(now.slowest),
        now.late,
        now.renewals,
        if now.trouble { "  webhook down" } else { "" },
    )
}

/// Draws a row of small bars, the newest last.
fn sparks(history: &[usize], width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = history.iter().copied().max().unwrap_or(0).max(1);
    let from = history.len().saturating_sub(width);
    history[from..].iter().map(|calls| BARS[(calls * 7).div_ceil(most).min(7)]).collect()
}

/// Formats a duration in about three digits.
pub(super) fn short(duration: Option<Duration>) -> String {
    match duration {
        None => "-".to_owned(),
        Some(it) if it < Duration::from_millis(950) => format!("{} ms", it.as_millis()),
        Some(it) => format!("{:.1} s", it.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Now {
        Now {
            at: Moment::from_millis(4200),
            length: Duration::from_secs(20),
            trouble: true,
            calls: 1843,
            errors: 1512,
            unanswered: 12,
            waiting: 3,
            backing_off: 845,
            overdue: 77,
            median: Some(Duration::from_millis(12)),
            slowest: Some(Duration::from_millis(8100)),
            late: 2,
            renewals: 9,
        }
    }

    #[test]
    fn columns_stand_under_their_headers() {
        let text = line(&now());
        for (header, value) in [("calls/s", "1,843"), ("errors/s", "1,512"), ("backing off", "845"), ("p99", "8.1 s")] {
            let end = |text: &str, word: &str| text.find(word).map(|at| at + word.len());
            assert_eq!(end(HEADER, header), end(&text, value), "{header}\n{HEADER}\n{text}");
        }
    }

    #[test]
    fn a_panel_is_as_high_each_time_and_never_wider_than_the_terminal() {
        let mut table = Table::new(Box::new(io::sink()), Some(40), false);
        table.history = (0..200).collect();
        let panel = table.panel(&now(), 40);
        assert!(panel.iter().all(|line| line.chars().count() <= 40), "{panel:#?}");
        let calm = Now { trouble: false, median: None, slowest: None, ..now() };
        assert_eq!(table.panel(&calm, 40).len(), panel.len());
    }
}
