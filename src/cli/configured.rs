//! Where the configuration comes from.

use std::path::PathBuf;

use clap::Args;

use super::{
    Failure,
    prepare::{Prepared, prepare},
};
use crate::{
    clock::Clock,
    config::{self, Loaded, Problem, Source},
    credentials::Surroundings,
};

/// The option that commands with a configuration share.
#[derive(Clone, Debug, Args)]
pub(super) struct Configured {
    /// Configuration file [default: $TIDEGATE_CONFIG, else /etc/tidegate/tidegate.toml if it is there, else built-in]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

// === impl Configured ===

impl Configured {
    /// What file and environment say together, checked.
    pub(super) fn load(&self) -> Result<Loaded, Failure> {
        load(&self.source())
    }

    /// The same, with everything built that can be built without starting.
    pub(super) fn prepare(&self, clock: Clock) -> Result<Prepared, Failure> {
        let source = self.source();
        let from = source.file.as_ref().map_or_else(|| "defaults".to_owned(), |file| file.display().to_string());
        let loaded = load(&source)?;
        let around = Surroundings { variables: source.env, service_account: Surroundings::SERVICE_ACCOUNT.into() };
        prepare(loaded, &from, &around, clock)
    }

    /// What sources of upstreams and credentials are read from.
    pub(super) fn surroundings(&self) -> Surroundings {
        Surroundings { variables: self.source().env, service_account: Surroundings::SERVICE_ACCOUNT.into() }
    }

    /// Where it comes from, now.
    pub(super) fn source(&self) -> Source {
        // A variable that is not Unicode cannot be one of ours: their names and values are checked as text.
        let env =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let env: Vec<_> = env.collect();
        Source { file: config::find(self.config.clone(), &env), env }
    }
}

fn load(source: &Source) -> Result<Loaded, Failure> {
    config::load(source).map_err(|problems| Failure::Config(problems.iter().map(Problem::to_string).collect()))
}
