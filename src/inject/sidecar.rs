//! The edit itself: adds the sidecar to a pod, and takes it out again.

use super::record::{ANNOTATION, Record};
use super::workload::{Found, PACKAGE_RUNTIME};
use super::{shape, template};
use crate::yaml::Node;

/// The options of an injection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The sidecar's image.
    pub image: String,
    /// The way in which the containers are pointed at the gate.
    pub mode: Mode,
    /// The containers to point at the gate; all if empty.
    pub containers: Vec<String>,
    /// A `ConfigMap` with a `tidegate.toml`, mounted into the sidecar.
    pub config_map: Option<String>,
    /// More variables of the sidecar: limits as `TIDEGATE__…`.
    pub variables: Vec<(String, String)>,
    /// The port of the gate on the pod's loopback.
    pub port: u16,
    /// Adds a `PodMonitor` for a Prometheus operator beside each workload.
    pub pod_monitor: bool,
}

/// The ways to point a container at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `KUBECONFIG` names the one that the gate writes.
    Kubeconfig,
    /// For clients that know only in-cluster configuration: the variables of the API's service, and
    /// the gate's folder in place of the service account's.
    InCluster,
}

/// The name of everything that is added.
pub(super) const NAME: &str = "tidegate";
const CONFIG: &str = "tidegate-config";
const FOLDER: &str = "/run/tidegate";
const CONFIG_FOLDER: &str = "/etc/tidegate";
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// True if a pod has something named `tidegate` that was not injected.
pub(super) fn is_foreign(pod: &Node) -> bool {
    let lists = ["containers", "initContainers", "volumes"].into_iter();
    let mut items = lists.filter_map(|list| pod.get("spec")?.get(list)).flat_map(Node::items);
    Record::read(pod).is_none() && items.any(|item| is_named(item, NAME))
}

/// Adds the sidecar; returns true if there was anything to add it to.
pub(super) fn add(found: &mut Found<'_>, options: &Options, notes: &mut Vec<String>) -> bool {
    let title = &found.title;
    if let Some(fault) = shape::fault(found.pod) {
        notes.push(format!("{title}: {fault}, which no API server takes; left as it is"));
        return false;
    }
    let mut record = Record::default();
    found.note_made(&mut record);
    if found.is_overlay {
        ensure_package_runtime(found.pod, &mut record);
    }
    let Some(spec) = found.pod.get_mut("spec") else { return false };
    let chosen = chosen(spec, &options.containers);
    if chosen.is_empty() {
        notes.push(format!("{title}: has no container to point at the gate; left as it is"));
        return false;
    }
    warn(title, spec, options, &chosen, notes);
    let mut account_mount = None;
    for container in containers_mut(spec).filter(|container| chosen.iter().any(|name| is_named(container, name))) {
        let mount = point(container, options.mode, options.port, &mut record);
        account_mount = account_mount.or(mount);
    }
    let runs_as_root = spec.text_at(&["securityContext", "runAsUser"]) == Some("0");
    let sidecar = container(options, account_mount, runs_as_root);
    if let Some(list) = record.open_list(spec, "initContainers", "initContainers") {
        list.push(sidecar);
    }
    if let Some(list) = record.open_list(spec, "volumes", "volumes") {
        list.extend(volumes(options));
    }
    record.containers = chosen;
    mark(found.pod, record);
    true
}

/// Takes the sidecar out; returns true if it was there.
pub(super) fn take_out(found: &mut Found<'_>) -> bool {
    let Some(record) = Record::read(found.pod) else { return false };
    found.recall_made(&record);
    let pod = &mut *found.pod;
    if let Some(metadata) = pod.get_mut("metadata") {
        if let Some(annotations) = metadata.get_mut("annotations") {
            annotations.remove(ANNOTATION);
        }
        record.close(metadata, "annotations", "annotations");
    }
    record.close(pod, "metadata", "metadata");
    let Some(spec) = pod.get_mut("spec") else { return true };
    for (key, names) in [("initContainers", &[NAME][..]), ("volumes", &[NAME, CONFIG])] {
        if let Some(list) = spec.list_of_mut(key) {
            list.retain(|item| !names.iter().any(|name| is_named(item, name)));
        }
        record.close(spec, key, key);
    }
    for container in containers_mut(spec) {
        if record.containers.iter().any(|name| is_named(container, name)) {
            point_back(container, &record);
        }
    }
    if record.was("container").is_some()
        && let Some(list) = spec.list_of_mut("containers")
    {
        let has_only_name = |item: &Node| matches!(item, Node::Map(entries, _) if entries.len() == 1);
        list.retain(|item| !(has_only_name(item) && is_named(item, PACKAGE_RUNTIME)));
    }
    record.close(spec, "containers", "containers");
    true
}

