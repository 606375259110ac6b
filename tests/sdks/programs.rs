//! The programs that call with the SDKs, and what they report.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;

use crate::fetched::{install, node_modules, python, run};
use crate::java;

/// What became of one call.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) ok: bool,
    pub(crate) error: String,
    pub(crate) attempts: Option<usize>,
}

/// A program with SDKs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Python,
    /// Python with the botocore that aiobotocore takes.
    Aiobotocore,
    JavaScript,
    Go,
    Java,
    /// Python's HTTP clients.
    PlainPython,
    /// `fetch` of Node.js.
    PlainNode,
    /// `fetch` of a Node.js that reads no proxy variables.
    Node20,
    /// Java's HTTP clients.
    PlainJava,
    /// reqwest.
    Rust,
    /// .NET's HTTP client.
    DotNet,
}

/// A program that runs, and calls with one SDK as it is told; ended when dropped.
pub(crate) struct Client {
    child: Child,
    orders: ChildStdin,
    reports: BufReader<ChildStdout>,
    sdk: String,
}

// === impl Client ===

impl Client {
    /// Starts the program of an SDK, with these variables besides.
    ///
    /// # Errors
    /// The SDK cannot be had here, for this reason.
    pub(crate) fn start(program: Program, sdk: &str, variables: &[(&str, &str)]) -> Result<Self, String> {
        let mut command = program.command()?;
        // Nothing of the machine's own configuration may reach the SDKs.
        command.arg(sdk).env("AWS_EC2_METADATA_DISABLED", "true").env("HOME", "/nonexistent");
        for variable in OF_THE_MACHINE {
            command.env_remove(variable);
        }
        command.envs(variables.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{program:?}: {error}"))?;
        let orders = child.stdin.take().expect("piped");
        let reports = BufReader::new(child.stdout.take().expect("piped"));
        Ok(Self { child, orders, reports, sdk: sdk.to_owned() })
    }

    /// Makes one call to the API at `url`, with all the tries that the SDK takes.
    pub(crate) fn call(&mut self, call: &str, url: &str) -> Report {
        writeln!(self.orders, "{call} {url}").expect("the program reads");
        let mut line = String::new();
        self.reports.read_line(&mut line).expect("the program reports in text");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{} {call}: {error}: {line:?}", self.sdk))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended already, which is as good.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

// === impl Program ===

impl Program {
    pub(crate) fn command(self) -> Result<Command, String> {
        let clients = Path::new(CLIENTS);
        let with = |interpreter: PathBuf, script: PathBuf| {
            let mut command = Command::new(interpreter);
            command.arg(script);
            command
        };
        match self {
            Self::Python => Ok(with(venv()?, clients.join("clients.py"))),
            Self::Aiobotocore => Ok(with(judge()?, clients.join("clients.py"))),
            Self::JavaScript => {
                let node = venv()?.with_file_name("node");
                let modules = node_modules("sdks-javascript", clients, &node)?;
                // Modules are looked for beside the script.
                let script = modules.join("clients.mjs");
                std::fs::copy(clients.join("clients.mjs"), &script)
                    .map_err(|error| format!("{}: {error}", script.display()))?;
                Ok(with(node, script))
            }
            Self::Go => go().map(Command::new),
            Self::Java => {
                let jars = java::jars("sdks-jars", &clients.join("jars.txt"))?;
                java(&java::compiled("sdks-java", &clients.join("Clients.java"), &jars)?, "Clients")
            }
            Self::PlainPython => {
                Ok(with(python("sdks-plain-python", &clients.join("plain.txt"))?, clients.join("plain.py")))
            }
            Self::PlainNode => Ok(with(venv()?.with_file_name("node"), clients.join("plain.mjs"))),
            Self::Node20 => {
                let node = python("sdks-node20", &clients.join("node20.txt"))?.with_file_name("node");
                Ok(with(node, clients.join("plain.mjs")))
            }
            Self::Rust => rust().map(Command::new),
            Self::DotNet => Ok(with(python("sdks-dotnet", &clients.join("dotnet.txt"))?, clients.join("dotnet.py"))),
            Self::PlainJava => {
                let jars = java::jars("sdks-plain-jars", &clients.join("plain-jars.txt"))?;
                java(&java::compiled("sdks-plain-java", &clients.join("Plain.java"), &jars)?, "Plain")
            }
        }
    }
}

fn java(classes: &str, main: &str) -> Result<Command, String> {
    let mut command = Command::new(java::java()?);
    // One compiler is enough for a program that mostly waits.
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classes, main]);
    Ok(command)
}

/// A Python with the SDKs; Node.js comes as a package of it.
pub(crate) fn venv() -> Result<PathBuf, String> {
    python("sdks-python", &Path::new(CLIENTS).join("requirements.txt"))
}

/// A Python with aiobotocore and ministack, which take one botocore of their own.
pub(crate) fn judge() -> Result<PathBuf, String> {
    python("sdks-judge", &Path::new(CLIENTS).join("judge.txt"))
}

fn go() -> Result<PathBuf, String> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdks/go");
    let dir =
        install("sdks-go", &[&module.join("go.sum"), &module.join("main.go"), &module.join("others.go")], |dir| {
            let mut go = Command::new("go");
            go.current_dir(&module).env("CGO_ENABLED", "0");
            go.args(["build", "-p", "2", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o"]);
            run("go", go.arg(dir.join("sdks")).arg("."))
        })?;
    Ok(dir.join("sdks"))
}

fn rust() -> Result<PathBuf, String> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdks/rust");
    let dir = install("sdks-rust", &[&module.join("Cargo.lock"), &module.join("src/main.rs")], |dir| {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&module).args(["install", "--quiet", "--debug", "--locked", "--no-track", "--path", "."]);
        run("cargo", cargo.arg("--root").arg(dir).arg("--target-dir").arg(dir.join("target")))?;
        // What it was built of is many times as large.
        std::fs::remove_dir_all(dir.join("target")).map_err(|error| format!("{}: {error}", dir.display()))
    })?;
    Ok(dir.join("bin/sdks"))
}

/// Variables by which a machine says where its proxies and its roots are.
pub(crate) const OF_THE_MACHINE: [&str; 15] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "NODE_OPTIONS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "AWS_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "JAVA_TOOL_OPTIONS",
];
pub(crate) const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sdks/clients");
