//! The gate as a process: start, look, reload, end.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::{fmt, fs};

use rustls::ClientConfig;
use serde_json::Value;
use tidegate::clock::Clock;
use tidegate::tls::{self, Pem, Roots};

use crate::command::{Running, start, with_config};
use crate::dice::Dice;
use crate::ports::free_port;
use crate::upstream::Api;

/// The rate that both gates are held to.
pub(crate) const RATE: f64 = 40.0;
pub(crate) const BURST: f64 = 20.0;
pub(crate) const BACKOFF_MILLIS: u64 = 1000;
pub(crate) const FORGET_SECONDS: u64 = 6;

pub(crate) struct Process {
    running: Mutex<Running>,
    folder: tempfile::TempDir,
    apis: String,
    /// The ports of the gates: without TLS, and with it.
    pub(crate) ports: [u16; 2],
    admin: u16,
    pub(crate) trust: Arc<ClientConfig>,
}

/// Everything that it has printed and logged.
pub(crate) struct Said {
    pub(crate) log: Vec<String>,
    pub(crate) calls: Vec<Value>,
}

/// The resources that it holds when no client wants anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    pub(crate) kib: u64,
    /// Descriptors beyond those of connections that are kept for the next call.
    pub(crate) descriptors: usize,
    kept: usize,
}

impl fmt::Display for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} MiB, {} descriptors and {} connections kept for later",
            f64::from(u32::try_from(self.kib).unwrap_or(u32::MAX)) / 1024.0,
            self.descriptors,
            self.kept
        )
    }
}

impl Process {
    pub(crate) async fn start(apis: &[Api; 2], threads: u8) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (ports, admin) = ([free_port(), free_port()], free_port());
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::write(path("api.crt"), apis[1].ca.as_deref().expect("it has TLS")).expect("it can be written");
        let tls =
            format!("tls = {{ write_to = {:?} }}\nupstream_tls = {{ ca = {:?} }}\n", path("shared"), path("api.crt"));
        let gate = |name: &str, port: u16, url: String, more: &str| {
            format!(
                "[gates.{name}]\npreset = \"none\"\nupstream = \"{url}\"\nlisten = \"127.0.0.1:{port}\"\n\
                 bucket = {{ rate = {RATE:.1}, burst = {BURST:.0}, adapt = \"off\" }}\nin_flight = {{ max = 30 }}\n\
                 backoff = {{ strategy = \"exponential\", base = \"{BACKOFF_MILLIS}ms\", max = \"4s\", forget_after = \"{FORGET_SECONDS}s\" }}\n\
                 queue = {{ max_wait = \"MAX_WAIT\", max_waiting = 500, max_waiting_bytes = \"8MiB\" }}\n{more}"
            )
        };
        let text = format!(
            "[admin]\nlisten = \"127.0.0.1:{admin}\"\n[process]\nthreads = {threads}\n[log]\ncalls = {:?}\n{}{}",
            path("calls.jsonl"),
            gate("plain", ports[0], format!("http://{}", apis[0].address), ""),
            gate("encrypted", ports[1], format!("https://localhost:{}", apis[1].address.port()), &tls)
        );
        fs::write(path("tidegate.toml"), text.replace("MAX_WAIT", "3s")).expect("it can be written");
        let mut running = start(with_config("run", &folder.path().join("tidegate.toml")));
        running.ready();
        let pem = fs::read(path("shared/ca.crt")).expect("the gate wrote it");
        let trust = tls::client(&Roots::Only(Pem::new(pem, "ca.crt")), None).expect("TLS");
        Self { running: Mutex::new(running), folder, apis: text, ports, admin, trust }
    }

    /// Writes another configuration. The gate looks for one every few seconds, and when it is asked
    /// to.
    pub(crate) fn reload(&self, dice: &Dice) {
        let text = self.apis.replace("MAX_WAIT", &format!("{}s", 2 + dice.below(4)));
        let beside = self.path("beside");
        fs::write(&beside, text).expect("it can be written");
        fs::rename(beside, self.path("tidegate.toml")).expect("it can be written");
        self.running.lock().expect("no panic").signal("-HUP");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.admin)).expect("it listens");
        let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\n\r\n", self.admin);
        stream.write_all(request.as_bytes()).expect("it is read");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it is answered");
        answer
    }

    /// Returns when nothing is held any more, with the resources that the process still has. Panics
    /// with what is held if that does not happen.
    pub(crate) async fn rest(&self) -> Rest {
        let clock = Clock::start();
        let kept = loop {
            let metrics = self.metrics();
            let held = held(&metrics);
            if held.is_empty() {
                break sum(&metrics, "tidegate_upstream_connections");
            }
            assert!(clock.now().since_start() < crate::command::PATIENCE, "at rest somebody still holds: {held:#?}");
            clock.sleep(std::time::Duration::from_millis(100)).await;
        };
        let pid = self.running.lock().expect("no panic").id();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says so");
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count();
        let kib = line.trim().trim_end_matches(" kB").parse().expect("a number");
        Rest { kib, descriptors: descriptors.saturating_sub(kept), kept }
    }

    /// Stops it, and reads everything.
    pub(crate) fn end(self) -> Said {
        let log = self.running.into_inner().expect("no panic").end();
        let text = fs::read_to_string(self.folder.path().join("calls.jsonl")).expect("it was written");
        let calls = text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
        Said { log, calls }
    }
}

/// Everything that must come back to nothing.
const NOTHING_LEFT: [&str; 9] = [
    "tidegate_in_flight",
    "tidegate_waiting",
    "tidegate_waiting_bytes",
    "tidegate_slots_in_use",
    "tidegate_upstream_streams",
    "tidegate_keys_failing",
    "tidegate_pauses",
    "tidegate_client_connections",
    "tidegate_call_log_dropped_total",
];

/// The sum of a whole-number metric over its labels.
fn sum(metrics: &str, name: &str) -> usize {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.rsplit(' ').next());
    lines.filter_map(|value| value.parse::<usize>().ok()).sum()
}

fn held(metrics: &str) -> Vec<String> {
    let is_held = |line: &&str| {
        let named =
            NOTHING_LEFT.iter().any(|name| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
        named && !line.ends_with(" 0")
    };
    metrics.lines().filter(is_held).map(str::to_owned).collect()
}
