//! Clients that call as they are told: programs with a library, and commands.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::rows::{Row, With};
use crate::intercepted::variables;
use crate::pod::must;
use crate::programs::{Client, OF_THE_MACHINE, Report};

/// A client with what a container is given.
pub(crate) enum Caller {
    Client(Client),
    Command { with: With, variables: Vec<(String, String)>, dir: PathBuf },
}

// === impl Caller ===

impl Caller {
    /// # Errors
    /// The client cannot be had here, for this reason.
    pub(crate) fn start(row: &Row, dir: &Path) -> Result<Self, String> {
        let mut variables = variables(8003, "/run/tidegate", &row.kinds());
        // What images do by themselves. Node.js comes with roots of its own, of which none is here.
        variables.push(("NODE_OPTIONS".to_owned(), "--use-openssl-ca".to_owned()));
        match row.with {
            With::Program(program) => {
                let borrowed: Vec<_> = variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                Client::start(program, row.name, &borrowed).map(Self::Client)
            }
            with => row.fetch().map(|()| Self::Command { with, variables, dir: dir.to_owned() }),
        }
    }

    /// Makes one call to the host at `url`.
    pub(crate) fn call(&mut self, call: &str, url: &str) -> Report {
        match self {
            Self::Client(client) => client.call(call, url),
            Self::Command { with: With::Git, variables, dir } => git(call, url, variables, dir),
            Self::Command { variables, dir, .. } => curl(call, url, variables, dir),
        }
    }
}

fn curl(call: &str, url: &str, variables: &[(String, String)], dir: &Path) -> Report {
    let mut curl = Command::new("curl");
    curl.args(["--fail", "--silent", "--show-error", "--output", "/dev/null"]);
    match call {
        "write" => curl.args(["--data", "{}"]),
        "upload" => curl.arg("--upload-file").arg(dir.join(LARGE)),
        _ => &mut curl,
    };
    report(curl.arg(format!("{url}/things")), variables)
}

fn git(call: &str, url: &str, variables: &[(String, String)], dir: &Path) -> Report {
    let mut git = Command::new("git");
    git.arg("-C").arg(dir.join("work"));
    let (remote, large) = (format!("{url}/remote.git"), "HEAD:refs/heads/large");
    match call {
        "write" => git.args(["push", "--quiet", &remote, "HEAD~1:refs/heads/small"]),
        "upload" => git.args(["push", "--quiet", &remote, large]),
        _ => git.args(["ls-remote", "--quiet", &remote]),
    };
    report(&mut git, variables)
}

fn report(command: &mut Command, variables: &[(String, String)]) -> Report {
    for variable in OF_THE_MACHINE {
        command.env_remove(variable);
    }
    let variables = variables.iter().map(|(name, value)| (name, value));
    let done = command.envs(variables).env("HOME", "/nonexistent").output().expect("it ran before");
    let error = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    Report { ok: done.status.success(), error, attempts: None }
}

/// Makes what the commands upload: a file, and a repository with two commits.
pub(crate) fn prepare(dir: &Path) {
    // What cannot be compressed stays as large.
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let large: Vec<u8> = std::iter::repeat_with(|| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random.to_le_bytes()
    })
    .take((5 << 20) / 8)
    .flatten()
    .collect();
    fs::write(dir.join(LARGE), large).expect("the folder is ours");
    let (work, remote) = (dir.join("work"), dir.join("remote.git"));
    let texts = (work.display().to_string(), remote.display().to_string());
    let (work_text, remote_text) = (texts.0.as_str(), texts.1.as_str());
    must("git", ["init", "--quiet", "--bare", remote_text]);
    must("git", ["-C", remote_text, "config", "http.receivepack", "true"]);
    must("git", ["init", "--quiet", work_text]);
    let commit = |message: &str| {
        let name = ["-c", "user.name=t", "-c", "user.email=t@example.com"];
        must("git", ["-C", work_text, "add", "."]);
        must("git", ["-C", work_text].iter().chain(&name).chain(&["commit", "--quiet", "-m", message]));
    };
    fs::write(work.join("small"), "small").expect("the folder is ours");
    commit("small");
    fs::copy(dir.join(LARGE), work.join(LARGE)).expect("the folder is ours");
    commit("large");
}

const LARGE: &str = "large.bin";
