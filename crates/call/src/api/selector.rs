//! Field selectors naming one object (apimachinery `pkg/fields/selector.go`).

use std::ops::Range;

/// Finds the value of `metadata.name` in a field selector. Returns its place in the selector, and
/// whether it has escapes; `None` if there is no such requirement, the selector is malformed, or
/// the name cannot be in a path.
///
/// Of two requirements the first in order of text counts, as in the API server.
pub(super) fn exact_name(selector: &str) -> Option<(Range<usize>, bool)> {
    let mut best: Option<(&str, &str, usize)> = None;
    let mut end = 0;
    for requirement in requirements(selector) {
        end += requirement.len() + 1;
        if requirement.is_empty() {
            continue;
        }
        let (field, is_equal, value) = split(requirement)?;
        if !is_well_escaped(value) {
            return None;
        }
        if field == "metadata.name" && is_equal && best.is_none_or(|(smallest, ..)| requirement < smallest) {
            best = Some((requirement, value, end - 1 - value.len()));
        }
    }
    let (_, name, start) = best?;
    // A replaced byte was not UTF-8.
    let fits = name != "." && name != ".." && !name.contains(['/', '%', char::REPLACEMENT_CHARACTER]);
    fits.then_some((start..start + name.len(), name.contains('\\')))
}

/// Undoes the escapes of a value from `exact_name`.
pub(super) fn unescape(value: &str) -> impl Iterator<Item = char> {
    let mut escaped = false;
    value.chars().filter(move |c| {
        escaped = !escaped && *c == '\\';
        !escaped
    })
}

/// Returns the requirements between unescaped commas.
fn requirements(selector: &str) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    selector.split(move |c: char| {
        let splits = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        splits
    })
}

/// Splits a requirement at its first operator (`=`, `==` or `!=`) into the field, true for
/// equality, and the value.
fn split(requirement: &str) -> Option<(&str, bool, &str)> {
    let (field, value) = requirement.split_once('=')?;
    Some(match field.strip_suffix('!') {
        Some(field) => (field, false, value),
        None => (field, true, value.strip_prefix('=').unwrap_or(value)),
    })
}

/// Returns true if a value has no bare `,` or `=` and no unknown escape.
fn is_well_escaped(value: &str) -> bool {
    let mut escaped = false;
    for c in value.chars() {
        match (escaped, c) {
            (true, '\\' | ',' | '=') => escaped = false,
            (true, _) | (false, ',' | '=') => return false,
            (false, c) => escaped = c == '\\',
        }
    }
    !escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(selector: &str) -> Option<String> {
        exact_name(selector).map(|(range, _)| unescape(selector.get(range).unwrap()).collect())
    }

    #[test]
    fn only_an_exact_and_unambiguous_name_counts() {
        for (selector, expected) in [
            ("metadata.name=a", Some("a")),
            ("metadata.name==a", Some("a")),
            ("metadata.name!=a", None),
            ("metadata.name=b,metadata.name=a", Some("a")),
            ("metadata.name=a,metadata.namespace=b", Some("a")),
            ("metadata.name=a,spec.nodeName!=b", Some("a")),
            ("metadata.name=a,foo", None),
            ("metadata.name=a,", Some("a")),
            ("metadata.name=a=b", None),
            (r"metadata.name=a\=b", Some("a=b")),
            (r"metadata.name=a\\b", Some(r"a\b")),
            (r"metadata.name=a\,b", Some("a,b")),
            (r"metadata.name=a\b", None),
            (r"metadata.name=a\", None),
            ("metadata.name=.", None),
            ("metadata.name=..", None),
            ("metadata.name=a/b", None),
            ("metadata.name=a%b", None),
            ("metadata.name=", Some("")),
            ("", None),
        ] {
            assert_eq!(name(selector).as_deref(), expected, "{selector}");
        }
    }

    proptest! {
        #[test]
        fn no_selector_panics(selector in "[a=!,\\\\.metadata name/%é]{0,40}") {
            let _ = name(&selector);
        }
    }
}
