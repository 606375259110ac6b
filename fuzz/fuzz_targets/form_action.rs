//! The beginning of a form: the action that is read must be the one that a server would take.
#![no_main]

use http::{HeaderMap, HeaderValue, Method, Uri, header::CONTENT_TYPE};
use libfuzzer_sys::fuzz_target;
use tidegate::dialect::{Dialect, Head};

fuzz_target!(|body: &[u8]| {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
    let uri = Uri::from_static("/");
    let words = Dialect::Aws.read(&Head { method: &Method::POST, uri: &uri, headers: &headers }, body);
    let Ok(text) = std::str::from_utf8(body) else { return };
    // The slow way: the first field of this name, decoded byte by byte.
    let field = text.split('&').find_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name) == b"Action").then(|| String::from_utf8_lossy(&decoded(value)).into_owned())
    });
    assert_eq!(words.action, field.unwrap_or_default());
});

fn decoded(text: &str) -> Vec<u8> {
    let (bytes, mut at) = (text.as_bytes(), 0);
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut out = Vec::new();
    while let Some(byte) = bytes.get(at) {
        match (byte, digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push((high << 4 | low) as u8);
                at += 2;
            }
            (b'+', ..) => out.push(b' '),
            (other, ..) => out.push(*other),
        }
        at += 1;
    }
    out
}