/// Adds the package container if it is missing: a runtime config names only what differs from the
/// pod that Crossplane makes.
fn ensure_package_runtime(pod: &mut Node, record: &mut Record) {
    let Some(spec) = pod.get_mut("spec") else { return };
    let Some(list) = record.open_list(spec, "containers", "containers") else { return };
    if !list.iter().any(|item| is_named(item, PACKAGE_RUNTIME)) {
        record.note("container".to_owned(), None);
        list.push(Node::map([("name", Node::plain(PACKAGE_RUNTIME))]));
    }
}

/// Returns the names of the containers to point at the gate.
fn chosen(spec: &Node, wanted: &[String]) -> Vec<String> {
    let names = spec.list_of("containers").iter().filter_map(|container| container.text_at(&["name"]));
    names.filter(|name| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name)).map(str::to_owned).collect()
}

/// Notes anything that keeps a container from reaching the gate, or the gate from its credentials.
fn warn(title: &str, spec: &Node, options: &Options, chosen: &[String], notes: &mut Vec<String>) {
    if spec.text_at(&["hostNetwork"]) == Some("true") {
        notes.push(format!(
            "{title}: is on the host's network, where port {} may be taken (an API server's is 6443) and every pod of the node on that network reaches it; choose another with --port",
            options.port
        ));
    }
    for container in spec.list_of("containers") {
        let name = container.text_at(&["name"]).unwrap_or_default();
        let words = ["command", "args"].into_iter().flat_map(|key| container.list_of(key));
        let elsewhere = |word: &&str| {
            let is_flag = ["--kubeconfig", "--master"].iter().any(|flag| word.starts_with(flag));
            is_flag && !word.ends_with("/run/tidegate/kubeconfig")
        };
        let flag = words.filter_map(Node::text).find(elsewhere);
        if let Some(flag) = flag.filter(|_| chosen.iter().any(|chosen| chosen == name)) {
            notes.push(format!(
                "{title}: container {name} is started with {flag:?}, which wins over what was added; take it out"
            ));
        }
    }
    let mut mounts = spec.list_of("containers").iter().flat_map(|container| container.list_of("volumeMounts"));
    if spec.text_at(&["automountServiceAccountToken"]) == Some("false")
        && !(options.mode == Mode::InCluster && mounts.any(|mount| mount.text_at(&["mountPath"]) == Some(ACCOUNT)))
    {
        notes.push(format!(
            "{title}: automountServiceAccountToken is false, so the sidecar finds no API server and no token; set it to true"
        ));
    }
}

/// Points a container at the gate. Returns the mount of the service account that the gate's folder
/// replaced.
fn point(container: &mut Node, mode: Mode, port: u16, record: &mut Record) -> Option<Node> {
    let name = container.text_at(&["name"]).unwrap_or_default().to_owned();
    let (path, variables) = match mode {
        Mode::Kubeconfig => (FOLDER, vec![("KUBECONFIG", Node::plain(format!("{FOLDER}/kubeconfig")))]),
        Mode::InCluster => {
            let port = Node::quoted(port.to_string());
            let host = Node::plain("127.0.0.1");
            (ACCOUNT, vec![("KUBERNETES_SERVICE_HOST", host), ("KUBERNETES_SERVICE_PORT", port)])
        }
    };
    let env = record.open_list(container, "env", &format!("{name}/env"))?;
    for (variable, value) in variables {
        let entry = Node::map([("name", Node::plain(variable)), ("value", value)]);
        let old = env.iter_mut().find(|item| is_named(item, variable));
        record.note(format!("{name}/env/{variable}"), old.as_deref());
        match old {
            Some(old) => *old = entry,
            None => env.push(entry),
        }
    }
    let mounts = record.open_list(container, "volumeMounts", &format!("{name}/mounts"))?;
    match mounts.iter_mut().find(|mount| mount.text_at(&["mountPath"]) == Some(path)) {
        Some(old) => {
            record.note(format!("{name}/mount"), Some(old));
            // Only the service account's mount is of use to the sidecar.
            Some(std::mem::replace(old, mount(NAME, path))).filter(|_| mode == Mode::InCluster)
        }
        None => {
            mounts.push(mount(NAME, path));
            None
        }
    }
}

