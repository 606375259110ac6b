//! The options of an injection, and the sidecar's environment variables.

use super::egress::EgressOptions;
use super::parts::{ADMIN_PORT, FOLDER};

/// The options of adding the sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The sidecar's image.
    pub image: String,
    /// How containers are made to use the gate.
    pub mode: Mode,
    /// The names of the containers to use the gate; all containers if empty.
    pub containers: Vec<String>,
    /// The name of a `ConfigMap` with a `tidegate.toml`, to be mounted into the sidecar.
    pub config_map: Option<String>,
    /// Further environment variables for the sidecar, such as limits (`TIDEGATE__…`).
    pub variables: Vec<(String, String)>,
    /// The gate's port on the pod's loopback.
    pub port: u16,
    /// The port for the sidecar's metrics and status, on the pod's address.
    pub admin_port: u16,
    /// The options of the forward proxy; `None` for a sidecar without one.
    pub egress: Option<EgressOptions>,
    /// True to replace a container's own values that conflict with the gate's.
    pub replace: bool,
    /// True to add a `PodMonitor` (for a Prometheus operator) beside each workload.
    pub pod_monitor: bool,
}

words! {
    /// How a container is made to use the gate.
    pub enum Mode {
        /// The variable `KUBECONFIG` contains the path of the gate's kubeconfig file.
        Kubeconfig = "kubeconfig",
        /// The variables of the API's service lead to the gate, whose folder replaces the service
        /// account's. This is for clients that only know in-cluster configuration.
        InCluster = "in-cluster",
    }
}

impl Options {
    /// Returns a port used for two purposes, with the names of the two options.
    pub fn same_ports(&self) -> Option<([&'static str; 2], u16)> {
        let egress = self.egress.as_ref().map(|egress| ("egress-port", egress.port));
        let ports = [Some(("port", self.port)), Some(("admin-port", self.admin_port)), egress];
        let ports: Vec<_> = ports.into_iter().flatten().collect();
        let same = |(at, (name, port)): (usize, &(&'static str, u16))| {
            let other = ports.iter().skip(at + 1).find(|(_, other)| other == port);
            other.map(|(other, _)| ([*name, *other], *port))
        };
        ports.iter().enumerate().find_map(same)
    }

    /// Puts every gate of the sidecar in shadow, and its call log on the standard output.
    pub fn observe(&mut self) {
        let presets = self.egress.iter().flat_map(|egress| &egress.presets).map(|preset| preset.to_ascii_uppercase());
        let shadow = |gate: String| (format!("TIDEGATE__GATES__{gate}__SHADOW"), "true".to_owned());
        let mut variables: Vec<_> = presets.chain(["KUBERNETES".to_owned()]).map(shadow).collect();
        variables.push(("TIDEGATE__LOG__CALLS".to_owned(), "/dev/stdout".to_owned()));
        self.variables.retain(|(name, _)| !variables.iter().any(|(other, _)| other == name));
        self.variables.extend(variables);
    }

    /// Returns true if TLS is decrypted. Then the sidecar keeps a CA.
    pub(super) fn intercepts(&self) -> bool {
        self.egress.as_ref().is_some_and(|egress| egress.intercept)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            image: concat!("tidegate:", env!("CARGO_PKG_VERSION")).to_owned(),
            mode: Mode::Kubeconfig,
            containers: Vec::new(),
            config_map: None,
            variables: Vec::new(),
            port: 6443,
            admin_port: ADMIN_PORT,
            egress: None,
            replace: false,
            pod_monitor: false,
        }
    }
}

/// Returns the sidecar's environment variables: the gate's address, and limits from the options.
///
/// They take precedence over the file, so that the gate listens at the address used by the
/// controller.
pub fn variables(options: &Options) -> impl Iterator<Item = (String, String)> {
    let gate = |key: &str| format!("TIDEGATE__GATES__KUBERNETES__{key}");
    let own = [
        ("TIDEGATE__ADMIN__LISTEN".to_owned(), format!("[::]:{}", options.admin_port)),
        (gate("UPSTREAM"), "in_cluster".to_owned()),
        (gate("LISTEN"), format!("127.0.0.1:{}", options.port)),
        (gate("TLS__MODE"), "self_signed".to_owned()),
        (gate("TLS__WRITE_TO"), FOLDER.to_owned()),
    ];
    let egress = options.egress.iter().flat_map(EgressOptions::of_sidecar);
    own.into_iter().chain(egress).chain(options.variables.iter().cloned())
}
