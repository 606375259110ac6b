//! Reasons not to edit a workload, because an injection would break it, and notes about doubtful
//! cases.

use super::egress::{Own, own};
use super::options::{Mode, Options};
use super::parts::{ACCOUNT, CONFIG, FOLDER, KEYS, NAME, containers, is_named};
use crate::yaml::Node;

/// The label of a pod to request or refuse the sidecar. For the webhook, namespaces can have it
/// too.
pub const LABEL: &str = "tidegate.io/inject";

/// Returns true if a pod's label refuses the sidecar.
pub(super) fn is_left_out(pod: &Node) -> bool {
    matches!(pod.text_at(&["metadata", "labels", LABEL]), Some("disabled" | "false"))
}

/// Describes a name conflict, if a part of the pod has the name of a part to be added.
pub(super) fn namesake(spec: &Node, options: &Options) -> Option<String> {
    let find = |list: &'static str, what: &'static str, name: &'static str| {
        let found = spec.list_of(list).iter().any(|item| is_named(item, name));
        found.then(|| format!("has {what} called {name} that `tidegate inject` did not add; rename or remove it"))
    };
    find("containers", "a container", NAME)
        .or_else(|| find("initContainers", "an init container", NAME))
        .or_else(|| find("volumes", "a volume", NAME))
        .or_else(|| options.config_map.as_ref().and_then(|_| find("volumes", "a volume", CONFIG)))
        .or_else(|| options.intercepts().then(|| find("volumes", "a volume", KEYS)).flatten())
}

/// Returns the reasons for not adding the sidecar to a pod; empty if there are none.
pub(super) fn reasons(spec: &Node, options: &Options, chosen: &[String]) -> Vec<String> {
    let mut reasons: Vec<String> = namesake(spec, options).into_iter().collect();
    let system = [&["os", "name"][..], &["nodeSelector", "kubernetes.io/os"]].map(|path| spec.text_at(path));
    if system.contains(&Some("windows")) {
        reasons.push(format!(
            "has pods for Windows nodes, where the gate does not run; label its pods {LABEL}: disabled to leave them out"
        ));
    }
    for container in containers(spec) {
        reasons.extend(port_in_use(container, options));
    }
    for container in chosen_of(spec, chosen) {
        reasons.extend(own_address(container, options).filter(|_| !options.replace).map(|own| {
            format!("{own}, which may be for another cluster; name only the other containers with --container, or replace the value with --replace")
        }));
        reasons.extend(mount_in_the_way(container, options));
    }
    if spec.text_at(&["automountServiceAccountToken"]) == Some("false") && account_mount(spec).is_none() {
        reasons.push(
            "automountServiceAccountToken is false, so the sidecar would find no API server and no token; set it to true"
                .to_owned(),
        );
    }
    reasons
}

/// Returns notes about replaced values, and about obstacles to a container's use of the gate.
pub(super) fn warnings(spec: &Node, options: &Options, chosen: &[String]) -> Vec<String> {
    let mut notes = Vec::new();
    if spec.text_at(&["hostNetwork"]) == Some("true") {
        notes.push(format!(
            "is on the host's network, where port {} may be taken (an API server's is 6443) and every pod of the node on that network reaches it; choose another with --port",
            options.port
        ));
    }
    if options.egress.as_ref().is_some_and(|egress| egress.plain.is_empty() && !egress.intercept) {
        notes.push(
            "calls to https:// go through the forward proxy unread, so that its limits do not hold for them; --egress-plain gives AWS SDKs the real name with http://, and --egress-intercept opens TLS"
                .to_owned(),
        );
    }
    for container in chosen_of(spec, chosen) {
        let name = name_of(container);
        let words = ["command", "args"].into_iter().flat_map(|key| container.list_of(key));
        let elsewhere = |word: &&str| {
            let is_flag = ["--kubeconfig", "--master"].iter().any(|flag| word.starts_with(flag));
            is_flag && !word.ends_with("/run/tidegate/kubeconfig")
        };
        if let Some(flag) = words.filter_map(Node::text).find(elsewhere) {
            notes.push(format!(
                "container {name} is started with {flag:?}, which wins over what was added; take it out"
            ));
        }
        if options.mode == Mode::InCluster
            && let Some(value) = own_variable(container, "KUBECONFIG")
        {
            notes
                .push(format!("container {name} has a KUBECONFIG{value}, which wins over what was added; take it out"));
        }
        notes.extend(own_address(container, options).map(|own| format!("{own}; the gate's address replaces it")));
        let folder = folder(options);
        // kubelet's own mount is replaced in every pod, without a note.
        let replaced =
            mounts(container).find(|(path, volume)| *path == folder && !volume.starts_with("kube-api-access-"));
        if let Some((path, volume)) = replaced {
            notes.push(format!("container {name} mounts volume {volume} at {path}; the gate's folder replaces it"));
        }
    }
    notes
}

