//! `tidegate bypass`: stops limiting for a while, to find out whether the gate is the cause of a
//! problem.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{ConfigOption, Failure, running, show};
use crate::admin::control::{Bypass, BypassReport, LONGEST};
use crate::api::duration;
use crate::status::text::{clock, printable};

pub(super) const EXAMPLES: &str = "\
Example:
  tidegate bypass on --for 10m

Every call goes at once; failures are remembered and buckets fill as ever, so
that all limits hold again when it ends: by itself, or with `bypass off`.";

/// The arguments: on or off, and for how long.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    configured: ConfigOption,
    /// Let everything through, or limit again
    switch: Switch,
    /// With `on`: ends by itself after this time, at most 24h
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = time)]
    how_long: Duration,
    /// Only of this gate
    #[arg(long, value_name = "NAME")]
    gate: Option<String>,
}

/// Whether to let everything through or to limit again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let seconds = (options.switch == Switch::On).then_some(options.how_long.as_secs());
    let order = Bypass { gate: options.gate.clone(), seconds };
    for BypassReport { gate, until_ms } in &running::order(&options.configured, "/bypass", &order)? {
        let gate = printable(gate);
        let says = match until_ms {
            Some(until) => format!("{gate}: everything is let through until {}\n", clock(*until)),
            None => format!("{gate}: every limit holds\n"),
        };
        show::text(&says)?;
    }
    Ok(())
}

fn time(text: &str) -> Result<Duration, String> {
    let time = duration::read(text).filter(|time| (Duration::from_secs(1)..=LONGEST).contains(time));
    time.ok_or_else(|| "expected a time such as 90s, 10m or 2h, from 1s to 24h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bypass_has_an_end() {
        assert_eq!(time("10m"), Ok(Duration::from_secs(600)));
        assert!(["0s", "25h", "ten minutes", ""].iter().all(|text| time(text).is_err()));
    }
}
