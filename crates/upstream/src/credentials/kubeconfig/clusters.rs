//! The clusters of a gate with many: the contexts of a kubeconfig, or those described in a folder.
//!
//! A folder has a kubeconfig for each cluster, or a subfolder with the fields of its Secret: `server`
//! and `config` as Argo CD reads them, or `value` as Cluster API and Flux do. What is wrong with one
//! cluster concerns that cluster alone.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Access, Kubeconfig, ListEntry, given, names, parse};
use crate::credentials::{CredentialsError, ResolvedUpstream};
use crate::yaml;

/// The clusters of a gate by name, each as its file describes it or with what is wrong with it.
pub type Clusters = BTreeMap<Arc<str>, Result<ListedCluster, CredentialsError>>;

/// A cluster as its file describes it. Files named there have not been read.
#[derive(derive_more::Debug)]
#[debug("ListedCluster")]
pub struct ListedCluster {
    access: Access,
    /// The name of its user in a kubeconfig with many clusters.
    user: Option<String>,
}

/// The clusters found so far.
#[derive(Default)]
struct Found {
    clusters: Clusters,
    files: BTreeMap<Arc<str>, PathBuf>,
}

/// Reads a kubeconfig with a cluster for each context, or a folder of clusters.
///
/// # Errors
/// The file or folder cannot be read, or has no cluster.
pub fn clusters(path: &Path) -> Result<Clusters, CredentialsError> {
    let mut found = Found::default();
    if path.is_dir() {
        for entry in entries(path).map_err(|error| unreadable(path, &error))? {
            let (name, read) = if entry.is_dir() {
                let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
                in_folder(&entry, name)
            } else {
                (name_of(&entry), in_file(&entry))
            };
            let listed = read.map(|access| ListedCluster { access, user: None });
            found.add(name, &entry, listed);
        }
    } else {
        let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
        let config = parse(path, &text)?;
        for ListEntry { name, item, .. } in &config.contexts {
            let user = given(&item.user).map(str::to_owned);
            let listed = config.access(name).map(|access| ListedCluster { access, user });
            found.add(name.clone(), path, listed);
        }
    }
    if found.clusters.is_empty() {
        return Err(wrong(path, format!("it has no cluster; expected {EXPECTED}")));
    }
    Ok(found.clusters)
}

/// Returns a hash of all files that describe clusters.
pub fn fingerprint(path: &Path) -> u64 {
    fn add(path: &Path, depth: u8, hasher: &mut DefaultHasher) {
        path.hash(hasher);
        match entries(path) {
            Ok(entries) if depth > 0 => entries.iter().for_each(|entry| add(entry, depth - 1, hasher)),
            _ if path.is_file() => fs::read(path).map_err(|error| error.kind()).hash(hasher),
            _ => {}
        }
    }
    let mut hasher = DefaultHasher::new();
    add(path, 2, &mut hasher);
    hasher.finish()
}

// === impl ListedCluster ===

impl ListedCluster {
    /// Reads the files named in its description.
    ///
    /// # Errors
    /// Names what is missing or wrong, and what was expected.
    pub fn resolve(&self) -> Result<ResolvedUpstream, CredentialsError> {
        self.access.resolve().map(ResolvedUpstream::with_warnings)
    }

    /// Returns a hash of its description.
    pub fn version(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.access.hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the name of its user, in a kubeconfig with many clusters.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }
}

// === impl Found ===

impl Found {
    /// Adds a cluster. It cannot be used if its name is no path segment, or that of another.
    fn add(&mut self, name: String, file: &Path, listed: Result<ListedCluster, CredentialsError>) {
        let name: Arc<str> = name.into();
        let twice = self.files.insert(Arc::clone(&name), file.to_owned());
        let listed = match twice {
            Some(first) => {
                Err(wrong(&first, format!("{file:?} has a cluster of this name too: {name:?}; rename one of them")))
            }
            None if !is_segment(&name) => Err(wrong(file, format!("the name {name:?} {NO_SEGMENT}"))),
            None => listed,
        };
        self.clusters.insert(name, listed);
    }
}

