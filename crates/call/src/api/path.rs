//! The decoded copy of a path, and whether other servers could read it differently.

use percent_encoding::percent_decode_str;

/// Returns a path, decoded once, and whether it is ambiguous.
///
/// Escapes of ordinary characters (`system%3Acontroller`) are harmless. A path is ambiguous if a
/// reader that normalises, decodes twice or splits elsewhere would see another path. Such a path
/// must not choose a lenient class.
pub(super) fn decode(raw: &str) -> (String, bool) {
    if !has_percent(raw) {
        return (raw.to_owned(), is_ambiguous(raw));
    }
    let decoded = percent_decode_str(raw);
    match decoded.clone().decode_utf8() {
        Ok(text) => {
            let ambiguous = !is_well_formed(raw) || has_encoded_separator(raw) || is_ambiguous(&text);
            (text.into_owned(), ambiguous)
        }
        // Overlong forms and stray bytes end here too.
        Err(_) => (decoded.decode_utf8_lossy().into_owned(), true),
    }
}

/// The path of an external API, for rules and keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Segments {
    /// The path with all escapes except `%2F` undone; an ambiguous path is unchanged.
    pub(super) text: String,
    pub(super) ambiguous: bool,
    /// True if `text` has a `%2F`: a slash inside a segment.
    pub(super) escaped_slash: bool,
}

/// Reads the path of an external API.
///
/// Providers split a path first and decode its segments after, so that `%2F` is data: a branch
/// `feature%2Fx`, a project `group%2Fproject`. It stays `%2F` here; otherwise two different paths
/// would share a key. An ambiguous path keeps all its bytes for the same reason.
pub(super) fn decode_segments(raw: &str) -> Segments {
    let unchanged = |ambiguous| Segments { text: raw.to_owned(), ambiguous, escaped_slash: false };
    if !has_percent(raw) {
        return unchanged(has_doubtful_segment(raw.as_bytes()));
    }
    match percent_decode_str(raw).decode_utf8() {
        // With `%2F` undone, because neither reading may have a `..` or a `//`.
        Ok(decoded) if is_well_formed(raw) && !has_doubtful_segment(decoded.as_bytes()) && !has_escape(&decoded) => {
            let pieces = raw.split("%2F").flat_map(|piece| piece.split("%2f"));
            let pieces: Vec<_> = pieces.map(|piece| percent_decode_str(piece).decode_utf8_lossy()).collect();
            Segments { escaped_slash: pieces.len() > 1, text: pieces.join(ESCAPED_SLASH), ambiguous: false }
        }
        _ => unchanged(true),
    }
}

/// A slash inside a segment of [`Segments::text`].
pub(super) const ESCAPED_SLASH: &str = "%2F";

/// Returns true if every `%` begins an escape.
pub(super) fn is_well_formed(raw: &str) -> bool {
    raw.split('%').skip(1).all(starts_with_two_digits)
}

