//! The syntax of one line of HTTP/1.

use http::Method;
use memchr::memchr;

use super::Fault;

/// A header line, split in two.
pub(super) struct Header<'a> {
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
}

/// Returns the line if it has no control character except tabs. A token of a kilobyte is in nearly
/// every head: the loop has no early exit, so the compiler checks many bytes at a time.
pub(super) fn checked(line: &[u8]) -> Result<&[u8], Fault> {
    let is_control = |byte: u8| (byte < b' ') & (byte != b'\t') | (byte == 0x7f);
    let has_control = line.iter().fold(false, |found, byte| found | is_control(*byte));
    match has_control {
        false => Ok(line),
        true if memchr(b'\r', line).is_some() => Err(Fault::LineEnd),
        true => Err(Fault::Control),
    }
}

/// Checks a request line. Returns true if it is of HTTP/1.0.
pub(super) fn request_line(line: &[u8]) -> Result<bool, Fault> {
    let (method, rest) = split_at_space(line)?;
    let (target, version) = split_at_space(rest)?;
    if memchr(b' ', version).is_some() {
        return Err(Fault::Malformed);
    }
    if memchr(b'#', target).is_some() {
        return Err(Fault::Fragment);
    }
    if Method::from_bytes(method).is_err() || target.is_empty() {
        return Err(Fault::Malformed);
    }
    match version {
        b"HTTP/1.1" => Ok(false),
        b"HTTP/1.0" => Ok(true),
        _ => Err(Fault::Malformed),
    }
}

/// Splits a line at its first space.
fn split_at_space(line: &[u8]) -> Result<(&[u8], &[u8]), Fault> {
    let space = memchr(b' ', line).ok_or(Fault::Malformed)?;
    let (before, rest) = line.split_at(space);
    Ok((before, rest.get(1..).unwrap_or_default()))
}

/// Splits a header into its name and its value, without the white space around the value.
pub(super) fn header(line: &[u8]) -> Result<Header<'_>, Fault> {
    let end = line.iter().position(|byte| !is_token(*byte));
    let (name, rest) = line.split_at(end.unwrap_or(line.len()));
    match rest {
        // No space before the colon, and none before the name: that would be a folded line.
        [b':', value @ ..] if !name.is_empty() => Ok(Header { name, value: value.trim_ascii() }),
        _ => Err(Fault::Malformed),
    }
}

/// Reads the size in the first line of a chunk.
pub(super) fn chunk_size(line: &[u8]) -> Result<u64, Fault> {
    let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
    number(size.trim_ascii_end(), 16).ok_or(Fault::Chunk)
}

/// Reads a number of digits and nothing else.
pub(super) fn number(text: &[u8], radix: u32) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    let is_plain = !text.is_empty() && text.chars().all(|c| c.is_digit(radix));
    // `from_str_radix` would take a sign.
    u64::from_str_radix(text, radix).ok().filter(|number| is_plain && i64::try_from(*number).is_ok())
}

/// Returns true for the bytes of a token (RFC 9110, 5.6.2). Uses a table, because every name of
/// every head is checked.
fn is_token(byte: u8) -> bool {
    TOKEN.get(usize::from(byte)).is_some_and(|is_token| *is_token)
}

#[expect(clippy::indexing_slicing, reason = "while compiling, and an index for each byte there can be")]
static TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = u8::MIN;
    loop {
        table[byte as usize] = byte.is_ascii_alphanumeric()
            || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~');
        if byte == u8::MAX {
            break table;
        }
        byte += 1;
    }
};
