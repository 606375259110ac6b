//! What a gRPC response means when its status is in the head ("trailers-only"): the call was
//! refused, or failed before it began.
//!
//! Sources: "gRPC over HTTP2" (`Trailers-Only`); gRFC A6 for `grpc-retry-pushback-ms`;
//! google/rpc/status.proto and error_details.proto for `RetryInfo`.

use std::time::Duration;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, StatusCode};

use super::duration::whole_seconds;
use super::protobuf::{FieldValue, Fields, bytes};

/// Returns the HTTP status and headers with the same meaning as the head of a gRPC response. `None`
/// if the response has more than a head, which is not a failure.
///
/// RESOURCE_EXHAUSTED becomes a 429 with the time to wait, rounded up to whole seconds; INTERNAL
/// and UNAVAILABLE become failures; all other errors concern the call alone.
pub fn in_http(status: StatusCode, headers: &HeaderMap) -> Option<(StatusCode, HeaderMap)> {
    if status != StatusCode::OK {
        return None;
    }
    let status = match headers.get("grpc-status")?.as_bytes() {
        b"0" => StatusCode::OK,
        b"8" => StatusCode::TOO_MANY_REQUESTS,
        b"13" => StatusCode::INTERNAL_SERVER_ERROR,
        b"14" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    };
    let wait = pushback(headers).or_else(|| retry_info(headers)).filter(|_| status != StatusCode::OK);
    let fields = wait.map(|wait| (RETRY_AFTER, HeaderValue::from(whole_seconds(wait))));
    Some((status, fields.into_iter().collect()))
}

/// Reads `grpc-retry-pushback-ms`; `None` for a negative number, a request not to retry at all.
fn pushback(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-retry-pushback-ms")?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_millis)
}

/// Reads the delay of the `RetryInfo` in `grpc-status-details-bin`.
fn retry_info(headers: &HeaderMap) -> Option<Duration> {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let text = headers.get("grpc-status-details-bin")?.as_bytes();
    let status = GeneralPurpose::new(&STANDARD, config).decode(text.trim_ascii()).ok()?;
    let details = Fields(&status).filter(|(number, _)| *number == 3);
    details.filter_map(|(_, any)| any.bytes()).find_map(delay)
}

/// Reads a `google.protobuf.Any` (type = 1, value = 2) with a `RetryInfo` (delay = 1) in it.
fn delay(any: &[u8]) -> Option<Duration> {
    let retry_info = bytes(any, 2).filter(|_| bytes(any, 1).is_some_and(|kind| kind.ends_with(RETRY_INFO)))?;
    let duration = bytes(retry_info, 1)?;
    let number = |wanted: u64| match Fields(duration).find(|(number, _)| *number == wanted) {
        Some((_, FieldValue::Number(number))) => Some(number),
        Some(_) => None,
        None => Some(0),
    };
    // A negative number is a huge one here.
    let seconds = i64::try_from(number(1)?).ok()?.unsigned_abs();
    let nanos = u32::try_from(number(2)?).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(seconds, nanos))
}

const RETRY_INFO: &[u8] = b"/google.rpc.RetryInfo";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A `google.rpc.Status` with a `DebugInfo` and a `RetryInfo` of 3.5 s, made by protobuf 7.36.
    const DETAILS: &str = "CAgSBnNsb3dseRoqCih0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuRGVidWdJbmZvGjYK\
        KHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXRyeUluZm8SCgoICAMQgMq17gE=";

    fn read(fields: &[(&'static str, &str)]) -> Option<(u16, Option<u64>)> {
        let headers = fields
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value")));
        let (status, fields) = in_http(StatusCode::OK, &headers.collect())?;
        let after = fields.get(RETRY_AFTER).map(|value| value.to_str().expect("digits").parse().expect("digits"));
        Some((status.as_u16(), after))
    }

    #[test]
    fn each_status_means_what_http_has_for_it() {
        for (status, http) in [("0", 200), ("8", 429), ("13", 500), ("14", 503), ("5", 400), ("99", 400), ("x", 400)] {
            assert_eq!(read(&[("grpc-status", status)]), Some((http, None)), "{status}");
        }
        assert_eq!(read(&[("content-type", "application/grpc")]), None, "the status comes in the trailers");
        let fields = HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from(8))]);
        assert_eq!(in_http(StatusCode::BAD_GATEWAY, &fields), None, "a proxy on the way");
    }

    #[test]
    fn the_time_is_read_from_pushback_or_retry_info() {
        let with = |name, value| read(&[("grpc-status", "8"), (name, value)]).expect("trailers-only").1;
        assert_eq!(with("grpc-retry-pushback-ms", "1500"), Some(2));
        assert_eq!(with("grpc-retry-pushback-ms", "0"), Some(0));
        assert_eq!(with("grpc-retry-pushback-ms", "-1"), None);
        assert_eq!(with("grpc-status-details-bin", DETAILS), Some(4));
        assert_eq!(
            with("grpc-status-details-bin", DETAILS.trim_end_matches('=')),
            Some(4),
            "unpadded, as grpc-go has it"
        );
        assert_eq!(with("grpc-status-details-bin", "CAgSBHNsb3c"), None);
        assert_eq!(with("grpc-status-details-bin", "%%%"), None);
        assert_eq!(read(&[("grpc-status", "0"), ("grpc-retry-pushback-ms", "5")]), Some((200, None)));
    }

    proptest! {
        #[test]
        fn any_details_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let text = base64::engine::general_purpose::STANDARD.encode(bytes);
            prop_assert!(read(&[("grpc-status", "8"), ("grpc-status-details-bin", &text)]).is_some());
        }

        #[test]
        fn any_delay_is_survived(cut in 0_usize..136, byte in any::<u8>()) {
            let mut bytes = base64::engine::general_purpose::STANDARD.decode(DETAILS).expect("base64");
            let at = cut % bytes.len();
            bytes[at] = byte;
            let text = base64::engine::general_purpose::STANDARD.encode(bytes);
            prop_assert!(read(&[("grpc-status", "14"), ("grpc-status-details-bin", &text)]).is_some());
        }
    }
}
