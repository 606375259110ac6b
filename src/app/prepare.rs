//! From a configuration to everything that is needed to start: the one way for `check`, `run` and the demo, so that they cannot disagree.
//!
//! All problems are collected. Nothing listens, nothing is sent and nothing is written yet.

use std::path::Path;

use anyhow::Context as _;

use super::{
    failure::Failure,
    gate::{PreparedGate, Trouble, prepare_gate},
};
use crate::{
    clock::Clock,
    config::{
        Loaded, Problem,
        settings::{Log, Settings},
    },
    credentials::Surroundings,
    telemetry::CallLog,
};

/// Everything to start with.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) settings: Settings,
    pub(crate) gates: Vec<PreparedGate>,
    /// The configuration as it came to be, as TOML.
    pub(crate) effective: String,
    /// What works, but should be known.
    pub(crate) warnings: Vec<String>,
    /// What is not here, but may be where the configuration is meant for: a pod's files, a kubeconfig.
    pub(crate) missing: Vec<anyhow::Error>,
}

/// Builds what a configuration says; `from` names it in problems.
pub(crate) fn prepare(loaded: Loaded, from: &str, around: &Surroundings, clock: Clock) -> Result<Prepared, Failure> {
    let mut problems: Vec<String> = loaded.unreadable_files().iter().map(Problem::to_string).collect();
    let Loaded { settings, effective, warnings, .. } = loaded;
    problems.extend(call_log_problem(&settings.log).map(|what| format!("{from}: log.calls: {what}")));
    let Settings { drain, gates, .. } = settings.clone();
    let mut prepared = Prepared { settings, gates: Vec::new(), effective, warnings, missing: Vec::new() };
    for gate in gates.into_values() {
        let place = format!("gates.{}.", gate.name);
        // What cannot be built from a file that cannot be read is one problem, not two.
        let is_known = problems.iter().any(|problem| problem.contains(&place));
        match prepare_gate(gate, around, drain, clock) {
            Ok(gate) => prepared.gates.push(gate),
            Err(Trouble::Missing(what)) => prepared.missing.push(what),
            Err(Trouble::Wrong { .. }) if is_known => {}
            Err(Trouble::Wrong { key, what }) => problems.push(format!("{from}: {place}{key}: {what:#}")),
        }
    }
    if problems.is_empty() { Ok(prepared) } else { Err(Failure::Config(problems)) }
}

/// The file of calls is made at start; its folder must be there.
fn call_log_problem(log: &Log) -> Option<String> {
    let path = log.calls.as_ref()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let is_there = folder.is_dir() && !path.is_dir();
    (!is_there).then(|| format!("{} cannot be a file, expected a path in a folder that is there", path.display()))
}

/// Opens the file that calls are written to.
pub(crate) fn call_log(path: &Path, clock: Clock) -> anyhow::Result<CallLog> {
    CallLog::open(path, clock).with_context(|| format!("log.calls: cannot write {}", path.display()))
}
