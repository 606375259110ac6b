//! The texts of a map in CBOR (RFC 8949) that may be cut off: the errors of Smithy's RPC v2.

/// Returns the text of a key of the map that a document is, but not of maps in it.
pub(super) fn text<'a>(document: &'a [u8], wanted: &str) -> Option<&'a str> {
    let mut reader = Reader { rest: document };
    let (MAP, mut left) = reader.head()? else { return None };
    while left != Some(0) {
        left = left.map(|left| left - 1);
        let key = reader.item()?;
        let value = reader.item()?;
        if key.is_some_and(|key| key == wanted.as_bytes()) {
            return std::str::from_utf8(value?).ok();
        }
    }
    None
}

/// True if a document begins as a map, which no text does.
pub(super) fn is_map(document: &[u8]) -> bool {
    document.first().is_some_and(|first| first >> 5 == MAP)
}

/// Reads items one after the other.
struct Reader<'a> {
    rest: &'a [u8],
}

// === impl Reader ===

impl<'a> Reader<'a> {
    /// Reads an item; returns the text that it is, unless that comes in pieces.
    fn item(&mut self) -> Option<Option<&'a [u8]>> {
        let mut ahead = Reader { rest: self.rest };
        if let (TEXT, Some(length)) = ahead.head()? {
            let text = ahead.take(length)?;
            self.rest = ahead.rest;
            return Some(Some(text));
        }
        self.skip().map(|()| None)
    }

    /// Reads past an item and all that is in it.
    fn skip(&mut self) -> Option<()> {
        // The items that are left of each list and map that has begun; `None` until its end.
        let mut open: Vec<Option<u64>> = Vec::new();
        loop {
            match self.head()? {
                (BYTES | TEXT, Some(length)) => drop(self.take(length)?),
                (LIST, Some(items)) if items > 0 => {
                    open.push(Some(items));
                    continue;
                }
                (MAP, Some(pairs)) if pairs > 0 => {
                    open.push(Some(pairs.checked_mul(2)?));
                    continue;
                }
                (BYTES | TEXT | LIST | MAP, None) => {
                    open.push(None);
                    continue;
                }
                (TAG, Some(_)) => continue, // what it is for follows
                (OTHER, None) if open.pop()?.is_some() => return None,
                (_, Some(_)) | (OTHER, None) => {}
                (_, None) => return None,
            }
            // An item has ended, and with it those that it was the last of.
            loop {
                match open.last_mut() {
                    None => return Some(()),
                    Some(None) => break,
                    Some(Some(left)) if *left > 1 => {
                        *left -= 1;
                        break;
                    }
                    Some(Some(_)) => drop(open.pop()),
                }
            }
        }
    }

    /// Reads the type of an item, and its number or length; `None` if its end is marked instead.
    fn head(&mut self) -> Option<(u8, Option<u64>)> {
        let &[first] = self.take(1)? else { return None };
        let number = match first & 0x1f {
            small @ 0..=23 => Some(u64::from(small)),
            size @ 24..=27 => {
                let bytes = self.take(1 << (size - 24))?;
                Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
            }
            31 => None,
            _ => return None,
        };
        Some((first >> 5, number))
    }

    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(length).ok()?)?;
        self.rest = rest;
        Some(taken)
    }
}

const BYTES: u8 = 2;
const TEXT: u8 = 3;
const LIST: u8 = 4;
const MAP: u8 = 5;
const TAG: u8 = 6;
/// Simple values and floats, and the end of what has no length.
const OTHER: u8 = 7;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_text_is_found_behind_items_of_every_kind() {
        let of = |before: &[u8]| {
            let document = [b"\xa2\x61a", before, b"\x61k\x62ok"].concat();
            text(&document, "k").map(str::to_owned)
        };
        for before in [
            &b"\x17"[..],                           // 23
            b"\x38\xff",                            // a negative number
            b"\x1b\0\0\0\0\0\0\0\x01",              // a number of eight bytes
            b"\x43abc",                             // bytes
            b"\x5f\x41a\x42bc\xff",                 // bytes in pieces
            b"\x7f\xff",                            // a text of no pieces
            b"\x80",                                // an empty list
            b"\xa0",                                // an empty map
            b"\x82\x81\x80\xa1\x61k\x62no",         // lists and a map in a list
            b"\x9f\xbf\x61k\x62no\xff\x9f\xff\xff", // the same without lengths
            b"\xc1\xfb\0\0\0\0\0\0\0\0",            // a time
            b"\xf5",                                // true
        ] {
            assert_eq!(of(before).as_deref(), Some("ok"), "{before:x?}");
        }
        for before in [&b"\xff"[..], b"\x81\xff", b"\x1c", b"\xdf", b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff", b""] {
            assert_eq!(of(before), None, "{before:x?}");
        }
        assert_eq!((text(b"\xa1\x61k\x01", "k"), text(b"\x61k", "k"), text(b"", "k")), (None, None, None));
        assert_eq!(text(b"\xa1\x61k\x61\xff", "k"), None, "no UTF-8");
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let map = [&[0xbf], &bytes[..]].concat();
            prop_assert_eq!(text(&map, "no such key at all"), None);
        }
    }
}
