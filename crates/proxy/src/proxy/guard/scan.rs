//! Scans HTTP/1 before hyper parses it, and refuses requests that two programs could read
//! differently.
//!
//! hyper forgives what RFC 9112 lets a server forgive: a bare LF, a Content-Length beside a
//! Transfer-Encoding, a fragment in the target. The upstream never sees these (hyper writes its own
//! bytes for what it forwards), but a proxy before or behind this one might read them otherwise,
//! and then one client's bytes become part of another's request.
//!
//! The scanner is a value: bytes go in, and out comes how many of them may pass. It does no I/O,
//! and buffers only a line that comes in pieces. A request line passes whole.

mod fault;
mod syntax;
mod target;

use http::HeaderName;
use memchr::memchr;

pub(crate) use self::fault::Fault;
use self::syntax::{Header, checked, chunk_size, header, number, request_line};
pub(super) use self::target::LONGEST as LONGEST_TARGET;
use self::target::{carried, is_plain};

/// Scans the bytes coming in on one connection.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    at: At,
    head: Head,
    /// The line being received.
    line: PartialLine,
    /// The bytes to give hyper in place of those just scanned, if they must be changed.
    replaced: Option<Vec<u8>>,
    /// The most header lines of any head so far.
    most_lines: usize,
}

/// The beginning of a line being received. What matters in a long line is there; the rest is not
/// stored here, because hyper's buffer has it already.
#[derive(Debug, Default)]
struct PartialLine {
    start: Vec<u8>,
    /// The number of bytes after the stored beginning, and the last of these bytes, which is not
    /// checked yet.
    more: Option<(usize, u8)>,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    /// The next byte belongs to a request line, or to what comes before it.
    #[default]
    Start,
    /// The next byte belongs to a header line.
    Header,
    /// The next byte belongs to a body of known length, with this many bytes left.
    Body(u64),
    /// The next byte belongs to the line with the size of the next chunk.
    ChunkSize,
    /// The next byte belongs to a chunk, with this many bytes left, its line end included.
    Chunk(u64),
    /// The next byte belongs to a line after the last chunk.
    Trailer,
    /// The next byte is the first after a request for another protocol or a tunnel: it belongs to
    /// that, or to the next request, depending on the response.
    Switching,
}

/// What was found in one request head.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    is_old: bool,
    length: Option<u64>,
    /// The head has a Connection header.
    connection: bool,
    /// The body comes in chunks.
    chunked: bool,
    /// The request asks for another protocol, or for a tunnel.
    switches: bool,
    /// The number of header lines.
    lines: usize,
    /// The number of bytes so far.
    bytes: usize,
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScanResult {
    /// The number of bytes hyper may have.
    pub(crate) passed: usize,
    /// What happens to the remaining bytes.
    pub(crate) rest: Rest,
}

/// What happens to the bytes hyper may not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// No bytes are left.
    None,
    /// The bytes wait for [`Scanner::stay`].
    Held,
    /// This many of the bytes are replaced by [`Scanner::take_replaced`]; those after them must be
    /// scanned again.
    Replaced(usize),
    /// The bytes are refused and never read.
    Refused(Fault),
}

/// The most bytes of a head, as hyper is told; kube-apiserver takes 1 MiB.
pub(crate) const HEAD_BYTES: usize = (1 << 20) + (64 << 10);
/// The most bytes of a head to pass on, less the bytes that end a cut head.
const LARGEST_HEAD: usize = HEAD_BYTES - (4 << 10);
/// The most header lines, a little below what a `HeaderMap` holds. kube-apiserver counts bytes
/// alone.
pub(crate) const MOST_LINES: usize = 24_000;
/// The header at the end of a cut head. A client sending it is turned away too.
pub(crate) static CUT: HeaderName = HeaderName::from_static("tidegate-head-cut");
/// The longest line: as long as a head may be.
const LONGEST_LINE: usize = HEAD_BYTES;
/// The longest beginning of a line that is stored and checked. It has room for the longest target
/// with method and version, and for any header's name.
const KEPT: usize = 66 << 10;

// === impl Scanner ===

