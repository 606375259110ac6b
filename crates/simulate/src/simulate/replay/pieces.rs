//! The JSON values of a log, one at a time and in bounded memory.
//!
//! The values are on a line each, side by side, or in an array: a bare one, or one under a known
//! name in an object (CloudTrail's `Records`). Text before a value on its line, such as a time or a
//! node's name, is left out. A JSON string has no line break in it, and only the first brace of a
//! value begins a line. So a value that was cut ends at the next one, and only that one is lost.

use std::io::{BufRead, ErrorKind};

use memchr::memchr3;

/// A value of a log, or the reason why there is none.
#[derive(Debug)]
pub(super) struct Piece<'a> {
    /// The line on which it begins.
    pub(super) line: u64,
    pub(super) text: Result<&'a [u8], String>,
}

/// The values of one file.
pub(super) struct Pieces<'a> {
    input: &'a mut dyn BufRead,
    scanner: Scanner,
    is_over: bool,
}

// === impl Pieces ===

impl<'a> Pieces<'a> {
    pub(super) fn new(input: &'a mut dyn BufRead) -> Self {
        Self { input, scanner: Scanner { line: 1, is_line_start: true, ..Scanner::default() }, is_over: false }
    }

    /// Returns the next value; `None` at the end of the file.
    pub(super) fn next(&mut self) -> Option<Piece<'_>> {
        let Self { input, scanner, is_over } = self;
        let error = loop {
            if *is_over {
                return None;
            }
            let chunk = match input.fill_buf() {
                Ok([]) => break String::new(),
                Ok(chunk) => chunk,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => break format!("{error} "),
            };
            let used = scanner.scan(chunk);
            input.consume(used);
            if let Some(Found { line, problem }) = scanner.found.take() {
                let text = problem.map_or(Ok(&*scanner.value), |problem| Err(problem.to_owned()));
                return Some(Piece { line, text });
            }
        };
        *is_over = true;
        let is_cut = scanner.is_open || scanner.is_text || !error.is_empty();
        let line = if scanner.is_open { scanner.begins } else { scanner.line };
        is_cut.then(|| Piece { line, text: Err(format!("{error}(the file ends here)")) })
    }
}

/// The state between two bytes of a file.
#[derive(Default)]
struct Scanner {
    /// The current value so far.
    value: Vec<u8>,
    /// True within a value.
    is_open: bool,
    /// The line on which the value begins.
    begins: u64,
    line: u64,
    /// The open brackets.
    depth: usize,
    /// The brackets around each value: those of an array.
    base: usize,
    quote: Quote,
    is_line_start: bool,
    /// True on a line of text without a value so far.
    is_text: bool,
    /// What the last byte has ended.
    found: Option<Found>,
}

/// The place of a byte in a string.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Quote {
    #[default]
    Outside,
    Inside,
    /// After a backslash.
    Escaped,
}

/// A value, or a problem in its place.
struct Found {
    line: u64,
    problem: Option<&'static str>,
}

// === impl Scanner ===

impl Scanner {
    /// Reads up to the end of a value, and returns the number of bytes read.
    fn scan(&mut self, chunk: &[u8]) -> usize {
        let mut at = 0;
        let mut kept = 0;
        while let Some(byte) = chunk.get(at).copied() {
            if self.quote == Quote::Inside && !matches!(byte, b'"' | b'\\' | b'\n') {
                at += memchr3(b'"', b'\\', b'\n', &chunk[at..]).unwrap_or(chunk.len() - at);
                continue;
            }
            let is_line_start = std::mem::replace(&mut self.is_line_start, byte == b'\n');
            if is_line_start && byte == b'{' && self.depth > self.base {
                // The next value begins before the last one has ended.
                self.restart();
                return at;
            }
            match (byte, self.quote) {
                (b'\n', _) => self.line_ends(),
                (_, Quote::Escaped) => self.quote = Quote::Inside,
                (b'\\', Quote::Inside) => self.quote = Quote::Escaped,
                (_, Quote::Inside) => self.quote = Quote::Outside,
                (b'[', _) if self.is_open && self.depth == self.base + 1 => {
                    self.keep(&chunk[kept..at]);
                    kept = at;
                    self.opens(byte);
                }
                (b'{' | b'[', _) => kept = if self.opens(byte) { at } else { kept },
                (b'}' | b']', _) if self.closes() => {
                    self.keep(&chunk[kept..=at]);
                    let problem = (self.value.len() > MOST_BYTES).then_some(TOO_LONG);
                    self.found = Some(Found { line: self.begins, problem });
                }
                (b'}' | b']' | b' ' | b'\t' | b'\r' | b',', _) => {}
                (byte, _) => {
                    self.quote = if byte == b'"' { Quote::Inside } else { Quote::Outside };
                    self.is_text |= !self.is_open && self.depth == self.base;
                }
            }
            at += 1;
            if self.found.is_some() {
                return at;
            }
        }
        if self.is_open {
            self.keep(&chunk[kept..]);
        }
        at
    }

    /// Counts an opening bracket. Returns true if a value begins with it.
    fn opens(&mut self, byte: u8) -> bool {
        let begins = byte == b'{' && !self.is_open && self.depth == self.base;
        let is_bare = byte == b'[' && self.depth == 0;
        let is_list = self.is_open && byte == b'[' && self.depth == self.base + 1 && self.is_after_name();
        self.depth += 1;
        if is_bare || is_list {
            self.base = self.depth;
            self.is_open = false;
        }
        if begins {
            self.value.clear();
            self.begins = self.line;
            self.is_open = true;
            self.is_text = false;
        }
        begins
    }

