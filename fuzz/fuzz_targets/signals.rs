//! What an upstream says about itself: lines of a response head, a blank line, and the beginning of its body.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use libfuzzer_sys::fuzz_target;
use tidegate::api::{Failures, outcome, plain, retry_after};

/// Every parser of signals has its line here.
fn all(status: StatusCode, headers: &HeaderMap, _body: &[u8]) {
    let after = retry_after::read(headers);
    let said = headers.contains_key("retry-after");
    assert!(said || after.is_none(), "nobody asked to wait");
    let failures = Failures { statuses: vec![429, 500, 503], transport: true };
    let call = plain::read(&Method::GET, &Uri::from_static("/a"));
    let lost = outcome::lost(&failures, &call);
    assert!(lost.status.is_none() && !status.is_informational() || status.is_informational());
}

fuzz_target!(|data: &[u8]| {
    let end = data.windows(2).position(|pair| pair == b"\n\n").unwrap_or(data.len());
    let (head, body) = (&data[..end], data.get(end + 2..).unwrap_or_default());
    let mut lines = head.split(|byte| *byte == b'\n');
    let status = lines.next().and_then(|line| StatusCode::from_bytes(line).ok()).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(line[colon + 1..].trim_ascii()));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    all(status, &headers, body);
});
