//! The gate under test: the built binary, used only through its command line and config file.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::control_plane::{ControlPlane, User, write_kubeconfig};
use super::in_pod::InPod;
use super::process::{Process, command, scratch_dir};
use super::{say, wait_for};
use crate::ports::free_port;

/// One of the debug messages: the reason why a call got no response, which a test that fails over it
/// needs.
const LOG: &str = "info,tidegate::proxy::forward=debug";

/// The gate's log of calls has a thread of its own, which comes to its turn within this.
const WRITTEN: Duration = Duration::from_secs(60);

/// A running gate with a TLS listener that passes credentials through.
#[derive(Debug)]
pub(crate) struct Gate {
    process: Process,
    port: u16,
    admin: u16,
    /// The path below which the clients call; empty unless the gate is before many clusters.
    base: String,
    // Last, because the process writes into it.
    dir: TempDir,
}

impl Gate {
    /// Starts a gate in front of the control plane. `settings` is the content of
    /// `[gates.kubernetes]` beyond listener, upstream and TLS: first its own keys, then its tables.
    pub(crate) fn start(plane: &ControlPlane, settings: &str) -> Self {
        Self::start_with(plane, settings, |_| ())
    }

    /// The same with other environment variables.
    pub(crate) fn start_with(plane: &ControlPlane, settings: &str, environment: impl FnOnce(&mut Command)) -> Self {
        let upstream = format!("upstream = \"{}\"\ncredentials = \"pass_through\"\n{settings}", plane.url());
        let trust = format!("[gates.kubernetes.upstream_tls]\nca = \"{}\"", plane.ca_file().display());
        Self::run(&upstream, &trust, |program, args| {
            let mut run = command(program, args);
            run.env_remove("KUBECONFIG");
            environment(&mut run);
            run
        })
    }

    /// Starts a gate that calls the control plane as `user`, for any client.
    pub(crate) fn injecting(plane: &ControlPlane, user: &User) -> Self {
        Self::injecting_with(plane, user, "")
    }

    /// The same with settings.
    pub(crate) fn injecting_with(plane: &ControlPlane, user: &User, settings: &str) -> Self {
        Self::run(&format!("upstream = \"kubeconfig\"\ncredentials = \"inject\"\n{settings}"), "", |program, args| {
            let mut run = command(program, args);
            run.env("KUBECONFIG", plane.kubeconfig(user));
            run
        })
    }

    /// Starts a gate as a Service for many clients, which it knows by their tokens: it asks about
    /// them as `user`, and passes their own credentials on.
    pub(crate) fn service(plane: &ControlPlane, user: &User, settings: &str) -> Self {
        let settings = format!(
            "upstream = \"kubeconfig\"\ncredentials = \"pass_through\"\nclients = {{ tokens = \"review\" }}\n{settings}"
        );
        Self::run(&settings, "", |program, args| {
            let mut run = command(program, args);
            run.env("KUBECONFIG", plane.kubeconfig(user));
            run
        })
    }

    /// Starts a gate as a sidecar of a pod: everything comes from the pod's service account, and
    /// only the address to listen on is configured.
    pub(crate) fn sidecar(pod: &InPod) -> Self {
        Self::run("upstream = \"in_cluster\"", "", |program, args| pod.command(program, args))
    }

    /// Starts a gate before clusters of these names, all of which are the control plane; a client
    /// calls the first. What the gate passes on is the client's token: its own is nobody's.
    pub(crate) fn hub(plane: &ControlPlane, clusters: &[&str], settings: &str) -> Self {
        let dir = folder();
        let own = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate can be made");
        let cert = dir.path().join("out/ca.crt");
        let key = dir.path().join("out/tls.key");
        let folder = dir.path().join("clusters");
        fs::write(&cert, own.cert.pem()).expect("the folder is ours");
        fs::write(&key, own.signing_key.serialize_pem()).expect("the folder is ours");
        fs::create_dir(&folder).expect("the folder is ours");
        let nobody = User { name: "nobody".to_owned(), token: "nobody".to_owned() };
        for cluster in clusters {
            write_kubeconfig(&folder.join(format!("{cluster}.yaml")), &plane.url(), &plane.ca_file(), &nobody);
        }
        let upstream = format!("clusters = {folder:?}\ncredentials = \"pass_through\"\n{settings}");
        let tls = format!("[gates.kubernetes.tls]\nmode = \"files\"\ncert = {cert:?}\nkey = {key:?}");
        let mut gate = Self::run_in(dir, &upstream, &tls, |program, args| {
            let mut run = command(program, args);
            run.env_remove("KUBECONFIG");
            run
        });
        gate.base = format!("/c/{}", clusters[0]);
        gate
    }