/// Returns the mount of the service account in a container, if the pod declares one itself.
pub(super) fn account_mount(spec: &Node) -> Option<&Node> {
    let mut mounts = spec.list_of("containers").iter().flat_map(|container| container.list_of("volumeMounts"));
    mounts.find(|mount| mount.text_at(&["mountPath"]).is_some_and(|path| path.trim_end_matches('/') == ACCOUNT))
}

/// Describes a container's own address of an API server, if it has one.
///
/// A KUBECONFIG takes precedence over the variables of the API's service. So adding it also
/// replaces an address in these variables.
fn own_address(container: &Node, options: &Options) -> Option<String> {
    let variables = match options.mode {
        Mode::Kubeconfig => &["KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"][..],
        Mode::InCluster => &["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"],
    };
    let found = variables.iter().find_map(|name| Some((name, own_variable(container, name)?)));
    found.map(|(name, value)| format!("container {} has its own {name}{value}", name_of(container)))
}

/// Returns a container's own value of a variable, in parentheses. `None` if there is none, or if it
/// already leads to the gate.
fn own_variable(container: &Node, name: &str) -> Option<String> {
    match own(container, name) {
        Own::None | Own::Text("" | "/run/tidegate/kubeconfig") => None,
        Own::Text(value) => Some(format!(" ({value:?})")),
        Own::Elsewhere => Some(String::new()),
    }
}

/// Describes a conflict between a port of a container and a port of the sidecar.
fn port_in_use(container: &Node, options: &Options) -> Option<String> {
    let ports = container.list_of("ports").iter();
    let is_tcp = |port: &&Node| port.text_at(&["protocol"]).is_none_or(|protocol| protocol == "TCP");
    let mut numbers = ports.filter(is_tcp).filter_map(|port| port.text_at(&["containerPort"])?.parse::<u16>().ok());
    let egress = options.egress.as_ref().map(|egress| egress.port);
    let taken =
        numbers.find(|number| [options.port, options.admin_port].contains(number) || egress == Some(*number))?;
    let (what, option) = if taken == options.port {
        ("the gate listens", "--port")
    } else if egress == Some(taken) {
        ("the forward proxy listens", "--egress-port")
    } else {
        ("the sidecar's metrics are", "--admin-port")
    };
    Some(format!("container {} has port {taken}, where {what}; choose another with {option}", name_of(container)))
}

/// Describes a conflict between a mount of a container and the folder of the gate's files.
fn mount_in_the_way(container: &Node, options: &Options) -> Option<String> {
    let name = name_of(container);
    let folder = folder(options);
    mounts(container).find_map(|(path, volume)| {
        // `/var/run` is a link to `/run` in most images.
        let place = path.strip_prefix("/var").filter(|rest| rest.starts_with(FOLDER)).unwrap_or(path);
        let below = place.strip_prefix(folder)?;
        if below.is_empty() && place == path {
            let is_replaced = options.replace || options.mode == Mode::InCluster;
            let reason = format!(
                "container {name} mounts volume {volume} at {path}, where the gate's files would be; mount it elsewhere, or replace it with --replace"
            );
            return (!is_replaced).then_some(reason);
        }
        let is_inside = below.is_empty() || below.starts_with('/');
        is_inside.then(|| {
            format!("container {name} mounts volume {volume} at {path}, inside of the gate's files; mount it elsewhere")
        })
    })
}

/// Returns the path and the volume of each mount of a container.
fn mounts(container: &Node) -> impl Iterator<Item = (&str, &str)> {
    let mounts = container.list_of("volumeMounts").iter();
    mounts.filter_map(|mount| {
        Some((mount.text_at(&["mountPath"])?.trim_end_matches('/'), mount.text_at(&["name"]).unwrap_or_default()))
    })
}

/// Returns the path of the gate's files in a container.
pub(super) const fn folder(options: &Options) -> &'static str {
    match options.mode {
        Mode::Kubeconfig => FOLDER,
        Mode::InCluster => ACCOUNT,
    }
}

/// Returns the containers with names in `chosen`.
pub(super) fn chosen_of<'a>(spec: &'a Node, chosen: &'a [String]) -> impl Iterator<Item = &'a Node> {
    spec.list_of("containers").iter().filter(|container| chosen.iter().any(|name| is_named(container, name)))
}

fn name_of(container: &Node) -> &str {
    container.text_at(&["name"]).unwrap_or_default()
}
