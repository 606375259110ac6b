//! The name of the object in the body of a `create`.
//!
//! Without it all creates of a kind in a namespace would share one key, and one object that cannot
//! be created would delay all others. Reads JSON and Kubernetes protobuf from the first 64 KiB,
//! whole or cut off. A call whose name is uncertain has no key. YAML and CBOR are not read. The
//! version of an object in an answer is read in the same way.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::protobuf::{FieldValue, Fields, bytes};

/// How many bytes of a body to read: the API server accepts 3 MiB, with the name near the start.
pub const PEEK: usize = 64 * 1024;

/// Returns the `metadata.name` of the object in the start of a body; `None` if it has only a
/// `generateName`.
pub fn of_object(body: &[u8]) -> Option<Cow<'_, str>> {
    in_metadata(body, "name", 1)
}

/// Returns the `metadata.resourceVersion` of the object in the start of a body, if it is a number.
pub fn version_of_object(body: &[u8]) -> Option<u64> {
    in_metadata(body, "resourceVersion", 6)?.parse().ok()
}

/// Returns a text in the metadata of an object, by its names in JSON and in protobuf.
fn in_metadata<'a>(body: &'a [u8], name: &str, field: u64) -> Option<Cow<'a, str>> {
    let body = body.get(..PEEK).unwrap_or(body);
    let text = match body.strip_prefix(PROTOBUF_MAGIC) {
        Some(unknown) => protobuf(unknown, field).map(Cow::Borrowed),
        None => json(body, name).map(Cow::Owned),
    };
    text.filter(|text| !text.is_empty())
}

/// Reads `runtime.Unknown` (raw = 2) around an object (metadata = 1) with a field of its
/// `ObjectMeta`.
fn protobuf(unknown: &[u8], field: u64) -> Option<&str> {
    let metadata = bytes(bytes(unknown, 2)?, 1)?;
    let text = Fields(metadata).find_map(|(number, value)| match value {
        FieldValue::Bytes { bytes, is_whole } if number == field => Some(bytes).filter(|_| is_whole),
        _ => None,
    });
    std::str::from_utf8(text?).ok()
}

/// Returns a text in the metadata of a JSON object. The body may be cut anywhere after it, so a
/// parser's error does not matter.
fn json(body: &[u8], name: &str) -> Option<String> {
    let mut found = None;
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let seed = At { path: &["metadata", name], found: &mut found };
    // An error after the text is the cut, or our own stop.
    match seed.deserialize(&mut deserializer) {
        Ok(()) | Err(_) => found,
    }
}

/// Finds the string at the end of a path of JSON keys, and stops there.
struct At<'a> {
    path: &'a [&'a str],
    found: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.path.is_empty() { deserializer.deserialize_str(self) } else { deserializer.deserialize_map(self) }
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let [wanted, deeper @ ..] = self.path else { return Ok(()) };
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key == *wanted {
                map.next_value_seed(At { path: deeper, found: &mut *self.found })?;
                if self.found.is_some() {
                    return Err(serde::de::Error::custom("found"));
                }
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_str<E>(self, name: &str) -> Result<(), E> {
        *self.found = Some(name.to_owned());
        Ok(())
    }
}

