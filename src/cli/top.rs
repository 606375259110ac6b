//! `tidegate top`: the status page in a terminal.

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::show::{self, Screen};
use super::{ConfigOption, Failure, running};
use crate::app::operations::no_such_gate;
use crate::clock::Clock;
use crate::spec::Settings;
use crate::status::terminal::{self, Look};
use crate::status::text::cut;

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate top
  tidegate top --gate github
  tidegate top --once | grep -A20 'Failing keys'

The gate in the worst state comes first, and the screen has as much as fits;
--once prints all. It asks the control socket, else the admin port of this
configuration.";

/// The arguments: which gate to show, and how often.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    configured: ConfigOption,
    /// Print it once and end, as when the output is no terminal
    #[arg(long)]
    once: bool,
    /// Only this gate
    #[arg(long, value_name = "NAME")]
    gate: Option<String>,
    /// Seconds between refreshes
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let settings = options.configured.to_ask();
    let screen = Screen::of_stdout();
    let query = StatusQuery { settings, gate: options.gate.as_deref(), colour: screen.colour };
    running::block_on(async {
        if options.once || screen.terminal.is_none() {
            // A pipe has no edge, and its reader may search for whole names.
            let width = screen.terminal.map_or(WIDE, |_| screen.width());
            return Ok(show::text(&query.text(width).await?)?);
        }
        query.text(WIDE).await?; // an unknown gate is an error, not a frame
        Ok(follow(&query, Duration::from_secs(options.every)).await?)
    })?
}

/// The process and the gate to show.
struct StatusQuery<'a> {
    settings: Settings,
    gate: Option<&'a str>,
    colour: bool,
}

// === impl StatusQuery ===

impl StatusQuery<'_> {
    /// Returns the status as text.
    async fn text(&self, width: usize) -> anyhow::Result<String> {
        let (_, mut status) = running::status(&self.settings).await?;
        if let Some(name) = self.gate {
            let found = status.gates.iter().position(|gate| gate.name == name);
            let all = status.gates.iter().map(|gate| gate.name.as_str());
            let found = found.ok_or_else(|| anyhow!(no_such_gate(name, all)))?;
            status.gates = vec![status.gates.swap_remove(found)];
        }
        Ok(terminal::text(&status, Look { width, colour: self.colour }))
    }
}

/// Draws the status until a signal ends the process.
async fn follow(query: &StatusQuery<'_>, every: Duration) -> std::io::Result<()> {
    let mut resized = signal(SignalKind::window_change())?;
    let clock = Clock::start();
    loop {
        let (width, height) = size();
        let text = query.text(width).await.unwrap_or_else(|error| format!("{error:#}\n"));
        show::text(&frame(&text, width, height))?;
        tokio::select! {
            () = clock.sleep(every) => {}
            _ = resized.recv() => {}
        }
    }
}

/// Returns the text that redraws the screen: the lines that fit, and a last line with the number of
/// all lines. It is written over the old lines, because clearing the screen would flicker.
fn frame(text: &str, width: usize, height: usize) -> String {
    let all = text.lines().count();
    let room = height.saturating_sub(1).max(1);
    let lines = text.lines().take(room).map(|line| format!("{line}\u{1b}[K\n")).collect::<String>();
    let foot = format!("{} of {all} lines; --once prints all", all.min(room));
    // A line end after the last line would scroll the screen.
    format!("\u{1b}[H{lines}\u{1b}[2m{}\u{1b}[0m\u{1b}[J", cut(&foot, width, '\u{2026}'))
}

/// Returns the numbers of columns and lines of the terminal.
fn size() -> (usize, usize) {
    terminal_size::terminal_size().map_or((80, 24), |(width, height)| (width.0.into(), height.0.into()))
}

/// The width of the text if there is no terminal.
const WIDE: usize = 240;
