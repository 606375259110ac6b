//! kubeconfig files: found, merged and read as client-go does.
//!
//! `KUBECONFIG` is a list of files: the first that names a cluster, user, context or the current
//! context wins. Paths in a file are relative to it. What cannot be acted on is an error that says
//! so: never silently another identity. Fields that hold secrets never appear in an error.

mod user;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use self::user::User;
use super::{CredentialsError, Environment, Proxy, Resolved, target};
use crate::tls::{Pem, Roots};
use crate::yaml;

/// One file, as far as it matters here. Other fields are ignored, as client-go does; an empty text
/// is as good as an absent one.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Kubeconfig {
    current_context: String,
    contexts: Vec<Named<Context>>,
    clusters: Vec<Named<Cluster>>,
    users: Vec<Named<User>>,
}

/// An entry of one of the lists.
#[derive(Deserialize)]
struct Named<T> {
    name: String,
    #[serde(default, alias = "context", alias = "cluster", alias = "user", alias = "extension")]
    item: T,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
    namespace: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: String,
    certificate_authority: String,
    certificate_authority_data: String,
    tls_server_name: String,
    insecure_skip_tls_verify: bool,
    proxy_url: String,
    extensions: Vec<Named<Value>>,
}

/// An entry that was found, and the folder its relative paths are meant from.
struct Found<'a, T> {
    entry: &'a Named<T>,
    folder: &'a Path,
}

/// The files that there are, in order.
struct Files(Vec<(PathBuf, Kubeconfig)>);

/// Resolves a context; `None` for the current one.
pub(super) fn resolve(context: Option<&str>, environment: &Environment) -> Result<Resolved, CredentialsError> {
    let files = Files::load(environment)?;
    let current = || files.0.iter().find_map(|(_, file)| given(&file.current_context));
    let name = context.or_else(current).ok_or_else(|| {
        let known = known(files.list(|file| &file.contexts).map(|(_, found)| found.name.as_str()));
        CredentialsError::Missing("current context", "current-context".to_owned(), known)
    })?;
    let context = &files.find("context", name, |file| &file.contexts)?.entry.item;
    let cluster = files.find("cluster", &context.cluster, |file| &file.clusters)?;
    let mut resolved = read_cluster(&cluster)?;
    resolved.namespace.clone_from(&context.namespace);
    if !context.user.is_empty() {
        let user = files.find("user", &context.user, |file| &file.users)?;
        user::read(&user, &cluster, &mut resolved)?;
    }
    Ok(resolved)
}

fn known<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

// === impl Files ===

