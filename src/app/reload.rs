//! Reloads: a changed configuration is applied while the gates run (P11).
//!
//! There are two phases. Everything that can fail (reading, checking, building) is done first, and
//! does not touch the running gates. Applying the result cannot fail.
//!
//! The content of the file is compared every two seconds. Watching the file for events is not
//! enough: a ConfigMap is replaced by renaming a link two folders up. A file may be half written,
//! so two checks in a row must find the same content. An invalid file is loaded again from time to
//! time, because a certificate or token named in it may exist by now.

mod restart;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use super::hub;
use super::operations::Operations;
use super::prepare::{PreparedProcess, call_log};
use super::reloads::Outcome;
use super::source::Sources;
use crate::clock::Clock;
use crate::config;
use crate::credentials;
use crate::spec::{Settings, Source};
use crate::store::Stores;
use crate::telemetry::log::Level;
use crate::telemetry::{CallLog, Spans};

/// Watches the configuration file and applies changes.
pub(crate) struct Reloader {
    pub(crate) sources: Sources,
    pub(crate) clock: Clock,
    pub(crate) level: Level,
    pub(crate) calls: Option<CallLog>,
    pub(crate) spans: Option<Spans>,
    /// The settings in force.
    pub(crate) running: Settings,
    pub(crate) operations: Arc<Operations>,
    pub(crate) stores: Arc<Stores>,
    /// The content of the file at the last reload, whether or not it was valid.
    pub(crate) judged: Content,
}

/// The content of a configuration file, its presets and its clusters, or why it cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    path: Option<PathBuf>,
    bytes: Result<Vec<u8>, ErrorKind>,
    /// The hashes of the files that describe clusters.
    clusters: Vec<u64>,
}

/// The results of the checks since the last reload.
#[derive(Debug, Default)]
struct FileChecks {
    /// The content at the last check; `None` if it was the content of the last reload.
    changed: Option<Content>,
    /// The number of checks in a row that found no change.
    unchanged: u32,
}

// === impl Content ===

impl Content {
    /// Reads the sources now. `settings` are those in force.
    pub(crate) async fn of(sources: &Sources, settings: &Settings) -> Self {
        let path = sources.input().file;
        let mut bytes = path.as_ref().map_or_else(|| Ok(Vec::new()), std::fs::read).map_err(|error| error.kind());
        if let (Some(path), Ok(bytes)) = (&path, &mut bytes) {
            let presets = config::preset_files(path, &String::from_utf8_lossy(bytes)).into_iter();
            bytes.extend(presets.flat_map(|file| std::fs::read(file).unwrap_or_default()));
        }
        let paths = settings.gates.values().filter_map(|gate| match &gate.upstream {
            Source::Clusters(path) => Some(path.clone()),
            _ => None,
        });
        let mut clusters = Vec::new();
        for path in paths {
            // On another thread: there may be many files, and this one carries calls.
            clusters.extend(tokio::task::spawn_blocking(move || credentials::fingerprint(&path)).await);
        }
        Self { path, bytes, clusters }
    }
}

// === impl FileChecks ===

impl FileChecks {
    /// Returns true if the content `found` must be loaded. A change is loaded when two checks in a
    /// row find it. Unchanged content is loaded again after a while if it `was_invalid`.
    fn is_due(&mut self, found: &Content, judged: &Content, was_invalid: bool) -> bool {
        if found == judged {
            self.changed = None;
            self.unchanged += 1;
            return was_invalid && self.unchanged >= AGAIN;
        }
        let is_whole = self.changed.as_ref() == Some(found);
        self.changed = Some(found.clone());
        is_whole
    }
}

// === impl Reloader ===

impl Reloader {
    /// Reloads on every SIGHUP and whenever the file has changed, until `stop`.
    pub(crate) async fn watch(mut self, mut hangup: Signal, stop: CancellationToken) {
        let mut checks = FileChecks::default();
        loop {
            let asked = tokio::select! {
                () = stop.cancelled() => return,
                _ = hangup.recv() => true,
                () = self.clock.tick(INTERVAL) => false,
            };
            let found = Content::of(&self.sources, &self.running).await;
            let was_invalid = self.operations.reloads.last_was(Outcome::Invalid);
            if checks.is_due(&found, &self.judged, was_invalid) || asked {
                checks = FileChecks::default();
                self.reload(found, asked).await;
            }
        }
    }

    /// Checks the content, and applies it if it is valid.
    async fn reload(&mut self, found: Content, asked: bool) {
        if found == self.judged && self.operations.reloads.last_was_good() {
            tracing::info!(asked, "reload: the configuration has not changed");
            self.operations.reloads.record(Outcome::Unchanged, Vec::new());
            return;
        }
        let is_again = found == self.judged && !asked;
        let renews = found.clusters != self.judged.clusters;
        self.judged = found;
        let sources = self.sources.clone();
        let clock = self.clock;
        // On another thread: this one carries every call.
        let prepared = tokio::task::spawn_blocking(move || sources.prepare(clock)).await;
        let prepared = prepared.unwrap_or_else(|error| Err(Failure::Other(error.into())));
        match prepared.and_then(|prepared| self.call_log(prepared)) {
            Err(failure) => {
                let reasons = failure.problems();
                if !(is_again && self.operations.reloads.last_reasons() == reasons) {
                    self.refuse(Outcome::Invalid, reasons);
                }
            }
            Ok((prepared, calls)) => match self.needs_a_restart(&prepared.settings) {
                keys if keys.is_empty() => self.apply(prepared, calls).await,
                keys => self.refuse(Outcome::RestartNeeded, keys),
            },
        }
        if renews && !self.operations.reloads.last_was_good() {
            self.renew_clusters().await;
        }
    }

