//! `tidegate check`: lists every problem, or prints the effective configuration.

mod summary;

use std::path::PathBuf;

use clap::Args;

use super::{ConfigOption, Failure, show};
use crate::clock::Clock;

pub(super) const EXAMPLES: &str = "\
Example:
  tidegate check tidegate.toml

Problems come one per line: FILE:LINE:COL: key.path: what is wrong, what was
expected; exit code 78. Without any, a summary and the effective configuration
are printed; exit code 0. Files that it names are read, too; nothing is sent to any API.";

/// The configuration to check.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// Configuration file, as --config names it
    #[arg(conflicts_with = "config")]
    file: Option<PathBuf>,
    #[command(flatten)]
    configured: ConfigOption,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let prepared = options.configured.or(options.file.as_ref()).sources().prepare(Clock::start())?;
    let missing = prepared.missing.iter().map(|what| format!("not here: {what:#}"));
    for warning in prepared.warnings.iter().cloned().chain(missing) {
        show::error(&format!("warning: {warning}"));
    }
    Ok(show::text(&format!("{}{}", summary::summary(&prepared.settings), prepared.effective))?)
}
