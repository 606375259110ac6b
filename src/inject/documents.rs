//! Cuts a stream into its documents, so that those without an edit stay as they are, byte for byte.
//!
//! A line that starts with `---` is always a document marker: YAML forbids it inside scalars.

/// One document of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Document<'a> {
    /// The marker before it with its line's end, and the directives and comments that belong to it;
    /// may be empty.
    pub(super) marker: &'a str,
    /// The document.
    pub(super) text: &'a str,
    /// The line of the stream at which `text` starts, from 0.
    pub(super) line: usize,
}

/// Returns the documents of a stream in order; joined again, they are the stream.
pub(super) fn split(stream: &str) -> Vec<Document<'_>> {
    let mut documents = Vec::new();
    let (mut marker, mut start, mut first) = (0..0, 0, 0);
    let mut at = 0;
    for (number, line) in stream.split_inclusive('\n').enumerate() {
        let rest = line.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        if let Some(rest) = rest.map(str::trim_start) {
            documents.push((marker.clone(), start..at, first));
            // Content may follow on the marker's own line: `--- {a: b}`.
            let content = !rest.is_empty() && !rest.starts_with('#');
            let end = if content { at + 3 } else { at + line.len() };
            (marker, start, first) = (at..end, end, if content { number } else { number + 1 });
        }
        at += line.len();
    }
    documents.push((marker, start..at, first));
    let cut = |(marker, text, line): (std::ops::Range<usize>, std::ops::Range<usize>, usize)| Document {
        marker: stream.get(marker).unwrap_or_default(),
        text: stream.get(text).unwrap_or_default(),
        line,
    };
    documents.into_iter().map(cut).filter(|document| !document.marker.is_empty() || !document.text.is_empty()).collect()
}

/// True if there is anything except directives, comments and blank lines.
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
}
