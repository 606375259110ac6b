//! A digest of a request's body, to see whether two writes are the same.

use std::hash::{BuildHasher, Hasher};

/// Returns the salted digest of a whole body, without values that differ in each write, such as
/// Kubernetes' version of the object. `None` for a body that is not text.
pub fn digest(body: &[u8], salt: &impl BuildHasher) -> Option<u64> {
    if body.is_empty() || body.starts_with(PROTOBUF) {
        return None;
    }
    let mut hasher = salt.build_hasher();
    let mut rest = body;
    while let Some((before, after)) = next_volatile(rest) {
        hasher.write(before);
        rest = after;
    }
    hasher.write(rest);
    Some(hasher.finish())
}

/// Splits a text around the next value of a name in `VOLATILE`, and leaves out the value itself.
fn next_volatile(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut at = 0;
    loop {
        let quote = at + text.get(at..)?.iter().position(|byte| *byte == b'"')?;
        let rest = text.get(quote..)?;
        if let Some(name) = VOLATILE.into_iter().find(|name| rest.starts_with(name)) {
            let value = rest.get(name.len()..)?;
            let end = value.iter().position(|byte| matches!(byte, b',' | b'}' | b'\n'))?;
            return Some((text.get(..quote + name.len())?, value.get(end..)?));
        }
        at = quote + 1;
    }
}

/// The beginning of Kubernetes' protobuf.
const PROTOBUF: &[u8] = b"k8s\0";
/// The names of values that differ in each write: the version of the object, the number of its
/// changes, and the times of its managers' changes.
const VOLATILE: [&[u8]; 3] = [b"\"resourceVersion\":", b"\"generation\":", b"\"time\":"];

#[cfg(test)]
mod tests {
    use std::hash::RandomState;

    use super::*;

    #[test]
    fn bodies_are_equal_but_for_what_each_write_changes() {
        let salt = RandomState::new();
        let body = |version: u32, data: &str| {
            format!(
                r#"{{"metadata":{{"name":"a","resourceVersion":"{version}","generation":{version}}},"data":"{data}"}}"#
            )
        };
        let digest = |text: String| digest(text.as_bytes(), &salt).expect("text");
        assert_eq!(digest(body(1, "x")), digest(body(17, "x")));
        assert_ne!(digest(body(1, "x")), digest(body(1, "y")));
        assert_ne!(digest("{}".to_owned()), digest("[]".to_owned()));
    }

    #[test]
    fn no_text_breaks_it() {
        let salt = RandomState::new();
        for text in ["\"", "\"time\":", "\"time\":\"", "\"time\":}", "\"\"\"time\":,", "\u{1f600}\"generation\":1"] {
            assert!(digest(text.as_bytes(), &salt).is_some(), "{text}");
        }
        assert_eq!(digest(b"k8s\0\n\x0f", &salt), None);
        assert_eq!(digest(b"", &salt), None);
    }
}