impl Scanner {
    /// Scans the next bytes.
    pub(crate) fn scan(&mut self, bytes: &[u8]) -> ScanResult {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            match self.step(rest) {
                Ok(0) => return ScanResult { passed: at, rest: Rest::Held },
                Ok(taken) if self.replaced.is_some() => return ScanResult { passed: at, rest: Rest::Replaced(taken) },
                Ok(taken) => at += taken,
                // Whatever led to the fault may pass up to here: no head ends in it.
                Err(fault) => return ScanResult { passed: at, rest: Rest::Refused(fault) },
            }
        }
        ScanResult { passed: bytes.len(), rest: Rest::None }
    }

    /// Returns the bytes to give hyper in place of the replaced ones; there may be none.
    pub(crate) fn take_replaced(&mut self) -> Vec<u8> {
        self.replaced.take().unwrap_or_default()
    }

    /// Returns the bytes to give hyper in place of the rest of a head that is too large. They end
    /// the line and the head, and have the request refused.
    pub(crate) fn cut(&self) -> Vec<u8> {
        let PartialLine { start, more } = &self.line;
        let last = more.map_or(start.last().copied(), |(_, last)| Some(last));
        let line_end = match last {
            None => "",
            Some(b'\r') => "\n",
            Some(_) if start.contains(&b':') => "\r\n",
            Some(_) => ":\r\n",
        };
        format!("{line_end}{CUT}: 1\r\n\r\n").into()
    }

    /// Returns the most header lines of any head so far.
    pub(crate) fn most_lines(&self) -> usize {
        self.most_lines.max(self.head.lines)
    }

    /// Records that a request for another protocol or a tunnel was not granted.
    pub(crate) fn stay(&mut self) {
        if self.at == At::Switching {
            self.at = At::Start;
        }
    }

    /// Returns true if a head has begun and not ended.
    pub(crate) fn is_in_head(&self) -> bool {
        self.at == At::Header || (self.at == At::Start && !self.line.is_empty())
    }

    /// Returns true if no request is incomplete.
    pub(crate) fn is_between_requests(&self) -> bool {
        self.at == At::Start && self.line.is_empty()
    }

    /// Scans some of the bytes and returns how many. Returns 0 if they must wait until the upstream
    /// has answered a request for another protocol.
    fn step(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        match self.at {
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

    /// Scans bytes of a chunk's data, or of the line end after it.
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

    /// Scans a line, or a piece of one.
    fn line(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        let end = memchr(b'\n', bytes);
        let (piece, _) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        if self.at == At::Header {
            self.head.bytes += piece.len();
            let is_more = self.line.is_empty() && self.head.lines == MOST_LINES && !piece.starts_with(b"\r");
            if is_more || self.head.bytes > LARGEST_HEAD {
                return Err(Fault::TooLarge);
            }
        }
        if self.at != At::Start || (self.line.is_empty() && piece.ends_with(b"\n") && is_plain(piece)) {
            self.piece(piece)?;
        } else {
            self.start_line(piece)?;
        }
        Ok(piece.len())
    }

    /// Scans a piece of a request line. hyper gets a request line only when it is complete, and in
    /// a form that hyper can parse.
    fn start_line(&mut self, piece: &[u8]) -> Result<(), Fault> {
        self.replaced = Some(Vec::new());
        let Some((b'\n', end)) = piece.split_last() else { return self.line.push(piece) };
        self.line.push(end)?;
        let PartialLine { mut start, more } = std::mem::take(&mut self.line);
        match more {
            None => {}
            Some((_, b'\r')) if memchr(b' ', &start).is_none() => return Err(Fault::TooLong),
            Some((_, b'\r')) => start.extend_from_slice(b" HTTP/1.1\r"), // a target that is too long
            Some(_) => return Err(Fault::LineEnd),
        }
        let line = carried(&start);
        self.whole_line(&line)?;
        self.replaced = Some([line.as_slice(), b"\n"].concat());
        Ok(())
    }

    /// Checks a piece of a line, which includes the LF if the line ends in it.
    fn piece(&mut self, piece: &[u8]) -> Result<(), Fault> {
        let line = piece.strip_suffix(b"\n");
        if let Some(line) = line.filter(|_| self.line.is_empty()) {
            return self.whole_line(line);
        }
        self.line.push(line.unwrap_or(piece))?;
        if self.line.len() > LONGEST_LINE {
            return Err(Fault::TooLong);
        }
        if line.is_none() {
            return Ok(());
        }
        let PartialLine { start, more } = std::mem::take(&mut self.line);
        match more {
            None => self.whole_line(&start),
            Some((_, b'\r')) => self.checked_line(checked(&start)?),
            Some(_) => Err(Fault::LineEnd),
        }
    }

    /// Checks a complete line without its LF.
    fn whole_line(&mut self, line: &[u8]) -> Result<(), Fault> {
        let Some((b'\r', line)) = line.split_last() else {
            return Err(Fault::LineEnd);
        };
        self.checked_line(checked(line)?)
    }

    /// Checks a line without its line end, or only its first `KEPT` bytes if it is longer.
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
            // An empty line before a request is none either: RFC 9112, 2.2 would ignore it, but
            // Go's server (kube-apiserver's) does not.
            _ => {
                self.most_lines = self.most_lines();
                let switches = line.starts_with(b"CONNECT ");
                self.head = Head { is_old: request_line(line)?, bytes: line.len(), switches, ..Head::default() };
                At::Header
            }
        };
        Ok(())
    }

    /// Returns what follows after a head: a body, chunks or the next request.
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

