//! `tidegate top`: the status page in a terminal.

use std::io::Write as _;
use std::time::Duration;

use clap::Args;

use super::show::{self, Screen};
use super::{Configured, Failure, running};
use crate::clock::Clock;
use crate::status::terminal::{self, Look};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate top
  tidegate top --once | grep -A20 'Failing keys'

It asks the control socket, else the admin port of this configuration.";

/// The options of the display.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    configured: Configured,
    /// Print it once and end, as when the output is no terminal
    #[arg(long)]
    once: bool,
    /// Between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let settings = options.configured.sources().load()?.settings;
    let screen = Screen::of_stdout();
    let height = terminal_size::terminal_size().map(|(_, height)| usize::from(height.0));
    running::block_on(async {
        let clock = Clock::start();
        // A pipe has no edge, and its reader may look for whole names.
        let width = screen.terminal.map_or(WIDE, |_| screen.width());
        let look = Look { width, colour: screen.colour };
        if options.once || screen.terminal.is_none() {
            let (_, status) = running::status(&settings).await?;
            return Ok(show::text(&terminal::text(&status, look))?);
        }
        loop {
            let text = match running::status(&settings).await {
                Ok((_, status)) => terminal::text(&status, look),
                Err(error) => format!("{error:#}\n"),
            };
            let end = ["\u{1b}[K\n", "\u{1b}[J"];
            let lines: Vec<&str> =
                text.lines().take(height.map_or(usize::MAX, |height| height.saturating_sub(1))).collect();
            // Draws from the top, over what was there: clearing the screen first would flicker.
            let picture = format!("\u{1b}[H{}{}{}", lines.join(end[0]), end[0], end[1]);
            let mut out = std::io::stdout().lock();
            if out.write_all(picture.as_bytes()).and_then(|()| out.flush()).is_err() {
                return Ok(()); // the terminal is gone
            }
            drop(out);
            clock.sleep(Duration::from_secs(options.every)).await;
        }
    })?
}

/// The number of columns if there is no screen.
const WIDE: usize = 240;
