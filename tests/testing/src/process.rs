//! Child processes that cannot outlive the test run, in whichever way it ends.
//!
//! Each is killed by its pid on drop. Processes that no drop reaches (statics, an aborted run) are
//! left to one small shell, the reaper: it reads the pids and folders that live from a pipe, and
//! clears up when the pipe closes.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::wait::wait_for;

/// One word and one argument per line: `+ PID`, `- PID`, `d FOLDER`. It ignores the terminal's
/// signals, because it must outlive the processes that they end.
const REAPER: &str = r#"trap '' INT TERM HUP
pids=; dirs=
while IFS=' ' read -r word rest; do
  case $word in
    +) pids="$pids $rest ";;
    -) pids=$(printf %s "$pids" | sed "s/ $rest / /");;
    d) dirs="$dirs$rest
";;
  esac
done
for pid in $pids; do kill -9 "$pid" 2>/dev/null; done
printf %s "$dirs" | while IFS= read -r dir; do rm -rf "$dir"; done"#;

#[expect(clippy::zombie_processes, reason = "it ends after us: nobody is left to wait for it")]
fn tell_reaper(word: char, what: &str) {
    static REAPER_INPUT: OnceLock<Mutex<ChildStdin>> = OnceLock::new();
    let input = REAPER_INPUT.get_or_init(|| {
        let mut shell = Command::new("sh")
            .args(["-c", REAPER])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("there is a sh");
        Mutex::new(shell.stdin.take().expect("its input is a pipe"))
    });
    let mut input = input.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(input, "{word} {what}").expect("the reaper reads until we end");
}

/// A running child whose output goes to files.
#[derive(Debug)]
pub struct Process {
    child: Mutex<Child>,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts `command`. Its stderr goes to `DIR/NAME.log`, and so does its stdout unless it is
    /// already set to go elsewhere.
    pub fn start(name: &str, dir: &Path, mut command: Command) -> Self {
        let log = dir.join(format!("{name}.log"));
        let open = || File::options().create(true).append(true).open(&log).expect("the log file can be opened");
        command.stdin(Stdio::null()).stdout(open()).stderr(open());
        Self::spawn(name, log, command)
    }

    /// The same with stdout in its own file, `DIR/NAME.out`, for programs that print a report
    /// there.
    pub fn start_reporting(name: &str, dir: &Path, mut command: Command) -> (Self, PathBuf) {
        let log = dir.join(format!("{name}.log"));
        let out = dir.join(format!("{name}.out"));
        command
            .stdin(Stdio::null())
            .stdout(File::create(&out).expect("the report file can be made"))
            .stderr(File::create(&log).expect("the log file can be made"));
        (Self::spawn(name, log, command), out)
    }

    fn spawn(name: &str, log: PathBuf, mut command: Command) -> Self {
        let child = command.spawn().unwrap_or_else(|e| panic!("{name} does not start: {e}"));
        tell_reaper('+', &child.id().to_string());
        Self { child: Mutex::new(child), name: name.to_owned(), log }
    }

    pub fn pid(&self) -> u32 {
        self.child().id()
    }

    /// The end of its log, which is the first thing to read when a test fails.
    pub fn log_tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Panics with the end of its log if it has ended.
    pub fn must_run(&self) {
        let ended = self.child().try_wait().expect("a child can be asked");
        if let Some(status) = ended {
            panic!("{} ended early, {status}:\n{}", self.name, self.log_tail());
        }
    }

    /// True if it has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.child().try_wait().expect("a child can be asked").is_some()
    }

    /// Sends a signal by name, as `kill -NAME` does.
    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), pid.as_str()]).status();
        assert!(sent.is_ok_and(|s| s.success()), "{}: no signal could be sent to {pid}", self.name);
    }

    /// Waits until it has ended by itself.
    pub fn wait(&self, within: Duration) -> ExitStatus {
        let what = format!("{} ends", self.name);
        let status = wait_for(&what, within, || self.child().try_wait().expect("a child can be asked"));
        self.forget();
        status
    }

    /// Ends it at once.
    pub fn kill(&self) {
        let mut child = self.child();
        // It may have ended already, which is as good.
        drop(child.kill());
        drop(child.wait());
        drop(child);
        self.forget();
    }

    fn forget(&self) {
        tell_reaper('-', &self.pid().to_string());
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Makes a new folder that is removed at the end, at the latest by the reaper.
pub fn scratch_dir() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("tg").tempdir().expect("a temporary folder can be made");
    tell_reaper('d', &dir.path().display().to_string());
    dir
}

/// A command with its arguments.
pub fn command(program: impl AsRef<OsStr>, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}
