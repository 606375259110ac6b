//! An upstream's signals about its own limits: a status, lines of its head, a blank line, and the
//! beginning of its body.
#![no_main]

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::CONTENT_ENCODING};
use libfuzzer_sys::fuzz_target;
use tidegate::api::PauseLength;
use tidegate::api::signals::{PEEK, Response, Signal, Signals, in_clear, read, wants_body};

/// Reads them for each family alone, then for all together.
fn all(status: StatusCode, headers: &HeaderMap, body: &[u8], wall: Option<SystemTime>) {
    let clear = in_clear(headers, body);
    assert!(clear.len() <= PEEK, "a bomb");
    let response = Response { status, headers, body: &clear, wall };
    let sets = Signal::ALL.into_iter().map(|signal| vec![signal]).chain([Signal::ALL.to_vec()]);
    for set in sets {
        let honoured: Signals = set.iter().copied().collect();
        let _wants = wants_body(honoured, status, headers);
        for reserve in [0.0, 0.1, 0.999] {
            let reading = read(honoured, reserve, &response);
            assert_eq!(reading, read(honoured, reserve, &response));
            for signal in reading.refused.map(|found| found.0).into_iter().chain(reading.spent.map(|found| found.0)) {
                assert!(set.contains(&signal), "{signal:?} was not asked for");
            }
            if let Some((_, refused)) = reading.refused {
                assert!(
                    !matches!(refused.wait, PauseLength::Growing { first, most } if first > most || first.is_zero())
                );
                assert!(!status.is_success() && !status.is_informational(), "{status} refuses nothing: {refused:?}");
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let end = data.windows(2).position(|pair| pair == b"\n\n").unwrap_or(data.len());
    let (head, body) = (&data[..end], data.get(end + 2..).unwrap_or_default());
    let mut lines = head.split(|byte| *byte == b'\n');
    let status = lines.next().and_then(|line| StatusCode::from_bytes(line).ok());
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    let (status, body) = (status.unwrap_or(StatusCode::TOO_MANY_REQUESTS), body.get(..PEEK).unwrap_or(body));
    for wall in [None, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_563_325_077))] {
        all(status, &headers, body, wall);
    }
    // The same body, compressed.
    for coding in ["gzip", "deflate"] {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
        all(status, &headers, body, None);
        let member = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3], body].concat();
        all(status, &headers, &member, None);
    }
});
