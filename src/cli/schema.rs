//! `tidegate schema`: prints the JSON Schema of a configuration, for editors.

use super::{Failure, show};
use crate::config;

pub(super) const EXAMPLES: &str = "\
Example:
  tidegate schema > tidegate.schema.json

Then let the first line of tidegate.toml be
  #:schema ./tidegate.schema.json
Editors with taplo (VS Code: Even Better TOML) complete keys, show what they mean,
and mark what is wrong. What keys mean together, tidegate check knows.";

pub(super) fn run() -> Result<(), Failure> {
    Ok(show::text(config::SCHEMA)?)
}
