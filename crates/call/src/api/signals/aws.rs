//! AWS: an error code in a header or the body, with any status and without a time to wait.
//!
//! The codes are botocore's (`botocore/retries/standard.py`), and so is the wait: a random part of
//! 1 s, 2 s, 4 s, ... 20 s. The code is in `x-amzn-errortype`, in `__type` of JSON and CBOR, or in
//! `<Code>` of query services.

use std::time::Duration;

use http::{HeaderMap, StatusCode};

use super::{LimitRefusal, PauseLength, Reach, Response, json};

pub(super) fn wants_body(status: StatusCode, headers: &HeaderMap) -> bool {
    STATUSES.contains(&status.as_u16()) && NAMES.iter().all(|name| !headers.contains_key(*name))
}

pub(super) fn refused(response: &Response<'_>) -> Option<LimitRefusal> {
    let fast = LimitRefusal::growing(Duration::from_secs(1), Duration::from_secs(20)).within(Reach::Charged);
    let refused = match code(response).as_deref() {
        Some(code) if CODES.contains(&code) => fast,
        Some(code) if NARROW.contains(&code) => fast.within(Reach::Key),
        Some(code) if BUSY.contains(&code) => LimitRefusal { overload: false, ..fast.within(Reach::Key) },
        _ if response.status == StatusCode::TOO_MANY_REQUESTS => fast,
        _ => return None,
    };
    Some(response.retry_after().map_or(refused, |wait| LimitRefusal { wait: PauseLength::Known(wait), ..refused }))
}

/// Returns true for a code of too many calls.
pub fn is_throttling(code: &str) -> bool {
    CODES.contains(&code) || NARROW.contains(&code)
}

fn code(response: &Response<'_>) -> Option<String> {
    if !response.status.is_client_error() && !response.status.is_server_error() {
        return None;
    }
    let header = NAMES.iter().find_map(|name| response.headers.get(*name)?.to_str().ok());
    header.map(str::to_owned).or_else(|| in_body(response.body)).map(|code| bare(&code).to_owned())
}

fn in_body(body: &[u8]) -> Option<String> {
    if body.first().is_some_and(|first| first >> 5 == 5) {
        return in_cbor(body);
    }
    let text = body.trim_ascii_start();
    if text.starts_with(b"<") {
        let text = text.utf8_chunks().next()?.valid();
        return Some(text.split_once("<Code>")?.1.split_once("</Code>")?.0.trim().to_owned());
    }
    let mut texts = json::texts(text).into_iter();
    texts.find(|(key, _)| matches!(key.as_str(), "__type" | "code" | "Code")).map(|(_, code)| code)
}

/// Returns the text after `__type` in a CBOR map (RFC 8949).
fn in_cbor(map: &[u8]) -> Option<String> {
    let at = map.windows(TYPE.len()).position(|word| word == TYPE)?;
    let (length, text) = match map.get(at + TYPE.len()..)? {
        [short @ 0x60..=0x77, text @ ..] => (*short - 0x60, text),
        [0x78, length, text @ ..] => (*length, text),
        _ => return None, // no text, or longer than any code
    };
    std::str::from_utf8(text.get(..usize::from(length))?).ok().map(str::to_owned)
}

/// Returns a code without the text around it:
/// `com.amazonaws.dynamodb.v20120810#ThrottlingException:http://...`,
/// `AWS.SimpleQueueService.X;Sender`.
pub(super) fn bare(code: &str) -> &str {
    let code = code.split([':', ';']).next().unwrap_or(code);
    code.rsplit('#').next().unwrap_or(code).trim()
}

