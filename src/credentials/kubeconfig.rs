//! kubeconfig files: found, merged and read as client-go does.
//!
//! `KUBECONFIG` is a list of files: the first that names a cluster, user, context or the current context wins. Paths in a file are relative
//! to it. What cannot be acted on is an error that says so: never silently another identity. Fields that hold secrets never appear in an
//! error.

mod user;

use std::{
    io,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};

use self::user::User;
use super::{CredentialsError, Environment, Proxy, Resolved, target};
use crate::{
    tls::{Pem, Roots},
    yaml,
};

/// One file, as far as it matters here. Fields that are not listed are left alone, as client-go does.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Kubeconfig {
    current_context: Option<String>,
    contexts: Option<Vec<NamedContext>>,
    clusters: Option<Vec<NamedCluster>>,
    users: Option<Vec<NamedUser>>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    #[serde(default)]
    context: Context,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
    namespace: Option<String>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    #[serde(default)]
    cluster: Cluster,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: Option<String>,
    certificate_authority: Option<String>,
    certificate_authority_data: Option<String>,
    tls_server_name: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    proxy_url: Option<String>,
    extensions: Option<Vec<Extension>>,
}

/// More about a cluster, for whoever knows the name.
#[derive(Deserialize)]
struct Extension {
    name: String,
    #[serde(default)]
    extension: Value,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default)]
    user: Option<User>,
}

/// Something found, and the folder its relative paths are meant from.
struct Found<T> {
    item: T,
    folder: PathBuf,
}

/// Resolves a context; `None` for the current one.
pub(super) fn resolve(context: Option<&str>, around: &Environment) -> Result<Resolved, CredentialsError> {
    let files = load(around)?;
    let name = match context {
        Some(name) => name.to_owned(),
        None => current(&files)?,
    };
    let known = |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let missing =
        |kind, name: &str, names| CredentialsError::Missing { kind, name: name.to_owned(), known: known(names) };

    let contexts = || files.iter().flat_map(|(_, file)| file.contexts.iter().flatten());
    let context = contexts()
        .find(|found| found.name == name)
        .ok_or_else(|| missing("context", &name, contexts().map(|found| found.name.as_str()).collect()))?;
    let context = &context.context;

    let clusters =
        || files.iter().flat_map(|(path, file)| file.clusters.iter().flatten().map(move |found| (path, found)));
    let (cluster_path, cluster) = clusters().find(|(_, found)| found.name == context.cluster).ok_or_else(|| {
        missing("cluster", &context.cluster, clusters().map(|(_, found)| found.name.as_str()).collect())
    })?;
    let mut resolved = read_cluster(&cluster.name, &Found { item: &cluster.cluster, folder: folder_of(cluster_path) })?;
    resolved.namespace.clone_from(&context.namespace);

    if !context.user.is_empty() {
        let users =
            || files.iter().flat_map(|(path, file)| file.users.iter().flatten().map(move |found| (path, found)));
        let (path, user) = users()
            .find(|(_, found)| found.name == context.user)
            .ok_or_else(|| missing("user", &context.user, users().map(|(_, found)| found.name.as_str()).collect()))?;
        if let Some(found) = &user.user {
            let told = about(&cluster.cluster, &folder_of(cluster_path));
            user::read(&user.name, &Found { item: found, folder: folder_of(path) }, &told, &mut resolved)?;
        }
    }
    Ok(resolved)
}

fn current(files: &[(PathBuf, Kubeconfig)]) -> Result<String, CredentialsError> {
    let named = files.iter().filter_map(|(_, file)| file.current_context.clone()).find(|name| !name.is_empty());
    named.ok_or_else(|| CredentialsError::Missing {
        kind: "current context",
        name: "current-context".to_owned(),
        known: files
            .iter()
            .flat_map(|(_, file)| file.contexts.iter().flatten())
            .map(|found| found.name.clone())
            .collect::<Vec<_>>()
            .join(", "),
    })
}

