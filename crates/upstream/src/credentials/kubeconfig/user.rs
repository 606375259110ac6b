//! The users of a kubeconfig, with every form of credentials known to client-go.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue};
use serde::Deserialize;

use super::{Cluster, ListEntry, about, given, pem, wrong};
use crate::credentials::exec::{Exec, Plugin, PluginOutput};
use crate::credentials::{Credential, CredentialsError, ResolvedUpstream, Secret};
use crate::tls::Identity;

#[derive(Clone, Default, Hash, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct User {
    token: String,
    #[serde(rename = "tokenFile")]
    token_file: String,
    client_certificate: String,
    client_certificate_data: String,
    client_key: String,
    client_key_data: String,
    username: String,
    password: String,
    exec: Option<ExecConfig>,
    auth_provider: Option<AuthProvider>,
    #[serde(rename = "as")]
    act_as: String,
    as_uid: String,
    as_groups: Vec<String>,
    as_user_extra: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Default, Hash, Deserialize)]
#[serde(default)]
struct AuthProvider {
    name: String,
}

#[derive(Clone, Default, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ExecConfig {
    api_version: String,
    command: String,
    args: Vec<String>,
    env: Vec<Variable>,
    install_hint: String,
    provide_cluster_info: bool,
    interactive_mode: String,
}

#[derive(Clone, Hash, Deserialize)]
struct Variable {
    name: String,
    #[serde(default)]
    value: String,
}

/// Reads a user's credentials into `resolved`.
pub(super) fn read(
    entry: &ListEntry<User>,
    cluster: &ListEntry<Cluster>,
    resolved: &mut ResolvedUpstream,
) -> Result<(), CredentialsError> {
    let place = format!("user `{}`", entry.name);
    let user = &entry.item;
    resolved.acting_as = acting_as(user, &place)?;
    resolved.own_identity = certificate(user, &place, &entry.folder)?;
    let basic = !(user.username.is_empty() && user.password.is_empty());
    let has_token = !(user.token.is_empty() && user.token_file.is_empty());
    if let Some(provider) = &user.auth_provider {
        // as with client-go, any other credential goes before what OIDC would give
        let why = match &*provider.name {
            "oidc" if (basic || has_token) && user.exec.is_none() => None,
            "oidc" => Some("whose id-token the gate does not renew"),
            _ => Some("which Kubernetes removed in 1.26"),
        };
        if let Some(why) = why {
            return Err(CredentialsError::AuthProvider(place, provider.name.clone(), why));
        }
    }
    if basic && has_token {
        return Err(wrong(&place, "username", "either a token, or username and password, not both"));
    }
    let token = token(user, &place, &entry.folder, &mut resolved.warnings)?;
    resolved.credential = if let Some(token) = token {
        Some(Credential::bearer(token))
    } else if basic {
        let login = STANDARD.encode(format!("{}:{}", user.username, user.password));
        let secret = Secret::fixed(&login, &format!("`username` of {place}"))?;
        Some(Credential { prefix: "Basic ".to_owned(), ..Credential::bearer(secret) })
    } else if let Some(config) = &user.exec {
        let exec = Arc::new(Exec::new(plugin(config, &place, &entry.folder, cluster)?));
        resolved.exec = Some(Arc::clone(&exec));
        Some(Credential::bearer(Secret::exec(exec)))
    } else {
        None
    };
    Ok(())
}

/// Returns the user's token.
///
/// As in client-go, a `tokenFile` takes precedence over a `token`, and both over a plugin. If the
/// file cannot be read, the `token` is used.
fn token(
    user: &User,
    place: &str,
    folder: &Path,
    warnings: &mut Vec<String>,
) -> Result<Option<Secret>, CredentialsError> {
    let fixed = given(&user.token).map(|token| Secret::fixed(token, &format!("`token` of {place}")));
    let fixed = fixed.transpose()?;
    let Some(path) = given(&user.token_file) else { return Ok(fixed) };
    match (Secret::file(&folder.join(path)), fixed) {
        (Err(error), Some(fixed)) => {
            warnings
                .push(format!("the `tokenFile` of {place} cannot be used, so its `token` is used instead: {error}"));
            Ok(Some(fixed))
        }
        (file, _) => file.map(Some),
    }
}

