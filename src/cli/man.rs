//! `tidegate man`: prints or writes manual pages.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use clap_mangen::Man;

use super::{Failure, definition, show};
use crate::release;

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate man | man -l -
  tidegate man --output /usr/local/share/man/man1";

/// The arguments: where to write the pages.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// Write tidegate.1 and a page for each command into this folder
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let all = definition();
    let Some(folder) = &options.output else {
        return Ok(show::text(&page(&all)?)?);
    };
    fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
    show::file(&folder.join("tidegate.1"), &page(&all)?)?;
    for command in all.get_subcommands() {
        show::file(&folder.join(format!("tidegate-{}.1", command.get_name())), &page(command)?)?;
    }
    Ok(())
}

/// Renders the page of a command.
fn page(command: &clap::Command) -> anyhow::Result<String> {
    let mut page = Vec::new();
    let version = format!("tidegate {}", release::version());
    Man::new(command.clone()).source(version).manual("tidegate").render(&mut page)?;
    Ok(String::from_utf8(page)?)
}
