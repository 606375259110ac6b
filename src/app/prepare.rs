//! Turns a configuration into everything that is needed to start. `check`, `run` and the demo all
//! use this one way, so that they cannot disagree.
//!
//! All problems are collected. Nothing listens, nothing is sent and nothing is written yet.

use std::fmt::Display;
use std::path::Path;

use anyhow::Context as _;

use super::egress::{PreparedEgress, prepare_egress};
use super::failure::Failure;
use super::gate::{PreparedGate, Trouble, prepare_gate};
use super::memory;
use crate::clock::Clock;
use crate::config::{Loaded, Problem};
use crate::credentials::Environment;
use crate::otlp::PreparedOtlp;
use crate::spec::{Log, Settings};
use crate::store::PreparedStore;
use crate::telemetry::{CallLog, Spans};
use crate::tls;

/// Everything that is needed to start.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) settings: Settings,
    pub(crate) gates: Vec<PreparedGate>,
    pub(crate) egress: Option<PreparedEgress>,
    pub(crate) stores: Vec<PreparedStore>,
    pub(crate) otlp: Option<PreparedOtlp>,
    /// The effective configuration, as TOML.
    pub(crate) effective: String,
    /// Warnings about what works but should be known.
    pub(crate) warnings: Vec<String>,
    /// Things that are not here but may exist where the configuration is meant to run: a pod's
    /// files, a kubeconfig.
    pub(crate) missing: Vec<anyhow::Error>,
}

/// Builds what a configuration describes; `from` names it in problems.
pub(crate) fn prepare(loaded: Loaded, from: &str, around: &Environment, clock: Clock) -> Result<Prepared, Failure> {
    let mut problems: Vec<String> = loaded.unreadable_files().iter().map(Problem::to_string).collect();
    let files = loaded.expired_files(tls::wall(), tls::lives);
    let Loaded { settings, effective, mut warnings, origins, .. } = loaded;
    warnings.extend(files.iter().map(Problem::to_string));
    let located = |path: &str, what: &dyn Display| origins.located(from, path, what);
    problems.extend(call_log_problem(&settings.log).map(|what| located("log.calls", &what)));
    let too_much = memory::limit().and_then(|limit| memory::problem(settings.gates.values(), limit));
    problems.extend(too_much.map(|what| format!("{from}: {what}")));
    let Settings { drain, gates, stores, otlp, .. } = settings.clone();
    let mut missing = Vec::new();
    let egress = match prepare_egress(&settings, around, clock) {
        Ok(egress) => {
            warnings.extend(egress.iter().flat_map(PreparedEgress::warnings));
            egress
        }
        Err(Trouble::Wrong { key, what }) => {
            if !problems.iter().any(|problem| problem.contains("egress.")) {
                problems.push(located(&format!("egress.{key}"), &format_args!("{what:#}")));
            }
            None
        }
        Err(Trouble::Missing(what)) => {
            missing.push(what.context("egress"));
            None
        }
    };
    let (gate_list, store_list) = Default::default();
    let mut prepared =
        Prepared { settings, gates: gate_list, egress, stores: store_list, otlp: None, effective, warnings, missing };
    let is_known = problems.iter().any(|problem| problem.contains("otlp."));
    match otlp.map(PreparedOtlp::new).transpose() {
        Ok(otlp) => prepared.otlp = otlp,
        Err(_) if is_known => {}
        Err(error) => problems.push(format!("{from}: {error}")),
    }
    for store in stores {
        let place = format!("stores.{}.", store.name);
        let is_known = problems.iter().any(|problem| problem.contains(&place));
        match PreparedStore::new(store, clock) {
            Ok(store) => prepared.stores.push(store),
            Err(_) if is_known => {}
            Err(unusable) => problems.push(format!("{from}: {place}{unusable}")),
        }
    }
    for gate in gates.into_values() {
        let place = format!("gates.{}.", gate.name);
        // A file that cannot be read is one problem, not also a second one in what is built from
        // it.
        let is_known = problems.iter().any(|problem| problem.contains(&place));
        match prepare_gate(gate, around, drain, clock) {
            Ok(gate) => {
                prepared.warnings.extend(gate.warnings(&origins, from));
                prepared.gates.push(gate);
            }
            Err(Trouble::Missing(what)) => prepared.missing.push(what),
            Err(Trouble::Wrong { .. }) if is_known => {}
            Err(Trouble::Wrong { key, what }) => {
                problems.push(located(&format!("{place}{key}"), &format_args!("{what:#}")));
            }
        }
    }
    if problems.is_empty() { Ok(prepared) } else { Err(Failure::Config(problems)) }
}

/// Checks the folder of the call log, which must exist; the file is created at start.
fn call_log_problem(log: &Log) -> Option<String> {
    let path = log.calls.as_ref()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let is_there = folder.is_dir() && !path.is_dir();
    (!is_there).then(|| format!("{} cannot be a file, expected a path in a folder that is there", path.display()))
}

/// Opens the call log, if anything takes it: a file, or what makes spans.
pub(crate) fn call_log(path: Option<&Path>, spans: Option<Spans>, clock: Clock) -> anyhow::Result<Option<CallLog>> {
    if path.is_none() && spans.is_none() {
        return Ok(None);
    }
    let written = || path.map_or_else(|| "(no file)".to_owned(), |path| path.display().to_string());
    let log = CallLog::open(path, spans, clock);
    log.map(Some).with_context(|| format!("log.calls: cannot write {}", written()))
}