/// The files there are; in a list those that are missing are passed over.
fn load(around: &Environment) -> Result<Vec<(PathBuf, Kubeconfig)>, CredentialsError> {
    let paths: Vec<PathBuf> = match around.variable("KUBECONFIG").filter(|list| !list.is_empty()) {
        Some(list) => std::env::split_paths(list).filter(|path| !path.as_os_str().is_empty()).collect(),
        None => around.variable("HOME").map(|home| Path::new(home).join(".kube").join("config")).into_iter().collect(),
    };
    let mut files = Vec::new();
    for path in &paths {
        match std::fs::read_to_string(path) {
            Ok(text) => files.push((path.clone(), parse(path, &text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(CredentialsError::NoKubeconfig(format!("cannot read {}: {error}", path.display())));
            }
        }
    }
    if files.is_empty() {
        let tried: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        let tried = if tried.is_empty() {
            "neither KUBECONFIG nor HOME is set".to_owned()
        } else {
            format!("no file at {}", tried.join(" or "))
        };
        return Err(CredentialsError::NoKubeconfig(tried));
    }
    Ok(files)
}

/// Parses a file. Of an error only the place is kept: its text may quote a secret.
fn parse(path: &Path, text: &str) -> Result<Kubeconfig, CredentialsError> {
    yaml::from_str(text)
        .map_err(|misfit| CredentialsError::NotKubeconfig { path: path.to_owned(), at: misfit.to_string() })
}

fn folder_of(path: &Path) -> PathBuf {
    path.parent().map(Path::to_owned).unwrap_or_default()
}

fn read_cluster(name: &str, found: &Found<&Cluster>) -> Result<Resolved, CredentialsError> {
    let cluster = found.item;
    let place = format!("cluster `{name}`");
    let server = filled(cluster.server.as_ref()).ok_or(CredentialsError::Field {
        place: place.clone(),
        field: "server",
        expected: "set; expected http(s)://host[:port][/base]",
    })?;
    let mut resolved = Resolved::at(target(server, &format!("server of {place}"))?);
    resolved.target.server_name = filled(cluster.tls_server_name.as_ref()).map(str::to_owned);
    if let Some(url) = filled(cluster.proxy_url.as_ref()) {
        let proxy = Proxy::parse(url).ok_or(CredentialsError::Field {
            place: place.clone(),
            field: "proxy-url",
            expected: "http, https or socks5 and ://[user:password@]host[:port]",
        })?;
        resolved.target.proxy = Some(proxy);
    }
    let authority = (
        "certificate-authority-data",
        cluster.certificate_authority_data.as_ref(),
        cluster.certificate_authority.as_ref(),
    );
    if let Some(pem) = pem(&place, authority, &found.folder)? {
        resolved.roots = Roots::Only(pem);
    }
    if cluster.insecure_skip_tls_verify == Some(true) {
        resolved.roots = Roots::Unverified;
    }
    Ok(resolved)
}

/// What an exec plugin is told about the cluster.
fn about(cluster: &Cluster, folder: &Path) -> Value {
    let data = filled(cluster.certificate_authority_data.as_ref()).map(str::to_owned);
    let from_file = || {
        let path = filled(cluster.certificate_authority.as_ref())?;
        std::fs::read(folder.join(path)).ok().map(|pem| STANDARD.encode(pem))
    };
    let extensions = || cluster.extensions.iter().flatten();
    let config = extensions().find(|one| one.name == EXEC_EXTENSION).map(|one| one.extension.clone());
    let mut told = json!({ "server": cluster.server, "config": config });
    let more = [
        ("tls-server-name", filled(cluster.tls_server_name.as_ref()).map(Value::from)),
        ("insecure-skip-tls-verify", cluster.insecure_skip_tls_verify.filter(|skip| *skip).map(Value::from)),
        ("certificate-authority-data", data.or_else(from_file).map(Value::from)),
        ("proxy-url", filled(cluster.proxy_url.as_ref()).map(Value::from)),
    ];
    for (name, value) in more {
        if let Some(value) = value {
            told[name] = value;
        }
    }
    told
}

/// Inline data wins over a file, as in client-go.
fn pem(
    place: &str,
    (field, data, file): (&'static str, Option<&String>, Option<&String>),
    folder: &Path,
) -> Result<Option<Pem>, CredentialsError> {
    if let Some(data) = filled(data) {
        let text = STANDARD.decode(data.trim()).map_err(|_| CredentialsError::Field {
            place: place.to_owned(),
            field,
            expected: "base64",
        })?;
        return Ok(Some(Pem::new(text, format!("`{field}` of {place}"))));
    }
    match filled(file) {
        Some(path) => Ok(Some(Pem::read(&folder.join(path))?)),
        None => Ok(None),
    }
}

/// Empty is as good as absent.
fn filled(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

/// The cluster's extension that is meant for exec plugins.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";
