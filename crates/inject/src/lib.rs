//! Adds the tidegate sidecar to Kubernetes workloads in YAML or JSON, and removes it again.

#[macro_use]
extern crate tidegate_limit;

pub mod inject;

use tidegate_config::yaml;