    fn run(upstream: &str, trust: &str, run: impl FnOnce(&str, [&str; 3]) -> Command) -> Self {
        let dir = folder();
        let out = dir.path().join("out");
        let tls = format!("[gates.kubernetes.tls]\nmode = \"self_signed\"\nwrite_to = {out:?}\n{trust}");
        Self::run_in(dir, upstream, &tls, run)
    }

    fn run_in(dir: TempDir, upstream: &str, tls: &str, run: impl FnOnce(&str, [&str; 3]) -> Command) -> Self {
        let (port, admin) = (free_port(), free_port());
        let path = |name: &str| dir.path().join(name).display().to_string();
        let config = format!(
            "[admin]\nlisten = \"127.0.0.1:{admin}\"\n\
             [log]\nlevel = \"{LOG}\"\ncalls = \"{}\"\n\
             [gates.kubernetes]\nlisten = \"127.0.0.1:{port}\"\n{upstream}\n{tls}\n",
            path("calls.jsonl"),
        );
        fs::write(dir.path().join("tidegate.toml"), &config).expect("the folder is ours");
        let run = run(env!("CARGO_BIN_EXE_tidegate"), ["run", "--config", &path("tidegate.toml")]);
        let process = Process::start("tidegate", dir.path(), run);
        let gate = Self { process, port, admin, base: String::new(), dir };
        wait_for("the gate is ready", Duration::from_secs(20), || {
            gate.process.must_run();
            let up = gate.admin_get("/readyz").is_some_and(|answer| answer.starts_with("HTTP/1.1 200"));
            (up && gate.ca_file().exists()).then_some(())
        });
        gate
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// The path below which the clients call.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// The folder that it has written for the controller to mount.
    pub(crate) fn folder(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    /// The output of `tidegate kubeconfig` for it.
    pub(crate) fn printed_kubeconfig(&self) -> PathBuf {
        let path = self.dir.path().join("printed.kubeconfig");
        let mut run = command(env!("CARGO_BIN_EXE_tidegate"), ["kubeconfig", "--config"]);
        run.arg(self.dir.path().join("tidegate.toml")).arg("--output").arg(&path);
        let out = run.output().expect("it runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        path
    }

    /// The CA for its clients, which a gate with one upstream has written.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.folder().join("ca.crt")
    }

    /// A kubeconfig that leads through the gate.
    pub(crate) fn kubeconfig(&self, user: &User) -> PathBuf {
        let path = self.dir.path().join(format!("gate-{}.kubeconfig", user.mark()));
        write_kubeconfig(&path, &format!("https://127.0.0.1:{}{}", self.port, self.base), &self.ca_file(), user);
        path
    }

    /// The sum of a metric's series whose labels contain all of `labels`, e.g. `reason="bucket"`.
    pub(crate) fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let answer = self.admin_get("/metrics").expect("the admin listener answers");
        answer
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
            .filter(|line| labels.iter().all(|label| line.contains(label)))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// The number of keys that fail now.
    pub(crate) fn failing_keys(&self) -> f64 {
        self.metric("tidegate_keys_failing", &[])
    }

    /// The number of calls that wait now.
    pub(crate) fn waiting(&self) -> f64 {
        self.metric("tidegate_waiting", &[])
    }

    /// The number of calls that it has refused.
    pub(crate) fn refusals(&self) -> f64 {
        self.metric("tidegate_refusals_total", &[])
    }

    /// The moment at which each call of the default class took its tokens, by the gate's own clock:
    /// this is its call log's evidence for P1. At least `calls` of them are waited for.
    pub(crate) fn metered_departures(&self, calls: usize) -> Vec<Duration> {
        let is_watch = |line: &Value| line.get("verb").and_then(Value::as_str) == Some("watch");
        let left = self.departures(calls, |line| !is_watch(line));
        left.into_iter().map(|(at, _)| at).collect()
    }

    /// The clients of these calls in the order in which they left. At least `calls` of them are
    /// waited for.
    pub(crate) fn departures_by_client(&self, calls: usize) -> Vec<String> {
        let left = self.departures(calls, |line| line.get("client").is_some_and(Value::is_string));
        left.into_iter().map(|(_, line)| line["client"].as_str().expect("a name").to_owned()).collect()
    }

    /// The calls of the default class that are `wanted`, in the order in which they left. A call is
    /// written down once its client has the answer, so this waits until there are `calls` of them.
    fn departures(&self, calls: usize, wanted: impl Fn(&Value) -> bool) -> Vec<(Duration, Value)> {
        let is_wanted = |line: &Value| line.get("class").and_then(Value::as_str) == Some("default") && wanted(line);
        let left = |line: Value| Some((Duration::from_nanos(line.get("granted_ns")?.as_u64()?), line));
        let mut left = wait_for("every call is written down", WRITTEN, || {
            let left: Vec<_> = self.call_log().into_iter().filter(is_wanted).filter_map(left).collect();
            (left.len() >= calls).then_some(left)
        });
        left.sort_unstable_by_key(|(at, _)| *at);
        left
    }

    /// The arrival of each call, by the gate's wall clock.
    pub(crate) fn wall_times(&self) -> Vec<Duration> {
        let millis = |line: Value| line.get("wall_ms")?.as_u64().map(Duration::from_millis);
        self.call_log().into_iter().filter_map(millis).collect()
    }

    fn call_log(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.dir.path().join("calls.jsonl")).unwrap_or_default();
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Resident memory in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or_default()
    }

    /// Its status, with names.
    pub(crate) fn status(&self) -> Value {
        let answer = self.admin_get("/status").unwrap_or_default();
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
        body.and_then(|body| serde_json::from_str(body).ok()).unwrap_or_default()
    }

    /// Its connections to this port of loopback, by the numbers that the kernel gave them.
    pub(crate) fn sockets_to(&self, port: u16) -> HashSet<String> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.process.pid())).expect("it runs");
        let own: HashSet<String> = entries
            .filter_map(|entry| Some(fs::read_link(entry.ok()?.path()).ok()?.display().to_string()))
            .filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
            .collect();
        let (table, remote) = (fs::read_to_string("/proc/net/tcp").expect("Linux has it"), format!(":{port:04X}"));
        let sockets = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let there = sockets.filter(|socket| socket[2].ends_with(&remote)).filter_map(|socket| own.get(socket[9]));
        there.cloned().collect()
    }

    /// Asks the gate to stop, as the kubelet does.
    pub(crate) fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(&self, within: Duration) -> ExitStatus {
        self.process.wait(within)
    }

    /// A whole answer of the admin listener, head included.
    fn admin_get(&self, path: &str) -> Option<String> {
        crate::admin::get(self.admin, path)
    }
}

