//! The beginning of a compressed body, uncompressed.
//!
//! At most [`PEEK`] bytes are returned, so that a decompression bomb does no harm; a body that was
//! cut is uncompressed as far as it goes. gzip and deflate are read: Go asks for gzip in every
//! call, the SDKs for both. Bodies in br or zstd are not read, nor bodies compressed twice.

use std::borrow::Cow;
use std::io::Read;

use flate2::bufread::{DeflateDecoder, GzDecoder, ZlibDecoder};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use super::PEEK;

/// A readable compression.
#[derive(Clone, Copy)]
pub(super) enum Compression {
    Identity,
    Gzip,
    Deflate,
}

/// Returns true if the compression this head names can be read.
pub fn is_readable(headers: &HeaderMap) -> bool {
    Compression::of(headers).is_some()
}

/// Returns the beginning of a body, uncompressed; empty if its compression cannot be read.
pub fn in_clear<'a>(headers: &HeaderMap, body: &'a [u8]) -> Cow<'a, [u8]> {
    if body.is_empty() {
        return Cow::Borrowed(body); // the usual case: no signal wants it
    }
    Compression::of(headers).map_or(Cow::Borrowed(b""), |coding| coding.in_clear(body))
}

/// Uncompresses as far as input and room go. The error at the cut is expected.
fn inflate(decoder: impl Read) -> Cow<'static, [u8]> {
    let mut clear = Vec::with_capacity(PEEK);
    drop(decoder.take(PEEK as u64).read_to_end(&mut clear));
    Cow::Owned(clear)
}

/// Returns true if a body begins with a zlib header, as RFC 9110's `deflate` does. Some servers
/// omit it.
fn has_zlib_head(body: &[u8]) -> bool {
    matches!(body, [how, check, ..] if how & 0xf == 8 && u16::from_be_bytes([*how, *check]) % 31 == 0)
}

// === impl Compression ===

impl Compression {
    /// Returns the beginning of a body, uncompressed.
    pub(super) fn in_clear(self, body: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Self::Identity => Cow::Borrowed(body),
            Self::Gzip => inflate(GzDecoder::new(body)),
            Self::Deflate if has_zlib_head(body) => inflate(ZlibDecoder::new(body)),
            Self::Deflate => inflate(DeflateDecoder::new(body)),
        }
    }

    /// Returns the compression this head names, if it can be read.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut fields = headers.get_all(CONTENT_ENCODING).iter();
        let Some(coding) = fields.next() else { return Some(Self::Identity) };
        let coding = coding.as_bytes().trim_ascii();
        let is = |names: &[&[u8]]| names.iter().any(|name| coding.eq_ignore_ascii_case(name));
        match fields.next() {
            Some(_) => None,
            None if is(&[b"", b"identity"]) => Some(Self::Identity),
            None if is(&[b"gzip", b"x-gzip"]) => Some(Self::Gzip),
            None if is(&[b"deflate"]) => Some(Self::Deflate),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use miniz_oxide::deflate::{compress_to_vec, compress_to_vec_zlib};
    use proptest::prelude::*;

    use super::*;

    const EXTRA: u8 = 1 << 2;
    const NAME: u8 = 1 << 3;
    const COMMENT: u8 = 1 << 4;

    fn coded(codings: &[&str]) -> HeaderMap {
        codings.iter().map(|coding| (CONTENT_ENCODING, HeaderValue::from_str(coding).unwrap())).collect()
    }

    fn gzip(flags: u8, fields: &[u8], text: &[u8]) -> Vec<u8> {
        [&[0x1f, 0x8b, 8, flags, 0, 0, 0, 0, 0, 3], fields, &compress_to_vec(text, 6)].concat()
    }

    const TEXT: &[u8] = br#"{"message":"You have exceeded a secondary rate limit."}"#;

    #[test]
    fn every_form_of_gzip_and_deflate_is_read() {
        for (coding, body) in [
            ("", TEXT.to_vec()),
            ("identity", TEXT.to_vec()),
            ("gzip", gzip(0, b"", TEXT)),
            (" X-GZip ", gzip(0, b"", TEXT)),
            ("gzip", gzip(EXTRA, b"\x03\x00abc", TEXT)),
            ("gzip", gzip(NAME | COMMENT, b"name\0comment\0", TEXT)),
            ("gzip", gzip(EXTRA | NAME, b"\x01\x00x\0", TEXT)),
            ("gzip", [gzip(0, b"", TEXT), vec![0; 8]].concat()),
            ("deflate", compress_to_vec_zlib(TEXT, 6)),
            ("deflate", compress_to_vec(TEXT, 6)),
        ] {
            assert_eq!(*in_clear(&coded(&[coding]), &body), *TEXT, "{coding} {body:?}");
        }
        assert_eq!(*in_clear(&HeaderMap::new(), TEXT), *TEXT);
    }

    #[test]
    fn what_is_coded_in_another_way_says_nothing() {
        for codings in [&["br"][..], &["zstd"], &["gzip, gzip"], &["gzip", "gzip"], &["gzip", "identity"], &["gzipped"]]
        {
            assert!(in_clear(&coded(codings), TEXT).is_empty() && !is_readable(&coded(codings)), "{codings:?}");
        }
        for body in [
            &b"{}"[..],
            b"\x1f\x8b\x08",
            b"\x1f\x8b\x08\x04\0\0\0\0\0\x03\xff\xff",
            b"\x1f\x8b\x08\x08\0\0\0\0\0\x03name",
        ] {
            assert!(in_clear(&coded(&["gzip"]), body).is_empty(), "{body:?}");
        }
    }

    #[test]
    fn a_bomb_comes_to_no_more_than_is_looked_at() {
        let zeros = vec![0; 64 << 20];
        for (coding, body) in [
            ("gzip", gzip(0, b"", &zeros)),
            ("deflate", compress_to_vec_zlib(&zeros, 9)),
            ("gzip", gzip(0, b"", &gzip(0, b"", &zeros))),
        ] {
            let beginning = body.get(..PEEK).unwrap_or(&body);
            let clear = in_clear(&coded(&[coding]), beginning);
            assert!(clear.len() <= PEEK, "{} bytes", clear.len());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_beginning_of_a_body_gives_the_beginning_of_its_text(
            words in proptest::collection::vec("[a-z]{1,9}", 0..2000), cut in 0_usize..9000, zlib: bool,
        ) {
            let text = words.join(" ").into_bytes();
            let (coding, body) =
                if zlib { ("deflate", compress_to_vec_zlib(&text, 6)) } else { ("gzip", gzip(0, b"", &text)) };
            let whole = in_clear(&coded(&[coding]), &body);
            prop_assert_eq!(&*whole, text.get(..PEEK).unwrap_or(&text));
            let part = in_clear(&coded(&[coding]), body.get(..cut).unwrap_or(&body));
            prop_assert!(text.starts_with(&part));
        }

        #[test]
        fn any_bytes_are_survived(body in proptest::collection::vec(any::<u8>(), 0..5000), head: bool, zlib: bool) {
            let coding = if zlib { "deflate" } else { "gzip" };
            let body = if head { [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3][..], &body].concat() } else { body };
            prop_assert!(in_clear(&coded(&[coding]), &body).len() <= PEEK);
        }
    }
}