fn starts_with_two_digits(text: &str) -> bool {
    matches!(text.as_bytes(), [high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

/// Returns true if there may be an escape.
fn has_percent(text: &str) -> bool {
    memchr::memchr(b'%', text.as_bytes()).is_some()
}

/// Returns true for `%2F` and `%5C`: separators if decoded before splitting.
fn has_encoded_separator(raw: &str) -> bool {
    raw.as_bytes().windows(3).any(|w| matches!(w, [b'%', b'2', b'F' | b'f'] | [b'%', b'5', b'C' | b'c']))
}

/// Returns true if a decoded path is ambiguous.
fn is_ambiguous(path: &str) -> bool {
    has_doubtful_segment(path.as_bytes()) || has_escape(path) || starts_with_api_in_another_case(path)
}

/// Returns true for `//`, `.`, `..`, and for characters taken for separators by other servers.
/// Every call is checked here, so the loop over pairs has no early end, to let the compiler take
/// many bytes at a time. The loop also finds segments that only begin with a dot; the exact checks
/// after it rule these out.
fn has_doubtful_segment(path: &[u8]) -> bool {
    let is_special = |byte: u8| (byte < b' ') | (byte == 0x7f) | (byte == b'\\') | (byte == b';');
    let is_doubtful = |before: u8, byte: u8| is_special(byte) | ((before == b'/') & ((byte == b'/') | (byte == b'.')));
    let pairs = path.iter().zip(path.iter().skip(1));
    let begins = path.first().is_some_and(|first| is_special(*first) || *first == b'.');
    let found = pairs.fold(begins, |found, (before, byte)| found | is_doubtful(*before, *byte));
    let is_dots = |segment: &[u8]| matches!(segment, b"." | b"..");
    let is_double = |pair: &[u8]| pair == b"//";
    found
        && (path.iter().any(|byte| is_special(*byte))
            || path.windows(2).any(is_double)
            || path.split(|byte| *byte == b'/').any(is_dots))
}

/// Returns true if an escape is left after decoding, which a reader might decode again.
fn has_escape(path: &str) -> bool {
    has_percent(path) && path.split('%').skip(1).any(starts_with_two_digits)
}

fn starts_with_api_in_another_case(path: &str) -> bool {
    if path.starts_with("/api/") || path.starts_with("/apis/") {
        return false; // as nearly always
    }
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    ["api", "apis"].iter().any(|exact| first.eq_ignore_ascii_case(exact) && first != *exact)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ordinary_paths_are_plain() {
        for (raw, decoded) in [
            ("/api/v1/pods", "/api/v1/pods"),
            ("/api/v1/pods/", "/api/v1/pods/"),
            (
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Acontroller",
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:controller",
            ),
            (
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:controller",
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:controller",
            ),
            ("/repos/a/b/contents/caf%C3%A9", "/repos/a/b/contents/caf\u{e9}"),
            ("/a%20b", "/a b"),
            ("/100%25", "/100%"),
            ("/...", "/..."),
            ("*", "*"),
            ("", ""),
        ] {
            assert_eq!(decode(raw), (decoded.to_owned(), false), "{raw}");
        }
    }

    #[test]
    fn what_others_may_read_differently_is_ambiguous() {
        for raw in [
            "//api/v1/pods",
            "/api/v1//pods",
            "/api/v1/pods//",
            "/api/v1/pods/%2F",
            "/api/v1/pods/a%2fb",
            "/api/v1/pods/a%5Cb",
            "/api/v1/pods/a\\b",
            "/api/v1/./pods",
            "/api/v1/../v1/pods",
            "/api/v1/pods/..",
            "/api/v1/%2e%2e/pods",
            "/api/v1/%2E/pods",
            "/api/v1/.%2e/pods",
            "/api/v1/pods;a=b",
            "/api/v1/pods%3Ba",
            "/api/v1/pods%00",
            "/api/v1/pods%0a",
            "/api/v1/pods%7f",
            "/api/v1/pods/%ff",
            "/api/v1/pods/%c0%af",
            "/api/v1/pods/%e0%80%af",
            "/api/v1/pods/%zz",
            "/api/v1/pods/%",
            "/api/v1/pods/%4",
            "/api/v1/pods/%252F",
            "/API/v1/pods",
            "/Apis/apps/v1/deployments",
            "/%41pi/v1/pods",
        ] {
            assert!(decode(raw).1, "{raw}");
        }
    }

    #[test]
    fn a_slash_inside_a_segment_of_an_external_api_is_data() {
        for (raw, text) in [
            ("/repos/o/r/branches/feature%2Fx", "/repos/o/r/branches/feature%2Fx"),
            ("/repos/o/r/branches/feature%2fx", "/repos/o/r/branches/feature%2Fx"),
            ("/a%2F%62%20c%2f%C3%A9", "/a%2Fb c%2Fé"),
            ("/a%2F", "/a%2F"),
            ("/a%2F100%25", "/a%2F100%"),
        ] {
            let expected = Segments { text: text.to_owned(), ambiguous: false, escaped_slash: true };
            assert_eq!(decode_segments(raw), expected, "{raw}");
        }
        for (raw, text) in
            [("/a%20b", "/a b"), ("/100%25", "/100%"), ("/API/v1", "/API/v1"), ("/a+b", "/a+b"), ("*", "*")]
        {
            let expected = Segments { text: text.to_owned(), ambiguous: false, escaped_slash: false };
            assert_eq!(decode_segments(raw), expected, "{raw}");
        }
    }

    #[test]
    fn an_external_path_that_is_ambiguous_stays_as_it_came() {
        for raw in [
            "/a//b",
            "/a/../b",
            "/a/%2e%2E/b",
            "/a%2F..%2Fb",
            "/a/..%2Fb",
            "/a%2F%2Fb",
            "/a/%2Fb",
            "/a%2F/b",
            "/a%252Fb",
            "/a%25%32Fb",
            "/a%00b",
            "/a%5Cb",
            "/a;b",
            "/a%3Bb",
            "/a%ff",
            "/a%C0%AFb",
            "/a%zz",
            "/a%",
            "/a%2F%2",
        ] {
            let expected = Segments { text: raw.to_owned(), ambiguous: true, escaped_slash: false };
            assert_eq!(decode_segments(raw), expected, "{raw}");
        }
    }

    proptest! {
        #[test]
        fn external_paths_read_the_same_are_the_same_segments(
            one in "/([a.]|%2[Ff]|%6[1]|%25|/){0,6}",
            other in "/([a.]|%2[Ff]|%6[1]|%25|/){0,6}",
        ) {
            let segments = |raw: &str| {
                raw.split('/').map(|segment| {
                    let mut bytes = Vec::new();
                    bytes.extend(percent_decode_str(segment));
                    bytes
                }).collect::<Vec<_>>()
            };
            let first = decode_segments(&one);
            let second = decode_segments(&other);
            if !first.ambiguous && !second.ambiguous {
                prop_assert_eq!(first.text == second.text, segments(&one) == segments(&other), "{} {}", one, other);
            } else if first.text == second.text {
                prop_assert_eq!(one, other);
            }
        }

        #[test]
        fn doubtful_segments_are_found_wherever_they_stand(path in "[/.;\\\\a\\x00\\x7f]{0,12}") {
            let doubtful = path.contains("//")
                || path.bytes().any(|byte| matches!(byte, b'\\' | b';') || byte.is_ascii_control())
                || path.split('/').any(|segment| segment == "." || segment == "..");
            prop_assert_eq!(has_doubtful_segment(path.as_bytes()), doubtful, "{}", path);
        }

        #[test]
        fn no_path_panics(raw in "[/%.a-zA-Z0-9;\\\\é]{0,40}") {
            let (text, ambiguous) = decode(&raw);
            prop_assert!(ambiguous || !text.contains("//"));
            let read = decode_segments(&raw);
            prop_assert_eq!(read.escaped_slash, !read.ambiguous && has_encoded_separator(&raw));
        }
    }
}
