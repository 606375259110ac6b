//! Field selectors, as far as they say which one object a collection read is about (apimachinery `pkg/fields/selector.go`).

use std::ops::Range;

/// Where in a field selector the name stands that it requires of `metadata.name`: `None` if it requires none, or is malformed, or the name
/// could not stand in a path. The selector's own escapes are not undone; `true` says that there are some.
///
/// The terms are tried in sorted order, so that of two contradicting ones the smaller counts, as in the API server.
pub(super) fn exact_name(selector: &str) -> Option<(Range<usize>, bool)> {
    let mut best: Option<(&str, &str, usize)> = None;
    let mut end = 0;
    for term in terms(selector) {
        end += term.len() + 1;
        if term.is_empty() {
            continue;
        }
        let (field, operator, value) = split(term)?;
        if !is_well_escaped(value) {
            return None;
        }
        if field == "metadata.name" && operator != "!=" && best.is_none_or(|(smallest, ..)| term < smallest) {
            best = Some((term, value, end - 1 - value.len()));
        }
    }
    let (_, name, start) = best?;
    let fits = name != "." && name != ".." && !name.contains(['/', '%']);
    fits.then_some((start..start + name.len(), name.contains('\\')))
}

/// Undoes the escapes of a value that `exact_name` found well escaped.
pub(super) fn unescape(value: &str) -> impl Iterator<Item = char> {
    let mut escaped = false;
    value.chars().filter(move |c| {
        escaped = !escaped && *c == '\\';
        !escaped
    })
}

/// The terms between unescaped commas.
fn terms(selector: &str) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    selector.split(move |c: char| {
        let splits = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        splits
    })
}

/// Field, operator and value: at the first place where an operator stands, the longest one.
fn split(term: &str) -> Option<(&str, &str, &str)> {
    let at = term.char_indices().map(|(at, _)| at).find(|at| {
        let rest = term.get(*at..).unwrap_or_default();
        rest.starts_with("!=") || rest.starts_with('=')
    })?;
    let (field, rest) = term.split_at_checked(at)?;
    let operator = ["!=", "==", "="].into_iter().find(|operator| rest.starts_with(operator))?;
    Some((field, operator, rest.strip_prefix(operator)?))
}

/// Whether a value has no bare `,` or `=` and no unknown escape.
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
