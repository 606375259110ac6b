//! Prepares a process from a configuration, for `check`, `run` and the demo.
//!
//! Nothing listens, nothing is sent and nothing is written yet. All problems are collected, not
//! only the first.

use std::path::Path;

use anyhow::Context as _;

use super::egress::{PreparedEgress, prepare_egress};
use super::failure::Failure;
use super::gate::{PreparedGate, Trouble, prepare_gate};
use super::hub;
use crate::clock::Clock;
use crate::config::{Configuration, Origins, Problem};
use crate::credentials::Environment;
use crate::otlp::PreparedOtlp;
use crate::spec::{Log, Settings};
use crate::store::PreparedStore;
use crate::telemetry::{CallLog, Spans};
use crate::tls;

/// The settings of a process, and the gates and other parts built from them, before it starts.
#[derive(Debug)]
pub(crate) struct PreparedProcess {
    pub(crate) settings: Settings,
    pub(crate) gates: Vec<PreparedGate>,
    pub(crate) egress: Option<PreparedEgress>,
    pub(crate) stores: Vec<PreparedStore>,
    pub(crate) otlp: Option<PreparedOtlp>,
    /// The effective configuration, as TOML.
    pub(crate) effective: String,
    /// Warnings for the user.
    pub(crate) warnings: Vec<String>,
    /// Files that do not exist on this machine, but may exist where the process will run, such as a
    /// pod's token or a kubeconfig.
    pub(crate) missing: Vec<anyhow::Error>,
}

/// The problems found so far, and the files missing on this machine.
struct Problems<'a> {
    origins: &'a Origins,
    /// The name of the configuration, for the texts.
    from: &'a str,
    texts: Vec<String>,
    missing: Vec<anyhow::Error>,
}

// === impl Problems ===

impl Problems<'_> {
    /// Adds a problem of the table `place`, unless an earlier problem names that table: an
    /// unreadable file would be reported twice.
    fn add(&mut self, place: &str, problem: String) {
        if !self.texts.iter().any(|known| known.contains(place)) {
            self.texts.push(problem);
        }
    }

    /// Returns the prepared part, or records why it could not be prepared. `place` is its table in
    /// the configuration.
    fn part<T>(&mut self, place: &str, part: Result<T, Trouble>) -> Option<T> {
        match part {
            Ok(part) => return Some(part),
            Err(Trouble::Missing(what)) => self.missing.push(what),
            Err(Trouble::Wrong { key, what }) => {
                self.add(place, self.origins.located(self.from, &format!("{place}{key}"), format_args!("{what:#}")));
            }
        }
        None
    }
}

/// Prepares a process from a configuration. `from` names the configuration in problems.
pub(crate) fn prepare(
    loaded: Configuration,
    from: &str,
    around: &Environment,
    clock: Clock,
) -> Result<PreparedProcess, Failure> {
    let texts: Vec<String> = loaded.unreadable_files().iter().map(Problem::to_string).collect();
    let files = loaded.expired_files(tls::wall(), tls::lives);
    let Configuration { settings, effective, mut warnings, origins, .. } = loaded;
    warnings.extend(files.iter().map(Problem::to_string));
    let mut problems = Problems { origins: &origins, from, texts, missing: Vec::new() };
    problems.texts.extend(call_log_problem(&settings.log).map(|what| origins.located(from, "log.calls", &what)));
    let egress = prepare_egress(&settings, around, clock).map_err(|trouble| match trouble {
        Trouble::Missing(what) => Trouble::Missing(what.context("egress")),
        wrong @ Trouble::Wrong { .. } => wrong,
    });
    let egress = problems.part("egress.", egress).flatten();
    warnings.extend(egress.iter().flat_map(PreparedEgress::warnings));
    let otlp = settings.otlp.clone().map(PreparedOtlp::new).transpose();
    let otlp = otlp.map_err(|error| problems.add("otlp.", format!("{from}: {error}"))).ok().flatten();
    let mut stores = Vec::new();
    for store in settings.stores.clone() {
        let place = format!("stores.{}.", store.name);
        let store = PreparedStore::new(store, clock);
        stores.extend(store.map_err(|unusable| problems.add(&place, format!("{from}: {place}{unusable}"))));
    }
    let mut gates = Vec::new();
    for gate in settings.gates.values() {
        let place = format!("gates.{}.", gate.name);
        if let Some(mut gate) = problems.part(&place, prepare_gate(gate.clone(), around, settings.drain, clock)) {
            let added = hub::add(&mut gate, &settings.clusters, clock);
            problems.part(&place, added);
            warnings.extend(gate.warnings(&origins, from));
            gates.push(gate);
        }
    }
    let Problems { texts, missing, .. } = problems;
    if !texts.is_empty() {
        return Err(Failure::Config(texts));
    }
    Ok(PreparedProcess { settings, gates, egress, stores, otlp, effective, warnings, missing })
}

/// Returns a problem if the folder of the call log does not exist. The file itself is created at
/// the start.
fn call_log_problem(log: &Log) -> Option<String> {
    let path = log.calls.as_ref()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let is_there = folder.is_dir() && !path.is_dir();
    (!is_there).then(|| format!("is {}, expected the path of a file in an existing folder", path.display()))
}

/// Opens the call log; `None` if neither a file nor trace spans are configured.
pub(crate) fn call_log(path: Option<&Path>, spans: Option<Spans>, clock: Clock) -> anyhow::Result<Option<CallLog>> {
    if path.is_none() && spans.is_none() {
        return Ok(None);
    }
    let written = || path.map_or_else(|| "(no file)".to_owned(), |path| path.display().to_string());
    let log = CallLog::open(path, spans, clock);
    log.map(Some).with_context(|| format!("log.calls: cannot write the call log {}", written()))
}
