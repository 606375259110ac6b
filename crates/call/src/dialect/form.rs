//! Pairs of `application/x-www-form-urlencoded`, in a query or in a body that may be cut off.

use std::borrow::Cow;

use memchr::memchr2;
use percent_encoding::percent_decode_str;

/// The pairs of a form: names decoded, values as they are written.
pub(super) fn pairs(form: &str) -> impl Iterator<Item = (Cow<'_, str>, &str)> {
    form.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name), value)
    })
}

/// The text of a body's beginning; an escape or a character that is cut in two ends it.
pub(super) fn text(body: &[u8]) -> &str {
    match std::str::from_utf8(body) {
        Ok(text) => text,
        Err(error) => {
            body.get(..error.valid_up_to()).and_then(|valid| std::str::from_utf8(valid).ok()).unwrap_or_default()
        }
    }
}

/// A name or a value, decoded. Never fails: what is no text is replaced.
pub(super) fn decoded(text: &str) -> Cow<'_, str> {
    if memchr2(b'%', b'+', text.as_bytes()).is_none() {
        return Cow::Borrowed(text);
    }
    let spaced = text.replace('+', " ");
    Cow::Owned(percent_decode_str(&spaced).decode_utf8_lossy().into_owned())
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