/// Undoes [`point`].
fn point_back(container: &mut Node, record: &Record) {
    let name = container.text_at(&["name"]).unwrap_or_default().to_owned();
    if let Some(env) = container.list_of_mut("env") {
        for variable in ["KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
            let Some(was) = record.was(&format!("{name}/env/{variable}")) else { continue };
            let is_ours = |item: &Node| is_named(item, variable) && item.get("value").is_some_and(is_our_value);
            let Some(index) = env.iter().position(is_ours) else { continue };
            env.splice(index..=index, was);
        }
    }
    record.close(container, "env", &format!("{name}/env"));
    if let Some(mounts) = container.list_of_mut("volumeMounts")
        && let Some(index) = mounts.iter().position(|mount| is_named(mount, NAME))
    {
        mounts.splice(index..=index, record.was(&format!("{name}/mount")).flatten());
    }
    record.close(container, "volumeMounts", &format!("{name}/mounts"));
}

/// True for a value that [`point`] set, and that has not changed since.
fn is_our_value(value: &Node) -> bool {
    let text = value.text().unwrap_or_default();
    text == "127.0.0.1" || text.strip_prefix(FOLDER) == Some("/kubeconfig") || text.parse::<u16>().is_ok()
}

fn mark(pod: &mut Node, mut record: Record) {
    let Some(metadata) = record.open_map(pod, "metadata") else { return };
    record.open_map(metadata, "annotations"); // noted in the record before that is written
    let written = record.written();
    if let Some(annotations) = metadata.get_mut("annotations") {
        annotations.set(ANNOTATION, written);
    }
}

/// Returns the sidecar: a native one, so that it starts before the controller and ends after it.
fn container(options: &Options, account: Option<Node>, runs_as_root: bool) -> Node {
    let mut container = template(include_str!("templates/sidecar.yaml"));
    container.set("image", Node::quoted(&*options.image));
    let variable =
        |(name, value): (String, String)| Node::map([("name", Node::plain(name)), ("value", Node::quoted(value))]);
    container.set("env", Node::list(variables(options).map(variable)));
    let mut push = |path: &[&str], item: Node| {
        if let Some(list) = container.at_mut(path).and_then(Node::items_mut) {
            list.push(item);
        }
    };
    if options.config_map.is_some() {
        let config = Node::plain("--config=/etc/tidegate/tidegate.toml");
        push(&["args"], config.clone());
        push(&["startupProbe", "exec", "command"], config);
        push(&["volumeMounts"], mount(CONFIG, CONFIG_FOLDER));
    }
    if let Some(account) = account {
        push(&["volumeMounts"], account);
    }
    if let Some(security) = container.get_mut("securityContext").filter(|_| runs_as_root) {
        security.set("runAsUser", Node::plain("65532"));
    }
    container
}

/// Returns the sidecar's variables: the address of the gate, and the limits of the options. They
/// win over the file, so that the gate always agrees with the address that the controller gets.
pub fn variables(options: &Options) -> impl Iterator<Item = (String, String)> {
    let gate = |key: &str| format!("TIDEGATE__GATES__KUBERNETES__{key}");
    let own = [
        ("TIDEGATE__ADMIN__LISTEN".to_owned(), "[::]:9464".to_owned()),
        (gate("UPSTREAM"), "in_cluster".to_owned()),
        (gate("LISTEN"), format!("127.0.0.1:{}", options.port)),
        (gate("TLS__MODE"), "self_signed".to_owned()),
        (gate("TLS__WRITE_TO"), FOLDER.to_owned()),
    ];
    own.into_iter().chain(options.variables.iter().cloned())
}

fn volumes(options: &Options) -> impl Iterator<Item = Node> {
    let memory = Node::map([("medium", Node::plain("Memory"))]);
    let shared = Node::map([("name", Node::plain(NAME)), ("emptyDir", memory)]);
    let config = options.config_map.as_ref().map(|name| {
        Node::map([("name", Node::plain(CONFIG)), ("configMap", Node::map([("name", Node::quoted(&**name))]))])
    });
    std::iter::once(shared).chain(config)
}

fn mount(volume: &str, path: &str) -> Node {
    Node::map([("name", Node::plain(volume)), ("mountPath", Node::plain(path)), ("readOnly", Node::plain("true"))])
}

fn containers_mut(spec: &mut Node) -> impl Iterator<Item = &mut Node> {
    spec.list_of_mut("containers").into_iter().flatten()
}

fn is_named(item: &Node, name: &str) -> bool {
    item.text_at(&["name"]) == Some(name)
}
