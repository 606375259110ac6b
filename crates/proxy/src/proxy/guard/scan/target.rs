//! A request line on its way to hyper, where it is not one that hyper can take as it came.
//!
//! `http::Uri` carries 65,534 bytes at most, no `"`, `<` or `>` in a query, no `<`, `>` or backtick
//! in a path, and nothing that is not UTF-8. A target that is longer than [`LONGEST`] reaches hyper
//! cut, but still longer than that, so that [`super::super::request`] answers 414; the rest is read
//! and dropped. The bytes that cannot be carried are percent-encoded, which means the same to the
//! server.

use std::borrow::Cow;
use std::mem::take;

/// The longest target that the gate takes. hyper takes a little more, which tells a cut one.
pub(in crate::proxy::guard) const LONGEST: usize = 65_500;

/// The progress in a request line that reaches hyper in pieces, or changed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Target {
    part: Part,
    /// The bytes of the target that went to hyper.
    len: usize,
    /// The target was too long, and its rest is dropped.
    is_cut: bool,
    /// The bytes of a character that has not come whole.
    begun: Begun,
}

/// The first bytes of a character of UTF-8: three at most, which begin with one that is not zero.
#[derive(Clone, Copy, Debug, Default)]
struct Begun([u8; 3], usize);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Method,
    Path,
    Query,
    /// Everything after the target.
    Version,
}

/// True if hyper can take a whole request line as it is.
pub(super) fn is_plain(line: &[u8]) -> bool {
    let is_special = |byte: u8| (byte == b'"') | (byte == b'<') | (byte == b'>') | (byte == b'`');
    let found = line
        .iter()
        .fold((false, false), |(special, ascii), byte| (special | is_special(*byte), ascii | !byte.is_ascii()));
    line.len() <= LONGEST && (found == (false, false) || (found == (false, true) && str::from_utf8(line).is_ok()))
}

impl Target {
    /// Returns the next bytes of the line as hyper is to get them.
    pub(super) fn carry<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let mut carried = Vec::with_capacity(bytes.len() + 8);
        for byte in bytes {
            self.push(*byte, &mut carried);
        }
        if carried == bytes { Cow::Borrowed(bytes) } else { Cow::Owned(carried) }
    }

    fn push(&mut self, byte: u8, carried: &mut Vec<u8>) {
        match (self.part, byte) {
            (Part::Method, b' ') => self.part = Part::Path,
            (Part::Method | Part::Version, _) => {}
            // The line's end: the fault of a line without a version is found when it is read.
            (_, b' ' | b'\r' | b'\n') => {
                self.break_off(carried);
                self.part = Part::Version;
            }
            (Part::Path | Part::Query, _) => return self.push_target(byte, carried),
        }
        carried.push(byte);
    }

    /// Takes a byte of the target. Each character passes once it is whole.
    fn push_target(&mut self, byte: u8, carried: &mut Vec<u8>) {
        let Begun(start, length) = self.begun;
        let mut all = [start[0], start[1], start[2], 0];
        if let Some(next) = all.get_mut(length) {
            *next = byte;
        }
        let all = all.get(..=length).unwrap_or_default();
        match str::from_utf8(all) {
            Ok(_) => {
                self.begun = Begun::default();
                self.emit(all, carried);
            }
            Err(error) if error.error_len().is_none() => self.begun.push(byte),
            Err(_) if length == 0 => self.emit_encoded(byte, carried),
            Err(_) => {
                self.break_off(carried);
                self.push_target(byte, carried);
            }
        }
    }

    /// Passes the bytes on of a character that does not come whole.
    fn break_off(&mut self, carried: &mut Vec<u8>) {
        let Begun(start, length) = take(&mut self.begun);
        start.iter().take(length).for_each(|byte| self.emit_encoded(*byte, carried));
    }

    fn emit_encoded(&mut self, byte: u8, carried: &mut Vec<u8>) {
        let digit = |value: u8| *b"0123456789ABCDEF".get(usize::from(value)).unwrap_or(&b'0');
        self.emit(&[b'%', digit(byte >> 4), digit(byte & 15)], carried);
    }

    /// Passes a whole character on, or one byte encoded, which is not cut in half.
    fn emit(&mut self, character: &[u8], carried: &mut Vec<u8>) {
        self.is_cut |= self.len > LONGEST;
        if self.is_cut {
            return;
        }
        let before = carried.len();
        match (self.part, character) {
            (_, b"<") => carried.extend_from_slice(b"%3C"),
            (_, b">") => carried.extend_from_slice(b"%3E"),
            (Part::Path, b"`") => carried.extend_from_slice(b"%60"),
            (Part::Query, b"\"") => carried.extend_from_slice(b"%22"),
            _ => carried.extend_from_slice(character),
        }
        self.len += carried.len() - before;
        if character == b"?" {
            self.part = Part::Query;
        }
    }
}

