//! HTTP/1.1 messages on a socket, read as far as the tests need it.

use std::io::{BufRead, Read};

/// The head of a message: its first line, and its fields with names in lower case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Head {
    pub(crate) line: String,
    pub(crate) fields: Vec<(String, String)>,
    /// Its bytes as they came.
    pub(crate) bytes: Vec<u8>,
}

/// The length of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Known(usize),
    Chunked,
    /// To the end of the connection.
    Open,
}

// === impl Head ===

impl Head {
    /// Reads a head; `None` when the connection ends.
    pub(crate) fn read(reader: &mut impl BufRead) -> Option<Self> {
        let mut head = Self::default();
        loop {
            let start = head.bytes.len();
            if reader.read_until(b'\n', &mut head.bytes).ok()? == 0 {
                return None;
            }
            let line = String::from_utf8_lossy(&head.bytes[start..]).trim_end().to_owned();
            match line.split_once(':') {
                _ if head.line.is_empty() => head.line = line,
                Some((name, value)) => head.fields.push((name.to_ascii_lowercase(), value.trim().to_owned())),
                None => return Some(head),
            }
        }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// The status of a response.
    pub(crate) fn status(&self) -> u16 {
        self.line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    /// The method and target of a request.
    pub(crate) fn target(&self) -> (&str, &str) {
        let mut words = self.line.split(' ');
        (words.next().unwrap_or_default(), words.next().unwrap_or_default())
    }

    fn length(&self, otherwise: Length) -> Length {
        if self.field("transfer-encoding").is_some() {
            return Length::Chunked;
        }
        self.field("content-length").and_then(|length| length.parse().ok()).map_or(otherwise, Length::Known)
    }

    /// Reads the body of a request, as it is framed; `each` gets every piece.
    pub(crate) fn request_body(&self, reader: &mut impl BufRead, each: &mut impl FnMut(&[u8])) -> Option<()> {
        pieces(self.length(Length::Known(0)), reader, each)
    }

    /// The same of the response to a request of `method`.
    pub(crate) fn response_body(
        &self,
        method: &str,
        reader: &mut impl BufRead,
        each: &mut impl FnMut(&[u8]),
    ) -> Option<()> {
        let none = method == "HEAD" || self.status() < 200 || matches!(self.status(), 204 | 304);
        pieces(if none { Length::Known(0) } else { self.length(Length::Open) }, reader, each)
    }

    /// True if the body is in chunks.
    pub(crate) fn is_chunked(&self) -> bool {
        self.length(Length::Open) == Length::Chunked
    }
}

/// The content of a body in chunks.
pub(crate) fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    while let Some(end) = body.windows(2).position(|pair| pair == b"\r\n") {
        let size = std::str::from_utf8(&body[..end]).ok().and_then(|line| line.split(';').next());
        let size = size.and_then(|size| usize::from_str_radix(size.trim(), 16).ok()).unwrap_or(0);
        let Some(chunk) = body.get(end + 2..end + 2 + size).filter(|chunk| !chunk.is_empty()) else { break };
        content.extend(chunk);
        body = body.get(end + 4 + size..).unwrap_or_default();
    }
    content
}

fn pieces(length: Length, reader: &mut impl BufRead, each: &mut impl FnMut(&[u8])) -> Option<()> {
    match length {
        Length::Known(length) => exactly(length, reader, each),
        Length::Chunked => loop {
            let mut line = Vec::new();
            reader.read_until(b'\n', &mut line).ok().filter(|read| *read > 0)?;
            each(&line);
            let size = std::str::from_utf8(&line).ok()?.split(';').next()?.trim().to_owned();
            let size = usize::from_str_radix(&size, 16).ok()?;
            if size > 0 {
                exactly(size + 2, reader, each)?;
                continue;
            }
            loop {
                let mut trailer = Vec::new();
                reader.read_until(b'\n', &mut trailer).ok().filter(|read| *read > 0)?;
                each(&trailer);
                if trailer.trim_ascii().is_empty() {
                    return Some(());
                }
            }
        },
        Length::Open => loop {
            let piece = reader.fill_buf().ok()?;
            let length = piece.len();
            if length == 0 {
                return None;
            }
            each(piece);
            reader.consume(length);
        },
    }
}

fn exactly(mut length: usize, reader: &mut impl Read, each: &mut impl FnMut(&[u8])) -> Option<()> {
    let mut piece = [0; 16 * 1024];
    while length > 0 {
        let most = length.min(piece.len());
        let read = reader.read(&mut piece[..most]).ok().filter(|read| *read > 0)?;
        each(&piece[..read]);
        length -= read;
    }
    Some(())
}