    /// Returns true if the value ends with the name of a list of events.
    fn is_after_name(&self) -> bool {
        let name = self.value.trim_ascii_end().strip_suffix(b":").map(<[u8]>::trim_ascii_end);
        name.is_some_and(|name| LISTS.iter().any(|list| name.ends_with(list)))
    }

    /// Counts a closing bracket. Returns true if it ends the value.
    fn closes(&mut self) -> bool {
        self.depth = self.depth.saturating_sub(1);
        self.base = if self.depth < self.base { 0 } else { self.base };
        let ends = self.is_open && self.depth == self.base;
        self.is_open &= !ends;
        ends
    }

    fn line_ends(&mut self) {
        if std::mem::take(&mut self.is_text) && !self.is_open {
            self.found = Some(Found { line: self.line, problem: Some(NO_JSON) });
        }
        self.line += 1;
        if self.quote != Quote::Outside {
            self.restart();
        }
    }

    /// Forgets all open brackets. A value is cut by that.
    fn restart(&mut self) {
        let cut = self.is_open.then_some(Found { line: self.begins, problem: Some(CUT) });
        let found = self.found.take().or(cut);
        let value = std::mem::take(&mut self.value);
        *self = Self { value, line: self.line, is_line_start: true, found, ..Self::default() };
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = (MOST_BYTES + 1).saturating_sub(self.value.len());
        self.value.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// The names of lists of events: of CloudTrail, Azure Monitor, CloudWatch Logs, the AWS CLI, and the
/// API server's webhook.
const LISTS: [&[u8]; 6] =
    [b"\"Records\"", b"\"records\"", b"\"logEvents\"", b"\"events\"", b"\"Events\"", b"\"items\""];
/// The longest value. An API server takes objects of up to 3 MiB, and an event may have two.
const MOST_BYTES: usize = 1 << 24;
const TOO_LONG: &str = "longer than 16 MiB";
const CUT: &str = "cut off before its end";
const NO_JSON: &str = "expected JSON";

#[cfg(test)]
mod tests {
    use super::*;

    /// The values and problems of a text, each with its line, read in chunks of this size.
    fn all(text: &str, chunk: usize) -> Vec<String> {
        let mut input = std::io::BufReader::with_capacity(chunk, text.as_bytes());
        let mut pieces = Pieces::new(&mut input);
        let mut found = Vec::new();
        while let Some(Piece { line, text }) = pieces.next() {
            let text = text.map(|text| String::from_utf8_lossy(text).into_owned());
            found.push(format!("{line} {}", text.unwrap_or_else(|problem| format!("! {problem}"))));
        }
        found
    }

    fn reads(text: &str, expected: &[&str]) {
        for chunk in [1, 2, 7, 1 << 16] {
            assert_eq!(all(text, chunk), expected, "in chunks of {chunk}: {text}");
        }
    }

    #[test]
    fn values_stand_on_lines_side_by_side_and_after_a_prefix() {
        reads("{\"a\":1}\n\n {\"b\":\"}{\\\"\"}\r\n", &["1 {\"a\":1}", "3 {\"b\":\"}{\\\"\"}"]);
        reads("{\"a\":1}{\"b\":[2]}", &["1 {\"a\":1}", "1 {\"b\":[2]}"]);
        reads("master-0 {\"a\":1}\n2026-11-27T10:00:00.000Z {\"a\":2}\n", &["1 {\"a\":1}", "2 {\"a\":2}"]);
    }

    #[test]
    fn lists_are_read_value_by_value() {
        reads("[\n  {\"a\": 1},\n  {\n    \"b\": [{}]\n  }\n]\n", &["2 {\"a\": 1}", "3 {\n    \"b\": [{}]\n  }"]);
        let two = &["1 {\"a\":[1]}", "1 {\"b\":{}}"];
        reads("{\"Records\":[{\"a\":[1]},{\"b\":{}}]}", two);
        reads("{\"owner\":\"1\",\"logEvents\" : [{\"a\":[1]}, {\"b\":{}}],\"more\":[{}]}\n", two);
        reads("{\"events\":[{\"a\":[1]}]}{\"events\":[{\"b\":{}}]}", two);
        reads("{\"sourceIPs\":[\"1\"],\"x\":{\"items\":[{}]}}", &["1 {\"sourceIPs\":[\"1\"],\"x\":{\"items\":[{}]}}"]);
    }

    #[test]
    fn a_cut_value_costs_no_other() {
        reads("{\"a\":\"tex\n{\"b\":2}\n", &["1 ! cut off before its end", "2 {\"b\":2}"]);
        reads("{\"a\":{\"x\":1\n{\"b\":2}\n", &["1 ! cut off before its end", "2 {\"b\":2}"]);
        reads(
            "{\"Records\":[{\"a\":1},\n{\"b\":2},{\"c\n{\"d\":4}\n]}",
            &["1 {\"a\":1}", "2 {\"b\":2}", "2 ! cut off before its end", "3 {\"d\":4}"],
        );
        reads("{\"b\":2}\n{\"a\":\"te", &["1 {\"b\":2}", "2 ! (the file ends here)"]);
    }

    #[test]
    fn text_without_a_value_is_named_by_its_line() {
        reads("a: b\n{\"b\":2}\nc", &["1 ! expected JSON", "2 {\"b\":2}", "3 ! (the file ends here)"]);
        reads("", &[]);
    }

    #[test]
    fn memory_is_bounded_whatever_the_length_of_a_value() {
        let long = format!("{{\"a\":\"{}\"}}\n{{\"b\":2}}\n", "x".repeat(MOST_BYTES + 9));
        assert_eq!(all(&long, 1 << 16), ["1 ! longer than 16 MiB", "2 {\"b\":2}"]);
    }
}
