//! Splits a stream into its documents, so that unedited ones can stay unchanged byte for byte.
//!
//! A line that begins with `---` always separates documents: YAML forbids it inside scalars.
//! Several JSON values in a row, as jq writes them, need no separator.

use std::ops::Range;

/// One document of a stream of YAML or JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Document<'a> {
    /// The `---` line before the document, with directives and comments; may be empty.
    pub(super) marker: &'a str,
    /// The text of the document.
    pub(super) text: &'a str,
    /// The line of the stream where `text` begins, counted from 0.
    pub(super) line: usize,
    /// True if the document is one of several JSON values without `---` between them.
    pub(super) is_json_among_others: bool,
}

/// Returns the documents of a stream, in order. Joined again, they are the stream.
pub(super) fn split(stream: &str) -> Vec<Document<'_>> {
    if let Some(values) = json_values(stream) {
        return values;
    }
    let document = |marker: Range<usize>, text: Range<usize>, line| Document {
        marker: stream.get(marker).unwrap_or_default(),
        text: stream.get(text).unwrap_or_default(),
        line,
        is_json_among_others: false,
    };
    let mut documents = Vec::new();
    let mut marker = 0..0;
    let mut first = 0;
    let mut at = 0;
    for (number, line) in stream.split_inclusive('\n').enumerate() {
        let rest = line.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        if let Some(rest) = rest.map(str::trim_start) {
            documents.push(document(marker.clone(), marker.end..at, first));
            // Content may follow on the marker's own line: `--- {a: b}`.
            let has_content = !rest.is_empty() && !rest.starts_with('#');
            marker = at..if has_content { at + 3 } else { at + line.len() };
            first = number + usize::from(!has_content);
        }
        at += line.len();
    }
    documents.push(document(marker.clone(), marker.end..at, first));
    documents.retain(|document| !document.marker.is_empty() || !document.text.is_empty());
    documents
}

/// Splits a stream of several JSON objects. Each includes the white space after it. `None` for any
/// other stream.
fn json_values(stream: &str) -> Option<Vec<Document<'_>>> {
    if !stream.trim_start().starts_with('{') {
        return None;
    }
    let mut values = serde_json::Deserializer::from_str(stream).into_iter::<serde::de::IgnoredAny>();
    let mut documents = Vec::new();
    let mut start = 0;
    let mut line = 0;
    while let Some(value) = values.next() {
        value.ok()?;
        let rest = stream.get(values.byte_offset()..)?;
        let end = stream.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
        let text = stream.get(start..end)?;
        documents.push(Document { marker: "", text, line, is_json_among_others: true });
        (start, line) = (end, line + text.matches('\n').count());
    }
    (documents.len() > 1).then_some(documents)
}

/// Returns true unless there are only directives, comments and blank lines.
pub(super) fn has_content(text: &str) -> bool {
    text.lines()
        .map(str::trim_end)
        .any(|line| !line.is_empty() && !line.trim_start().starts_with('#') && !line.starts_with('%'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(stream: &str) -> Vec<(&str, usize)> {
        let documents = split(stream);
        let together: String = documents.iter().flat_map(|document| [document.marker, document.text]).collect();
        assert_eq!(together, stream);
        documents.iter().map(|document| (document.text, document.line)).collect()
    }

    #[test]
    fn a_stream_is_the_sum_of_its_documents() {
        assert_eq!(texts("a: 1\n---\nb: 2\n"), [("a: 1\n", 0), ("b: 2\n", 2)]);
        assert_eq!(texts("---\na: 1\n---\n"), [("a: 1\n", 1), ("", 3)]);
        assert_eq!(texts("--- {a: 1}\n--- # two\nb"), [(" {a: 1}\n", 0), ("b", 2)]);
        assert_eq!(texts("a: |\n  ---\nb: ---x\r\n---\r\nc: 1"), [("a: |\n  ---\nb: ---x\r\n", 0), ("c: 1", 4)]);
        assert_eq!(texts(""), []);
    }

    #[test]
    fn json_values_that_follow_each_other_are_documents() {
        assert_eq!(texts("{\"a\":\n1}\n{\"b\":2}\n"), [("{\"a\":\n1}\n", 0), ("{\"b\":2}\n", 2)]);
        assert_eq!(texts("\n {}{} "), [("\n {}", 0), ("{} ", 1)]);
        assert_eq!(texts("{}\n---\n{}\n"), [("{}\n", 0), ("{}\n", 2)]);
        for whole in ["{}\n{a: 1}\n", "{}\nb: [\n", "{}\n", "{a: 1}\n"] {
            assert_eq!(texts(whole), [(whole, 0)]);
        }
    }
}