/// Returns true for a name that is one segment of a path in every reader's eyes.
fn is_segment(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:@".contains(&byte);
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(is_plain) && name.bytes().any(|byte| byte != b'.')
}

/// Returns the files and folders in a folder, sorted; without the links that kubelet makes.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let all = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    let is_hidden = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let mut shown: Vec<_> =
        all.into_iter().filter(|path| !is_hidden(path) && (path.is_file() || path.is_dir())).collect();
    shown.sort();
    Ok(shown)
}

/// Returns the name of the cluster in a file: its own without the usual endings.
fn name_of(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let without = [".yaml", ".yml", ".kubeconfig", ".conf"].iter().find_map(|ending| name.strip_suffix(ending));
    without.unwrap_or(&name).to_owned()
}

/// Reads a kubeconfig for one cluster: its current context, or the only one.
fn in_file(path: &Path) -> Result<Access, CredentialsError> {
    let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    let config: Kubeconfig = parse(path, &text)?;
    let only = config.contexts.first().filter(|_| config.contexts.len() == 1).map(|context| &*context.name);
    let name = given(&config.current_context).or(only);
    let has = names(&config.contexts);
    let missing = || wrong(path, format!("expected a current-context, or a single context; it has: {has}"));
    config.access(name.ok_or_else(missing)?)
}

/// Reads a folder with the fields of a cluster's Secret. The field `name` replaces the folder's.
fn in_folder(folder: &Path, name: String) -> (String, Result<Access, CredentialsError>) {
    let field = |name: &str| fs::read_to_string(folder.join(name)).ok().map(|text| text.trim().to_owned());
    if let Some(server) = field("server") {
        let name = field("name").unwrap_or(name);
        let access = of_argo_cd(folder, &name, &server);
        return (name, access);
    }
    let file =
        ["value", "value.yaml", "kubeconfig"].map(|field| folder.join(field)).into_iter().find(|path| path.is_file());
    let missing = || wrong(folder, "it has neither `server` nor `value`; expected the fields of a cluster's Secret");
    (name, file.ok_or_else(missing).and_then(|file| in_file(&file)))
}

/// Reads a cluster as Argo CD describes it, with its own names for the fields of a kubeconfig.
fn of_argo_cd(folder: &Path, name: &str, server: &str) -> Result<Access, CredentialsError> {
    let file = folder.join("config");
    let text = fs::read_to_string(&file).map_err(|error| unreadable(&file, &error))?;
    let config: Value = yaml::from_str(&text).map_err(|misfit| wrong(&file, misfit.to_string()))?;
    let of = |pointer: &str| config.pointer(pointer).cloned().unwrap_or_default();
    if !of("/awsAuthConfig").is_null() {
        return Err(wrong(
            &file,
            "`awsAuthConfig` is not supported; expected `execProviderConfig` with argocd-k8s-auth",
        ));
    }
    let mut exec = of("/execProviderConfig");
    if let Some(env) = exec.get("env").and_then(Value::as_object) {
        exec["env"] = env.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    }
    let cluster = json!({
        "server": server,
        "certificate-authority-data": of("/tlsClientConfig/caData"),
        "tls-server-name": of("/tlsClientConfig/serverName"),
        "insecure-skip-tls-verify": of("/tlsClientConfig/insecure"),
        "proxy-url": of("/proxyUrl"),
    });
    let user = json!({
        "token": of("/bearerToken"),
        "username": of("/username"),
        "password": of("/password"),
        "client-certificate-data": of("/tlsClientConfig/certData"),
        "client-key-data": of("/tlsClientConfig/keyData"),
        "exec": exec,
    });
    Ok(Access { cluster: entry(name, cluster, &file)?, user: Some(entry(name, user, &file)?), namespace: None })
}

/// Makes an entry of a kubeconfig from its fields; those that are null are absent.
fn entry<T: DeserializeOwned>(name: &str, mut fields: Value, file: &Path) -> Result<ListEntry<T>, CredentialsError> {
    if let Some(fields) = fields.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    // The error of the reader would quote the value.
    let item = serde_json::from_value(fields).map_err(|_| wrong(file, "a value has the wrong type"))?;
    Ok(ListEntry { name: name.to_owned(), item, folder: file.parent().unwrap_or(file).to_owned() })
}