/// The first bytes of Kubernetes protobuf.
pub(super) const PROTOBUF_MAGIC: &[u8] = b"k8s\0";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(body: &str) -> Option<String> {
        of_object(body.as_bytes()).map(Cow::into_owned)
    }

    /// One length-delimited field.
    fn delimited(number: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![number << 3 | 2];
        let mut len = content.len();
        while len > 0x7f {
            bytes.push(u8::try_from(len & 0x7f).unwrap() | 0x80);
            len >>= 7;
        }
        bytes.push(u8::try_from(len).unwrap());
        bytes.extend_from_slice(content);
        bytes
    }

    fn protobuf_object(name: &str, generate_name: &str) -> Vec<u8> {
        let meta =
            [delimited(1, name.as_bytes()), delimited(2, generate_name.as_bytes()), delimited(3, b"ns")].concat();
        let object = [delimited(1, &meta), delimited(2, &[0x08, 0x01])].concat();
        let type_meta = [delimited(1, b"v1"), delimited(2, b"ConfigMap")].concat();
        [PROTOBUF_MAGIC.to_vec(), delimited(1, &type_meta), delimited(2, &object), delimited(3, b""), delimited(4, b"")]
            .concat()
    }

    #[test]
    fn json_names_are_found_wherever_metadata_stands() {
        for (body, expected) in [
            (r#"{"metadata":{"name":"a"}}"#, Some("a")),
            (
                r#" {"kind":"X","spec":{"metadata":{"name":"inner"},"list":[1,{"name":"no"}]},"metadata":{"labels":{"name":"no"},"name":"a"}}"#,
                Some("a"),
            ),
            (r#"{"metadata":{"generateName":"a-"}}"#, None),
            (r#"{"metadata":{"generateName":"a-","name":""}}"#, None),
            (r#"{"metadata":{"name":7}}"#, None),
            (r#"{"metadata":null,"name":"a"}"#, None),
            (r#"{"Metadata":{"name":"a"}}"#, None),
            (r#"{"metadata":{"name":"a\u0062\n"}}"#, Some("ab\n")),
            (r#"{"meta\u0064ata":{"name":"a"}}"#, Some("a")),
            (r#"{"metadata":{"name":"a"},"data":"cut off he"#, Some("a")),
            (r#"{"metadata":{"name":"cut off he"#, None),
            (r#"{"metadata":{"na"#, None),
            (r#"["metadata"]"#, None),
            ("metadata:\n  name: yaml", None),
            ("", None),
        ] {
            assert_eq!(name(body).as_deref(), expected, "{body}");
        }
    }

    #[test]
    fn protobuf_names_are_found_where_they_stand() {
        let body = protobuf_object("my-config", "");
        assert_eq!(of_object(&body).as_deref(), Some("my-config"));
        assert_eq!(of_object(&protobuf_object("", "gen-")), None);
        let end = body.windows(9).position(|window| window == b"my-config").unwrap() + 9;
        assert_eq!(of_object(&body[..end]).as_deref(), Some("my-config"), "cut behind the name");
        assert_eq!(of_object(&body[..end - 1]), None, "cut in the name");
    }

    #[test]
    fn nothing_past_the_peek_is_read() {
        let filler = "x".repeat(PEEK);
        assert_eq!(name(&format!(r#"{{"data":"{filler}","metadata":{{"name":"a"}}}}"#)), None);
        assert_eq!(name(&format!(r#"{{"metadata":{{"name":"a"}},"data":"{filler}"}}"#)).as_deref(), Some("a"));
        assert_eq!(name(&"[".repeat(PEEK)), None);
        assert_eq!(name(&r#"{"a":"#.repeat(PEEK / 5)), None, "depth is bounded");
    }

    #[test]
    fn versions_are_those_of_the_object_itself() {
        for (body, expected) in [
            (
                r#"{"metadata":{"annotations":{"a":"{\"resourceVersion\":\"1\"}"},"resourceVersion":"2"},"spec":{}}"#,
                Some(2),
            ),
            (r#"{"involvedObject":{"resourceVersion":"1"},"metadata":{"resourceVersion":"2"}}"#, Some(2)),
            (r#"{"metadata":{"managedFields":[{"fieldsV1":{"f:resourceVersion":{}}}],"resourceVersion":"2"#, None),
            (r#"{"metadata":{"resourceVersion":"opaque"}}"#, None),
        ] {
            assert_eq!(version_of_object(body.as_bytes()), expected, "{body}");
        }
        let meta = [delimited(1, b"name"), delimited(5, b"uid"), delimited(6, b"17")].concat();
        let body = [PROTOBUF_MAGIC.to_vec(), delimited(2, &delimited(1, &meta))].concat();
        assert_eq!(version_of_object(&body), Some(17));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), with_magic in any::<bool>()) {
            let body = if with_magic { [PROTOBUF_MAGIC, &bytes].concat() } else { bytes };
            drop(of_object(&body));
        }

        #[test]
        fn a_cut_never_changes_a_name(cut in 0_usize..200, protobuf in any::<bool>()) {
            let body = if protobuf {
                protobuf_object("the-name", "")
            } else {
                br#"{"kind":"ConfigMap","metadata":{"namespace":"a","name":"the-name","labels":{"a":"b"}},"data":{}}"#.to_vec()
            };
            let read = of_object(&body[..cut.min(body.len())]);
            prop_assert!(read.is_none() || read.as_deref() == Some("the-name"));
        }

        #[test]
        fn a_changed_byte_never_panics(at in 0_usize..60, byte in any::<u8>()) {
            let mut body = protobuf_object("the-name", "the-");
            let at = at.min(body.len() - 1);
            body[at] = byte;
            drop(of_object(&body));
        }
    }
}