// === impl PartialLine ===

impl PartialLine {
    fn is_empty(&self) -> bool {
        self.start.is_empty()
    }

    fn len(&self) -> usize {
        self.start.len() + self.more.map_or(0, |(len, _)| len)
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
        Ok(())
    }
}

// === impl Head ===

impl Head {
    /// Records what a header says; `is_cut` if only the beginning of its value is here.
    fn note(&mut self, Header { name, value }: Header<'_>, is_cut: bool) -> Result<(), Fault> {
        self.lines += 1;
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
            // Of two lines in HTTP/1.0 some readers take the first alone, and do not agree on
            // whether another request follows.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scan(bytes: &str) -> Result<(), Fault> {
        match Scanner::default().scan(bytes.as_bytes()).rest {
            Rest::Refused(fault) => Err(fault),
            Rest::None | Rest::Held | Rest::Replaced(_) => Ok(()),
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
            assert_eq!(scan(good), Ok(()), "{good:?}");
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
            assert_eq!(scan(bad), Err(fault), "{bad:?}");
        }
    }

    #[test]
    fn no_head_ends_in_what_passes_of_a_refused_one() {
        let mut scanner = Scanner::default();
        let good = b"GET / HTTP/1.1\r\n\r\n";
        let bad = b"POST / HTTP/1.1\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n";
        let scanned = scanner.scan(&[&good[..], &bad[..]].concat());
        assert_eq!(scanned, ScanResult { passed: good.len() + bad.len() - 2, rest: Rest::Refused(Fault::Length) });
    }

    #[test]
    fn bytes_after_a_call_that_asks_to_switch_wait_for_its_answer() {
        let head = b"GET /exec HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
        for (after, rest) in
            [(&b"GET / HTTP/1.1\r\n\r\n"[..], Rest::None), (b"\x80\x03 anything\n", Rest::Refused(Fault::LineEnd))]
        {
            let mut scanner = Scanner::default();
            let both = [&head[..], after].concat();
            assert_eq!(scanner.scan(&both), ScanResult { passed: head.len(), rest: Rest::Held });
            assert_eq!(scanner.scan(after), ScanResult { passed: 0, rest: Rest::Held });
            scanner.stay();
            assert_eq!(scanner.scan(after).rest, rest, "{after:?}");
        }
    }