/// A folder for a gate, with one for what its clients need.
fn folder() -> TempDir {
    let dir = scratch_dir();
    fs::create_dir(dir.path().join("out")).expect("the folder is ours");
    dir
}

impl Drop for Gate {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say(format_args!("the gate's last words:\n{}", self.process.log_tail()));
        }
    }
}

/// The way of a client to the API server: direct, or through a gate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way<'a> {
    Direct(&'a ControlPlane),
    Gate(&'a Gate),
}

impl<'a> Way<'a> {
    /// The path of the server's URL.
    pub(crate) fn base(self) -> &'a str {
        match self {
            Self::Direct(_) => "",
            Self::Gate(gate) => gate.base(),
        }
    }

    pub(crate) fn kubeconfig(self, user: &User) -> PathBuf {
        match self {
            Self::Direct(plane) => plane.kubeconfig(user),
            Self::Gate(gate) => gate.kubeconfig(user),
        }
    }

    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Direct(plane) => plane.port(),
            Self::Gate(gate) => gate.port(),
        }
    }

    pub(crate) fn ca_file(self) -> PathBuf {
        match self {
            Self::Direct(plane) => plane.ca_file(),
            Self::Gate(gate) => gate.ca_file(),
        }
    }

    /// Runs a program of `binaries` with its kubeconfig set.
    pub(crate) fn command(self, program: &Path, user: &User, args: &[&str]) -> Command {
        let mut run = command(program, args);
        run.env("KUBECONFIG", self.kubeconfig(user));
        run
    }
}
