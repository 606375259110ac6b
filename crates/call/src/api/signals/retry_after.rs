//! `Retry-After`: seconds, or an HTTP date in any of its three forms.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};

use super::{LimitRefusal, Reach, Response, fields};

/// Returns the refusal in a failed response with Retry-After. After a 429 or 503 all calls must
/// wait, because the next one would be refused as well; otherwise only the same call.
pub(super) fn refused(response: &Response<'_>) -> Option<LimitRefusal> {
    if response.status != StatusCode::TOO_MANY_REQUESTS && !response.status.is_server_error() {
        return None; // the usual response: its headers are not read
    }
    let refused = LimitRefusal::all(response.retry_after()?);
    Some(match response.status {
        StatusCode::TOO_MANY_REQUESTS => refused,
        StatusCode::SERVICE_UNAVAILABLE => LimitRefusal { overload: false, ..refused },
        _ => LimitRefusal { overload: false, ..refused.within(Reach::Key) },
    })
}

impl Response<'_> {
    /// Returns the time in Retry-After, the longest of several. Garbage is ignored; a date in the past
    /// means now.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        self.headers.get_all(RETRY_AFTER).iter().filter_map(|value| duration(value, self)).max()
    }
}

fn duration(value: &HeaderValue, response: &Response<'_>) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    if let Some(seconds) = seconds(text) {
        // Without a clock a time of day is a very long wait.
        return fields::reset(seconds, response).or_else(|| Some(Duration::from_secs(seconds)));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    Some(at.duration_since(fields::date(response)?).unwrap_or(Duration::ZERO))
}

/// Reads seconds, and rounds a fraction up.
fn seconds(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let more = u64::from(fields::digits(fraction)? > 0);
    Some(fields::digits(whole)?.saturating_add(more))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use http::HeaderMap;
    use http::header::DATE;
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[&str], date: Option<&str>) -> Option<u64> {
        at(values, date, None)
    }

    /// As [`of`], where the gate's clock says so many seconds since 1970.
    fn at(values: &[&str], date: Option<&str>, wall: Option<u64>) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(RETRY_AFTER, value.parse().unwrap());
        }
        if let Some(date) = date {
            headers.insert(DATE, date.parse().unwrap());
        }
        let wall = wall.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let response = Response { status: StatusCode::SERVICE_UNAVAILABLE, headers: &headers, body: b"", wall };
        response.retry_after().map(|after| after.as_secs())
    }

    #[test]
    fn seconds_are_digits_only() {
        for (value, expected) in [
            ("0", Some(0)),
            ("120", Some(120)),
            (" 5 ", Some(5)),
            ("007", Some(7)),
            ("999999999", Some(999_999_999)),
            ("-5", None),
            ("+5", None),
            ("1.5", Some(2)),
            ("30.0", Some(30)),
            ("0.5", Some(1)),
            ("0.000001", Some(1)),
            (".5", None),
            ("1.", None),
            ("1.5.0", None),
            ("1,5", None),
            ("1e3", None),
            ("5s", None),
            ("", None),
            ("soon", None),
        ] {
            assert_eq!(of(&[value], None), expected, "{value:?}");
        }
        assert_eq!(of(&["3", "x", "9"], None), Some(9));
    }

    #[test]
    fn from_a_thousand_million_on_it_is_a_time_of_day() {
        let sent = Some("Thu, 26 Nov 2026 10:00:00 GMT"); // 1795687200
        for (value, expected) in [
            ("1795687230", Some(31)),
            ("1795687230.5", Some(32)),
            ("1795687230000", Some(31)),
            ("1795687199", Some(0)),
            ("1000000000", Some(0)),
        ] {
            assert_eq!(of(&[value], sent), expected, "{value}");
        }
        assert_eq!(of(&["1795687230"], None), Some(1_795_687_230), "no clock to read it by");
        assert_eq!(of(&["99999999999999999999999"], sent), Some(u64::MAX / 1000 - 1_795_687_200 + 1));
    }

    #[test]
    fn every_form_of_a_date_is_read_against_the_response_date() {
        let sent = Some("Sun, 06 Nov 1994 08:49:07 GMT");
        for value in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(of(&[value], sent), Some(30), "{value}");
        }
        assert_eq!(of(&["Sun, 06 Nov 1994 08:00:00 GMT"], sent), Some(0), "the past is now");
        assert_eq!(of(&["Sun, 06 Nov 1994 08:49:37 GMT"], None), None, "no clock to read it by");
        assert_eq!(of(&["Sun, 06 Nov 1994 08:49:37 GMT"], Some("yesterday")), None);
        assert_eq!(of(&["Sun, 99 Nov 1994 08:49:37 GMT"], sent), None);
    }

    #[test]
    fn a_date_without_a_date_beside_it_is_read_against_the_gates_clock() {
        let wall = Some(784_111_747); // Sun, 06 Nov 1994 08:49:07 GMT
        for value in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(at(&[value], None, wall), Some(30), "{value}");
        }
        let value = ["Sun, 06 Nov 1994 08:49:37 GMT"];
        assert_eq!(at(&value, Some("Sun, 06 Nov 1994 08:49:36 GMT"), wall), Some(1), "the upstream's own goes before");
        assert_eq!(at(&value, Some("yesterday"), wall), None, "its clock is not to be trusted");
        assert_eq!(at(&["Sun, 06 Nov 1994 08:00:00 GMT"], None, wall), Some(0), "the past is now");
        assert_eq!(at(&["Sun, 99 Nov 1994 08:49:37 GMT"], None, wall), None);
        assert_eq!(at(&["7"], None, wall), Some(7));
    }

    proptest! {
        #[test]
        fn no_header_panics(value in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                let date = HeaderValue::from_static("Sun, 06 Nov 1994 08:49:07 GMT");
                let headers = HeaderMap::from_iter([(RETRY_AFTER, value), (DATE, date)]);
                let status = StatusCode::SERVICE_UNAVAILABLE;
                let read = Response { status, headers: &headers, body: b"", wall: None }.retry_after();
                prop_assert!(read.is_none_or(|after| after < Duration::MAX));
            }
        }
    }
}
