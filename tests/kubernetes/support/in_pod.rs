//! A process that finds what kubelet gives it: a service account's folder where every client looks
//! for it, and the API server's address in the environment.
//!
//! No client can be configured to use another path for that folder, so it is mounted there, in a
//! mount namespace of the process that its user may make (`unshare`); nothing of the machine
//! changes.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::control_plane::ControlPlane;

/// Mounts a fresh folder over `/run`, so that the path can be made on any machine.
const MOUNT: &str = r#"set -e
folder=$1; shift
place=/var/run/secrets/kubernetes.io/serviceaccount
mount -t tmpfs tidegate "$(readlink -f /var/run)"
mkdir -p "$place"
mount --bind "$folder" "$place"
exec "$@""#;

/// A service account as its pods see it.
#[derive(Clone, Debug)]
pub(crate) struct InPod {
    /// `token`, `ca.crt` and `namespace`.
    pub(crate) folder: PathBuf,
    /// The port of the API server, or of the gate in its place, on 127.0.0.1.
    pub(crate) port: u16,
    /// Empty, so that no kubeconfig is found in it.
    pub(crate) home: PathBuf,
}

impl InPod {
    /// Makes a namespace with a service account that may do everything in it, and the folder of its
    /// pods under `dir`.
    pub(crate) fn direct(plane: &ControlPlane, namespace: &str, dir: &Path) -> Self {
        plane.namespace(namespace);
        let subjects = json!([{"kind": "ServiceAccount", "name": "controller", "namespace": namespace}]);
        let role = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
        let rbac = "rbac.authorization.k8s.io/v1";
        let named = json!({"name": "controller", "namespace": namespace});
        let reader = format!("{namespace}-reader");
        // Objects that kopf reads, and asks for nine times if it may not.
        let rules = json!([
            {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["list", "watch"]},
            {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"]},
        ]);
        let items = json!([
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named},
            {"apiVersion": rbac, "kind": "RoleBinding", "metadata": named, "roleRef": role("cluster-admin"), "subjects": subjects},
            {"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": reader}, "rules": rules},
            {"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": reader}, "roleRef": role(&reader), "subjects": subjects},
        ]);
        plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
        let (folder, home) = (dir.join("serviceaccount"), dir.join("home"));
        fs::create_dir_all(&folder).expect("the folder is ours");
        fs::create_dir_all(&home).expect("the folder is ours");
        let token = plane.kubectl(&["create", "token", "controller", "-n", namespace, "--duration=1h"]);
        fs::write(folder.join("token"), token.trim()).expect("the folder is ours");
        fs::write(folder.join("namespace"), namespace).expect("the folder is ours");
        fs::copy(plane.ca_file(), folder.join("ca.crt")).expect("the folder is ours");
        Self { folder, port: plane.port(), home }
    }

    /// The program as it runs in the pod.
    pub(crate) fn command(
        &self,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Command {
        let mut run = Command::new("unshare");
        run.args(["--user", "--map-root-user", "--mount", "sh", "-c", MOUNT, "in-pod"]).arg(&self.folder);
        run.arg(program).args(args);
        run.env("KUBERNETES_SERVICE_HOST", "127.0.0.1").env("KUBERNETES_SERVICE_PORT", self.port.to_string());
        run.env("KUBERNETES_SERVICE_PORT_HTTPS", self.port.to_string());
        run.env("HOME", &self.home).env_remove("KUBECONFIG");
        run
    }

    /// Checks that this user may make such a mount: containers often forbid it.
    pub(crate) fn is_possible(dir: &Path) -> Result<PathBuf, String> {
        let here = Self { folder: dir.to_owned(), port: 0, home: dir.to_owned() };
        let out =
            here.command("true", [""; 0]).output().map_err(|e| format!("unshare is needed, and does not run: {e}"))?;
        let said = String::from_utf8_lossy(&out.stderr);
        let why = || format!("no service account folder can be mounted here ({})", said.trim());
        out.status.success().then(|| dir.to_owned()).ok_or_else(why)
    }
}