impl Files {
    /// Reads the files; in a list those that are missing are passed over.
    fn load(environment: &Environment) -> Result<Self, CredentialsError> {
        let home = || environment.variable("HOME").map(|home| Path::new(home).join(".kube").join("config"));
        let paths: Vec<PathBuf> = match environment.variable("KUBECONFIG") {
            Some(list) => std::env::split_paths(list).filter(|path| !path.as_os_str().is_empty()).collect(),
            None => home().into_iter().collect(),
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
        if !files.is_empty() {
            return Ok(Self(files));
        }
        let tried: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        Err(CredentialsError::NoKubeconfig(match tried.is_empty() {
            true => "neither KUBECONFIG nor HOME is set".to_owned(),
            false => format!("no file at {}", tried.join(" or ")),
        }))
    }

    /// Returns the entries of a list in all files, each with the path of its file.
    fn list<'a, T: 'a>(
        &'a self,
        list: impl Fn(&'a Kubeconfig) -> &'a [Named<T>],
    ) -> impl Iterator<Item = (&'a Path, &'a Named<T>)> {
        let of_file =
            move |(path, file): &'a (PathBuf, Kubeconfig)| list(file).iter().map(move |named| (path.as_path(), named));
        self.0.iter().flat_map(of_file)
    }

    /// Returns the first entry of a list that has this name.
    fn find<'a, T: 'a>(
        &'a self,
        kind: &'static str,
        name: &str,
        list: impl Fn(&'a Kubeconfig) -> &'a [Named<T>] + Copy,
    ) -> Result<Found<'a, T>, CredentialsError> {
        let Some((path, entry)) = self.list(list).find(|(_, found)| found.name == name) else {
            let known = known(self.list(list).map(|(_, found)| found.name.as_str()));
            return Err(CredentialsError::Missing(kind, name.to_owned(), known));
        };
        Ok(Found { entry, folder: path.parent().unwrap_or_else(|| Path::new("")) })
    }
}

/// Parses a file. Of an error only the place is kept: its text may quote a secret.
fn parse(path: &Path, text: &str) -> Result<Kubeconfig, CredentialsError> {
    let read: Kubeconfig =
        yaml::from_str(text).map_err(|misfit| CredentialsError::NotKubeconfig(path.to_owned(), misfit.to_string()))?;
    let twice = twice("context", &read.contexts)
        .or_else(|| twice("cluster", &read.clusters))
        .or_else(|| twice("user", &read.users));
    match twice {
        Some((kind, name)) => Err(CredentialsError::Twice(path.to_owned(), kind, name.to_owned())),
        None => Ok(read),
    }
}

/// Returns a name that a list has twice, with the kind of the list.
fn twice<'a, T>(kind: &'static str, list: &'a [Named<T>]) -> Option<(&'static str, &'a str)> {
    let mut known = HashSet::new();
    list.iter().find(|named| !known.insert(&*named.name)).map(|named| (kind, &*named.name))
}

fn read_cluster(found: &Found<'_, Cluster>) -> Result<Resolved, CredentialsError> {
    let place = format!("cluster `{}`", found.entry.name);
    let cluster = &found.entry.item;
    let server = given(&cluster.server);
    let server = server.ok_or_else(|| wrong(&place, "server", "set; expected http(s)://host[:port][/base]"))?;
    let mut resolved = Resolved::at(target(server, &format!("server of {place}"))?);
    resolved.target.server_name = given(&cluster.tls_server_name).map(str::to_owned);
    if let Some(url) = given(&cluster.proxy_url) {
        let expected = "http, https or socks5 and ://[user:password@]host[:port]";
        resolved.target.proxy = Some(Proxy::parse(url).ok_or_else(|| wrong(&place, "proxy-url", expected))?);
    }
    let data = &cluster.certificate_authority_data;
    let file = &cluster.certificate_authority;
    if cluster.insecure_skip_tls_verify && (given(data), given(file)) != (None, None) {
        let expected = "alone; a certificate-authority would not be used: remove one of them, as for kubectl";
        return Err(wrong(&place, "insecure-skip-tls-verify", expected));
    }
    if let Some(pem) = pem(&place, "certificate-authority-data", data, file, found.folder)? {
        resolved.roots = Roots::Only(pem);
    }
    if cluster.insecure_skip_tls_verify {
        resolved.roots = Roots::Unverified;
    }
    Ok(resolved)
}

/// Returns what an exec plugin is told about the cluster.
fn about(found: &Found<'_, Cluster>) -> Value {
    let cluster = &found.entry.item;
    let from_file = || {
        let path = given(&cluster.certificate_authority)?;
        std::fs::read(found.folder.join(path)).ok().map(|pem| STANDARD.encode(pem))
    };
    let mut told = json!({
        "server": cluster.server,
        "config": cluster.extensions.iter().find(|one| one.name == EXEC_EXTENSION).map(|one| &one.item),
        "tls-server-name": given(&cluster.tls_server_name),
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify.then_some(true),
        "certificate-authority-data": given(&cluster.certificate_authority_data).map(str::to_owned).or_else(from_file),
        "proxy-url": given(&cluster.proxy_url),
    });
    if let Some(fields) = told.as_object_mut() {
        fields.retain(|name, value| name == "config" || !value.is_null());
    }
    told
}

/// Reads a certificate or key. Inline data wins over a file, as in client-go.
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

/// Returns a text that is not empty.
fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// The extension of a cluster that is meant for exec plugins.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";
