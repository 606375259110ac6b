//! A kubeconfig's user: who is calling, in every form that client-go knows.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;

use super::{Found, filled, pem};
use crate::{
    credentials::{
        Credential, CredentialsError, Resolved, Secret,
        exec::{Exec, Plugin},
    },
    tls::Identity,
};

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct User {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
    client_key: Option<String>,
    client_key_data: Option<String>,
    username: Option<String>,
    password: Option<String>,
    exec: Option<ExecConfig>,
    auth_provider: Option<IgnoredAny>,
    #[serde(rename = "as")]
    act_as: Option<String>,
    as_uid: Option<String>,
    as_groups: Option<Vec<String>>,
    as_user_extra: Option<BTreeMap<String, Vec<String>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ExecConfig {
    api_version: Option<String>,
    command: Option<String>,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
    install_hint: Option<String>,
    provide_cluster_info: Option<bool>,
    interactive_mode: Option<String>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    #[serde(default)]
    value: String,
}

/// Reads a user into what the gate shows upstream. `told` is what a plugin hears about the cluster.
pub(super) fn read(
    name: &str,
    found: &Found<&User>,
    told: &Value,
    resolved: &mut Resolved,
) -> Result<(), CredentialsError> {
    let user = found.item;
    let place = format!("user `{name}`");
    if user.auth_provider.is_some() {
        return Err(CredentialsError::AuthProvider { place });
    }
    resolved.acting_as = acting_as(user, &place)?;
    resolved.own_identity = certificate(user, &place, &found.folder)?;
    let basic = filled(user.username.as_ref()).is_some() || filled(user.password.as_ref()).is_some();
    let has_token = filled(user.token.as_ref()).or_else(|| filled(user.token_file.as_ref())).is_some();
    if basic && has_token {
        return Err(wrong(&place, "username", "alone; a token, or username and password, not both"));
    }
    // as client-go: a token wins over a tokenFile, and either over a plugin
    resolved.credential = if let Some(token) = filled(user.token.as_ref()) {
        Some(Credential::bearer(Secret::fixed(token, &format!("`token` of {place}"))?))
    } else if let Some(path) = filled(user.token_file.as_ref()) {
        Some(Credential::bearer(Secret::file(&found.folder.join(path))?))
    } else if basic {
        let login = [&user.username, &user.password].map(|text| text.as_deref().unwrap_or_default()).join(":");
        let secret = Secret::fixed(&STANDARD.encode(login), &format!("`username` of {place}"))?;
        Some(Credential { prefix: "Basic ".to_owned(), ..Credential::bearer(secret) })
    } else if let Some(config) = &user.exec {
        let exec = Arc::new(Exec::new(plugin(config, &place, &found.folder, told)?));
        resolved.exec = Some(Arc::clone(&exec));
        Some(Credential::bearer(Secret::exec(exec)))
    } else {
        None
    };
    Ok(())
}

fn certificate(user: &User, place: &str, folder: &Path) -> Result<Option<Identity>, CredentialsError> {
    let chain = ("client-certificate-data", user.client_certificate_data.as_ref(), user.client_certificate.as_ref());
    let key = ("client-key-data", user.client_key_data.as_ref(), user.client_key.as_ref());
    match (pem(place, chain, folder)?, pem(place, key, folder)?) {
        (Some(chain), Some(key)) => Ok(Some(Identity { chain, key })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(wrong(place, "client-key", "set; it goes with client-certificate")),
        (None, Some(_)) => Err(wrong(place, "client-certificate", "set; it goes with client-key")),
    }
}

fn plugin(config: &ExecConfig, place: &str, folder: &Path, told: &Value) -> Result<Plugin, CredentialsError> {
    let command = filled(config.command.as_ref()).ok_or_else(|| wrong(place, "exec.command", "set"))?;
    let api_version = filled(config.api_version.as_ref())
        .filter(|version| VERSIONS.contains(version))
        .ok_or_else(|| wrong(place, "exec.apiVersion", "client.authentication.k8s.io/v1 or v1beta1"))?;
    match filled(config.interactive_mode.as_ref()) {
        None | Some("Never" | "IfAvailable") => {}
        Some("Always") => {
            return Err(wrong(
                place,
                "exec.interactiveMode",
                "Never or IfAvailable; nobody sits at the gate's terminal",
            ));
        }
        Some(_) => return Err(wrong(place, "exec.interactiveMode", "Never, IfAvailable or Always")),
    }
    // a bare name is looked for in PATH, a path is meant from the file
    let is_path = command.contains('/');
    let command = if is_path { folder.join(command).display().to_string() } else { command.to_owned() };
    let env = config.env.iter().flatten().map(|one| (one.name.clone(), one.value.clone()));
    Ok(Plugin {
        api_version: api_version.to_owned(),
        command,
        args: config.args.clone().unwrap_or_default(),
        env: env.collect(),
        install_hint: config.install_hint.clone().unwrap_or_default(),
        cluster: config.provide_cluster_info.filter(|told| *told).map(|_| told.clone()),
    })
}

/// Impersonation, as the headers that say it.
fn acting_as(user: &User, place: &str) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialsError> {
    let mut said: Vec<(String, &str)> = Vec::new();
    said.extend(filled(user.act_as.as_ref()).map(|name| ("impersonate-user".to_owned(), name)));
    said.extend(filled(user.as_uid.as_ref()).map(|uid| ("impersonate-uid".to_owned(), uid)));
    for group in user.as_groups.iter().flatten() {
        said.push(("impersonate-group".to_owned(), group));
    }
    for (key, values) in user.as_user_extra.iter().flatten() {
        let key = utf8_percent_encode(key, NOT_IN_HEADER_NAMES).to_string().to_ascii_lowercase();
        said.extend(values.iter().map(|value| (format!("impersonate-extra-{key}"), value.as_str())));
    }
    if !said.is_empty() && filled(user.act_as.as_ref()).is_none() {
        return Err(wrong(place, "as", "set; as-uid, as-groups and as-user-extra go with it"));
    }
    let headers = said.into_iter().map(|(name, value)| Some((name.parse().ok()?, HeaderValue::try_from(value).ok()?)));
    headers.collect::<Option<Vec<_>>>().ok_or_else(|| wrong(place, "as", "text that can go into a header"))
}

fn wrong(place: &str, field: &'static str, expected: &'static str) -> CredentialsError {
    CredentialsError::Field { place: place.to_owned(), field, expected }
}

const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
/// As client-go escapes the keys of extras: what a header's name can hold stays, the escape character does not.
const NOT_IN_HEADER_NAMES: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');