fn certificate(user: &User, place: &str, folder: &Path) -> Result<Option<Identity>, CredentialsError> {
    let chain = pem(place, "client-certificate-data", &user.client_certificate_data, &user.client_certificate, folder)?;
    let key = pem(place, "client-key-data", &user.client_key_data, &user.client_key, folder)?;
    match (chain, key) {
        (Some(chain), Some(key)) => Ok(Some(Identity { chain, key })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(wrong(place, "client-key", "a key for the client-certificate that is set")),
        (None, Some(_)) => Err(wrong(place, "client-certificate", "a certificate for the client-key that is set")),
    }
}

fn plugin(
    config: &ExecConfig,
    place: &str,
    folder: &Path,
    cluster: &ListEntry<Cluster>,
) -> Result<Plugin, CredentialsError> {
    let wrong = |field, expected| Err(wrong(place, field, expected));
    if config.command.is_empty() {
        return wrong("exec.command", "the name of a program");
    }
    if !VERSIONS.contains(&config.api_version.as_str()) {
        return wrong("exec.apiVersion", "client.authentication.k8s.io/v1 or v1beta1");
    }
    match config.interactive_mode.as_str() {
        "" | "Never" | "IfAvailable" => {}
        "Always" => return wrong("exec.interactiveMode", "Never or IfAvailable, because the gate has no terminal"),
        _ => return wrong("exec.interactiveMode", "Never, IfAvailable or Always"),
    }
    // a bare name is looked for in PATH, a path is meant from the file
    let is_path = config.command.contains('/');
    Ok(Plugin {
        output: PluginOutput::ExecCredential {
            api_version: config.api_version.clone(),
            cluster: config.provide_cluster_info.then(|| about(cluster)),
        },
        command: if is_path { folder.join(&config.command).display().to_string() } else { config.command.clone() },
        args: config.args.clone(),
        env: config.env.iter().map(|one| (one.name.clone(), one.value.clone())).collect(),
        install_hint: config.install_hint.clone(),
    })
}

/// Returns the Impersonate-* headers for the fields `as...` of a user.
fn acting_as(user: &User, place: &str) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialsError> {
    let mut fields: Vec<(String, &str)> = Vec::new();
    fields.extend(given(&user.act_as).map(|name| ("impersonate-user".to_owned(), name)));
    fields.extend(given(&user.as_uid).map(|uid| ("impersonate-uid".to_owned(), uid)));
    fields.extend(user.as_groups.iter().map(|group| ("impersonate-group".to_owned(), group.as_str())));
    for (key, values) in &user.as_user_extra {
        let key: String = key.bytes().map(escaped).collect();
        fields.extend(values.iter().map(|value| (format!("impersonate-extra-{key}"), value.as_str())));
    }
    if !fields.is_empty() && user.act_as.is_empty() {
        return Err(wrong(place, "as", "a user name, because as-uid, as-groups or as-user-extra is set"));
    }
    let headers =
        fields.into_iter().map(|(name, value)| Some((name.parse().ok()?, HeaderValue::try_from(value).ok()?)));
    headers.collect::<Option<Vec<_>>>().ok_or_else(|| wrong(place, "as", "text that can go into a header"))
}

/// Escapes a byte in the key of an extra field for use in a header name, as client-go does. This
/// concerns characters not allowed there, and the escape character itself.
fn escaped(byte: u8) -> String {
    let is_plain = byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
    if is_plain { char::from(byte).to_ascii_lowercase().to_string() } else { format!("%{byte:02x}") }
}

const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
