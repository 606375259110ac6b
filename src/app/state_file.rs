//! The state file: it passes on what the gates remember to the process after a restart.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::operations::Operations;
use crate::classify::Salt;
use crate::clock::{Clock, wall_clock};
use crate::proxy::{Changes, Gap, Gate, Past};
use crate::spec;
use crate::spec::Settings;
use crate::state::{self, ProcessState, Stamp, StateError};

/// The state file, with the state that an earlier process left in it.
pub(crate) struct StateFile {
    /// The path of the file; `None` if no state is kept.
    path: Option<PathBuf>,
    /// The folder of the file, locked so that no other process writes its state there.
    _folder: Option<File>,
    salt: Salt,
    previous: Option<ProcessState>,
}

/// The background task that writes the state.
pub(crate) struct StateKeeper {
    task: JoinHandle<()>,
    over: CancellationToken,
}

// === impl StateFile ===

impl StateFile {
    /// Reads the state file. If it is unusable, that is logged, and the process starts without it.
    pub(crate) fn open(settings: &Settings) -> Self {
        let mut this = Self { path: None, _folder: None, salt: Salt::random(), previous: None };
        let Some((path, is_asked_for)) = place(settings) else { return this };
        match lock(&path) {
            Ok(folder) => this._folder = Some(folder),
            Err(error) if is_asked_for => {
                tracing::warn!(file = %path.display(), %error, "cannot use the folder of the state file: failing keys and pauses are lost at a restart; check state.file");
                return this;
            }
            Err(_) => return this,
        }
        match state::read(&path) {
            Ok(previous) => this.previous = previous,
            Err(error) if !state::is_free(&path) => {
                let file = path.display();
                tracing::warn!(%file, %error, "the file at the state file's path is not overwritten: failing keys and pauses are lost at a restart; set state.file to another path");
                return this;
            }
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "cannot use the state file: starting without the failing keys and pauses in it")
            }
        }
        if let Some(previous) = &this.previous {
            this.salt = Salt::of(previous.secret);
            let keys: usize = previous.gates.values().map(|gate| gate.keys.len()).sum();
            let pauses: usize = previous.gates.values().map(|gate| gate.pauses.len()).sum();
            let ago = Stamp::new(wall_clock()).since(&previous.stamp);
            tracing::info!(file = %path.display(), keys, pauses, seconds = ago.as_secs(), "loaded the state file: failing keys and pauses of the last process go on");
        }
        this.path = Some(path);
        this
    }

    /// Returns what a gate remembered before the restart.
    pub(crate) fn past(&self, gate: &str) -> Past {
        let previous = self.previous.as_ref().and_then(|previous| Some((previous, previous.gates.get(gate)?)));
        let gap = |previous: &ProcessState| Gap {
            length: Stamp::new(wall_clock()).since(&previous.stamp),
            unseen: (!previous.is_last).then_some(UNSEEN),
        };
        Past { salt: self.salt.clone(), frozen: previous.map(|(previous, frozen)| (frozen.clone(), gap(previous))) }
    }

    /// Starts the background task that writes the state of these gates.
    pub(crate) fn keep(mut self, operations: Arc<Operations>, clock: Clock) -> StateKeeper {
        self.previous = None;
        let over = CancellationToken::new();
        StateKeeper { task: tokio::spawn(self.write_until(operations, clock, over.clone())), over }
    }

    /// Writes the state whenever it has changed, and once more when `over` is cancelled.
    async fn write_until(self, operations: Arc<Operations>, clock: Clock, over: CancellationToken) {
        let Some(path) = self.path.clone() else { return };
        let gates = &operations.gates;
        let changes = || gates.iter().map(|gate| gate.changes()).collect::<Vec<_>>();
        let mut written = None;
        let mut at = clock.now();
        let mut is_failing = false;
        loop {
            let now = changes();
            let is_due = written.as_ref().is_none_or(|written: &Vec<Changes>| {
                let memory = now.iter().zip(written).any(|(now, then)| now.memory != then.memory);
                memory || (now != *written && clock.now() - at >= LEVELS_EVERY)
            });
            if is_due {
                let result = self.write(&path, gates, false).await;
                report(&path, result.as_ref().err(), &mut is_failing);
                (written, at) = (Some(now), clock.now());
            }
            tokio::select! {
                () = clock.tick(LOOK) => {}
                () = over.cancelled() => break,
            }
        }
        let result = self.write(&path, gates, true).await;
        report(&path, result.as_ref().err(), &mut is_failing);
    }

    async fn write(&self, path: &Path, gates: &[Arc<Gate>], is_last: bool) -> Result<(), StateError> {
        let most = (KEYS / gates.len().max(1)).max(LEAST_KEYS);
        let mut frozen = std::collections::BTreeMap::new();
        for gate in gates {
            frozen.insert(Arc::clone(gate.name()), gate.freeze(most).await);
        }
        // The stamp is taken last, so that no time counts twice.
        let stamp = Stamp::new(wall_clock());
        let state = ProcessState { stamp, is_last, secret: self.salt.secret(), gates: frozen };
        let path = path.to_owned();
        // A disk that hangs must not stop the thread that carries every call.
        let written = tokio::task::spawn_blocking(move || state::write(&path, &state, is_last)).await;
        written.unwrap_or_else(|error| Err(io::Error::other(error).into()))
    }
}

// === impl StateKeeper ===

impl StateKeeper {
    /// Writes the state one last time. Call it after the gates have stopped.
    pub(crate) async fn written(self) {
        self.over.cancel();
        self.task.await.ok();
    }
}

/// Logs once that the state cannot be written, and once that it can again.
fn report(path: &Path, error: Option<&StateError>, is_failing: &mut bool) {
    let file = path.display();
    match error {
        Some(error) if !*is_failing => {
            tracing::warn!(%file, %error, "cannot write the state file: failing keys and pauses since the last write are lost at a restart");
        }
        None if *is_failing => tracing::info!(%file, "the state file can be written again"),
        _ => {}
    }
    *is_failing = error.is_some();
}

/// Returns the path of the state file, and true if the configuration names it.
fn place(settings: &Settings) -> Option<(PathBuf, bool)> {
    let volume = || settings.gates.values().find_map(spec::Gate::folder);
    let pod = || Some(Path::new(POD)).filter(|folder| folder.is_dir());
    match &settings.state {
        spec::OwnFile::Off => None,
        spec::OwnFile::At(path) => Some((path.clone(), true)),
        spec::OwnFile::Auto => Some((volume().or_else(pod)?.join("state"), false)),
    }
}

/// Makes the folder of the state file and locks it, because two processes would overwrite each
/// other's state.
fn lock(path: &Path) -> io::Result<File> {
    let folder = path.parent().unwrap_or(path);
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let folder = File::open(folder)?;
    folder.try_lock().map_err(|error| match error {
        std::fs::TryLockError::WouldBlock => io::Error::other("another process uses that folder for its state file"),
        std::fs::TryLockError::Error(error) => error,
    })?;
    Ok(folder)
}

/// The folder for state that `inject` mounts into the sidecar.
const POD: &str = "/run/tidegate";
/// How often to check whether the state has changed.
const LOOK: Duration = Duration::from_secs(2);
/// The least time between two writes if only bucket levels have changed, as they do with each call.
const LEVELS_EVERY: Duration = Duration::from_secs(5);
/// The most time before a crash whose changes may be missing in the file.
const UNSEEN: Duration = Duration::from_secs(8);
/// The most failing keys to write for all gates together: the file stays below a megabyte.
const KEYS: usize = 8000;
/// The most failing keys to write for each gate if there are many gates.
const LEAST_KEYS: usize = 500;
