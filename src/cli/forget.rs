//! `tidegate forget`: forgets failing keys once their cause is repaired, and ends pauses that the
//! upstream asked for.

use clap::Args;

use super::{ConfigOption, Failure, running, show};
use crate::admin::control::{Forget, ForgetReport};
use crate::status::text::{count, printable};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate forget --all
  tidegate forget 'write deployments.apps/prod/*'
  tidegate forget --pauses --shared

Keys are named as on the status page and in the log. What is forgotten is tried
at once; if it fails again, its backoff starts over. A pause is what the upstream
asked for: lift it only when you know that it takes calls again.";

/// The arguments: which keys and pauses to forget.
#[derive(Clone, Debug, Args)]
#[group(id = "which", required = true, multiple = true, args = ["key", "all", "pauses"])]
pub(super) struct Options {
    #[command(flatten)]
    configured: ConfigOption,
    /// The failing key, by name; `*` stands for anything
    key: Option<String>,
    /// Every failing key
    #[arg(long, conflicts_with = "key")]
    all: bool,
    /// Every pause that the upstream asked for
    #[arg(long)]
    pauses: bool,
    /// With --pauses: also for the gates elsewhere that share a bucket with this one
    #[arg(long, requires = "pauses")]
    shared: bool,
    /// Only of this gate
    #[arg(long, value_name = "NAME")]
    gate: Option<String>,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let keys = if options.all { Some("*".to_owned()) } else { options.key.clone() };
    let order = Forget { gate: options.gate.clone(), keys, pauses: options.pauses, shared: options.shared };
    let forgotten: Vec<ForgetReport> = running::order(&options.configured, "/forget", &order)?;
    for one in &forgotten {
        show::text(&format!("{}: {}\n", printable(&one.gate), described(&order, one)))?;
    }
    let none = forgotten.iter().all(|one| one.keys == 0);
    if none && let Some(key) = &options.key {
        return Err(Failure::Other(anyhow::anyhow!("no failing key is called {key:?}; tidegate top lists them")));
    }
    Ok(())
}

/// Describes what one gate has forgotten.
fn described(order: &Forget, one: &ForgetReport) -> String {
    let mut said = Vec::new();
    if order.keys.is_some() {
        said.push(format!("{} forgotten", count(one.keys, "key", "keys")));
    }
    if order.pauses {
        said.push(format!("{} lifted", count(one.lifted, "pause", "pauses")));
    } else if one.paused > 0 {
        let goes_on = count(one.paused, "pause goes on", "pauses go on");
        said.push(format!("{goes_on}, because the upstream asked for it (tidegate forget --pauses)"));
    }
    said.join("; ")
}
