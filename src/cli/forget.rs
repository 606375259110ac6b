//! `tidegate forget`: the webhook is healed, and keys still wait.

use clap::Args;

use super::{Configured, Failure, running, show};
use crate::{
    admin::control::{Forget, Forgotten},
    status::text::{count, plain},
};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate forget --all
  tidegate forget 'write deployments.apps/prod/*'

Keys are named as on the status page and in the log. What is forgotten is tried
at once; if it fails again, its backoff starts anew.";

/// What to forget.
#[derive(Clone, Debug, Args)]
#[group(id = "which", required = true, multiple = false, args = ["key", "all"])]
pub(super) struct Options {
    #[command(flatten)]
    configured: Configured,
    /// The key, by name; `*` stands for anything
    key: Option<String>,
    /// Every failing key
    #[arg(long)]
    all: bool,
    /// Only of this gate
    #[arg(long, value_name = "NAME")]
    gate: Option<String>,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let socket = running::socket(&options.configured.load()?.settings)?;
    let order = Forget { gate: options.gate.clone(), key: options.key.clone() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let forgotten: Vec<Forgotten> = runtime.block_on(socket.order("/forget", &order)).map_err(running::explained)?;
    let mut none = true;
    for Forgotten { gate, keys } in &forgotten {
        none &= *keys == 0;
        let keys = count(u64::try_from(*keys).unwrap_or(u64::MAX), "key", "keys");
        show::text(&format!("{}: {keys} forgotten\n", plain(gate)))?;
    }
    if none && let Some(key) = &options.key {
        return Err(Failure::Other(anyhow::anyhow!("no failing key is called {key:?}; tidegate top lists them")));
    }
    Ok(())
}
