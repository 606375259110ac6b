//! kubeconfig files: found, merged and read as client-go does.
//!
//! `KUBECONFIG` is a list of files. If several have an entry of the same name, or a current
//! context, the first file wins. Paths in a file are relative to it. Unusable entries are errors:
//! another identity is never used silently. Fields with secrets never appear in an error.

mod clusters;
mod user;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

pub use self::clusters::{Clusters, ListedCluster, clusters, fingerprint};
use self::user::User;
use super::{CredentialsError, Environment, Proxy, ResolvedUpstream, target};
use crate::tls::{Pem, Roots};
use crate::yaml;

/// One kubeconfig file, or several merged. Other fields are ignored, as by client-go; an empty text
/// is the same as none.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Kubeconfig {
    current_context: String,
    contexts: Vec<ListEntry<Context>>,
    clusters: Vec<ListEntry<Cluster>>,
    users: Vec<ListEntry<User>>,
}

/// An entry in the list of clusters, users or contexts.
#[derive(Clone, Hash, Deserialize)]
struct ListEntry<T> {
    name: String,
    #[serde(default, alias = "context", alias = "cluster", alias = "user", alias = "extension")]
    item: T,
    /// The folder of the entry's file; relative paths start there.
    #[serde(skip)]
    folder: PathBuf,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
    namespace: Option<String>,
}

#[derive(Clone, Default, Hash, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: String,
    certificate_authority: String,
    certificate_authority_data: String,
    tls_server_name: String,
    insecure_skip_tls_verify: bool,
    proxy_url: String,
    extensions: Vec<ListEntry<Value>>,
}

/// Reads the upstream and credentials of a context, or of the current context if `None`.
pub(super) fn resolve(context: Option<&str>, environment: &Environment) -> Result<ResolvedUpstream, CredentialsError> {
    let config = Kubeconfig::load(environment)?;
    let name = context.or_else(|| given(&config.current_context)).ok_or_else(|| {
        CredentialsError::Missing("current context", "current-context".to_owned(), names(&config.contexts))
    })?;
    config.access(name)?.resolve()
}

/// The cluster, user and namespace of a context. Files that they name have not been read.
#[derive(Hash)]
struct Access {
    cluster: ListEntry<Cluster>,
    user: Option<ListEntry<User>>,
    namespace: Option<String>,
}

/// Returns the first entry with this name.
fn find<'a, T>(kind: &'static str, name: &str, list: &'a [ListEntry<T>]) -> Result<&'a ListEntry<T>, CredentialsError> {
    let found = list.iter().find(|entry| entry.name == name);
    found.ok_or_else(|| CredentialsError::Missing(kind, name.to_owned(), names(list)))
}

