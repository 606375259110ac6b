//! HTTP/1 as it comes in, examined before hyper parses it: what two readers could take for different requests is turned away.
//!
//! hyper forgives what RFC 9112 lets a server forgive: a bare LF, a Content-Length beside a Transfer-Encoding, a fragment in the target. The
//! upstream never sees these (hyper writes anew what it forwards), but a proxy before or behind this one might read them otherwise, and then
//! one client's bytes become part of another's request. Nothing is buffered here but a line that comes in pieces.

use http::Method;
use memchr::memchr;

/// What comes in on one connection.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    at: At,
    head: Head,
    /// A line whose end has not come.
    line: Piece,
}

/// What there is of a line that comes in pieces. Of a long one only its beginning is kept, where everything is that matters: a header of a
/// megabyte is in hyper's buffer already.
#[derive(Debug, Default)]
struct Piece {
    start: Vec<u8>,
    /// How many bytes came after the start, and the last of them, which is yet to be looked at.
    more: Option<(usize, u8)>,
}

/// Where in a request the next byte stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    /// Before or in the request line.
    #[default]
    Start,
    /// In a header line.
    Header,
    /// In a body of known length: so much is left.
    Body(u64),
    /// In the line that says how long the next chunk is.
    ChunkSize,
    /// In a chunk: so much is left, with its line end.
    Chunk(u64),
    /// In a line after the last chunk.
    Trailer,
    /// After the head of a call that asks for another protocol: what follows is either that protocol or the next request.
    Switching,
    /// Another protocol.
    Switched,
}

/// What is known of a head.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    is_old: bool,
    length: Option<u64>,
    chunked: bool,
    switches: bool,
    /// It has a Connection line.
    connection: bool,
}

/// What came next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Examined {
    /// So many bytes are for hyper.
    pub(crate) passed: usize,
    /// Why the rest is not.
    pub(crate) rest: Rest,
}

/// What becomes of the bytes that do not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// There are none.
    None,
    /// They wait for [`Heads::resolve`].
    Held,
    /// They are never read.
    Refused(Fault),
}

/// What is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// A chunk without a size, or one that does not end where it says.
    #[error("a chunk of the body is malformed")]
    Chunk,
    /// All clients together have more in large heads than there is room for.
    #[error("a large head came while there is no room for another")]
    Crowded,
    /// A control character.
    #[error("a head has a control character in it")]
    Control,
    /// `#` in the target.
    #[error("the request target has a fragment")]
    Fragment,
    /// More than one length, one that is no number, or one beside `Transfer-Encoding`.
    #[error("the length of the body is not said once and clearly")]
    Length,
    /// A line that ends in a bare LF, or has a CR in it.
    #[error("a line does not end in CRLF")]
    LineEnd,
    /// A request line or header that is not formed as one.
    #[error("a line of the head is malformed")]
    Malformed,
    /// A head that does not come to its end in time.
    #[error("a head did not come to its end in time")]
    Slow,
    /// A line that never ends.
    #[error("a line of the head is too long")]
    TooLong,
}

/// As long as hyper takes a whole head.
const LONGEST_LINE: usize = (1 << 20) + (64 << 10);
/// Of a line this much is read: any target that hyper takes fits with method and version, and any header's name.
const KEPT: usize = 66 << 10;

// === impl Heads ===

