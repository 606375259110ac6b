//! The meaning of a gRPC answer whose status is in its head ("trailers-only"): what a call that was
//! refused or failed before it began is told.
//!
//! Sources: "gRPC over HTTP2" (`Trailers-Only`); gRFC A6 for `grpc-retry-pushback-ms`;
//! google/rpc/status.proto and error_details.proto for `RetryInfo`.

use std::time::Duration;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, StatusCode};

/// Returns the status and the fields that mean the same over plain HTTP; `None` for an answer that
/// did not end with its head, and so has begun well.
///
/// RESOURCE_EXHAUSTED is a 429 with the time that it names, rounded up to whole seconds; INTERNAL
/// and UNAVAILABLE are failures; all others concern the call alone.
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
    let up = |wait: Duration| wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0));
    let fields = wait.map(|wait| (RETRY_AFTER, HeaderValue::from(up(wait))));
    Some((status, fields.into_iter().collect()))
}

/// `grpc-retry-pushback-ms`. A negative number asks not to retry, which says nothing about when.
fn pushback(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-retry-pushback-ms")?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_millis)
}

/// The delay of the `RetryInfo` in `grpc-status-details-bin`.
fn retry_info(headers: &HeaderMap) -> Option<Duration> {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let text = headers.get("grpc-status-details-bin")?.as_bytes();
    let details = GeneralPurpose::new(&STANDARD, config).decode(text.trim_ascii()).ok()?;
    Fields(&details).filter(|(number, _)| *number == 3).find_map(|(_, any)| {
        let any = any.bytes()?;
        let of = |wanted: u64| Fields(any).find(|(number, _)| *number == wanted).and_then(|(_, field)| field.bytes());
        let is_retry_info = of(1)?.ends_with(b"/google.rpc.RetryInfo");
        let delay = Fields(of(2).filter(|_| is_retry_info)?).find(|(number, _)| *number == 1)?.1.bytes()?;
        let part = |wanted: u64| {
            let found = Fields(delay).find(|(number, _)| *number == wanted);
            found.map_or(Some(0), |(_, field)| field.number())
        };
        // A negative number is a huge one here.
        let seconds = i64::try_from(part(1)?).ok()?.unsigned_abs();
        let nanos = u32::try_from(part(2)?).ok().filter(|nanos| *nanos < 1_000_000_000)?;
        Some(Duration::new(seconds, nanos))
    })
}

/// The fields of a protobuf message, up to the first that is none.
struct Fields<'a>(&'a [u8]);

/// The value of a field.
#[derive(Clone, Copy, Debug)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Of a fixed size, which no field has that is read here.
    Fixed,
}

// === impl Fields ===

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Field<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Number(self.varint()?),
            1 => self.take(8).map(|_| Field::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Field::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Field::Fixed)?,
            _ => return None,
        };
        Some((tag >> 3, field))
    }
}

// === impl Field ===

impl<'a> Field<'a> {
    fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Number(_) | Self::Fixed => None,
        }
    }

    fn number(self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(number),
            Self::Bytes(_) | Self::Fixed => None,
        }
    }
}

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
