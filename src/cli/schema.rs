//! `tidegate schema`: prints the JSON Schema of a configuration, for editors.

use clap::Args;

use super::{Failure, show};
use crate::config;

pub(super) const EXAMPLES: &str = "\
Example:
  tidegate schema > tidegate.schema.json

Then let the first line of tidegate.toml be
  #:schema ./tidegate.schema.json
Editors with taplo (VS Code: Even Better TOML) complete keys, show what they mean,
and mark what is wrong. What keys mean together, tidegate check knows.";

/// The arguments: which schema.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// Of a scenario for tidegate simulate instead
    #[arg(long)]
    scenario: bool,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    Ok(show::text(if options.scenario { config::SCENARIO_SCHEMA } else { config::SCHEMA })?)
}
