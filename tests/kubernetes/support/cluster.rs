//! A control plane with a node that runs its pods: `kubelet/` starts each container as a process.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;

use super::control_plane::{ControlPlane, Options, User};
use super::in_pod::InPod;
use super::process::{Process, command, scratch_dir};
use super::{installed, say, turn, wait_for};
use crate::ports::free_port;

/// The name of the sidecar's image in everything in `deploy/`.
pub(crate) const IMAGE: &str = "registry.example/tidegate:0.1.0";

/// The operator of the examples.
pub(crate) const OPERATOR: &str = "registry.example/operator:1";

/// One cluster for all tests that need one.
#[derive(Debug)]
pub(crate) struct Cluster {
    kubelet: Process,
    report: PathBuf,
    pub(crate) plane: ControlPlane,
    _dir: tempfile::TempDir,
}

/// An event of a container or, without one, of its pod.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) what: String,
    pub(crate) namespace: String,
    pub(crate) container: String,
    /// Microseconds since the epoch.
    pub(crate) at: u64,
    /// Further details.
    pub(crate) more: String,
}

impl Cluster {
    /// The shared cluster, started on first use; `None` if the tests are skipped.
    pub(crate) fn shared(test: &str) -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Cluster>> = OnceLock::new();
        SHARED
            .get_or_init(|| {
                let _turn = turn::light();
                Self::start(test)
            })
            .as_ref()
    }

    fn start(test: &str) -> Option<Self> {
        let dir = scratch_dir();
        installed::or_skip(test, InPod::is_possible(dir.path()))?;
        let plane = ControlPlane::own(test, Options { controller_manager: true, ..Options::default() })?;
        let file = |name: &str| plane.file(name).display().to_string();
        let user = User { name: "tidegate:kwok".to_owned(), token: "kwok".to_owned() };
        let controller = plane.binaries().path("controller");
        let flags = [
            format!("-kubeconfig={}", plane.kubeconfig(&user).display()),
            format!("-api=127.0.0.1:{}", plane.port()),
            format!("-listen=127.0.0.1:{}", free_port()),
            format!("-cert={}", file("api.crt")),
            format!("-key={}", file("api.key")),
            format!("-ca={}", file("ca.crt")),
            format!("-folder={}", dir.path().display()),
            format!("-image={IMAGE}={}", env!("CARGO_BIN_EXE_tidegate")),
            // So slow that a container which does not wait for it comes too early.
            format!("-slow={IMAGE}=700ms"),
            format!("-image={OPERATOR}={}", controller.display()),
        ];
        let run = command(plane.binaries().path("kubelet"), flags);
        let (kubelet, report) = Process::start_reporting("kubelet", dir.path(), run);
        let cluster = Self { kubelet, report, plane, _dir: dir };
        cluster.wait("the node is ready", |event| event.what == "ready");
        say("a node that runs its pods is up");
        Some(cluster)
    }

    /// All events so far.
    pub(crate) fn events(&self) -> Vec<Event> {
        let text = fs::read_to_string(&self.report).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<HashMap<String, Value>>(line).ok());
        let text = |line: &HashMap<String, Value>, field: &str| {
            line.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        lines
            .map(|line| Event {
                what: text(&line, "event"),
                namespace: text(&line, "namespace"),
                container: text(&line, "container"),
                at: line.get("at").and_then(Value::as_u64).unwrap_or_default(),
                more: format!("{line:?}"),
            })
            .collect()
    }

    /// Waits for an event.
    pub(crate) fn wait(&self, what: &str, is: impl Fn(&Event) -> bool) -> Event {
        wait_for(what, Duration::from_secs(120), || {
            self.kubelet.must_run();
            let events = self.events();
            if let Some(failed) = events.iter().find(|event| event.what == "failed") {
                panic!("{what}: {}\n{}", failed.more, self.kubelet.log_tail());
            }
            events.into_iter().find(&is)
        })
    }

    /// Waits for an event of a container of a namespace.
    pub(crate) fn wait_container(&self, what: &str, namespace: &str, container: &str) -> Event {
        self.wait(&format!("{what}: {container} in {namespace}"), |event| {
            event.what == what && event.container == container && event.namespace == namespace
        })
    }
}
