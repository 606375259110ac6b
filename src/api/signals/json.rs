//! The texts of a JSON document that may be cut off.
//!
//! Error bodies are peeked, so the end may be missing; a parser that wants the whole would see nothing at all.

/// Every `"key": "text"` of a document, wherever it stands, in order, with escapes as they are. Never fails: what is no JSON has none.
pub(super) fn texts(document: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = document;
    std::iter::from_fn(move || {
        loop {
            let key = string(&mut rest)?;
            let Some(after) = rest.trim_ascii_start().strip_prefix(b":") else { continue };
            let after = after.trim_ascii_start();
            if !after.starts_with(b"\"") {
                continue;
            }
            rest = after;
            let value = string(&mut rest)?;
            if let (Ok(key), Ok(value)) = (std::str::from_utf8(key), std::str::from_utf8(value)) {
                return Some((key, value));
            }
        }
    })
}

/// The next string, without its quotes; `rest` is then what follows it. A string that is cut off is none.
fn string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let from = rest.iter().position(|byte| *byte == b'"')? + 1;
    let inside = rest.get(from..)?;
    let mut escaped = false;
    let length = inside.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    })?;
    *rest = inside.get(length + 1..)?;
    inside.get(..length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(document: &str) -> Vec<(&str, &str)> {
        texts(document.as_bytes()).collect()
    }

    #[test]
    fn texts_are_found_at_any_depth_and_only_as_values() {
        let document = r#"{"a": {"b" : [ {"c":"d", "n": 5, "o": null}, "e" ]}, "f":"say \"g\": \"h\"", "\\":"i"}"#;
        assert_eq!(of(document), [("c", "d"), ("f", r#"say \"g\": \"h\""#), ("\\\\", "i")]);
    }

    #[test]
    fn what_is_cut_off_is_left_out() {
        assert_eq!(of(r#"{"a":"b","c":"d"#), [("a", "b")]);
        assert_eq!(of(r#"{"a":"b","c"#), [("a", "b")]);
        assert_eq!(of("<Code>no</Code>"), []);
        assert_eq!(of(""), []);
    }

    proptest! {
        #[test]
        fn a_document_and_its_beginning_agree(name in "[a-z]{1,8}", text in "[ -~]{0,40}", cut in 0_usize..200) {
            let document = serde_json::json!({ "x": [{ &name: &text }], "y": "z" }).to_string();
            let found: Vec<(&str, &str)> = texts(document.as_bytes()).collect();
            prop_assert_eq!(found.len(), 2);
            prop_assert_eq!(found[0].0, name.as_str());
            prop_assert_eq!(serde_json::from_str::<String>(&format!("\"{}\"", found[0].1)).unwrap(), text);
            let beginning = &document.as_bytes()[..cut.min(document.len())];
            for (place, pair) in texts(beginning).enumerate() {
                prop_assert_eq!(pair, found[place]);
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            texts(&bytes).for_each(drop);
        }
    }
}