fn unreadable(path: &Path, error: &io::Error) -> CredentialsError {
    wrong(path, format!("cannot be read: {error}; expected {EXPECTED}"))
}

fn wrong(path: &Path, why: impl Into<String>) -> CredentialsError {
    CredentialsError::Cluster(path.to_owned(), why.into())
}

const EXPECTED: &str =
    "a kubeconfig with contexts, or a folder of kubeconfigs or of cluster Secrets (`server` and `config`, or `value`)";
const NO_SEGMENT: &str =
    "cannot stand in a path; expected letters, digits and -._~:@ (kubectl config rename-context, or rename the file)";

/// The longest name of a cluster, in bytes: that of a Kubernetes object.
const LONGEST_NAME: usize = 253;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::clock::Clock;

    const CANARY: &str = "canary-of-a-cluster";

    fn kubeconfig(context: &str, server: &str) -> String {
        format!(
            "current-context: {context}\nclusters: [{{ name: k, cluster: {{ server: '{server}' }} }}]\n\
             users: [{{ name: u, user: {{ token: {CANARY} }} }}]\ncontexts: [{{ name: c, context: {{ cluster: k, user: u }} }}]\n"
        )
    }

    fn write(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        fs::write(path, text).expect("it can be written");
    }

    /// Each cluster with its server, or with what is wrong.
    fn read(path: &Path) -> Vec<(String, String)> {
        let shown = |listed: Result<ListedCluster, CredentialsError>| match listed.and_then(|listed| listed.resolve()) {
            Ok(resolved) => resolved.target.to_string(),
            Err(error) => error.to_string(),
        };
        let all: Vec<_> = clusters(path)
            .expect("clusters")
            .into_iter()
            .map(|(name, listed)| (name.to_string(), shown(listed)))
            .collect();
        assert!(!format!("{all:?}").contains(CANARY), "{all:?}");
        all
    }

    #[test]
    fn each_context_of_a_kubeconfig_is_a_cluster() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = "clusters: [{ name: k, cluster: { server: 'https://one/k8s' } }]\n\
                    contexts: [{ name: a, context: { cluster: k } }, { name: b/c, context: { cluster: k } }, { name: d, context: { cluster: x } }]\n";
        write(folder.path(), "config", text);
        let all = read(&folder.path().join("config"));
        assert_eq!(all[0], ("a".to_owned(), "https://one/k8s".to_owned()));
        assert!(
            all[1].1.contains("the name \"b/c\" cannot stand in a path; ") && all[1].1.contains("rename-context"),
            "{all:?}"
        );
        assert!(all[2].1.contains("the kubeconfig has no cluster `x`; it has: k"), "{all:?}");
    }

    #[test]
    fn a_folder_as_kubelet_mounts_it_has_a_cluster_for_each_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        write(path, "..1/prod.yaml", &kubeconfig("c", "https://prod"));
        write(path, "..1/test", &kubeconfig("''", "https://test"));
        write(path, "..1/capi/value", &kubeconfig("c", "https://capi"));
        symlink("..1", path.join("..data")).expect("it can be linked");
        for name in ["prod.yaml", "test", "capi"] {
            symlink(Path::new("..data").join(name), path.join(name)).expect("it can be linked");
        }
        let expected = [("capi", "https://capi"), ("prod", "https://prod"), ("test", "https://test")];
        assert_eq!(read(path), expected.map(|(name, server)| (name.to_owned(), server.to_owned())));
    }

    #[test]
    fn the_fields_of_an_argo_cd_secret_are_a_cluster() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        let config = format!(
            "{{\"bearerToken\": \"{CANARY}\", \"proxyUrl\": \"http://proxy:1\", \"tlsClientConfig\": {{\"insecure\": true, \"serverName\": \"real\", \"caData\": null}}}}"
        );
        write(path, "a/server", "https://prod\n");
        write(path, "a/name", "prod");
        write(path, "a/config", &config);
        write(path, "b/server", "https://test");
        write(
            path,
            "b/config",
            "{\"execProviderConfig\": {\"command\": \"k\", \"apiVersion\": \"client.authentication.k8s.io/v1\", \"env\": {\"A\": \"b\"}}}",
        );
        let mut all = clusters(path).expect("clusters");
        let resolved = all.remove("prod").expect("it is named by its field").expect("right").resolve().expect("right");
        assert_eq!(resolved.target.to_string(), "https://prod");
        assert_eq!(resolved.target.server_name.as_deref(), Some("real"));
        assert!(resolved.target.proxy.is_some() && resolved.warnings[0].contains("OFF"), "{:?}", resolved.warnings);
        let header = |resolved: ResolvedUpstream| {
            let credential = resolved.credential.expect("a token");
            credential.secret.header(&credential.prefix, Clock::start().now()).0
        };
        assert_eq!(header(resolved).expect("a token"), format!("Bearer {CANARY}").as_str());
        let plugin = all.remove("b").expect("it is named by its folder").expect("right").resolve().expect("right");
        assert!(plugin.has_credentials());
    }

    #[test]
    fn what_is_wrong_with_a_cluster_is_said_of_it_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        let wrong = [
            ("aws/config", "{\"awsAuthConfig\": {\"clusterName\": \"x\"}}", "`awsAuthConfig` is not supported"),
            ("ca/config", "{\"tlsClientConfig\": {\"caData\": \"?canary-of-a-cluster\"}}", "expected base64"),
            ("empty.yaml", "", "expected a current-context, or a single context; it has: none"),
            ("json/config", "{\"bearerToken\": canary-of-a-cluster", "config: line 1 is not valid YAML"),
            ("space bar.yaml", &kubeconfig("c", "https://x"), "expected letters, digits and"),
            ("text/config", "{\"bearerToken\": {\"canary-of-a-cluster\": 1}}", "a value has the wrong type"),
            (
                "twice.conf",
                &kubeconfig("c", "https://x"),
                "has a cluster of this name too: \"twice\"; rename one of them",
            ),
            ("void/other", "", "it has neither `server` nor `value`"),
            ("yaml", "a: [", "cannot be read as a kubeconfig: line"),
        ];
        for (name, text, _) in &wrong {
            write(path, name, text);
        }
        ["aws", "ca", "json", "text"].iter().for_each(|name| write(path, &format!("{name}/server"), "https://x"));
        write(path, "twice.yml", &kubeconfig("c", "https://x"));
        write(path, "right", &kubeconfig("c", "https://right"));
        let all = read(path);
        assert_eq!(all.len(), wrong.len() + 1);
        for ((_, said), (name, _, expected)) in all.iter().filter(|(name, _)| name != "right").zip(&wrong) {
            assert!(said.contains(expected), "{name}: {said}");
        }
    }

    #[test]
    fn where_there_is_no_cluster_it_says_what_could_be() {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path(), "config", "users: []\n");
        let empty = tempfile::tempdir().expect("a folder");
        for path in [folder.path().join("config"), empty.path().to_owned(), folder.path().join("nowhere")] {
            let said = clusters(&path).expect_err("no cluster").to_string();
            assert!(said.starts_with(&path.display().to_string()), "{said}");
            assert!(said.contains("expected a kubeconfig with contexts, or a folder of kubeconfigs or"), "{said}");
        }
    }

    #[test]
    fn a_change_of_any_file_is_a_change_of_all_and_of_its_cluster() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        write(path, "a/server", "https://a");
        write(path, "a/config", "{}");
        write(path, "b", &kubeconfig("c", "https://b"));
        let versions = || {
            let of = |(_, listed): (_, Result<ListedCluster, _>)| listed.expect("right").version();
            clusters(path).expect("clusters").into_iter().map(of).collect::<Vec<_>>()
        };
        let (all, each) = (fingerprint(path), versions());
        assert_eq!((fingerprint(path), versions()), (all, each.clone()));
        write(path, "a/config", "{\"bearerToken\": \"x\"}");
        assert!(fingerprint(path) != all && versions()[0] != each[0] && versions()[1] == each[1]);
    }
}
