//! A request to a provider: a method and a target, lines of its head, a blank line, and the
//! beginning of its body.
#![no_main]

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use libfuzzer_sys::fuzz_target;
use tidegate::dialect::{Denial, Dialect, Head, LONGEST_FORM, TokenBody, signing_key_id};

fuzz_target!(|data: &[u8]| {
    let end = data.windows(2).position(|pair| pair == b"\n\n").unwrap_or(data.len());
    let (head, body) = (&data[..end], data.get(end + 2..).unwrap_or_default());
    let mut lines = head.split(|byte| *byte == b'\n');
    let mut first = lines.next().unwrap_or_default().splitn(2, |byte| *byte == b' ');
    let Ok(method) = Method::from_bytes(first.next().unwrap_or_default()) else { return };
    let Ok(uri) = Uri::try_from(first.next().unwrap_or_default()) else { return };
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    let head = Head { method: &method, uri: &uri, headers: &headers };
    let body = body.get(..LONGEST_FORM).unwrap_or(body);
    for dialect in Dialect::ALL {
        let words = dialect.read(&head, body);
        assert_eq!(words, dialect.read(&head, body));
        assert!(dialect != Dialect::Plain || words.service.is_empty() && words.action.is_empty());
        assert!(dialect == Dialect::Aws || !dialect.wants_body(&head));
        let Some(form) = dialect.form(&head, &words) else { continue };
        let message = std::str::from_utf8(body).unwrap_or_default();
        let denial = Denial {
            status: StatusCode::TOO_MANY_REQUESTS,
            throttled: true,
            message,
            retry_after: Some(Duration::from_millis(body.len() as u64)),
            request_id: "tidegate-0",
            as_secondary_limit: false,
        };
        let written = form.write(&denial, &method);
        assert!(method != Method::HEAD || written.body.is_empty(), "HEAD has no body");
        assert!(!written.headers.is_empty());
    }
    let _key = signing_key_id(&uri, &headers);
    if let Some(kind) = TokenBody::of(&headers) {
        let kept = kind.without_tokens(body);
        assert!(kept.len() <= body.len() * 6 + 2, "what is left out makes nothing longer but by escapes");
    }
});
