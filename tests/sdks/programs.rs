//! The programs that call with the SDKs, and what they report.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::fetched::{install, node_modules, python, run};

/// What became of one call.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) call: String,
    pub(crate) ok: bool,
    pub(crate) error: String,
    pub(crate) attempts: Option<u32>,
    pub(crate) seconds: f64,
}

/// A program with SDKs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Python,
    JavaScript,
    Go,
}

/// The calls that an SDK makes, one after the other.
///
/// # Errors
/// The SDK cannot be had here, for this reason.
pub(crate) fn calls(program: Program, sdk: &str, url: &str, calls: &[&str]) -> Result<Vec<Report>, String> {
    let mut command = command(program)?;
    // Nothing of the machine's own configuration may reach the SDKs.
    command.args([sdk, url, &calls.join(",")]).env("AWS_EC2_METADATA_DISABLED", "true").env("HOME", "/nonexistent");
    let out = command.output().map_err(|error| format!("{program:?}: {error}"))?;
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{sdk} ended with {}:\n{said}", out.status);
    let lines = String::from_utf8(out.stdout).expect("JSON is text");
    let reports: Vec<Report> = lines.lines().map(|line| serde_json::from_str(line).expect("a report")).collect();
    assert_eq!(reports.iter().map(|report| report.call.as_str()).collect::<Vec<_>>(), calls, "{said}");
    Ok(reports)
}

fn command(program: Program) -> Result<Command, String> {
    let clients = Path::new(CLIENTS);
    let with = |interpreter: PathBuf, script: PathBuf| {
        let mut command = Command::new(interpreter);
        command.arg(script);
        command
    };
    match program {
        Program::Python => Ok(with(venv()?, clients.join("clients.py"))),
        Program::JavaScript => {
            let node = venv()?.with_file_name("node");
            let modules = node_modules("sdks-javascript", clients, &node)?;
            // Modules are looked for beside the script.
            let script = modules.join("clients.mjs");
            std::fs::copy(clients.join("clients.mjs"), &script)
                .map_err(|error| format!("{}: {error}", script.display()))?;
            Ok(with(node, script))
        }
        Program::Go => go().map(Command::new),
    }
}

/// A Python with the SDKs; Node.js comes as a package of it.
fn venv() -> Result<PathBuf, String> {
    python("sdks-python", &Path::new(CLIENTS).join("requirements.txt"))
}

fn go() -> Result<PathBuf, String> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdks/go");
    let dir = install("sdks-go", &[&module.join("go.sum"), &module.join("main.go")], |dir| {
        let mut go = Command::new("go");
        go.current_dir(&module).env("CGO_ENABLED", "0");
        go.args(["build", "-p", "2", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o"]);
        run("go", go.arg(dir.join("sdks")).arg("."))
    })?;
    Ok(dir.join("sdks"))
}

const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sdks/clients");
