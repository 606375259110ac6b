//! Finds the token in a request. Each kind of listener expects it in another header.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, PROXY_AUTHORIZATION};
use http::{HeaderMap, HeaderName};

use super::refusal::ClientRefusal;

/// Returns the token in this header.
pub(super) fn in_header<'a>(header: &HeaderName, headers: &'a HeaderMap) -> Result<Cow<'a, str>, ClientRefusal> {
    let shown: Vec<&[u8]> = headers.get_all(header).iter().map(http::HeaderValue::as_bytes).collect();
    let expected = if *header == AUTHORIZATION { EXPECTED_BEARER } else { EXPECTED_TOKEN };
    let text = only(&shown, expected)?;
    match bearer(text) {
        Some(token) if !token.is_empty() => Ok(token.into()),
        None if *header != AUTHORIZATION && !text.is_empty() && !text.contains(' ') => Ok(text.into()),
        _ => Err(ClientRefusal::NothingShown(expected)),
    }
}

/// Returns the token in these values of `Proxy-Authorization`: a bearer token, or else the
/// password.
///
/// # Errors
/// There is no token, or more than one.
pub fn to_proxy<'a>(shown: &[&'a [u8]]) -> Result<Cow<'a, str>, ClientRefusal> {
    let text = only(shown, EXPECTED_LOGIN)?;
    if let Some(token) = bearer(text).filter(|token| !token.is_empty()) {
        return Ok(token.into());
    }
    let login = text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
    let login = login.and_then(|(_, login)| STANDARD.decode(login.trim()).ok());
    let login = login.and_then(|login| String::from_utf8(login).ok());
    let password = login.as_deref().and_then(|login| login.split_once(':')).map(|(_, password)| password);
    let token = password.filter(|token| !token.is_empty());
    token.map(|token| Cow::Owned(token.to_owned())).ok_or(ClientRefusal::NothingShown(EXPECTED_LOGIN))
}

/// Returns the single value of a header. None or several are an error.
fn only<'a>(shown: &[&'a [u8]], expected: &'static str) -> Result<&'a str, ClientRefusal> {
    match shown {
        [] => Err(ClientRefusal::NothingShown(expected)),
        [text] => std::str::from_utf8(text).map(str::trim).map_err(|_| ClientRefusal::WrongToken),
        _ => Err(ClientRefusal::Ambiguous),
    }
}

/// Returns the bearer token in a header. As in kube-apiserver, `Bearer` may be in any case, and the
/// token ends at the next space.
fn bearer(value: &str) -> Option<&str> {
    let mut words = value.trim().split(' ');
    words.next().filter(|scheme| scheme.eq_ignore_ascii_case("bearer"))?;
    words.next()
}

/// The header for clients' tokens, for APIs other than Kubernetes. It is never sent upstream.
pub(super) const TOKEN: HeaderName = HeaderName::from_static("tidegate-client-token");
/// The header for clients' tokens at a forward proxy.
pub(super) const TO_PROXY: HeaderName = PROXY_AUTHORIZATION;
const EXPECTED_BEARER: &str = "expected its service account's token as Authorization: Bearer";
const EXPECTED_TOKEN: &str = "expected its service account's token in the header Tidegate-Client-Token";
const EXPECTED_LOGIN: &str = "expected its service account's token as the password in its HTTPS_PROXY";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_as_kube_apiserver_finds_it() {
        for (value, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            (" BEARER abc def", Some("abc")),
            ("Bearer", None),
            ("Bearer  abc", Some("")),
            ("Basic abc", None),
            ("abc", None),
            ("", None),
        ] {
            assert_eq!(bearer(value), token, "{value:?}");
        }
    }

    #[test]
    fn a_proxy_s_client_shows_its_token_as_a_password_or_as_a_bearer_s() {
        let token = |shown: &[&str]| {
            let shown: Vec<&[u8]> = shown.iter().map(|text| text.as_bytes()).collect();
            to_proxy(&shown).map(Cow::into_owned).map_err(|denied| denied.word())
        };
        assert_eq!(token(&["Bearer a.b.c"]).as_deref(), Ok("a.b.c"));
        assert_eq!(token(&["Basic b3A6YS5iLmM="]).as_deref(), Ok("a.b.c"));
        assert_eq!(token(&["basic OmE6Yg=="]).as_deref(), Ok("a:b"), "a colon ends only the user's name");
        for nothing in [&[][..], &["Basic b3A="], &["Basic b3A6"], &["Basic !"], &["Bearer "], &["a.b.c"]] {
            assert_eq!(token(nothing), Err("nothing_shown"), "{nothing:?}");
        }
        assert_eq!(token(&["Bearer a", "Bearer a"]), Err("ambiguous"));
    }
}