impl Heads {
    /// Looks at the bytes that came next.
    pub(crate) fn examine(&mut self, bytes: &[u8]) -> Examined {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            match self.step(rest) {
                Ok(0) => return Examined { passed: at, rest: Rest::Held },
                Ok(taken) => at += taken,
                // What led to the fault may pass up to here: no head ends in it.
                Err(fault) => return Examined { passed: at, rest: Rest::Refused(fault) },
            }
        }
        Examined { passed: bytes.len(), rest: Rest::None }
    }

    /// The call that asked for another protocol has its answer.
    pub(crate) fn resolve(&mut self, switched: bool) {
        if self.at == At::Switching {
            self.at = if switched { At::Switched } else { At::Start };
        }
    }

    /// Whether a head has begun and not ended.
    pub(crate) fn is_in_head(&self) -> bool {
        self.at == At::Header || (self.at == At::Start && !self.line.is_empty())
    }

    /// Whether all that came are whole requests.
    pub(crate) fn is_between_requests(&self) -> bool {
        self.at == At::Start && self.line.is_empty()
    }

    /// Takes some bytes; none when they are to be held.
    fn step(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        match self.at {
            At::Switched => Ok(bytes.len()),
            At::Switching => Ok(0),
            At::Body(left) => {
                let taken = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let left = left - taken as u64;
                self.at = if left == 0 { self.after_body() } else { At::Body(left) };
                Ok(taken)
            }
            At::Chunk(left) => self.chunk(bytes, left),
            At::Start | At::Header | At::ChunkSize | At::Trailer => self.line(bytes),
        }
    }

    /// A chunk's data, and the line end after it.
    fn chunk(&mut self, bytes: &[u8], left: u64) -> Result<usize, Fault> {
        if left > 2 {
            let taken = bytes.len().min(usize::try_from(left - 2).unwrap_or(usize::MAX));
            self.at = At::Chunk(left - taken as u64);
            return Ok(taken);
        }
        let expected = if left == 2 { b'\r' } else { b'\n' };
        if bytes.first() != Some(&expected) {
            return Err(Fault::Chunk);
        }
        self.at = if left == 2 { At::Chunk(1) } else { At::ChunkSize };
        Ok(1)
    }

    /// A line, or a piece of one.
    fn line(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        let Some(end) = memchr(b'\n', bytes) else {
            self.line.push(bytes)?;
            return Ok(bytes.len());
        };
        let (line, _) = bytes.split_at(end);
        if self.line.is_empty() {
            self.whole_line(line)?;
        } else {
            self.line.push(line)?;
            let Piece { start, more } = std::mem::take(&mut self.line);
            match more {
                None => self.whole_line(&start)?,
                Some((_, b'\r')) => self.checked_line(checked(&start)?)?,
                Some(_) => return Err(Fault::LineEnd),
            }
        }
        Ok(end + 1)
    }

    /// A line without its LF.
    fn whole_line(&mut self, line: &[u8]) -> Result<(), Fault> {
        let Some((b'\r', line)) = line.split_last() else {
            return Err(Fault::LineEnd);
        };
        self.checked_line(checked(line)?)
    }

    /// A line without its end, or the beginning of one that is longer than what is kept.
    fn checked_line(&mut self, line: &[u8]) -> Result<(), Fault> {
        let (line, is_cut) = line.get(..KEPT).map_or((line, false), |start| (start, true));
        self.at = match self.at {
            At::Start | At::ChunkSize if is_cut => return Err(Fault::TooLong),
            At::ChunkSize => match chunk_size(line)? {
                0 => At::Trailer,
                size => At::Chunk(size.checked_add(2).ok_or(Fault::Chunk)?),
            },
            At::Trailer if line.is_empty() => self.after_body(),
            At::Trailer => header(line).map(|_| At::Trailer)?,
            At::Header if line.is_empty() => self.body()?,
            At::Header => {
                self.head.note(header(line)?, is_cut)?;
                At::Header
            }
            // An empty line before a request is none either, though RFC 9112, 2.2 would ignore it: Go's server, kube-apiserver's, does not.
            _ => {
                self.head = Head { is_old: request_line(line)?, ..Head::default() };
                At::Header
            }
        };
        Ok(())
    }

    /// What follows a head.
    fn body(&self) -> Result<At, Fault> {
        match (self.head.length, self.head.chunked) {
            (Some(_), true) => Err(Fault::Length),
            (None, true) => Ok(At::ChunkSize),
            (Some(length), false) if length > 0 => Ok(At::Body(length)),
            _ => Ok(self.after_body()),
        }
    }

    fn after_body(&self) -> At {
        if self.head.switches { At::Switching } else { At::Start }
    }
}

// === impl Piece ===

impl Piece {
    fn is_empty(&self) -> bool {
        self.start.is_empty()
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let (start, rest) = bytes.split_at(bytes.len().min(KEPT - self.start.len()));
        self.start.extend_from_slice(start);
        if let Some((last, before)) = rest.split_last() {
            let (len, held) = self.more.map_or((0, None), |(len, held)| (len, Some(held)));
            checked(held.as_slice())?;
            checked(before)?;
            self.more = Some((len + rest.len(), *last));
        }
        if KEPT + self.more.map_or(0, |(len, _)| len) > LONGEST_LINE { Err(Fault::TooLong) } else { Ok(()) }
    }
}

// === impl Head ===

