//! Checks that the controller's environment leads it to the gate.

use std::fs;
use std::path::Path;

use http::Uri;
use http::uri::Scheme;

use super::Finding;
use crate::app::reachable::tcp_addresses;
use crate::classify::ApiKind;
use crate::spec::Settings;
use crate::status::Status;
use crate::yaml;

/// A process whose environment names its API server.
pub(super) struct Controller {
    pid: u32,
    name: String,
    variables: Vec<(String, String)>,
}

/// Reports where every visible controller would send its calls.
pub(super) fn findings(settings: &Settings, pid: Option<u32>, status: Option<&Status>) -> Vec<Finding> {
    let Some(gates) = addresses(settings) else { return Vec::new() };
    if let Some(pid) = pid {
        let is_there = Path::new(&format!("/proc/{pid}")).exists();
        let unreadable = || match is_there {
            true => {
                let says = format!("the environment of process {pid} cannot be read");
                Finding::wrong("controller", says, "run doctor as the user of that process")
            }
            false => {
                let says = format!("there is no process {pid} to be seen from here");
                Finding::wrong("controller", says, "give --pid the number that it has in this container")
            }
        };
        return vec![Controller::of(pid).map_or_else(unreadable, |controller| controller.finding(&gates))];
    }
    // Outside of a pod, this would look at every process of the machine.
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() {
        let says = "its environment was not looked at: this is not a pod, so it is not known which process it is";
        return vec![Finding::note("controller", says, "name it with --pid")];
    }
    let own = [Some(std::process::id()), status.map(|status| status.pid)];
    let seen = processes().into_iter().filter(|pid| !own.contains(&Some(*pid))).filter_map(Controller::of);
    let findings: Vec<_> = seen.filter(Controller::is_one).map(|controller| controller.finding(&gates)).collect();
    if findings.is_empty() {
        let says = "its environment cannot be seen from this container";
        let advice = "set shareProcessNamespace on the pod for a while, and run doctor again; its connections were looked at above";
        return vec![Finding::note("controller", says, advice)];
    }
    findings
}

/// Returns the addresses that lead to a gate for Kubernetes; `None` if there is no such gate.
fn addresses(settings: &Settings) -> Option<Vec<String>> {
    let gates: Vec<_> = settings.gates.values().filter(|gate| gate.kind == ApiKind::Kubernetes).collect();
    let addresses = gates.iter().flat_map(|gate| tcp_addresses(&gate.listen)).map(|address| address.to_string());
    (!gates.is_empty()).then(|| addresses.collect())
}

/// Returns the processes that can be seen.
pub(super) fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the name of a process, cut to 15 bytes; empty if it is not there.
pub(super) fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// True for the processes of this program, whatever its file is called.
pub(super) fn is_tidegate(pid: u32) -> bool {
    let name = name_of(pid);
    name == "tidegate" || name == name_of(std::process::id())
}

// === impl Controller ===

impl Controller {
    pub(super) fn of(pid: u32) -> Option<Self> {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let environment = String::from_utf8_lossy(&environment);
        let pairs = environment.split('\0').filter_map(|pair| pair.split_once('='));
        let variables = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Some(Self { pid, name: name_of(pid), variables })
    }

    /// True if the process is a controller: the pause container has no such variables, and tidegate
    /// itself does not count.
    pub(super) fn is_one(&self) -> bool {
        !is_tidegate(self.pid)
            && (self.variable("KUBERNETES_SERVICE_HOST").is_some() || self.variable("KUBECONFIG").is_some())
    }

    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let found = self.variables.iter().find(|(other, _)| other == name)?;
        Some(found.1.as_str()).filter(|value| !value.is_empty())
    }

    /// Reads a file as the process sees it; `None` if that is not allowed here, or it is not there.
    pub(super) fn read(&self, path: &str) -> Option<Vec<u8>> {
        fs::read(format!("/proc/{}/root/{}", self.pid, path.trim_start_matches('/'))).ok()
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

    /// Returns the servers of a kubeconfig as that process sees it.
    fn kubeconfig(&self, path: &str) -> Result<Vec<String>, String> {
        let seen = Path::new(&format!("/proc/{}/root", self.pid)).join(path.trim_start_matches('/'));
        let text = fs::read_to_string(seen).map_err(|error| error.to_string())?;
        let file = yaml::read(&text, 0).map_err(|error| error.to_string())?;
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
