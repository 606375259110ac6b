//! The Go clients of `controller/` and their reports: one JSON object per line.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::control_plane::{ControlPlane, User};
use super::gate::Way;
use super::process::{Process, scratch_dir};
use super::wait_for;

/// A running Go client.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) process: Process,
    report: PathBuf,
    // Last, because the process writes into it.
    _dir: tempfile::TempDir,
}

/// One line of a report.
#[derive(Clone, Debug)]
pub(crate) struct Line(Value);

impl Line {
    /// The name of what happened, in `event`.
    pub(crate) fn event(&self) -> &str {
        self.text("event")
    }

    pub(crate) fn text(&self, field: &str) -> &str {
        self.0.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) fn number(&self, field: &str) -> u64 {
        self.0.get(field).and_then(Value::as_u64).unwrap_or_default()
    }

    /// A duration in whole microseconds, as every program reports it.
    pub(crate) fn took(&self) -> Duration {
        Duration::from_micros(self.number("micros"))
    }

    /// The time, since the epoch.
    pub(crate) fn at(&self) -> Duration {
        Duration::from_micros(self.number("at"))
    }
}

impl Program {
    /// Starts a mode of the program with its flags.
    pub(crate) fn start(plane: &ControlPlane, way: Way<'_>, user: &User, args: &[&str]) -> Self {
        Self::start_with(plane, way, user, args, &[])
    }

    /// The same with more environment variables.
    pub(crate) fn start_with(
        plane: &ControlPlane,
        way: Way<'_>,
        user: &User,
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Self {
        let dir = scratch_dir();
        let mut run = way.command(&plane.binaries().path("controller"), user, args);
        run.envs(env.iter().copied());
        let (process, report) = Process::start_reporting(args[0], dir.path(), run);
        Self { process, report, _dir: dir }
    }

    /// The lines of its report so far.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let text = fs::read_to_string(&self.report).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok().map(Line)).collect()
    }

    /// The lines of its report for one event.
    pub(crate) fn events(&self, event: &str) -> Vec<Line> {
        let mut lines = self.lines();
        lines.retain(|line| line.event() == event);
        lines
    }

    /// Waits until it has reported `event` at least `count` times.
    pub(crate) fn wait_events(&self, event: &str, count: usize, within: Duration) -> Vec<Line> {
        wait_for(&format!("{count} reports of {event:?}"), within, || {
            self.process.must_run();
            Some(self.events(event)).filter(|found| found.len() >= count)
        })
    }

    /// Waits for it to end with success, and returns its report.
    pub(crate) fn finish(&self, within: Duration) -> Vec<Line> {
        let status = self.process.wait(within);
        assert!(status.success(), "{status}:\n{}", self.process.log_tail());
        self.lines()
    }
}
