//! The gates under test: the built binary with some `http` gates.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::fetched::now;
use crate::ports::free_port;

/// A running process with gates; ended when dropped.
#[derive(Debug)]
pub(crate) struct Gates {
    child: Child,
    ports: BTreeMap<String, u16>,
    admin: u16,
    pub(crate) dir: tempfile::TempDir,
}

/// A gate that is to be: its name, its upstream's address, and what stands in its table beyond
/// kind,
/// listener and upstream.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) upstream: String,
    pub(crate) settings: String,
}

// === impl Gates ===

impl Gates {
    /// Starts a process with these gates.
    pub(crate) fn start(plans: &[Plan]) -> Self {
        Self::start_logging(plans, None)
    }

    /// The same with a log of calls.
    pub(crate) fn start_logging(plans: &[Plan], calls: Option<&Path>) -> Self {
        let (admin, dir) = (free_port(), tempfile::tempdir().expect("a temporary folder can be made"));
        let socket = dir.path().join("control.sock");
        let mut config =
            format!("[admin]\nlisten = \"127.0.0.1:{admin}\"\nsocket = {socket:?}\n[log]\nlevel = \"info\"\n");
        if let Some(calls) = calls {
            writeln!(config, "calls = {calls:?}").expect("memory");
        }
        let mut ports = BTreeMap::new();
        for Plan { name, upstream, settings } in plans {
            let port = free_port();
            let head =
                format!("[gates.{name}]\nkind = \"http\"\nlisten = \"127.0.0.1:{port}\"\nupstream = {upstream:?}\n");
            let settings = settings.replace("$DIR", &dir.path().display().to_string());
            writeln!(config, "{head}{settings}").expect("memory");
            ports.insert(name.clone(), port);
        }
        let file = dir.path().join("tidegate.toml");
        fs::write(&file, config).expect("the folder is ours");
        Self::run(&file, &[], (ports, admin, dir))
    }

    /// Starts a process with a configuration of the project, and with these variables. One gate is
    /// called, at `port`.
    pub(crate) fn of(file: &Path, variables: &[(&str, String)], gate: (&str, u16)) -> Self {
        let (admin, dir) = (free_port(), tempfile::tempdir().expect("a temporary folder can be made"));
        let mut variables = variables.to_vec();
        variables.push(("TIDEGATE__ADMIN__LISTEN", format!("127.0.0.1:{admin}")));
        variables.push(("TIDEGATE__ADMIN__SOCKET", "off".into()));
        Self::run(file, &variables, (BTreeMap::from([(gate.0.to_owned(), gate.1)]), admin, dir))
    }

    fn run(
        file: &Path,
        variables: &[(&str, String)],
        (ports, admin, dir): (BTreeMap<String, u16>, u16, tempfile::TempDir),
    ) -> Self {
        let log = fs::File::create(dir.path().join("log")).expect("the folder is ours");
        let mut run = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        run.args(["run", "--config"]).arg(file).envs(variables.iter().map(|(name, value)| (name, value)));
        let child = run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("the gate starts");
        let gates = Self { child, ports, admin, dir };
        let begun = now();
        while !gates.get("/readyz").is_some_and(|answer| answer.starts_with("HTTP/1.1 200")) {
            assert!(begun.elapsed() < Duration::from_secs(30), "the gates are not ready:\n{}", gates.log());
            pause();
        }
        gates
    }

    /// The port of a gate.
    pub(crate) fn port(&self, name: &str) -> u16 {
        self.ports[name]
    }

    /// Lets every call of a gate through, or limits it again; done when this returns.
    pub(crate) fn bypass(&self, name: &str, on: bool) {
        let order = serde_json::json!({ "gate": name, "seconds": on.then_some(600) }).to_string();
        let mut stream = UnixStream::connect(self.dir.path().join("control.sock")).expect("it listens");
        let length = order.len();
        let head =
            "POST /bypass HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n";
        write!(stream, "{head}Content-Length: {length}\r\n\r\n{order}").expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// The sum of a metric over the classes of a gate.
    pub(crate) fn metric(&self, metric: &str, gate: &str) -> f64 {
        let metrics = self.get("/metrics").expect("the admin listener answers");
        let (start, label) = (format!("{metric}{{"), format!("gate=\"{gate}\""));
        let lines = metrics.lines().filter(|line| line.starts_with(&start) && line.contains(&label));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// The value of one series; 0 if it is not there.
    pub(crate) fn counted(&self, series: &str) -> f64 {
        let metrics = self.get("/metrics").expect("the admin listener answers");
        let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        value.unwrap_or(0.0)
    }

    /// Makes a call to a gate, and returns the whole answer.
    pub(crate) fn ask(&self, gate: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port(gate))).expect("the gate listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    /// What the process logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn get(&self, path: &str) -> Option<String> {
        crate::admin::get(self.admin, path)
    }
}

impl Drop for Gates {
    fn drop(&mut self) {
        // It may have ended already, which is as good.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Waits until something holds that another process or thread brings about.
///
/// # Panics
/// If it never does.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        pause();
    }
}

#[expect(clippy::disallowed_methods, reason = "another process works in its own time")]
fn pause() {
    std::thread::sleep(Duration::from_millis(5));
}
