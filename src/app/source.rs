//! The sources of the configuration: a file, and environment variables that override it.

use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::prepare::{PreparedProcess, prepare};
use crate::clock::Clock;
use crate::config::{self, Configuration, Input};
use crate::credentials::Environment;
use crate::spec::Settings;

/// The sources of the configuration: a file and the environment. They are read at each use, so that
/// a reload sees changes.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    /// The path given with `--config`.
    pub(crate) config: Option<PathBuf>,
}

// === impl Sources ===

impl Sources {
    /// Reads and checks the file and the environment together.
    pub(crate) fn load(&self) -> Result<Configuration, Failure> {
        load(&self.input())
    }

    /// Reads and checks the sources, and prepares the process.
    pub(crate) fn prepare(&self, clock: Clock) -> Result<PreparedProcess, Failure> {
        let input = self.input();
        let from = input.file.as_ref().map_or_else(|| "defaults".to_owned(), |file| file.display().to_string());
        prepare(load(&input)?, &from, &self.environment(), clock)
    }

    /// Reads the sources even if they have problems, and returns what is valid in them, with the
    /// problems. So a command can find the running process.
    pub(crate) fn load_as_far_as_it_goes(&self) -> (Settings, Vec<String>) {
        let (settings, problems) = config::load_as_far_as_it_goes(&self.input());
        (settings, problems.iter().map(ToString::to_string).collect())
    }

    /// Returns the environment, from which upstreams and credentials are read.
    pub(crate) fn environment(&self) -> Environment {
        Environment { variables: self.input().env, service_account: Environment::SERVICE_ACCOUNT.into() }
    }

    /// Returns the path of the file, and the current environment variables.
    pub(crate) fn input(&self) -> Input {
        let env = environment();
        Input { file: config::find(self.config.clone(), &env), env }
    }
}

/// Reads and checks a file with the environment variables that override it, as `run` does.
pub(crate) fn of_file(file: &Path) -> Result<Configuration, Failure> {
    load(&Input { file: Some(file.to_owned()), env: environment() })
}

/// Returns the environment variables. Bytes that are not UTF-8 become a replacement character, so
/// that the value is reported as a problem and not ignored.
fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .collect()
}

/// Reads and checks a configuration.
pub(crate) fn load(input: &Input) -> Result<Configuration, Failure> {
    config::load(input).map_err(|problems| Failure::of_config(&problems))
}