fn names<T>(list: &[ListEntry<T>]) -> String {
    let names: Vec<_> = list.iter().map(|entry| entry.name.as_str()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

// === impl Access ===

impl Access {
    fn resolve(&self) -> Result<ResolvedUpstream, CredentialsError> {
        let mut resolved = read_cluster(&self.cluster)?;
        resolved.namespace.clone_from(&self.namespace);
        if let Some(user) = &self.user {
            user::read(user, &self.cluster, &mut resolved)?;
        }
        Ok(resolved)
    }
}

// === impl Kubeconfig ===

impl Kubeconfig {
    /// Returns what a context refers to.
    fn access(&self, context: &str) -> Result<Access, CredentialsError> {
        let Context { cluster, user, namespace } = &find("context", context, &self.contexts)?.item;
        let cluster = find("cluster", cluster, &self.clusters)?.clone();
        let user = given(user).map(|user| find("user", user, &self.users)).transpose()?.cloned();
        Ok(Access { cluster, user, namespace: namespace.clone() })
    }

    /// Reads and merges the files in `KUBECONFIG`, or else the default file. Missing files in the
    /// list are skipped.
    fn load(environment: &Environment) -> Result<Self, CredentialsError> {
        let home = || environment.variable("HOME").map(|home| Path::new(home).join(".kube").join("config"));
        let paths: Vec<PathBuf> = match environment.variable("KUBECONFIG") {
            Some(list) => std::env::split_paths(list).filter(|path| !path.as_os_str().is_empty()).collect(),
            None => home().into_iter().collect(),
        };
        let mut merged = None::<Self>;
        for path in &paths {
            match std::fs::read_to_string(path) {
                Ok(text) => merged.get_or_insert_default().merge(parse(path, &text)?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(CredentialsError::NoKubeconfig(format!("cannot read {}: {error}", path.display())));
                }
            }
        }
        let tried: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        merged.ok_or_else(|| {
            CredentialsError::NoKubeconfig(match tried.is_empty() {
                true => "neither KUBECONFIG nor HOME is set".to_owned(),
                false => format!("no file at {}", tried.join(" or ")),
            })
        })
    }

    /// Adds the entries of another file. Entries of earlier files win.
    fn merge(&mut self, file: Self) {
        if self.current_context.is_empty() {
            self.current_context = file.current_context;
        }
        self.contexts.extend(file.contexts);
        self.clusters.extend(file.clusters);
        self.users.extend(file.users);
    }
}

/// Parses a file. An error contains only the place in the file: its text could contain a secret.
fn parse(path: &Path, text: &str) -> Result<Kubeconfig, CredentialsError> {
    let mut read: Kubeconfig =
        yaml::from_str(text).map_err(|misfit| CredentialsError::NotKubeconfig(path.to_owned(), misfit.to_string()))?;
    check("context", &mut read.contexts, path)?;
    check("cluster", &mut read.clusters, path)?;
    check("user", &mut read.users, path)?;
    Ok(read)
}

/// Rejects duplicate names in a list, and records the folder of the file in each entry.
fn check<T>(kind: &'static str, list: &mut [ListEntry<T>], path: &Path) -> Result<(), CredentialsError> {
    let mut names = HashSet::new();
    if let Some(twice) = list.iter().find(|entry| !names.insert(&*entry.name)) {
        return Err(CredentialsError::Twice(path.to_owned(), kind, twice.name.clone()));
    }
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    list.iter_mut().for_each(|entry| folder.clone_into(&mut entry.folder));
    Ok(())
}

fn read_cluster(entry: &ListEntry<Cluster>) -> Result<ResolvedUpstream, CredentialsError> {
    let place = format!("cluster `{}`", entry.name);
    let cluster = &entry.item;
    let server = given(&cluster.server);
    let server = server.ok_or_else(|| wrong(&place, "server", "http(s)://host[:port][/base]"))?;
    let mut resolved = ResolvedUpstream::at(target(server, &format!("server of {place}"))?);
    resolved.target.server_name = given(&cluster.tls_server_name).map(str::to_owned);
    if let Some(url) = given(&cluster.proxy_url) {
        let expected = "http, https or socks5 and ://[user:password@]host[:port]";
        resolved.target.proxy = Some(Proxy::parse(url).ok_or_else(|| wrong(&place, "proxy-url", expected))?);
    }
    let data = &cluster.certificate_authority_data;
    let file = &cluster.certificate_authority;
    if cluster.insecure_skip_tls_verify && (given(data), given(file)) != (None, None) {
        let expected = "no certificate-authority beside it, which would not be used; remove one of them";
        return Err(wrong(&place, "insecure-skip-tls-verify", expected));
    }
    if let Some(pem) = pem(&place, "certificate-authority-data", data, file, &entry.folder)? {
        resolved.roots = Roots::Only(pem);
    }
    if cluster.insecure_skip_tls_verify {
        resolved.roots = Roots::Unverified;
    }
    Ok(resolved)
}

/// Returns the description of the cluster to pass to an exec plugin.
fn about(entry: &ListEntry<Cluster>) -> Value {
    let cluster = &entry.item;
    let from_file = || {
        let path = given(&cluster.certificate_authority)?;
        std::fs::read(entry.folder.join(path)).ok().map(|pem| STANDARD.encode(pem))
    };
    let mut description = json!({
        "server": cluster.server,
        "config": cluster.extensions.iter().find(|one| one.name == EXEC_EXTENSION).map(|one| &one.item),
        "tls-server-name": given(&cluster.tls_server_name),
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify.then_some(true),
        "certificate-authority-data": given(&cluster.certificate_authority_data).map(str::to_owned).or_else(from_file),
        "proxy-url": given(&cluster.proxy_url),
    });
    if let Some(fields) = description.as_object_mut() {
        fields.retain(|name, value| name == "config" || !value.is_null());
    }
    description
}

/// Reads a certificate or key, given inline or as a file. As in client-go, inline data wins.
fn pem(
    place: &str,
    field: &'static str,
    data: &str,
    file: &str,
    folder: &Path,
) -> Result<Option<Pem>, CredentialsError> {
    if let Some(data) = given(data) {
        let data: String = data.chars().filter(|byte| !matches!(byte, '\r' | '\n')).collect(); // as Go
        let text = STANDARD.decode(data).map_err(|_| wrong(place, field, "base64"))?;
        return Ok(Some(Pem::new(text, format!("`{field}` of {place}"))));
    }
    Ok(given(file).map(|path| Pem::read(&folder.join(path))).transpose()?)
}

fn wrong(place: &str, field: &'static str, expected: &'static str) -> CredentialsError {
    CredentialsError::Field(place.to_owned(), field, expected)
}

/// Returns a text; `None` if it is empty.
fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// The name of a cluster's extension to pass to exec plugins.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";
