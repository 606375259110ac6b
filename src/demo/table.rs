//! The table on the screen during the demo: redrawn in place on a terminal, a line a second
//! elsewhere.

use std::io::{self, Write};
use std::time::Duration;

use crate::chart::{short, sparkline_up_to, thousands};
use crate::moment::Moment;

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
    pub(super) renewals: (usize, usize),
}

/// The display of a run.
pub(crate) struct Table {
    out: Box<dyn Write + Send>,
    /// The width of the terminal, if the table is redrawn in place.
    in_place: Option<usize>,
    colour: bool,
    name: String,
    next: Moment,
    drawn: usize,
    history: Vec<u64>,
    /// The most calls a second of all runs: both rows of bars have one scale.
    most: u64,
}

// === impl Table ===

impl Table {
    /// Creates a table on `out`. `in_place` is the width of a terminal that can redraw; without it,
    /// the table prints a line a second.
    pub(crate) fn new(out: Box<dyn Write + Send>, in_place: Option<usize>, colour: bool) -> Self {
        Self { out, in_place, colour, name: String::new(), next: Moment::ZERO, drawn: 0, history: Vec::new(), most: 0 }
    }

    pub(super) fn begin(&mut self, name: &str) -> io::Result<()> {
        name.clone_into(&mut self.name);
        self.drawn = 0;
        self.history.clear();
        self.next = Moment::ZERO + self.every();
        writeln!(self.out)?;
        if self.in_place.is_none() {
            writeln!(self.out, "{name}")?;
        }
        self.out.flush()
    }

    pub(super) fn is_due(&self, at: Moment) -> bool {
        at >= self.next
    }

    pub(super) fn show(&mut self, now: &Now) -> io::Result<()> {
        self.next = now.at + self.every();
        self.history.push(now.calls as u64);
        self.most = self.most.max(now.calls as u64);
        let Some(width) = self.in_place else {
            let [heads, line] = now.line();
            if self.history.len() == 1 {
                writeln!(self.out, "{heads}")?;
            }
            writeln!(self.out, "{line}")?;
            return self.out.flush();
        };
        let lines = self.panel(now, width);
        let up = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
        let text: String = lines.iter().map(|line| format!("\x1b[2K{line}\n")).collect();
        self.drawn = lines.len();
        write!(self.out, "{up}{text}")?;
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
        let mut lines = vec![format!("{:<18} {at:>5.1} s of {length:.0} s   {weather}", self.name)];
        for (index, (name, _, value)) in now.rows().into_iter().enumerate() {
            let bars = || sparkline_up_to(self.most, &self.history, width.saturating_sub(42));
            let bars = if index == 0 { bars() } else { String::new() };
            lines.push(format!("  {name:<30}{value:<7} {bars}"));
        }
        lines.iter_mut().for_each(|line| *line = line.chars().take(width).collect());
        if self.colour {
            lines[0] = format!("\x1b[1m{}\x1b[0m", lines[0]);
        }
        lines
    }
}

// === impl Now ===

impl Now {
    /// Returns everything that is shown: the name of its row, the head of its column, and its
    /// value.
    fn rows(&self) -> [(&'static str, &'static str, String); 9] {
        let quantile = |duration: Option<Duration>| duration.map_or_else(|| "-".to_owned(), short);
        [
            ("calls/s reaching the API", "calls/s", thousands(self.calls)),
            ("errors/s from the API", "errors/s", thousands(self.errors)),
            ("calls waiting for an answer", "unanswered", thousands(self.unanswered)),
            ("objects waiting for a worker", "queued", thousands(self.waiting)),
            ("objects backing off", "backing off", thousands(self.backing_off)),
            ("unreconciled for over 1 s", "overdue", thousands(self.overdue)),
            ("change to reconciled, p50", "    p50", quantile(self.median)),
            ("change to reconciled, p99", "    p99", quantile(self.slowest)),
            ("lease renewals late", "leases late", format!("{} of {}", self.renewals.0, self.renewals.1)),
        ]
    }

    /// Returns the heads of the columns, and the line below them.
    fn line(&self) -> [String; 2] {
        let rows = self.rows();
        let heads: String = rows.iter().map(|(_, head, _)| format!("  {head:>6}")).collect();
        let values = rows.iter().map(|(_, head, value)| format!("  {value:>width$}", width = head.len().max(6)));
        let trouble = if self.trouble { "  webhook down" } else { "" };
        let at = self.at.since_start().as_secs_f64();
        [format!("   time{heads}"), format!("{at:>5.0} s{}{trouble}", values.collect::<String>())]
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
            renewals: (2, 9),
        }
    }

    #[test]
    fn columns_stand_under_their_heads() {
        let [heads, text] = now().line();
        for (head, value) in [("calls/s", "1,843"), ("errors/s", "1,512"), ("backing off", "845"), ("p99", "8.1 s")] {
            let end = |text: &str, word: &str| text.find(word).map(|at| at + word.len());
            assert_eq!(end(&heads, head), end(&text, value), "{head}\n{heads}\n{text}");
        }
        assert!(heads.ends_with("leases late") && text.ends_with("2 of 9  webhook down"), "{heads}\n{text}");
    }

    #[test]
    fn the_bars_of_both_runs_have_one_scale() {
        let mut table = Table::new(Box::new(io::sink()), Some(80), false);
        let bars = |table: &Table| table.panel(&now(), 80)[1].chars().filter(|c| ('▁'..='█').contains(c)).collect();
        table.begin("without the gate").expect("a sink");
        table.show(&Now { calls: 2000, ..now() }).expect("a sink");
        let without: String = bars(&table);
        table.begin("with the gate").expect("a sink");
        table.show(&Now { calls: 500, ..now() }).expect("a sink");
        let with: String = bars(&table);
        assert_eq!((without.as_str(), with.as_str()), ("█", "▂"), "a quarter of the calls is a quarter as high");
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
