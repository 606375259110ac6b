//! The option that names the configuration.

use std::path::PathBuf;

use clap::Args;

use crate::app::source::Sources;

/// The option that all commands with a configuration share.
#[derive(Clone, Debug, Args)]
pub(super) struct Configured {
    /// Configuration file [default: $TIDEGATE_CONFIG, else /etc/tidegate/tidegate.toml if it is
    /// there, else built-in]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

// === impl Configured ===

impl Configured {
    /// Returns the same with a file that was named in another way, if it was.
    pub(super) fn or(&self, file: Option<&PathBuf>) -> Self {
        Self { config: self.config.as_ref().or(file).cloned() }
    }

    pub(super) fn sources(&self) -> Sources {
        Sources { config: self.config.clone() }
    }
}
