//! Digests of a request's body, to see whether two writes are the same.

use std::hash::{BuildHasher, Hasher};

use super::seen::Content;

/// Returns the salted digests of a whole body, without values that differ in each write, such as
/// Kubernetes' version of the object. A body that is not text has none.
pub fn digest(body: &[u8], salt: &impl BuildHasher) -> Content {
    if body.is_empty() || body.starts_with(PROTOBUF) {
        return Content::default();
    }
    let mut times = salt.build_hasher();
    let mut timeless = salt.build_hasher();
    let is_renewal = memchr::memmem::find(body, RENEWAL).is_some();
    let mut rest = body;
    while let Some(Gap { before, time, after }) = next_gap(rest) {
        times.write(time);
        if is_renewal {
            timeless.write(time);
        }
        timeless.write(before);
        rest = after;
    }
    timeless.write(rest);
    let timeless = timeless.finish();
    Content { body: Some(timeless ^ times.finish()), timeless: Some(timeless), ..Content::default() }
}

/// Returns true for a date and time of RFC 3339.
pub fn is_time(text: &[u8]) -> bool {
    let fits = |(byte, form): (&u8, &u8)| if *form == b'0' { byte.is_ascii_digit() } else { byte == form };
    (TIME.len()..=LONGEST_TIME).contains(&text.len()) && text.iter().zip(TIME).all(fits)
}

/// A value left out of a text, and what is around it.
struct Gap<'a> {
    before: &'a [u8],
    /// The value if it is a time, otherwise empty.
    time: &'a [u8],
    after: &'a [u8],
}

/// Finds the next time, or the next value of a name in `VOLATILE`.
fn next_gap(text: &[u8]) -> Option<Gap<'_>> {
    let mut at = 0;
    loop {
        let quote = at + memchr::memchr(b'"', text.get(at..)?)?;
        let rest = text.get(quote..)?;
        if let Some(name) = VOLATILE.into_iter().find(|name| rest.starts_with(name)) {
            let value = rest.get(name.len()..)?;
            let end = value.iter().position(|byte| matches!(byte, b',' | b'}' | b'\n'))?;
            return Some(Gap { before: text.get(..quote + name.len())?, time: &[], after: value.get(end..)? });
        }
        at = quote + 1;
        let value = text.get(at..)?;
        let end = value.iter().take(LONGEST_TIME + 1).position(|byte| *byte == b'"');
        if let Some((time, after)) = end.and_then(|end| value.split_at_checked(end)).filter(|(time, _)| is_time(time)) {
            return Some(Gap { before: text.get(..at)?, time, after });
        }
    }
}

/// A leader's lock, in an annotation too, is written for its time alone.
const RENEWAL: &[u8] = b"renewTime";
/// The beginning of Kubernetes' protobuf.
const PROTOBUF: &[u8] = b"k8s\0";
/// The names of values that differ in each write: the version of the object, the number of its
/// changes, and the times of its managers' changes.
const VOLATILE: [&[u8]; 3] = [b"\"resourceVersion\":", b"\"generation\":", b"\"time\":"];
/// The beginning of a time, with 0 for any digit.
const TIME: &[u8] = b"0000-00-00T00:00:00";
const LONGEST_TIME: usize = 35;

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
        let digest = |text: String| digest(text.as_bytes(), &salt);
        assert_eq!(digest(body(1, "x")), digest(body(17, "x")));
        assert_ne!(digest(body(1, "x")), digest(body(1, "y")));
        assert_ne!(digest("{}".to_owned()), digest("[]".to_owned()));
        let times = ["2026-11-28T09:40:00Z", "2026-11-28T09:41:00.123456+01:00", "2026-11-28 09:40:00Z"];
        let [one, other, no_time] = times.map(|time| digest(body(1, time)));
        assert_ne!(one.body, other.body);
        assert_eq!(one.timeless, other.timeless);
        assert_ne!(one.timeless, no_time.timeless);
        let renewed = |time| digest(body(1, &format!(r#"{{\"renewTime\":\"{time}\"}}"#)));
        assert_ne!(renewed(times[0]).timeless, renewed("2026-11-28T09:40:02Z").timeless);
    }

    #[test]
    fn no_text_breaks_it() {
        let salt = RandomState::new();
        for text in ["\"", "\"time\":", "\"time\":\"", "\"time\":}", "\"\"\"time\":,", "\u{1f600}\"generation\":1"] {
            assert!(digest(text.as_bytes(), &salt).body.is_some(), "{text}");
        }
        assert_eq!(digest(b"k8s\0\n\x0f", &salt), Content::default());
        assert_eq!(digest(b"", &salt), Content::default());
    }
}