// === impl Begun ===

impl Begun {
    fn push(&mut self, byte: u8) {
        if let Some(next) = self.0.get_mut(self.1) {
            (*next, self.1) = (byte, self.1 + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::uri::PathAndQuery;

    use super::*;

    /// The bytes that hyper gets of a line that comes in pieces of this length.
    fn carried(line: &[u8], piece: usize) -> Vec<u8> {
        let mut target = Target::default();
        line.chunks(piece).flat_map(|piece| target.carry(piece).into_owned()).collect()
    }

    #[test]
    fn every_byte_that_may_stand_in_a_line_is_carried_as_it_is_or_percent_encoded() {
        for byte in (b'!'..=b'~').filter(|byte| !b"#".contains(byte)) {
            for (before, what) in [("/a", "path"), ("/a?b=", "query")] {
                let raw = [before.as_bytes(), &[byte]].concat();
                let line = [b"GET ".as_slice(), &raw, b" HTTP/1.1\r\n"].concat();
                let got = carried(&line, 3);
                assert_eq!(got, carried(&line, 100));
                let target = got.split(|byte| *byte == b' ').nth(1).expect("a target");
                assert!(PathAndQuery::try_from(target).is_ok(), "{} in a {what}", char::from(byte));
                let decoded: Vec<u8> = percent_encoding::percent_decode(target).collect();
                assert!(target == raw || (decoded == raw && !is_plain(&line)), "{} in a {what}", char::from(byte));
                assert_eq!(target == raw, PathAndQuery::try_from(raw.as_slice()).is_ok());
            }
        }
    }

    #[test]
    fn bytes_that_are_no_character_are_percent_encoded_and_characters_pass_however_they_are_cut() {
        for (raw, expected) in [
            (&b"/a\xff/b"[..], &b"/a%FF/b"[..]),
            ("/\u{e9}\u{20ac}?\u{10ffff}".as_bytes(), "/\u{e9}\u{20ac}?\u{10ffff}".as_bytes()),
            (b"/\xc3", b"/%C3"),
            (b"/\xc3/", b"/%C3/"),
            (b"/\xc3<", b"/%C3%3C"),
            (b"/\xc3?`\"", b"/%C3?`%22"),
            (b"/\xc3\xc3\xa9", b"/%C3\xc3\xa9"),
            (b"/\xe2\x82/\xe2\x82\xac", b"/%E2%82/\xe2\x82\xac"),
            (b"/\xed\xa0\x80", b"/%ED%A0%80"),
            (b"/\xc0\xaf?\xf0\x9f\x98", b"/%C0%AF?%F0%9F%98"),
            (b"/\x80\xf4\x90\x80\x80", b"/%80%F4%90%80%80"),
        ] {
            let line = [b"GET ".as_slice(), raw, b" HTTP/1.1\r\n"].concat();
            let expected = [b"GET ".as_slice(), expected, b" HTTP/1.1\r\n"].concat();
            for piece in 1..=line.len() {
                assert_eq!(carried(&line, piece), expected, "{:?} in {piece}", String::from_utf8_lossy(raw));
            }
            assert_eq!(is_plain(&line), line == expected);
        }
    }

    #[test]
    fn a_target_that_is_too_long_is_cut_where_a_character_ends_and_stays_too_long() {
        for (unit, piece) in [("x", 16_384), ("é", 1_000), ("\u{10ffff}", 777), ("<", 4_096), ("?\"", 1)] {
            for over in 1..200_usize {
                let times = (LONGEST + over * over).div_ceil(unit.len());
                let line = format!("GET /{} HTTP/1.1\r\n", unit.repeat(times));
                let got = String::from_utf8(carried(line.as_bytes(), piece)).expect("whole characters");
                let target =
                    got.strip_prefix("GET ").and_then(|got| got.strip_suffix(" HTTP/1.1\r\n")).expect("a line");
                assert!((LONGEST + 1..65_534).contains(&target.len()), "{}", target.len());
                PathAndQuery::try_from(target).expect("hyper takes it");
                if over > 5 && piece < 500 {
                    break; // byte by byte it takes long
                }
            }
        }
        let longest = format!("GET /{} HTTP/1.1\r\n", "x".repeat(LONGEST - 1));
        assert_eq!(carried(longest.as_bytes(), 16_384), longest.as_bytes());
    }
}