impl Head {
    /// A header; of its value only the beginning if it `is_cut`.
    fn note(&mut self, (name, value): (&[u8], &[u8]), is_cut: bool) -> Result<(), Fault> {
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = number(value, 10).filter(|_| !is_cut).ok_or(Fault::Length)?;
            if self.length.replace(length).is_some() {
                return Err(Fault::Length);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if self.chunked || self.is_old || is_cut || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Fault::Length);
            }
            self.chunked = true;
        } else if name.eq_ignore_ascii_case(b"connection") {
            // Of two lines in HTTP/1.0 some readers take the first alone, and do not agree on whether another request follows.
            if self.connection && self.is_old {
                return Err(Fault::Malformed);
            }
            self.connection = true;
        } else if name.eq_ignore_ascii_case(b"expect") && self.is_old {
            // HTTP/1.0 knows no Expect: sent on as HTTP/1.1, it would mean something.
            return Err(Fault::Malformed);
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            self.switches = true;
        }
        Ok(())
    }
}

// === impl Fault ===

impl Fault {
    /// Its word in metrics.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Chunk => "chunk",
            Self::Crowded => "crowded",
            Self::Control => "control",
            Self::Fragment => "fragment",
            Self::Length => "length",
            Self::LineEnd => "line_end",
            Self::Malformed => "malformed",
            Self::Slow => "slow",
            Self::TooLong => "too_long",
        }
    }
}

/// What is in a line, if there is no control character in it but tabs. A token of a kilobyte is in nearly every head: eight bytes are looked
/// at a time, for what is no control character for certain.
fn checked(line: &[u8]) -> Result<&[u8], Fault> {
    let is_control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
    let (words, rest) = line.as_chunks::<8>();
    let suspect = |word: &&[u8; 8]| may_have_control(u64::from_ne_bytes(**word));
    let has_control =
        words.iter().filter(suspect).any(|word| word.iter().any(is_control)) || rest.iter().any(is_control);
    match has_control {
        false => Ok(line),
        true if memchr(b'\r', line).is_some() => Err(Fault::LineEnd),
        true => Err(Fault::Control),
    }
}

/// Whether one of eight bytes may be below 0x20, or 0x7f; false is certain. (A byte below 0x20 borrows when that is taken from it; one that is
/// 0x7f becomes 0 by exclusive or, and borrows when 1 is.)
const fn may_have_control(word: u64) -> bool {
    const ONES: u64 = u64::MAX / 0xff;
    let low = word.wrapping_sub(0x20 * ONES) & !word;
    let other = word ^ (0x7f * ONES);
    let delete = other.wrapping_sub(ONES) & !other;
    (low | delete) & (0x80 * ONES) != 0
}

/// Whether a request line is of HTTP/1.0.
fn request_line(line: &[u8]) -> Result<bool, Fault> {
    let mut parts = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Fault::Malformed);
    };
    if target.contains(&b'#') {
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

/// A header's name, and its value without the white space around it.
fn header(line: &[u8]) -> Result<(&[u8], &[u8]), Fault> {
    let colon = memchr(b':', line).ok_or(Fault::Malformed)?;
    let (name, value) = line.split_at(colon);
    // No space before the colon, and none before the name: that would be a folded line.
    if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
        return Err(Fault::Malformed);
    }
    let value = value.get(1..).unwrap_or_default();
    Ok((name, value.trim_ascii()))
}

/// The size in a chunk's first line.
fn chunk_size(line: &[u8]) -> Result<u64, Fault> {
    let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
    number(size.trim_ascii_end(), 16).ok_or(Fault::Chunk)
}

/// Digits and nothing else, that fit.
fn number(text: &[u8], radix: u32) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    let is_plain = !text.is_empty() && text.chars().all(|c| c.is_digit(radix));
    // `from_str_radix` would take a sign.
    u64::from_str_radix(text, radix).ok().filter(|number| is_plain && i64::try_from(*number).is_ok())
}

