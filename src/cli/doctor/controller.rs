//! Checks the environment of controllers for the address of the gate.

use std::path::Path;
use std::{fs, io};

use http::Uri;
use http::uri::Scheme;

use super::Finding;
use crate::app::reachable::tcp_addresses;
use crate::classify::ApiKind;
use crate::spec::Settings;
use crate::status::Status;
use crate::yaml;

/// A process with the environment of a controller.
pub(super) struct ControllerProcess {
    pid: u32,
    name: String,
    variables: Vec<(String, String)>,
}

/// Reports where every visible controller sends its calls.
pub(super) fn findings(settings: &Settings, pid: Option<u32>, status: Option<&Status>) -> Vec<Finding> {
    let Some(gates) = addresses(settings) else { return Vec::new() };
    let controllers = ControllerProcess::all(pid, status);
    if !controllers.is_empty() {
        return controllers.iter().map(|controller| controller.finding(&gates)).collect();
    }
    vec![match pid {
        Some(pid) if Path::new(&format!("/proc/{pid}")).exists() => {
            let says = format!("the environment of process {pid} cannot be read");
            Finding::wrong("controller", says, "run doctor as the user of that process")
        }
        Some(pid) => {
            let says = format!("there is no process {pid} to be seen from here");
            Finding::wrong("controller", says, "give --pid the number that it has in this container")
        }
        None if !is_pod() => {
            let says = "its environment was not looked at: this is not a pod, so it is not known which process it is";
            Finding::note("controller", says, "name it with --pid")
        }
        None => {
            let says = "its environment cannot be seen from this container";
            let advice = "set shareProcessNamespace on the pod for a while, and run doctor again; its connections were looked at above";
            Finding::note("controller", says, advice)
        }
    }]
}

/// Returns true in a pod. Elsewhere, the visible processes are all of the machine.
fn is_pod() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// Returns the addresses of the gates for Kubernetes; `None` if there is none.
fn addresses(settings: &Settings) -> Option<Vec<String>> {
    let gates: Vec<_> = settings.gates.values().filter(|gate| gate.kind == ApiKind::Kubernetes).collect();
    let addresses = gates.iter().flat_map(|gate| tcp_addresses(&gate.listen)).map(|address| address.to_string());
    (!gates.is_empty()).then(|| addresses.collect())
}

/// Returns the visible processes.
pub(super) fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the name of a process, cut to 15 bytes; empty if it is not there.
pub(super) fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// Returns true for a process of this program, whatever its file is called.
pub(super) fn is_tidegate(pid: u32) -> bool {
    let name = name_of(pid);
    name == "tidegate" || name == name_of(std::process::id())
}

// === impl ControllerProcess ===

impl ControllerProcess {
    /// Returns process `pid`, or all visible controllers besides tidegate.
    pub(super) fn all(pid: Option<u32>, status: Option<&Status>) -> Vec<Self> {
        match pid {
            Some(pid) => Self::of(pid).into_iter().collect(),
            None if !is_pod() => Vec::new(),
            None => {
                let gate = status.map(|status| status.pid);
                let others = processes().into_iter().filter(|pid| Some(*pid) != gate);
                others.filter_map(Self::of).filter(Self::is_one).collect()
            }
        }
    }

    fn of(pid: u32) -> Option<Self> {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let environment = String::from_utf8_lossy(&environment);
        let pairs = environment.split('\0').filter_map(|pair| pair.split_once('='));
        let variables = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Some(Self { pid, name: name_of(pid), variables })
    }

    /// True for a controller: the pause container has no such variables, and tidegate does not count.
    fn is_one(&self) -> bool {
        !is_tidegate(self.pid)
            && (self.variable("KUBERNETES_SERVICE_HOST").is_some() || self.variable("KUBECONFIG").is_some())
    }

    /// Returns the variables that are not empty.
    pub(super) fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        all.filter(|(_, value)| !value.is_empty())
    }

    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.variables().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// Reads a file as the process sees it.
    pub(super) fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(format!("/proc/{}/root/{}", self.pid, path.trim_start_matches('/')))
    }

    pub(super) fn title(&self) -> String {
        format!("controller {} (pid {})", self.name, self.pid)
    }

    fn finding(&self, gates: &[String]) -> Finding {
        let about = self.title();
        let (from, leads) = match self.variable("KUBECONFIG") {
            Some(path) => (format!("KUBECONFIG {path}"), self.kubeconfig(path)),
            None => ("KUBERNETES_SERVICE_HOST".to_owned(), Ok(self.in_cluster())),
        };
        let remedy = format!(
            "set KUBECONFIG in its container to a kubeconfig for {} (tidegate kubeconfig prints one)",
            gates.join(" or ")
        );
        match leads {
            Err(why) => Finding::wrong(&about, format!("{from}: {why}"), remedy),
            Ok(servers) if servers.iter().any(|server| gates.contains(server)) => {
                Finding::fine(&about, format!("is led to the gate by its {from}"))
            }
            Ok(servers) => {
                let servers = if servers.is_empty() { "nowhere".to_owned() } else { servers.join(", ") };
                Finding::wrong(&about, format!("is led past the gate, to {servers}, by its {from}"), remedy)
            }
        }
    }

    fn in_cluster(&self) -> Vec<String> {
        let port = self.variable("KUBERNETES_SERVICE_PORT").unwrap_or("443");
        self.variable("KUBERNETES_SERVICE_HOST").map(|host| authority(host, port)).into_iter().collect()
    }

    /// Returns the servers of a kubeconfig, as seen by the process.
    fn kubeconfig(&self, path: &str) -> Result<Vec<String>, String> {
        let content = self.read(path).map_err(|error| error.to_string())?;
        let file = yaml::read(&String::from_utf8_lossy(&content), 0).map_err(|error| error.to_string())?;
        let clusters = file.as_ref().map_or(&[][..], |file| file.list_of("clusters"));
        let servers =
            clusters.iter().filter_map(|cluster| cluster.text_at(&["cluster", "server"])?.parse::<Uri>().ok());
        let address = |server: Uri| {
            let usual = if server.scheme() == Some(&Scheme::HTTP) { 80 } else { 443 };
            let port = server.port_u16().unwrap_or(usual);
            // The gate is on localhost, too.
            let host = server.host().unwrap_or_default();
            format!("{}:{port}", if host == "localhost" { "127.0.0.1" } else { host })
        };
        Ok(servers.map(address).collect())
    }
}

fn authority(host: &str, port: &str) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
