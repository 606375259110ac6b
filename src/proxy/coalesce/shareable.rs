//! The answers that may be given to other clients than the one whose call brought them.

use http::HeaderMap;
use http::header::{CACHE_CONTROL, SET_COOKIE, VARY};

use crate::classify::Kind;

/// True if nothing in an answer's head says that it is for one client only.
///
/// The clients that would share it have sent the same bytes, credentials included, and none of them
/// has more right than another to a new session (`Set-Cookie`) or to what must be kept nowhere
/// (`no-store`). `Vary: *` says that the answer depends on something that no request shows.
/// `private` is for one user's use; kube-apiserver says it of every answer, so of its answers it
/// means nothing.
pub(super) fn is_shareable(headers: &HeaderMap, kind: Kind) -> bool {
    let is_private = |directive: &str| {
        let name = directive.split('=').next().unwrap_or_default().trim();
        name.eq_ignore_ascii_case("no-store") || kind == Kind::Http && name.eq_ignore_ascii_case("private")
    };
    let has = |name, means: &dyn Fn(&str) -> bool| {
        // A value that is not text may say anything.
        headers.get_all(name).iter().any(|value| value.to_str().map_or(true, |text| members(text).any(means)))
    };
    !headers.contains_key(SET_COOKIE) && !has(CACHE_CONTROL, &is_private) && !has(VARY, &|name| name.trim() == "*")
}

/// Splits a comma-separated list into its members. A comma in quotes separates nothing.
fn members(list: &str) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    list.split(move |c| {
        let ends = c == ',' && !quoted;
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
        ends
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_quotes_are_part_of_a_member() {
        for (list, expected) in [
            ("a, b", vec!["a", " b"]),
            ("a=\"x, private\", b", vec!["a=\"x, private\"", " b"]),
            ("a=\"x\\\", no-store\",private", vec!["a=\"x\\\", no-store\"", "private"]),
            ("a=\"x, b", vec!["a=\"x, b"]),
            ("", vec![""]),
        ] {
            assert_eq!(members(list).collect::<Vec<_>>(), expected, "{list}");
        }
    }

    #[test]
    fn what_is_no_text_is_not_taken_for_leave_to_share() {
        let mut headers = HeaderMap::new();
        headers.insert(CACHE_CONTROL, http::HeaderValue::from_bytes(b"\xff").expect("a value"));
        assert!(!is_shareable(&headers, Kind::Http));
        assert!(is_shareable(&HeaderMap::new(), Kind::Http));
    }
}
