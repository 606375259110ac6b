//! Reads the stores of shared buckets.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toml::Value;

use super::cursor::{Cursor, TomlValue};
use super::files::Holds;
use super::names;
use super::shape::Shape;
use super::sources::upstream_tls;
use crate::spec::{Store, StoreAddress};

/// The address of a store, and whether TLS is spoken there.
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
    let url: Option<Url> = at.option("url", None);
    if !at.has("url") {
        at.at("url").problem(format!("is missing, expected {URLS}"));
    }
    let user: Option<String> = at.get("user", None);
    let password_file = at.file("password_file", Holds::Secret);
    let prefix = at.get("prefix", "tidegate".to_owned());
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':' | b'/');
    if prefix.is_empty() || prefix.len() > LONGEST_PREFIX || !prefix.bytes().all(fits) {
        at.at("prefix").problem(format!(
            "is {prefix:?}, expected 1 to {LONGEST_PREFIX} letters, digits, \"_\", \"-\", \".\", \":\" and \"/\""
        ));
    }
    let timeout = at.get("timeout", TIMEOUT);
    if !TIMEOUTS.contains(&timeout) {
        at.at("timeout").problem(format!("is {timeout:?}, expected a time from 10ms to 10s"));
    }
    let is_plain = url.as_ref().is_some_and(|url| !url.has_tls);
    let tls = upstream_tls(&at.unused_if(is_plain, "the url is not rediss://", &at.at("url")).table("tls"));
    if tls.insecure {
        at.at("tls")
            .at("insecure")
            .warn("the store's certificate is not verified: anyone on the way can answer for it");
    }
    let Url { address, has_tls } = url?;
    if user.is_some() && password_file.is_none() {
        at.at("user").problem("has no password: expected password_file too");
    }
    if password_file.is_some() && !has_tls && !address.is_local() {
        let message =
            "leads off this machine without TLS, so that the password would be sent in the clear; expected rediss://";
        at.at("url").problem(message);
    }
    let name = Arc::from(name);
    Some(Store { name, address, has_tls, tls, user, password_file, prefix, timeout })
}

impl TomlValue for Url {
    const SHAPE: Shape = Shape::Text;

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        let text = at.expect(value.as_str(), value, "text in quotes")?;
        match url(text) {
            Ok(url) => Some(url),
            Err(fault) => {
                at.problem(format!("{fault}, expected {URLS}"));
                None
            }
        }
    }

    fn write(&self) -> Value {
        let scheme = if self.has_tls { "rediss" } else { "redis" };
        match &self.address {
            StoreAddress::Unix(path) => format!("unix:{}", path.display()).into(),
            StoreAddress::Tcp { host, port } if host.contains(':') => format!("{scheme}://[{host}]:{port}").into(),
            StoreAddress::Tcp { host, port } => format!("{scheme}://{host}:{port}").into(),
        }
    }
}

/// Reads the URL of a store. The message never shows a password.
fn url(text: &str) -> Result<Url, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        let path = PathBuf::from(path);
        let fits = path.is_absolute().then_some(Url { address: StoreAddress::Unix(path), has_tls: false });
        return fits.ok_or_else(|| format!("is {text:?}, which is not an absolute path"));
    }
    if text.contains('@') {
        return Err("has a user or password in it, which belong into user and password_file".to_owned());
    }
    let fault = |what: &str| format!("is {text:?}, which {what}");
    if text.starts_with("redis+") || text.starts_with("rediss+") {
        return Err(fault("is for Sentinel or a cluster: not supported yet"));
    }
    let url: http::Uri = text.parse().map_err(|_| fault("is not a URL"))?;
    let has_tls = match url.scheme_str() {
        Some("redis") => false,
        Some("rediss") => true,
        _ => return Err(fault("is not a URL with redis:// or rediss://")),
    };
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    if host.is_empty() {
        return Err(fault("names no host"));
    }
    if !matches!(url.path(), "" | "/") || url.query().is_some() || text.contains('#') {
        return Err(fault("has a path, query or fragment: shared buckets are in database 0"));
    }
    let port = url.port_u16().unwrap_or(PORT);
    Ok(Url { address: StoreAddress::Tcp { host, port }, has_tls })
}

const URLS: &str = "\"redis://HOST:PORT\", \"rediss://HOST:PORT\" (with TLS) or \"unix:/PATH\"";
const PORT: u16 = 6379;
const TIMEOUT: Duration = Duration::from_millis(250);
const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(10);
const LONGEST_PREFIX: usize = 64;
