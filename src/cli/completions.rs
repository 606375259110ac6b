//! `tidegate completions`: prints a shell's completion script.

use clap::Args;
use clap_complete::Shell;

use super::{Failure, definition, show};

pub(super) const EXAMPLES: &str = "\
Examples:
  source <(tidegate completions bash)
  tidegate completions zsh > \"${fpath[1]}/_tidegate\"
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish";

/// The shell to complete for.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// The shell
    shell: Shell,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut definition(), "tidegate", &mut script);
    Ok(show::text(&String::from_utf8_lossy(&script))?)
}
