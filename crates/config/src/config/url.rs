//! Reads URLs. Possible secrets in a URL are rejected, and never shown.

use http::Uri;

use crate::spec::has_valid_port;

/// Reads a base URL, without query or fragment.
///
/// The error never shows a part of the URL that may be a password. `password` is a text for the
/// error: where a password belongs instead.
pub(super) fn read(text: &str, password: &str) -> Result<Uri, String> {
    if let Some(fault) = secret(text, password) {
        return Err(fault);
    }
    let fault = |what: &str| format!("is {text:?}, which {what}");
    let url: Uri = text.parse().map_err(|_| fault("is not a URL"))?;
    if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none_or(str::is_empty) {
        return Err(fault("is not a URL with http:// or https://"));
    }
    if !url.authority().is_some_and(has_valid_port) {
        return Err(fault(NO_PORT));
    }
    Ok(url)
}

/// Returns an error if a URL may contain a secret: user or password before the host, a query, or a
/// fragment. `password` is as for [`read`].
pub(super) fn secret(text: &str, password: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    // Without "://" nobody can tell where the path begins.
    let authority = if scheme.is_empty() { rest } else { rest.split('/').next().unwrap_or_default() };
    if authority.contains('@') {
        return Some(format!("has a user or password in it, {password}"));
    }
    text.contains(['?', '#']).then(|| "has a query or fragment".to_owned())
}

pub(super) const NO_PORT: &str = "has no port from 1 to 65535 behind its host";
