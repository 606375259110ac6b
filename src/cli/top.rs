//! `tidegate top`: the status page in a terminal.

mod keyboard;
mod view;

use std::io::Write as _;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use self::keyboard::Terminal;
use self::view::{KeyPress, View};
use super::show::{self, Screen};
use super::{ConfigOption, Failure, running};
use crate::app::operations::no_such_gate;
use crate::clock::Clock;
use crate::spec::Settings;
use crate::status::terminal::{self, Look};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate top
  tidegate top --gate github
  tidegate top --once | grep -A20 'Failing keys'

The gate in the worst state comes first. Arrows, page keys, space, b, g and G
scroll, q quits. It asks the control socket, else the admin port of this
configuration.";

/// The options of the display.
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

/// The process and gate to show.
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

/// Draws the status until a key or a signal ends it.
async fn follow(query: &StatusQuery<'_>, every: Duration) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut resized = signal(SignalKind::window_change())?;
    let terminal = Terminal::enter()?;
    let clock = Clock::start();
    let mut keys = terminal.keys();
    let mut view = View::default();
    let mut next = clock.now();
    let mut text = String::new();
    loop {
        let (width, height) = size();
        if clock.now() >= next {
            text = query.text(width).await.unwrap_or_else(|error| format!("{error:#}\n"));
            next = clock.now() + every;
        }
        let mut out = std::io::stdout().lock();
        let drawn = out.write_all(view.frame(&text, width, height).as_bytes()).and_then(|()| out.flush());
        drop(out);
        if drawn.is_err() {
            return Ok(()); // the terminal is gone
        }
        tokio::select! {
            Some(key) = keys.recv() => match key {
                KeyPress::Quit => return Ok(()),
                key => view.press(key, height),
            },
            () = clock.sleep_until(next) => {}
            _ = resized.recv() => next = clock.now(),
            _ = terminate.recv() => return Ok(()),
        }
    }
}

/// Returns columns and lines of the terminal.
fn size() -> (usize, usize) {
    terminal_size::terminal_size().map_or((80, 24), |(width, height)| (width.0.into(), height.0.into()))
}

/// The number of columns if there is no screen.
const WIDE: usize = 240;
