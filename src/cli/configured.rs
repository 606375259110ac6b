//! The option `--config`.

use std::path::PathBuf;

use clap::Args;

use super::show;
use crate::app::source::Sources;
use crate::spec::Settings;
use crate::status::text::count;

/// The option `--config`, for all commands reading a configuration.
#[derive(Clone, Debug, Args)]
pub(super) struct ConfigOption {
    /// Configuration file [default: $TIDEGATE_CONFIG, else /etc/tidegate/tidegate.toml if it is
    /// there, else built-in]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

// === impl ConfigOption ===

impl ConfigOption {
    /// Returns the option, with `file` as its value if it has none.
    pub(super) fn or(&self, file: Option<&PathBuf>) -> Self {
        Self { config: self.config.as_ref().or(file).cloned() }
    }

    /// Returns the settings with which to find and ask the running process. Problems are only
    /// printed: the process may still run with an earlier, valid configuration.
    pub(super) fn to_ask(&self) -> Settings {
        let (settings, problems) = self.sources().load_as_far_as_it_goes();
        problems.iter().for_each(|problem| show::error(problem));
        if !problems.is_empty() {
            let count = count(problems.len(), "problem", "problems");
            show::error(&format!("tidegate: {count} in the configuration, which no process can start with"));
        }
        settings
    }

    pub(super) fn sources(&self) -> Sources {
        Sources { config: self.config.clone() }
    }
}
