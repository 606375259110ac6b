//! The gate under test: the built binary with one `http` gate.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::fetched::now;
use crate::ports::free_port;

/// A running gate; ended when dropped.
#[derive(Debug)]
pub(crate) struct Gate {
    child: Child,
    port: u16,
    admin: u16,
    dir: tempfile::TempDir,
}

impl Gate {
    /// Starts a gate before an upstream. `settings` is what stands in `[gates.api]` beyond kind,
    /// listener and upstream.
    pub(crate) fn start(upstream: u16, settings: &str) -> Self {
        let (port, admin) = (free_port(), free_port());
        let dir = tempfile::tempdir().expect("a temporary folder can be made");
        let config = format!(
            "[admin]\nlisten = \"127.0.0.1:{admin}\"\n[gates.api]\nkind = \"http\"\nlisten = \"127.0.0.1:{port}\"\n\
             upstream = \"http://127.0.0.1:{upstream}\"\n{settings}\n"
        );
        let file = dir.path().join("tidegate.toml");
        fs::write(&file, config).expect("the folder is ours");
        let log = fs::File::create(dir.path().join("log")).expect("the folder is ours");
        let mut run = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        run.args(["run", "--config"]).arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = run.spawn().expect("the gate starts");
        let gate = Self { child, port, admin, dir };
        let begun = now();
        while !gate.get("/readyz").is_some_and(|answer| answer.starts_with("HTTP/1.1 200")) {
            assert!(begun.elapsed() < Duration::from_secs(20), "the gate is not ready:\n{}", gate.log());
            pause();
        }
        gate
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The number of calls that it has refused.
    pub(crate) fn refusals(&self) -> u64 {
        let metrics = self.get("/metrics").expect("the admin listener answers");
        let lines = metrics.lines().filter(|line| line.starts_with("tidegate_refusals_total{"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.admin)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\n\r\n", self.admin).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // It may have ended already, which is as good.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[expect(clippy::disallowed_methods, reason = "another process starts in its own time")]
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}