    /// Opens the new call log. Every step after this one cannot fail.
    fn call_log(&self, mut prepared: PreparedProcess) -> Result<(PreparedProcess, Option<CallLog>), Failure> {
        if let Some(missing) = prepared.missing.pop() {
            return Err(Failure::Other(missing));
        }
        let path = &prepared.settings.log.calls;
        let calls = if *path == self.running.log.calls {
            self.calls.clone()
        } else {
            call_log(path.as_deref(), self.spans.clone(), self.clock)?
        };
        Ok((prepared, calls))
    }

    /// Returns the changes that only a restart can apply.
    fn needs_a_restart(&self, new: &Settings) -> Vec<String> {
        let mut reasons = restart::needed(&self.running, new);
        let ca = self.operations.egress.as_ref().and_then(|egress| egress.ca());
        reasons.extend(restart::not_permitted(new, |name| ca.as_ref().is_some_and(|ca| ca.permits(name))));
        reasons
    }

    fn refuse(&self, outcome: Outcome, reasons: Vec<String>) {
        let count = reasons.len();
        let why = reasons.join("; ");
        match outcome {
            Outcome::RestartNeeded => {
                tracing::error!(why, "the new configuration needs a restart: the old one stays in force until then");
            }
            Outcome::Invalid | Outcome::Applied | Outcome::Unchanged => {
                tracing::error!(problems = count, why, "the new configuration is invalid: the old one stays in force");
            }
        }
        self.operations.reloads.record(outcome, reasons);
    }

    /// Reads the clusters of the gates again, under the settings in force: what is wrong with new
    /// settings need not concern the clusters.
    async fn renew_clusters(&self) {
        for (name, hub) in &self.operations.hubs {
            let settings = self.running.gates.get(name).cloned();
            let limits = self.running.clusters.clone();
            let clock = self.clock;
            let read = tokio::task::spawn_blocking(move || {
                let clusters = hub::clusters(&settings?, &limits, clock).ok().flatten()?;
                Some((hub::warnings(&clusters), clusters))
            });
            // What else is wrong is among the problems of the configuration.
            let Ok(Some((warnings, clusters))) = read.await else { continue };
            for warning in warnings {
                tracing::warn!("{name}: {warning}");
            }
            hub.adopt(clusters);
            tracing::info!(gate = &**name, "the clusters are as their files say, all else is as before");
        }
    }

    /// Applies a valid configuration. No step of this can fail.
    async fn apply(&mut self, prepared: PreparedProcess, calls: Option<CallLog>) {
        for warning in &prepared.warnings {
            tracing::warn!("{warning}");
        }
        if let Err(error) = self.level.set(&prepared.settings.log.level) {
            tracing::error!(%error, "cannot change the log level: the old one stays in force"); // it was checked, so it can be set
        }
        self.stores.adopt(prepared.stores);
        for mut gate in prepared.gates {
            let running = self.operations.gates.iter().find(|running| *running.name() == gate.options.gate.name);
            gate.options.call_log.clone_from(&calls);
            if let Some(running) = running {
                running.caught_up().await;
                running.reconfigure(gate.options);
                if let (Some(hub), Some(clusters)) = (self.operations.hubs.get(running.name()), gate.hub) {
                    hub.adopt(clusters);
                }
            }
        }
        if let (Some(egress), Some(new)) = (&self.operations.egress, prepared.egress) {
            egress.reconfigure(new.options.directory);
        }
        self.operations.adopt(&prepared.settings);
        self.calls = calls;
        self.running = prepared.settings;
        let hash = self.operations.reloads.take_over(&prepared.effective);
        tracing::info!(hash, "the new configuration is in force");
    }
}

/// The interval of checks of the file. Two in a row must agree, so a change is in force after four
/// seconds, or eight at worst; kubelet itself takes up to a minute.
const INTERVAL: Duration = Duration::from_secs(2);
/// The number of checks before an invalid configuration is tried again.
const AGAIN: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_judged_once_it_is_whole_and_again_while_it_is_invalid() {
        let content = |text: &str| Content { path: None, bytes: Ok(text.into()), clusters: Vec::new() };
        let (old, half, whole) = (content("a"), content("b"), content("bc"));
        let mut checks = FileChecks::default();
        let due = [&old, &half, &whole, &whole].map(|found| checks.is_due(found, &old, false));
        assert_eq!(due, [false, false, false, true]);
        let mut checks = FileChecks::default();
        assert!((0..100).all(|_| !checks.is_due(&old, &old, false)), "it is in force, or needs a restart");
        let mut checks = FileChecks::default();
        let due = [(); 5].map(|()| checks.is_due(&old, &old, true));
        assert_eq!(due, [false, false, false, false, true]);
        let mut checks = FileChecks::default();
        let due = [&old, &half, &old, &half].map(|found| checks.is_due(found, &old, true));
        assert_eq!(due, [false; 4], "it is still being written");
    }
}
