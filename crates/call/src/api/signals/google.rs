//! Google: 429, or 403 with a reason in the body; the time, if any, is in the body's `RetryInfo`.
//!
//! <https://cloud.google.com/apis/design/errors>,
//! <https://developers.google.com/workspace/drive/api/guides/handle-errors>. Without a time: half a
//! minute after a 429, a second after a 403, doubling to 64 s. A daily quota (`dailyLimitExceeded`,
//! `quotaExceeded`) causes no pause.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};

use super::{LimitRefusal, Reach, Response, json};

pub(super) fn wants_body(status: StatusCode, headers: &HeaderMap) -> bool {
    matches!(status, StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS) && !headers.contains_key(RETRY_AFTER)
}

pub(super) fn refused(response: &Response<'_>) -> Option<LimitRefusal> {
    let first = match response.status {
        StatusCode::TOO_MANY_REQUESTS => Duration::from_secs(30),
        StatusCode::FORBIDDEN if is_for_rate(response.body) => Duration::from_secs(1),
        _ => return None,
    };
    let told = response.retry_after().or_else(|| {
        let delays = json::texts(response.body).into_iter().filter(|(key, _)| key == "retryDelay");
        delays.filter_map(|(_, text)| duration(&text)).max()
    });
    Some(LimitRefusal::told(told, first, MOST).within(Reach::Charged))
}

fn is_for_rate(body: &[u8]) -> bool {
    json::texts(body).iter().any(|(key, text)| key == "reason" && REASONS.contains(&text.as_str()))
}

/// Reads a protobuf Duration in JSON: `3.2s`.
fn duration(text: &str) -> Option<Duration> {
    let seconds = text.strip_suffix('s')?;
    if !seconds.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    Some(Duration::try_from_secs_f64(seconds.parse().ok()?).unwrap_or(Duration::MAX))
}

const MOST: Duration = Duration::from_secs(64);
const REASONS: [&str; 3] = ["rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::signals::Reach;
    use crate::api::signals::tests::{For, Growing, headers, refusal};

    const RETRY_INFO: &str = r#"{"error":{"code":429,"message":"Quota exceeded","status":"RESOURCE_EXHAUSTED","details":[
        {"@type":"type.googleapis.com/google.rpc.QuotaFailure"},{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.5s"}]}}"#;
    const DRIVE: &str = r#"{"error":{"errors":[{"domain":"usageLimits","reason":"userRateLimitExceeded","message":"User Rate Limit Exceeded"}],"code":403}}"#;

    #[test]
    fn the_reason_and_the_time_are_in_the_body() {
        assert_eq!(refusal(refused, 429, &[], RETRY_INFO), Some((For(34), Reach::Charged)));
        assert_eq!(refusal(refused, 429, &[("retry-after", "5")], RETRY_INFO), Some((For(5), Reach::Charged)));
        assert_eq!(refusal(refused, 429, &[], ""), Some((Growing(30, 64), Reach::Charged)));
        assert_eq!(refusal(refused, 403, &[], DRIVE), Some((Growing(1, 64), Reach::Charged)));
        let cut = &DRIVE.as_bytes()[..100];
        assert_eq!(
            refusal(refused, 403, &[], std::str::from_utf8(cut).unwrap()),
            Some((Growing(1, 64), Reach::Charged))
        );
        let forbidden = DRIVE.replace("userRateLimitExceeded", "insufficientFilePermissions");
        assert_eq!(refusal(refused, 403, &[], &forbidden), None);
        assert_eq!(refusal(refused, 500, &[], RETRY_INFO), None);
    }

    #[test]
    fn a_delay_is_seconds() {
        for (text, millis) in [
            ("3.2s", Some(3200)),
            ("0s", Some(0)),
            ("30s", Some(30_000)),
            ("-3s", None),
            ("3", None),
            ("s", None),
            ("1e9s", None),
            ("infs", None),
            ("..s", None),
        ] {
            assert_eq!(duration(text).map(|delay| delay.as_millis()), millis, "{text}");
        }
        assert_eq!(duration("99999999999999999999999s"), Some(Duration::MAX));
    }

    #[test]
    fn the_body_is_asked_for_only_where_the_head_does_not_tell() {
        assert!(wants_body(StatusCode::FORBIDDEN, &HeaderMap::new()));
        assert!(wants_body(StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new()));
        assert!(!wants_body(StatusCode::TOO_MANY_REQUESTS, &headers(&[("retry-after", "1")])));
        assert!(!wants_body(StatusCode::OK, &HeaderMap::new()));
    }
}
