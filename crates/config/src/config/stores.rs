//! Reads the stores of shared buckets.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::cursor::{Cursor, TextValue};
use super::files::FileContent;
use super::names;
use super::sources::upstream_tls;
use crate::spec::{Endpoint, Store, StoreAddress, StoreLogin, StorePassword};

/// The address of a store, and whether it is reached with TLS.
struct Url {
    address: StoreAddress,
    has_tls: bool,
}

/// Reads every store.
pub(super) fn stores(root: &Cursor<'_>) -> Vec<Store> {
    root.tables("stores").into_iter().filter_map(|(name, at)| store(name, &at)).collect()
}

fn store(name: &str, at: &Cursor<'_>) -> Option<Store> {
    if !names::is_snake_case(name) {
        at.key_problem(format!("is not a valid name for a store, expected {}", names::SNAKE_CASE));
    }
    let url: Option<Url> = at.required("url", URLS);
    let login_at_store = login(at);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':' | b'/');
    let is_prefix = |text: &String| (1..=LONGEST_PREFIX).contains(&text.len()) && text.bytes().all(fits);
    let expected = format!("1 to {LONGEST_PREFIX} letters, digits, \"_\", \"-\", \".\", \":\" and \"/\"");
    let prefix = at.get_if("prefix", "tidegate".to_owned(), is_prefix, &expected);
    let timeout = at.get_if("timeout", TIMEOUT, |timeout| TIMEOUTS.contains(timeout), "a time from 10ms to 10s");
    let others = url.as_ref().is_some_and(|url| !matches!(url.address, StoreAddress::Sentinel { .. }));
    let sentinel = at.unused_if(others, "the url does not name sentinels", &at.at("url")).table("sentinel");
    let sentinel = login(&sentinel);
    let is_plain = url.as_ref().is_some_and(|url| !url.has_tls);
    let tls = upstream_tls(&at.unused_if(is_plain, "the url is not rediss://", &at.at("url")).table("tls"));
    if tls.insecure {
        at.at("tls")
            .at("insecure")
            .warn("the store's certificate is not verified: anyone between the gate and it can answer in its place");
    }
    let Url { address, has_tls } = url?;
    let has_password = login_at_store.password.is_some() || sentinel.password.is_some();
    if has_password && !has_tls && !address.is_local() {
        let message = "leads to another machine without TLS, so the password would be sent unencrypted; expected rediss:// with TLS";
        at.at("url").problem(message);
    }
    let name = Arc::from(name);
    Some(Store { name, address, has_tls, tls, login: login_at_store, sentinel, prefix, timeout })
}

/// Reads the login at a store or its sentinels.
fn login(at: &Cursor<'_>) -> StoreLogin {
    let user = at.get("user", None);
    let file = at.file("password_file", FileContent::Secret);
    let command_at = at.at("password_command");
    let words: Option<Vec<String>> = at.option("password_command", None);
    let refreshed = at.unused_if(words.is_none(), "there is no password_command", &command_at);
    let fits = |refresh: &Duration| REFRESHES.contains(refresh);
    let refresh = refreshed.get_if("password_refresh", REFRESH, fits, "a time from 1s to 1h");
    if words.as_ref().is_some_and(|words| words.first().is_none_or(String::is_empty)) {
        command_at.problem(
            "names no program, expected one with its arguments, such as [\"gcloud\", \"auth\", \"print-access-token\"]",
        );
    }
    if file.is_some() && words.is_some() {
        command_at.key_problem("is set beside password_file, expected one of the two");
    }
    let command = words.map(|words| StorePassword::Command { words, refresh });
    let password = command.or_else(|| file.map(StorePassword::File));
    if user.is_some() && password.is_none() {
        at.at("user").problem("is set without a password; expected password_file or password_command too");
    }
    StoreLogin { user, password }
}

impl TextValue for Url {
    fn parse(text: &str) -> Result<Self, String> {
        url(text).map_err(|fault| format!("{fault}, expected {URLS}"))
    }

    fn text(&self) -> String {
        self.address.url(self.has_tls)
    }
}

/// Reads the URL of a store. The message never shows a password.
fn url(text: &str) -> Result<Url, String> {
    let is_path = text.starts_with("unix:/") && !text.starts_with("unix://");
    if text.contains('@') && !is_path {
        return Err("has a user or password in it, which must be in user and password_file instead".to_owned());
    }
    if text.contains(['?', '#']) {
        let fault = "has a query or fragment, which the URL of a store cannot have; put a password into password_file";
        return Err(fault.to_owned());
    }
    if let Some(path) = text.strip_prefix("unix:") {
        let url = Url { address: StoreAddress::Unix(PathBuf::from(path)), has_tls: false };
        return if is_path { Ok(url) } else { Err(format!("is {text:?}, which is not an absolute path")) };
    }
    let fault = |what: &str| format!("is {text:?}, which {what}");
    let (scheme, rest) = text.split_once("://").ok_or_else(|| fault("is not a URL"))?;
    let (scheme, form) = scheme.split_once('+').unwrap_or((scheme, ""));
    let has_tls = match scheme {
        "redis" => false,
        "rediss" => true,
        _ => return Err(fault("is not a URL with redis:// or rediss://")),
    };
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let port = if form == "sentinel" { SENTINEL_PORT } else { PORT };
    let hosts = hosts.split(',').map(|host| endpoint(host, port)).collect::<Result<Vec<_>, _>>();
    let hosts = hosts.map_err(|what| fault(&what))?;
    if form != "sentinel" && !path.is_empty() {
        return Err(fault("has a path: shared buckets are in database 0"));
    }
    let address = match form {
        "" if hosts.len() > 1 => {
            return Err(fault("names several hosts, which only sentinels and a cluster have"));
        }
        "" => StoreAddress::Tcp(hosts.into_iter().next().ok_or_else(|| fault("names no host"))?),
        "cluster" => StoreAddress::Cluster { seeds: hosts },
        "sentinel" if path.is_empty() => {
            return Err(fault("does not end with the primary's name"));
        }
        "sentinel" if !is_name(path) => return Err(fault("has a primary whose name sentinels do not accept")),
        "sentinel" => StoreAddress::Sentinel { sentinels: hosts, primary: path.to_owned() },
        _ => return Err(fault("begins neither like that of sentinels nor like that of a cluster")),
    };
    Ok(Url { address, has_tls })
}

/// Reads a host, with or without a port. The error describes what is wrong with it.
fn endpoint(text: &str, port: u16) -> Result<Endpoint, String> {
    let authority: http::uri::Authority = match text {
        "" => return Err("names no host".to_owned()),
        text => text.parse().map_err(|_| format!("has no host in {text:?}"))?,
    };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = match text.strip_prefix(authority.host()) {
        Some("") => port,
        _ => authority.port_u16().filter(|port| *port > 0).ok_or_else(|| format!("has no port in {text:?}"))?,
    };
    if host.is_empty() { Err("names no host".to_owned()) } else { Ok(Endpoint { host, port }) }
}

/// Returns true for a valid name of a primary, as Redis sentinels accept it.
fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}

const URLS: &str = "\"redis://HOST:PORT\", \"redis+sentinel://HOST:PORT,HOST:PORT/PRIMARY\", \
    \"redis+cluster://HOST:PORT,HOST:PORT\" (each with TLS as rediss) or \"unix:/PATH\"";
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const TIMEOUT: Duration = Duration::from_millis(250);
const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(10);
const LONGEST_PREFIX: usize = 64;
/// The default for `password_refresh`, shorter than the quarter of an hour that a token of AWS lasts.
const REFRESH: Duration = Duration::from_secs(600);
const REFRESHES: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
