//! HTTP/2 frames made by hand, as no library would send them. Header blocks are literals without
//! Huffman and without the dynamic table.

use tokio::io::{AsyncRead, AsyncReadExt};

/// The bytes that a client sends first.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A frame that was received.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// Makes one frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a frame is short").to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Makes a header block.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0); // a literal with its own name, kept in no table
        text(&mut bytes, name);
        text(&mut bytes, value);
    }
    bytes
}

/// Writes a length of seven bits or more, then the text without coding.
fn text(bytes: &mut Vec<u8>, text: &str) {
    let mut length = text.len();
    if length < 127 {
        bytes.push(u8::try_from(length).expect("seven bits"));
    } else {
        bytes.push(127);
        length -= 127;
        while length >= 128 {
            bytes.push(u8::try_from(length % 128).expect("seven bits") | 128);
            length /= 128;
        }
        bytes.push(u8::try_from(length).expect("seven bits"));
    }
    bytes.extend(text.as_bytes());
}

/// The head of a GET that a gate accepts.
pub(crate) fn good<'a>(path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields = vec![(":method", "GET"), (":scheme", "http"), (":authority", "localhost"), (":path", path)];
    fields.extend(more);
    fields
}

/// A whole request without a body.
pub(crate) fn request(stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(fields))
}

/// The preface and a client's settings, as (identifier, value).
pub(crate) fn hello(settings: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> =
        settings.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
    [PREFACE, &frame(SETTINGS, 0, 0, &payload)].concat()
}

/// Returns the next frame, or `None` at the end.
pub(crate) async fn next<S: AsyncRead + Unpin>(stream: &mut S) -> Option<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let [a, b, c, kind, flags, w, x, y, z] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    stream.read_exact(&mut payload).await.ok()?;
    Some(Frame { kind, flags, stream: u32::from_be_bytes([w & 0x7f, x, y, z]), payload })
}

impl Frame {
    /// The error code of a RST_STREAM or a GOAWAY.
    pub(crate) fn code(&self) -> u32 {
        let code = match self.kind {
            GOAWAY => self.payload.get(4..8),
            _ => self.payload.get(..4),
        };
        u32::from_be_bytes(code.and_then(|code| code.try_into().ok()).expect("an error code"))
    }
}
