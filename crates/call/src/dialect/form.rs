//! Pairs of `application/x-www-form-urlencoded`, in a query or in the beginning of a body.

use std::borrow::Cow;

pub(super) use crate::api::unescape as decoded;

/// Returns the pairs of a form: names decoded, values as they are written.
pub(super) fn pairs(form: &str) -> impl Iterator<Item = (Cow<'_, str>, &str)> {
    let pairs = form.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(name, value)| (decoded(name), value))
}

/// Returns the first value of a name, decoded.
pub(super) fn value<'a>(form: &'a str, wanted: &str) -> Option<Cow<'a, str>> {
    pairs(form).find(|(name, _)| name == wanted).map(|(_, value)| decoded(value))
}

/// Returns the text at the beginning of a body, without half a character at its end.
pub(super) fn text(body: &[u8]) -> &str {
    body.utf8_chunks().next().map_or("", |chunk| chunk.valid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_read_to_where_it_is_cut() {
        let form = text(b"Action=Describe%49nstances&Filter.1.Name=a+b&&x&y=\xe2\x82");
        let pairs: Vec<_> = pairs(form).map(|(name, value)| (name.into_owned(), decoded(value).into_owned())).collect();
        let expected = [("Action", "DescribeInstances"), ("Filter.1.Name", "a b"), ("x", ""), ("y", "")];
        assert_eq!(pairs, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(text(b"\xff"), "");
    }
}