const TYPE: &[u8] = b"__type";
/// The headers that may contain a code, read before the body.
pub(super) const NAMES: [&str; 2] = ["x-amzn-errortype", "x-amzn-query-error"];
/// The statuses of responses to search for a code. A 429 means throttling even without a code.
const STATUSES: [u16; 5] = [400, 403, 500, 503, 509];
/// The codes for too many calls.
const CODES: [&str; 11] = [
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "TooManyRequestsException",
];
/// The codes for too many calls to one table.
const NARROW: [&str; 1] = ["ProvisionedThroughputExceededException"];
/// The codes for something busy or full: only the same call must wait.
const BUSY: [&str; 3] = ["LimitExceededException", "PriorRequestNotComplete", "TransactionInProgressException"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::signals::tests::{For, Growing, headers, refusal};

    const ALL: Option<(crate::api::signals::tests::Told, Reach)> = Some((Growing(1, 20), Reach::Charged));
    const SAME: Option<(crate::api::signals::tests::Told, Reach)> = Some((Growing(1, 20), Reach::Key));

    #[test]
    fn the_code_counts_and_not_the_status() {
        let dynamo = r#"{"__type":"com.amazonaws.dynamodb.v20120810#ThrottlingException","message":"Rate exceeded"}"#;
        let table = r#"{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"}"#;
        let ec2 = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>RequestLimitExceeded</Code><Message>Request \
                   limit exceeded.</Message></Error></Errors></Response>";
        let s3 = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
        let sts = "<ErrorResponse><Error><Type>Sender</Type><Code>Throttling</Code></Error></ErrorResponse>";
        for (status, body, expected) in [
            (400, dynamo, ALL),
            (400, table, SAME),
            (503, ec2, ALL),
            (503, s3, ALL),
            (400, sts, ALL),
            (429, "", ALL),
            (400, r#"{"__type":"LimitExceededException"}"#, SAME),
            (400, r#"{"message":"x","code":"TooManyRequestsException"}"#, ALL),
            (400, r#"{"__type":"ValidationException","message":"ThrottlingException"}"#, None),
            (400, "<Error><Code>AccessDenied</Code></Error>", None),
            (503, "<html><body>Service Unavailable</body></html>", None),
            (400, "", None),
            (200, dynamo, None),
        ] {
            assert_eq!(refusal(refused, status, &[], body), expected, "{status} {body}");
        }
        let busy = headers(&[("x-amzn-errortype", "LimitExceededException")]);
        let full = refused(&Response { status: StatusCode::BAD_REQUEST, headers: &busy, body: b"", wall: None });
        assert!(full.is_some_and(|full| !full.overload), "no reason to slow others down");
    }

    #[test]
    fn a_code_in_cbor_is_read() {
        let of = |body: &[u8]| {
            let headers = headers(&[("smithy-protocol", "rpc-v2-cbor")]);
            refused(&Response { status: StatusCode::BAD_REQUEST, headers: &headers, body, wall: None }).is_some()
        };
        let named = |key: &[u8], code: &[u8]| [key, &[0x78, u8::try_from(code.len()).unwrap()], code].concat();
        let code = named(b"\x66__type", b"com.amazonaws.cloudwatch#ThrottlingException");
        for (says, expected, before, after) in [
            ("a map of known length", true, &b"\xa2"[..], &b"\x67message\x64slow"[..]),
            ("a map of unknown length", true, b"\xbf", b"\xff"),
            ("after a text", true, b"\xa2\x67message\x64slow", b""),
            ("after a text in pieces", true, b"\xa2\x67message\x7f\x62sl\x62ow\xff", b""),
            ("after a map and a list", true, b"\xa3\x61a\xa1\x01\xf9\x3c\x00\x61b\x82\x20\x9f\xf6\xff", b""),
            ("below another key, as in JSON", true, b"\xa1\x61a\xa1", b""),
        ] {
            assert_eq!(of(&[before, &code, after].concat()), expected, "{says}");
        }
        assert!(!of(&[b"\xa1".as_slice(), &named(b"\x66__type", b"ValidationException")].concat()));
        assert!(!of(&[b"\xa1".as_slice(), &named(b"\x67message", b"ThrottlingException")].concat()));
        for cut in [b"\xa1\x66__type".as_slice(), b"\xa1\x66__type\x78", b"\xa1\x66__type\x70SlowDown"] {
            assert!(!of(cut), "{cut:x?}");
        }
    }

    #[test]
    fn the_header_is_enough() {
        for value in [
            "ThrottlingException",
            "ThrottlingException:http://internal.amazon.com/coral/com.amazon.coral.availability/",
            "aws.protocoltests.restjson#ThrottlingException",
        ] {
            assert_eq!(refusal(refused, 400, &[("x-amzn-errortype", value)], ""), ALL, "{value}");
        }
        assert_eq!(refusal(refused, 400, &[("x-amzn-query-error", "RequestThrottled;Sender")], ""), ALL);
        assert_eq!(refusal(refused, 400, &[("x-amzn-errortype", "ValidationException")], ""), None);
        let with_time = [("x-amzn-errortype", "ThrottlingException"), ("retry-after", "3")];
        assert_eq!(refusal(refused, 400, &with_time, ""), Some((For(3), Reach::Charged)));
        let known = headers(&[("x-amzn-errortype", "X")]);
        assert!(!wants_body(StatusCode::BAD_REQUEST, &known));
        assert!(wants_body(StatusCode::BAD_REQUEST, &HeaderMap::new()));
        assert!(!wants_body(StatusCode::NOT_FOUND, &HeaderMap::new()));
        assert!(!wants_body(StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new()), "a throttle in any case");
    }

    #[test]
    fn a_cut_character_hides_nothing_before_it() {
        let body = b"<Error><Code>SlowDown</Code><Message>\xe2\x82";
        let headers = HeaderMap::new();
        let response = Response { status: StatusCode::SERVICE_UNAVAILABLE, headers: &headers, body, wall: None };
        assert!(refused(&response).is_some());
    }
}
