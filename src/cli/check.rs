//! `tidegate check`: lists every problem, or prints the effective configuration.

mod summary;

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::{ConfigOption, Failure, show};
use crate::clock::Clock;
use crate::config::PRESETS;

pub(super) const EXAMPLES: &str = "\
Example:
  tidegate check tidegate.toml
  tidegate check --preset github     # the limits of a provider, and where it publishes them

Problems come one per line: FILE:LINE:COL: key.path: what is wrong, what was
expected; exit code 78. Without any, a summary and the effective configuration
are printed; exit code 0. Files that it names are read, too; nothing is sent to any API.";

/// The configuration to check, or the preset to print.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// Configuration file, as --config names it
    #[arg(conflicts_with = "config")]
    file: Option<PathBuf>,
    /// Print the file of this preset instead: a file of yours can have the same form
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(PRESETS.iter().map(|preset| preset.name)), hide_possible_values = true, conflicts_with_all = ["file", "config"])]
    preset: Option<String>,
    #[command(flatten)]
    configured: ConfigOption,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    if let Some(preset) = PRESETS.iter().find(|preset| options.preset.as_deref() == Some(preset.name)) {
        return Ok(show::text(preset.text)?);
    }
    let prepared = options.configured.or(options.file.as_ref()).sources().prepare(Clock::start())?;
    let missing = prepared.missing.iter().map(|what| format!("missing on this machine: {what:#}"));
    for warning in prepared.warnings.iter().cloned().chain(missing) {
        show::error(&format!("warning: {warning}"));
    }
    Ok(show::text(&format!("{}{}", summary::summary(&prepared.settings), prepared.effective))?)
}
