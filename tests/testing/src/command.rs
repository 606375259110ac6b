//! Runs the command as a user does, and looks at its output and exit code. Helpers for the other
//! `cli_*` modules.

use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A command that has ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// A command that goes on running; killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    lines: Receiver<String>,
    pub seen: Vec<String>,
}

/// Returns the path of the `tidegate` that cargo built beside the running test.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let built = test.ancestors().nth(2).expect("tests are in deps/, below the programs");
    built.join("tidegate")
}

/// `tidegate` with these arguments, and without environment variables that could configure it.
pub fn tidegate<A: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(program());
    for (name, _) in std::env::vars_os() {
        // The last two are the size of the terminal that the tests are started from.
        let is_size = name == "COLUMNS" || name == "LINES";
        if name.to_string_lossy().starts_with("TIDEGATE") || name == "KUBECONFIG" || is_size {
            command.env_remove(name);
        }
    }
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end.
pub fn end(mut command: Command) -> Ended {
    let mut child = command.spawn().expect("the binary was built");
    let (out, err) = (collected(child.stdout.take()), collected(child.stderr.take()));
    let (Ok(out), Ok(err)) = (out.recv_timeout(PATIENCE), err.recv_timeout(PATIENCE)) else {
        stop(&mut child);
        panic!("{command:?} did not end");
    };
    let code = child.wait().expect("it was started").code();
    Ended { code, out, err }
}

/// Starts a command and follows its standard error.
pub fn start(mut command: Command) -> Running {
    let mut child = command.stdout(Stdio::null()).spawn().expect("the binary was built");
    let (sender, lines) = channel();
    let err = child.stderr.take().expect("it is piped");
    thread::spawn(move || {
        for line in BufReader::new(err).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Running { child, lines, seen: Vec::new() }
}

/// A configuration file in a folder of its own.
pub fn config(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tidegate.toml");
    std::fs::write(&path, text).expect("it can be written");
    (folder, path)
}

/// `run` or `check` with a configuration file.
pub fn with_config(what: &str, path: &Path) -> Command {
    tidegate([what.as_ref(), "--config".as_ref(), path.as_os_str()])
}

// === impl Running ===

impl Running {
    /// The process's id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The first line from now on that contains `wanted`.
    pub fn line(&mut self, wanted: &str) -> String {
        self.line_of(&[wanted])
    }

    /// The first line from now on that contains one of these.
    pub fn line_of(&mut self, wanted: &[&str]) -> String {
        loop {
            let Ok(line) = self.lines.recv_timeout(PATIENCE) else {
                panic!("no line with {wanted:?} came; there were:\n{}", self.seen.join("\n"));
            };
            self.seen.push(line.clone());
            if wanted.iter().any(|wanted| line.contains(wanted)) {
                return line;
            }
        }
    }

    /// Waits until the gates are open.
    pub fn ready(&mut self) {
        self.line_of(&["INFO ready gates=", "\"message\":\"ready\",\"gates\":"]);
    }

    /// True if a line that contains `wanted` has come by now.
    pub fn has_said(&mut self, wanted: &str) -> bool {
        self.seen.extend(self.lines.try_iter());
        self.seen.iter().any(|line| line.contains(wanted))
    }

    /// Sends SIGTERM, and returns the exit code.
    pub fn terminate(mut self) -> Option<i32> {
        self.signalled()
    }

    /// Sends SIGTERM, and returns all lines that it wrote.
    pub fn end(mut self) -> Vec<String> {
        self.signalled();
        std::mem::take(&mut self.seen)
    }

    /// Sends SIGKILL: the process writes nothing and closes nothing.
    pub fn kill(mut self) {
        stop(&mut self.child);
    }

    /// Sends a signal.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().expect("kill is there");
        assert!(sent.success());
    }

    fn signalled(&mut self) -> Option<i32> {
        self.signal("-TERM");
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.seen.push(line);
        }
        self.child.wait().expect("it was started").code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

fn stop(child: &mut Child) {
    // It may have ended by itself; either way it is gone afterwards.
    drop(child.kill());
    drop(child.wait());
}

/// Everything that comes through a pipe, once it ends.
fn collected(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    let mut pipe = pipe.expect("it is piped");
    thread::spawn(move || {
        let mut bytes = Vec::new();
        drop(pipe.read_to_end(&mut bytes));
        drop(sender.send(String::from_utf8_lossy(&bytes).into_owned()));
    });
    receiver
}
