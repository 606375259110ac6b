//! Request lines that hyper cannot parse as they are.
//!
//! `http::Uri` accepts 65,534 bytes at most, no `"`, `<` or `>` in a query, no `<`, `>` or backtick
//! in a path, and only UTF-8. A target longer than [`LONGEST`] is cut to a length that is still too
//! long, so that [`super::super::request`] answers 414. Other bytes are percent-encoded, which
//! means the same to the server. A CONNECT of HTTP/1.0 becomes one of HTTP/1.1, so that its answer is
//! of that version, too.

/// The longest target the gate accepts. hyper takes a little more, so that a cut target is
/// recognized.
pub(in crate::proxy::guard) const LONGEST: usize = 65_500;

/// Returns true if hyper can parse a complete request line unchanged.
pub(super) fn is_plain(line: &[u8]) -> bool {
    let is_special = |byte: u8| (byte == b'"') | (byte == b'<') | (byte == b'>') | (byte == b'`');
    let found = line
        .iter()
        .fold((false, false), |(special, ascii), byte| (special | is_special(*byte), ascii | !byte.is_ascii()));
    let is_old_connect = line.starts_with(CONNECT) && line.ends_with(b" HTTP/1.0\r\n");
    line.len() <= LONGEST
        && !is_old_connect
        && (found == (false, false) || (found == (false, true) && str::from_utf8(line).is_ok()))
}

/// Returns a complete request line in a form hyper can parse.
pub(super) fn carried(line: &[u8]) -> Vec<u8> {
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let (Some(method), Some(target), Some(version)) = (words.next(), words.next(), words.next()) else {
        return line.to_vec(); // a fault
    };
    let mut carried = [method, b" "].concat();
    let end = carried.len() + LONGEST;
    let mut is_query = false;
    for chunk in target.utf8_chunks() {
        for character in chunk.valid().chars() {
            if carried.len() > end {
                break;
            }
            is_query |= character == '?';
            match character {
                '<' | '>' => encode(character as u8, &mut carried),
                '`' if !is_query => encode(b'`', &mut carried),
                '"' if is_query => encode(b'"', &mut carried),
                _ => carried.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        for byte in chunk.invalid() {
            if carried.len() <= end {
                encode(*byte, &mut carried);
            }
        }
    }
    let version = if line.starts_with(CONNECT) && version == b"HTTP/1.0\r" { b"HTTP/1.1\r" } else { version };
    [carried.as_slice(), b" ", version].concat()
}

fn encode(byte: u8, carried: &mut Vec<u8>) {
    carried.extend_from_slice(format!("%{byte:02X}").as_bytes());
}

const CONNECT: &[u8] = b"CONNECT ";

#[cfg(test)]
mod tests {
    use http::uri::PathAndQuery;

    use super::*;

    #[test]
    fn every_byte_that_may_stand_in_a_line_is_carried_as_it_is_or_percent_encoded() {
        for byte in (b'!'..=b'~').filter(|byte| !b"#".contains(byte)) {
            for (before, what) in [("/a", "path"), ("/a?b=", "query")] {
                let raw = [before.as_bytes(), &[byte]].concat();
                let line = [b"GET ".as_slice(), &raw, b" HTTP/1.1\r\n"].concat();
                let got = carried(&line);
                let target = got.split(|byte| *byte == b' ').nth(1).expect("a target");
                assert!(PathAndQuery::try_from(target).is_ok(), "{} in a {what}", char::from(byte));
                let decoded: Vec<u8> = percent_encoding::percent_decode(target).collect();
                assert!(target == raw || (decoded == raw && !is_plain(&line)), "{} in a {what}", char::from(byte));
                assert_eq!(target == raw, PathAndQuery::try_from(raw.as_slice()).is_ok());
            }
        }
    }

    #[test]
    fn bytes_that_are_no_character_are_percent_encoded_and_characters_pass() {
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
            assert_eq!(carried(&line), expected, "{:?}", String::from_utf8_lossy(raw));
            assert_eq!(is_plain(&line), line == expected);
        }
    }

    #[test]
    fn a_target_that_is_too_long_is_cut_where_a_character_ends_and_stays_too_long() {
        for unit in ["x", "é", "\u{10ffff}", "<", "?\""] {
            for over in 1..200_usize {
                let times = (LONGEST + over * over).div_ceil(unit.len());
                let line = format!("GET /{} HTTP/1.1\r\n", unit.repeat(times));
                let got = String::from_utf8(carried(line.as_bytes())).expect("whole characters");
                let target =
                    got.strip_prefix("GET ").and_then(|got| got.strip_suffix(" HTTP/1.1\r\n")).expect("a line");
                assert!((LONGEST + 1..65_534).contains(&target.len()), "{}", target.len());
                PathAndQuery::try_from(target).expect("hyper takes it");
            }
        }
        let longest = format!("GET /{} HTTP/1.1\r\n", "x".repeat(LONGEST - 1));
        assert_eq!(carried(longest.as_bytes()), longest.as_bytes());
    }
}