    #[test]
    fn a_head_is_under_way_from_its_first_byte_to_its_last() {
        let mut scanner = Scanner::default();
        for (bytes, within) in [
            ("", false),
            ("G", true),
            ("ET / HTTP/1.1\r\n", true),
            ("Content-Length: 2\r\n", true),
            ("\r\n", false),
            ("ab", false),
        ] {
            scanner.scan(bytes.as_bytes());
            assert_eq!(scanner.is_in_head(), within, "{bytes:?}");
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
            "x: y\r\n",
            "PUT / HTTP/1.1\r\ncontent-length: 5\r\n\r\nabcde",
            " ",
            "\0",
            "#",
        ]);
        prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
    }

    /// The bytes for hyper of a stream cut at these ends, and its end.
    fn given(stream: &[u8], ends: &[usize]) -> (Vec<u8>, Rest) {
        let (mut scanner, mut given, mut from) = (Scanner::default(), Vec::new(), 0);
        for end in ends.iter().map(|end| (*end).min(stream.len())).chain([stream.len()]) {
            while from < end {
                let ScanResult { passed, rest } = scanner.scan(&stream[from..end]);
                given.extend_from_slice(&stream[from..from + passed]);
                from += passed;
                match rest {
                    Rest::Replaced(taken) => {
                        given.extend(scanner.take_replaced());
                        from += taken;
                    }
                    Rest::None => {}
                    rest => return (given, rest),
                }
            }
        }
        (given, Rest::None)
    }

    /// In pieces as they come from a socket, or as one.
    fn scan_in(pieces: usize, bytes: &[u8]) -> (Rest, usize) {
        let mut scanner = Scanner::default();
        let mut most = 0;
        for piece in bytes.chunks(pieces) {
            let mut from = 0;
            while from < piece.len() {
                let ScanResult { passed, rest } = scanner.scan(&piece[from..]);
                most = most.max(scanner.line.start.capacity());
                from += match rest {
                    Rest::None => passed,
                    Rest::Replaced(taken) => passed + taken,
                    rest => return (rest, most),
                };
            }
        }
        (Rest::None, most)
    }

    #[test]
    fn a_control_character_is_found_wherever_it_stands() {
        for byte in 0..=u8::MAX {
            for at in 0..70 {
                let mut line = [b'~'; 70];
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
            (format!("{long} / HTTP/1.1\r\n"), Rest::Refused(Fault::TooLong)),
        ] {
            for pieces in [1 << 21, 16 << 10, 4095] {
                let (rest, most) = scan_in(pieces, bytes.as_bytes());
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
            let whole = scan_in(1 << 20, bytes.as_bytes()).0;
            for pieces in [KEPT - 1, KEPT, KEPT + 1, 16 << 10, 1000] {
                assert_eq!(scan_in(pieces, bytes.as_bytes()).0, whole, "{len} in {pieces}");
            }
        }
    }

    proptest! {
        #[test]
        fn hyper_gets_the_same_of_any_bytes_however_they_are_cut(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    &b"GET /"[..],
                    b" HTTP/1.1\r\n",
                    b"\r\n",
                    b"X: \xc3\xa9\xff\r\n",
                    b"GET /\xe2\x82\xac?<\" HTTP/1.1\r\n\r\n",
                    b"?",
                    b"<",
                    b"`\"",
                    b"\xc3",
                    b"\xa9",
                    b"\xf0\x9f\x8c\x8a",
                    b"\xff",
                    b" ",
                ]),
                0..14,
            ),
            mut cuts in prop::collection::vec(0usize..100, 0..9),
        ) {
            let stream = pieces.concat();
            cuts.sort_unstable();
            let (whole, cut) = (given(&stream, &[]), given(&stream, &cuts));
            prop_assert_eq!(&cut.1, &whole.1);
            // Of a refused head hyper has a part: as much as had come before the fault showed.
            prop_assert!(cut.0 == whole.0 || matches!(cut.1, Rest::Refused(_)), "{:?} {:?}", cut.0, whole.0);
        }

        #[test]
        fn how_bytes_are_cut_makes_no_difference(stream in streams(), cuts in prop::collection::vec(0usize..200, 0..6)) {
            let mut ends = cuts;
            ends.sort_unstable();
            let whole = given(stream.as_bytes(), &[]);
            let cut = given(stream.as_bytes(), &ends);
            // A line in pieces has passed in part when its end shows the fault.
            prop_assert_eq!(cut.1, whole.1);
            prop_assert!(cut.0.starts_with(&whole.0) && stream.as_bytes().starts_with(&cut.0));
        }
    }
}