/// RFC 9110, 5.6.2.
const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn examine(bytes: &str) -> Result<(), Fault> {
        match Heads::default().examine(bytes.as_bytes()).rest {
            Rest::Refused(fault) => Err(fault),
            Rest::None | Rest::Held => Ok(()),
        }
    }

    #[test]
    fn what_clients_send_passes() {
        for good in [
            "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "GET /a?b=c HTTP/1.0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: Chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nX: \t tabs\tand \u{e9}\r\nEmpty:\r\n\r\n",
            "DELETE / HTTP/1.1\r\nContent-Length: 0\r\n\r\nDELETE / HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(examine(good), Ok(()), "{good:?}");
        }
    }

    #[test]
    fn what_two_readers_could_read_differently_does_not() {
        for (bad, fault) in [
            (
                "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nX",
                Fault::Length,
            ),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", Fault::Length),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n", Fault::Length),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", Fault::Length),
            ("POST / HTTP/1.1\r\nTransfer-Encoding:\x0bchunked\r\n\r\n", Fault::Control),
            ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", Fault::Length),
            ("POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", Fault::Length),
            ("POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n", Fault::Length),
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", Fault::Length),
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", Fault::Length),
            ("POST / HTTP/1.1\r\nContent-Length:\r\n\r\n", Fault::Length),
            ("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", Fault::Length),
            ("GET /a HTTP/1.1\nHost: localhost\n\n", Fault::LineEnd),
            ("GET /a HTTP/1.1\r\nHost: localhost\n\r\n", Fault::LineEnd),
            ("GET /a HTTP/1.1\r\nA: b\rc\r\n\r\n", Fault::LineEnd),
            ("GET /a HTTP/1.1\r\nX-A: 1\r\n 2\r\n\r\n", Fault::Malformed),
            ("GET /a HTTP/1.1\r\nX-A : 1\r\n\r\n", Fault::Malformed),
            ("GET /a HTTP/1.1\r\n: 1\r\n\r\n", Fault::Malformed),
            ("GET /a HTTP/1.1\r\nX: a\x01b\r\n\r\n", Fault::Control),
            ("GET /a HTTP/1.1\r\nX: a\0b\r\n\r\n", Fault::Control),
            ("GET /a#/../b HTTP/1.1\r\n\r\n", Fault::Fragment),
            ("GET  /a HTTP/1.1\r\n\r\n", Fault::Malformed),
            ("\r\nGET /a HTTP/1.1\r\n\r\n", Fault::Malformed),
            ("PUT /a HTTP/1.0\r\nExpect: 100-continue\r\n\r\n", Fault::Malformed),
            ("GET /a HTTP/1.0\r\nConnection: x\r\nConnection: keep-alive\r\n\r\n", Fault::Malformed),
            ("GET /a b HTTP/1.1\r\n\r\n", Fault::Malformed),
            ("GET /a HTTP/2.0\r\n\r\n", Fault::Malformed),
            ("G\u{e9}T /a HTTP/1.1\r\n\r\n", Fault::Malformed),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", Fault::Chunk),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n", Fault::Chunk),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n", Fault::Chunk),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n", Fault::LineEnd),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", Fault::Chunk),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA b: c\r\n\r\n", Fault::Malformed),
        ] {
            assert_eq!(examine(bad), Err(fault), "{bad:?}");
        }
    }

    #[test]
    fn no_head_ends_in_what_passes_of_a_refused_one() {
        let mut heads = Heads::default();
        let good = b"GET / HTTP/1.1\r\n\r\n";
        let bad = b"POST / HTTP/1.1\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n";
        let examined = heads.examine(&[&good[..], &bad[..]].concat());
        assert_eq!(examined, Examined { passed: good.len() + bad.len() - 2, rest: Rest::Refused(Fault::Length) });
    }

    #[test]
    fn bytes_after_a_call_that_asks_to_switch_wait_for_its_answer() {
        let head = b"GET /exec HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
        for (switched, after, rest) in [
            (true, &b"\x80\x03 anything\n"[..], Rest::None),
            (false, b"GET / HTTP/1.1\r\n\r\n", Rest::None),
            (false, b"\x80\x03 anything\n", Rest::Refused(Fault::LineEnd)),
        ] {
            let mut heads = Heads::default();
            let all = [&head[..], after].concat();
            assert_eq!(heads.examine(&all), Examined { passed: head.len(), rest: Rest::Held });
            assert_eq!(heads.examine(after), Examined { passed: 0, rest: Rest::Held });
            heads.resolve(switched);
            assert_eq!(heads.examine(after).rest, rest, "{switched} {after:?}");
        }
    }

    #[test]
    fn a_head_is_under_way_from_its_first_byte_to_its_last() {
        let mut heads = Heads::default();
        for (bytes, within) in [
            ("", false),
            ("G", true),
            ("ET / HTTP/1.1\r\n", true),
            ("Content-Length: 2\r\n", true),
            ("\r\n", false),
            ("ab", false),
        ] {
            heads.examine(bytes.as_bytes());
            assert_eq!(heads.is_in_head(), within, "{bytes:?}");
        }
    }

    /// Pieces of requests, good and bad.
    fn streams() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "GET / HTTP/1.1\r\n",
            "POST /a HTTP/1.1\r\n",
            "Host: h\r\n",
            "Content-Length: 5\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Upgrade: x\r\n",
            "\r\n",
            "\n",
            "5\r\nabcde\r\n",
            "0\r\n",
            "abcde",
            "X: y\r\n",
            " ",
            "\0",
            "#",
        ]);
        prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
    }

    /// In pieces as they come from a socket, or as one.
    fn examine_in(pieces: usize, bytes: &[u8]) -> (Rest, usize) {
        let mut heads = Heads::default();
        let mut most = 0;
        for piece in bytes.chunks(pieces) {
            let rest = heads.examine(piece).rest;
            most = most.max(heads.line.start.capacity());
            if rest != Rest::None {
                return (rest, most);
            }
        }
        (Rest::None, most)
    }

    #[test]
    fn a_control_character_is_found_wherever_it_stands() {
        for byte in 0..=u8::MAX {
            for at in 0..20 {
                let mut line = [b'~'; 20];
                line[at] = byte;
                let is_bad = byte.is_ascii_control() && byte != b'\t';
                assert_eq!(checked(&line).is_err(), is_bad, "{byte} at {at}");
            }
        }
    }

    #[test]
    fn of_a_long_line_little_is_kept() {
        let head = |line: &str| format!("GET / HTTP/1.1\r\n{line}\r\n\r\n");
        let (long, spaces) = ("y".repeat(1 << 20), " ".repeat(KEPT));
        for (bytes, expected) in [
            (head(&format!("X: {long}")), Rest::None),
            (head(&format!("X: {long}\rz")), Rest::Refused(Fault::LineEnd)),
            (head(&format!("X: {long}\0z")), Rest::Refused(Fault::Control)),
            (head(&format!("X: {long}\nz: 1")), Rest::Refused(Fault::LineEnd)),
            (head(&format!("Content-Length: 1{spaces}")), Rest::Refused(Fault::Length)),
            (head(&format!("Transfer-Encoding: chunked{spaces}")), Rest::Refused(Fault::Length)),
            (head(&long), Rest::Refused(Fault::Malformed)),
            (format!("GET /{long} HTTP/1.1\r\n"), Rest::Refused(Fault::TooLong)),
        ] {
            for pieces in [1 << 21, 16 << 10, 4095] {
                let (rest, most) = examine_in(pieces, bytes.as_bytes());
                assert_eq!(rest, expected, "{:?} in {pieces}", bytes.get(..30));
                assert!(most <= 2 * KEPT, "{most}");
            }
        }
    }

    #[test]
    fn lines_about_as_long_as_what_is_kept_are_read_alike_however_they_are_cut() {
        for len in KEPT - 4..KEPT + 4 {
            let name = "Content-Length: 1";
            let bytes = format!("GET / HTTP/1.1\r\n{name}{}\r\n\r\n", " ".repeat(len - name.len()));
            let whole = examine_in(1 << 20, bytes.as_bytes()).0;
            for pieces in [KEPT - 1, KEPT, KEPT + 1, 16 << 10, 1000] {
                assert_eq!(examine_in(pieces, bytes.as_bytes()).0, whole, "{len} in {pieces}");
            }
        }
    }

    proptest! {
        #[test]
        fn how_bytes_are_cut_makes_no_difference(stream in streams(), cuts in prop::collection::vec(0usize..200, 0..6)) {
            let whole = Heads::default().examine(stream.as_bytes());
            let mut heads = Heads::default();
            let (mut passed, mut rest, mut from) = (0, Rest::None, 0);
            let mut ends: Vec<_> = cuts.into_iter().map(|cut| cut.min(stream.len())).collect();
            ends.push(stream.len());
            ends.sort_unstable();
            for end in ends {
                let examined = heads.examine(&stream.as_bytes()[from..end]);
                passed += examined.passed;
                rest = examined.rest;
                from = end;
                if rest != Rest::None {
                    break;
                }
            }
            // A line that comes in pieces has passed in part when its end shows what is wrong with it.
            prop_assert_eq!(rest, whole.rest);
            prop_assert!(passed >= whole.passed && passed <= stream.len());
        }
    }
}
