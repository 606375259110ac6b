//! Edits a pod: adds the sidecar, or removes it again.

use super::egress::Variables;
use super::options::{Mode, Options, variables};
use super::parts::{ACCOUNT, ADMIN_PORT, CONFIG, FOLDER, KEYS, KEYS_FOLDER, NAME, is_named};
use super::record::{ANNOTATION, Record};
use super::workload::{PACKAGE_RUNTIME, Workload};
use super::{checks, shape, template};
use crate::yaml::Node;

/// Why no sidecar was added.
#[derive(Debug)]
pub(super) enum InjectError {
    /// The pod has none of the containers named by the user.
    NoneNamed(String),
    /// An injection would break the pod.
    Refused(Vec<String>),
}

/// Adds the sidecar to a pod, and returns the names of the containers using the gate now.
///
/// After an error the pod may be partly changed.
///
/// # Errors
/// The reasons for not adding it, each with a remedy.
pub(super) fn add(
    found: &mut Workload<'_>,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Vec<String>, InjectError> {
    if let Some(fault) = shape::fault(found.pod) {
        return Err(InjectError::Refused(vec![format!("{fault}, so no API server accepts this pod")]));
    }
    let mut record = Record::default();
    found.note_made(&mut record);
    if found.is_overlay {
        ensure_package_runtime(found.pod, &mut record);
    }
    let Some(spec) = found.pod.get_mut("spec") else {
        return Err(InjectError::Refused(vec!["its pod has no spec".to_owned()]));
    };
    let chosen = chosen(spec, &options.containers);
    if chosen.is_empty() {
        return Err(none_to_point(spec, &options.containers));
    }
    let reasons = checks::reasons(spec, options, &chosen);
    if !reasons.is_empty() {
        return Err(InjectError::Refused(reasons));
    }
    notes.extend(checks::warnings(spec, options, &chosen));
    let own_mount = checks::account_mount(spec).cloned();
    let via = match &options.egress {
        Some(egress) => egress.via(checks::chosen_of(spec, &chosen)).map_err(|why| InjectError::Refused(vec![why]))?,
        None => None,
    };
    for container in containers_mut(spec).filter(|container| chosen.iter().any(|name| is_named(container, name))) {
        point(container, options.mode, options.port, &mut record);
        if let Some(egress) = &options.egress {
            let variables = egress.of_container(container, checks::folder(options));
            proxy(container, variables, &mut record, notes);
        }
    }
    let runs_as_root = spec.text_at(&["securityContext", "runAsUser"]) == Some("0");
    let sidecar = container(options, own_mount, runs_as_root, via);
    if let Some(list) = record.open_list(spec, "initContainers", "initContainers") {
        list.push(sidecar);
    }
    if let Some(list) = record.open_list(spec, "volumes", "volumes") {
        list.extend(volumes(options));
    }
    record.containers.clone_from(&chosen);
    mark(found.pod, record);
    Ok(chosen)
}

