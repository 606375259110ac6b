//! The configuration of tidegate: its settings, how they are written, and how they are checked.
//!
//! [`config`] reads one TOML file, the environment and presets into a checked [`spec`], with line
//! and column of every problem. [`yaml`] reads kubeconfig files and manifests as kubectl does.

#[macro_use]
pub extern crate tidegate_limit as limit;

pub mod config;
pub mod spec;
pub mod yaml;

use call::{api, classify, dialect, hot};
use tidegate_call as call;
