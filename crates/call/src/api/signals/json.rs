//! The texts in a JSON document, whole or cut off, such as the beginning of an error's body.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Returns every `"key": "text"` of a document, at any depth, in order, up to its first error.
pub(super) fn texts(document: &[u8]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let texts = Texts { key: None, found: &mut found };
    match texts.deserialize(&mut serde_json::Deserializer::from_slice(document)) {
        Ok(()) | Err(_) => found,
    }
}

/// Returns the [`texts`] of a document that was cut, with the beginning of a text at the cut.
pub(super) fn texts_of_beginning(document: &[u8]) -> Vec<(String, String)> {
    let whole = texts(document);
    let mut cut = document.utf8_chunks().next().map_or(&b""[..], |chunk| chunk.valid().as_bytes());
    // Without half an escape.
    while let Some(at) = cut.iter().rev().take(ESCAPE).position(|byte| *byte == b'\\') {
        cut = cut.get(..cut.len() - 1 - at).unwrap_or_default();
    }
    let ended = texts(&[cut, b"\""].concat());
    if ended.len() > whole.len() { ended } else { whole }
}

/// Collects the texts in one JSON value.
struct Texts<'a> {
    /// The key of the value, unless it is an item of a list.
    key: Option<String>,
    found: &'a mut Vec<(String, String)>,
}

impl<'de> DeserializeSeed<'de> for Texts<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Texts<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.found.extend(self.key.map(|key| (key, text.to_owned())));
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key()? {
            map.next_value_seed(Texts { key: Some(key), found: &mut *self.found })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Texts { key: None, found: &mut *self.found })?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// The length of the longest escape in bytes.
const ESCAPE: usize = 6;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(document: &str) -> Vec<(String, String)> {
        texts(document.as_bytes())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn texts_are_found_at_any_depth_and_only_as_values() {
        let document = r#"{"a": {"b" : [ {"c":"d", "n": 5, "o": null}, "e" ]}, "f":"say \"g\": \"h\"", "\\":"i"}"#;
        assert_eq!(of(document), pairs(&[("c", "d"), ("f", r#"say "g": "h""#), ("\\", "i")]));
    }

    #[test]
    fn what_is_cut_off_is_left_out() {
        assert_eq!(of(r#"{"a":"b","c":"d"#), pairs(&[("a", "b")]));
        assert_eq!(of(r#"{"a":"b","c"#), pairs(&[("a", "b")]));
        assert_eq!(of("<Code>no</Code>"), pairs(&[]));
        assert_eq!(of(""), pairs(&[]));
    }

    #[test]
    fn a_text_that_is_cut_off_is_read_up_to_there() {
        for (document, expected) in [
            (r#"{"a":"b","c":"d"#, &[("a", "b"), ("c", "d")][..]),
            (r#"{"a":"b","c":"d\ud83d\ude"#, &[("a", "b"), ("c", "d")]),
            (r#"{"a":"b","c":"d\"#, &[("a", "b"), ("c", "d")]),
            (r#"{"a":"b\n"}"#, &[("a", "b\n")]),
            (r#"{"a":"b","c"#, &[("a", "b")]),
        ] {
            assert_eq!(texts_of_beginning(document.as_bytes()), pairs(expected), "{document}");
        }
        assert_eq!(texts_of_beginning(b"{\"a\":\"b\xc3"), pairs(&[("a", "b")]));
    }

    proptest! {
        #[test]
        fn a_document_and_its_beginning_agree(name in "[a-z]{1,8}", text in "[ -~]{0,40}", cut in 0_usize..200) {
            let document = serde_json::json!({ "x": [{ &name: &text }], "y": "z" }).to_string();
            let found = texts(document.as_bytes());
            prop_assert_eq!(found.len(), 2);
            prop_assert_eq!(&found[0].0, &name);
            prop_assert_eq!(&found[0].1, &text);
            let beginning = &document.as_bytes()[..cut.min(document.len())];
            for (place, pair) in texts(beginning).into_iter().enumerate() {
                prop_assert_eq!(&pair, &found[place]);
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop(texts(&bytes));
        }
    }
}