/// Removes the sidecar from a pod. Returns true if there was one.
pub(super) fn take_out(found: &mut Workload<'_>) -> bool {
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
    for (key, names) in [("initContainers", &[NAME][..]), ("volumes", &[NAME, CONFIG, KEYS])] {
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

/// Adds the container of a Crossplane package to a runtime config, if it is missing. Such a config
/// contains only differences from Crossplane's own pod.
fn ensure_package_runtime(pod: &mut Node, record: &mut Record) {
    let Some(spec) = pod.get_mut("spec") else { return };
    let Some(list) = record.open_list(spec, "containers", "containers") else { return };
    if !list.iter().any(|item| is_named(item, PACKAGE_RUNTIME)) {
        record.note("container".to_owned(), None);
        list.push(Node::map([("name", Node::plain(PACKAGE_RUNTIME))]));
    }
}

/// Returns the names of the containers chosen to use the gate.
fn chosen(spec: &Node, wanted: &[String]) -> Vec<String> {
    let names = spec.list_of("containers").iter().filter_map(|container| container.text_at(&["name"]));
    names.filter(|name| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name)).map(str::to_owned).collect()
}

/// Returns the error for a pod without any container to use the gate.
fn none_to_point(spec: &Node, wanted: &[String]) -> InjectError {
    let names: Vec<_> = spec.list_of("containers").iter().filter_map(|each| each.text_at(&["name"])).collect();
    if names.is_empty() {
        return InjectError::Refused(vec!["its pod has no container that could use the gate".to_owned()]);
    }
    let wanted = wanted.join(" or --container ");
    InjectError::NoneNamed(format!("has no container for --container {wanted}; its containers: {}", names.join(", ")))
}

/// Changes a container to use the gate.
fn point(container: &mut Node, mode: Mode, port: u16, record: &mut Record) {
    let name = container.text_at(&["name"]).unwrap_or_default().to_owned();
    let (path, variables) = match mode {
        Mode::Kubeconfig => (FOLDER, vec![("KUBECONFIG", Node::plain(format!("{FOLDER}/kubeconfig")))]),
        Mode::InCluster => {
            let port = Node::quoted(port.to_string());
            let host = Node::plain("127.0.0.1");
            (ACCOUNT, vec![("KUBERNETES_SERVICE_HOST", host), ("KUBERNETES_SERVICE_PORT", port)])
        }
    };
    let Some(env) = record.open_list(container, "env", &format!("{name}/env")) else { return };
    for (variable, value) in variables {
        set_variable(env, variable, value, &name, record);
    }
    let Some(mounts) = record.open_list(container, "volumeMounts", &format!("{name}/mounts")) else { return };
    let is_there =
        |mount: &&mut Node| mount.text_at(&["mountPath"]).is_some_and(|place| place.trim_end_matches('/') == path);
    match mounts.iter_mut().find(is_there) {
        Some(old) => {
            record.note(format!("{name}/mount"), Some(old));
            *old = mount(NAME, path);
        }
        None => mounts.push(mount(NAME, path)),
    }
}

/// Changes a container to use the forward proxy.
fn proxy(container: &mut Node, variables: Variables, record: &mut Record, notes: &mut Vec<String>) {
    let name = container.text_at(&["name"]).unwrap_or_default().to_owned();
    notes.extend(variables.notes);
    if !container.list_of("envFrom").is_empty() {
        notes.push(format!(
            "container {name} takes variables from envFrom; a proxy among them is replaced, and the gate does not use it"
        ));
    }
    let Some(env) = record.open_list(container, "env", &format!("{name}/env")) else { return };
    for (variable, value) in variables.set {
        set_variable(env, &variable, Node::quoted(value), &name, record);
    }
}

/// Sets an environment variable in `env`, the list of the container `name`, and records the change.
fn set_variable(env: &mut Vec<Node>, variable: &str, value: Node, name: &str, record: &mut Record) {
    let place = format!("{name}/env/{variable}");
    record.note_set(place.clone(), value.text().unwrap_or_default());
    let entry = Node::map([("name", Node::plain(variable)), ("value", value)]);
    let old = env.iter_mut().find(|item| is_named(item, variable));
    record.note(place, old.as_deref());
    match old {
        Some(old) => *old = entry,
        None => env.push(entry),
    }
}

/// Undoes [`point`] and [`proxy`].
fn point_back(container: &mut Node, record: &Record) {
    let name = container.text_at(&["name"]).unwrap_or_default().to_owned();
    if let Some(env) = container.list_of_mut("env") {
        let begin = format!("{name}/env/");
        for variable in record.places(&begin) {
            let place = format!("{begin}{variable}");
            let Some(was) = record.was(&place) else { continue };
            // A value that has changed since is the user's.
            let is_ours = |item: &Node| is_named(item, variable) && item.text_at(&["value"]) == record.set_at(&place);
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

fn mark(pod: &mut Node, mut record: Record) {
    let Some(metadata) = record.open_map(pod, "metadata") else { return };
    record.open_map(metadata, "annotations"); // recorded before the record is written
    let written = record.written();
    if let Some(annotations) = metadata.get_mut("annotations") {
        annotations.set(ANNOTATION, written);
    }
}

/// Returns the sidecar's container. It is a native sidecar: it starts before the controller and
/// ends after it.
fn container(options: &Options, account: Option<Node>, runs_as_root: bool, via: Option<String>) -> Node {
    let mut container = template(include_str!("templates/sidecar.yaml"));
    container.set("image", Node::quoted(&*options.image));
    let variable =
        |(name, value): (String, String)| Node::map([("name", Node::plain(name)), ("value", Node::quoted(value))]);
    let via = via.map(|via| ("TIDEGATE__EGRESS__VIA".to_owned(), via));
    container.set("env", Node::list(variables(options).chain(via).map(variable)));
    if options.admin_port != ADMIN_PORT {
        let port = Node::map([
            ("name", Node::plain("tidegate-admin")),
            ("containerPort", Node::plain(options.admin_port.to_string())),
        ]);
        container.set("ports", Node::list([port]));
    }
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
    if options.intercepts() {
        push(&["volumeMounts"], Node::map([("name", Node::plain(KEYS)), ("mountPath", Node::plain(KEYS_FOLDER))]));
    }
    if let Some(account) = account {
        push(&["volumeMounts"], account);
    }
    if let Some(security) = container.get_mut("securityContext").filter(|_| runs_as_root) {
        security.set("runAsUser", Node::plain("65532"));
    }
    container
}

fn volumes(options: &Options) -> impl Iterator<Item = Node> {
    let memory =
        |name| Node::map([("name", Node::plain(name)), ("emptyDir", Node::map([("medium", Node::plain("Memory"))]))]);
    let keys = options.intercepts().then(|| memory(KEYS));
    let config = options.config_map.as_ref().map(|name| {
        Node::map([("name", Node::plain(CONFIG)), ("configMap", Node::map([("name", Node::quoted(&**name))]))])
    });
    [memory(NAME)].into_iter().chain(config).chain(keys)
}

fn mount(volume: &str, path: &str) -> Node {
    Node::map([("name", Node::plain(volume)), ("mountPath", Node::plain(path)), ("readOnly", Node::plain("true"))])
}

fn containers_mut(spec: &mut Node) -> impl Iterator<Item = &mut Node> {
    spec.list_of_mut("containers").into_iter().flatten()
}

/// The mount point of the configuration, as a path in the container.
const CONFIG_FOLDER: &str = "/etc/tidegate";
