//! `tidegate promote`: prints the configuration with candidates in the place of the limits in force.

use anyhow::anyhow;
use clap::Args;

use super::{ConfigOption, Failure, show};
use crate::config;

pub(super) const EXAMPLES: &str = "\
Example:
  tidegate promote --config tidegate.toml > promoted.toml

A candidate is [gates.NAME.candidate]: limits that are compared with those in
force. The file itself is not changed.";

/// The configuration and the gate.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    configured: ConfigOption,
    /// Only that of this gate
    #[arg(long, value_name = "NAME")]
    gate: Option<String>,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let sources = options.configured.sources();
    sources.load()?;
    let Some(file) = sources.input().file else {
        return Err(anyhow!("promote needs a configuration file with a candidate (--config FILE)").into());
    };
    let name = file.display().to_string();
    let text = std::fs::read_to_string(&file).map_err(|error| anyhow!("cannot read {name}: {error}"))?;
    let promoted = config::promoted(&text, options.gate.as_deref()).map_err(|error| anyhow!("{name}: {error}"))?;
    Ok(show::text(&promoted)?)
}
