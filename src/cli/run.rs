//! `tidegate run`: the sidecar itself.

use super::ConfigOption;
use crate::app::{self, Failure};

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate run                         one gate, 127.0.0.1:8001, to the API server
                                       of this pod, else of your kubeconfig
  tidegate run --config tidegate.toml  gates of your own
  TIDEGATE__GATES__KUBERNETES__BUCKET__RATE=20 tidegate run

After SIGTERM it serves on until the last client has left, or the drain ends.";

pub(super) fn run(configured: &ConfigOption) -> Result<(), Failure> {
    app::serve::serve(&configured.sources())
}
