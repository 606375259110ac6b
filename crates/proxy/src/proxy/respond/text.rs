//! The texts of the gate's own answers.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::json;

use crate::limit::{KeyState, Reason, Refusal};
use crate::moment::Moment;
use crate::proxy::quotas::QuotaReserve;
use crate::status;
use crate::status::text::{count, meaning};

/// An answer of the gate itself.
#[derive(Debug)]
pub(super) struct OwnAnswer {
    pub(super) status: StatusCode,
    /// The limiter's reason, if it refused the call.
    pub(super) reason: Option<Reason>,
    /// Seconds until a retry makes sense, for the body.
    pub(super) retry_after: Option<u64>,
    /// True if these seconds are in the Retry-After header too.
    pub(super) in_header: bool,
    pub(super) message: String,
}

// === impl OwnAnswer ===

impl OwnAnswer {
    /// Creates an answer without a retry time.
    pub(super) fn new(status: StatusCode, message: String) -> Self {
        Self { status, reason: None, retry_after: None, in_header: false, message }
    }

    /// Returns the body for a Kubernetes client: a `Status`.
    #[expect(clippy::indexing_slicing, reason = "an object made three lines above takes any field")]
    pub(super) fn status_object(&self) -> String {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": status_reason(self.status),
            "code": self.status.as_u16(),
        });
        if let Some(seconds) = self.retry_after {
            status["details"] = json!({ "retryAfterSeconds": seconds });
        }
        status.to_string()
    }

    /// Returns the body for other clients: a problem as RFC 9457 describes it.
    #[expect(clippy::indexing_slicing, reason = "an object made three lines above takes any field")]
    pub(super) fn problem(&self, gate: &str) -> String {
        let mut problem = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or_default(),
            "status": self.status.as_u16(),
            "detail": self.message,
            "gate": gate,
        });
        if let Some(reason) = self.reason {
            problem["reason"] = json!(reason.word());
        }
        if let Some(seconds) = self.retry_after {
            problem["retryAfterSeconds"] = json!(seconds);
        }
        problem.to_string()
    }
}

/// Describes a refusal in a sentence for the client. If the pause saves the rest of the upstream's
/// quota for others, `kept` is that rest. The upstream's error texts are not quoted, because they
/// may contain anything.
pub(super) fn message(gate: &str, class: &str, refusal: &Refusal, kept: Option<QuotaReserve>, now: Moment) -> String {
    let mut text = format!("tidegate: gate {gate:?}, class {class:?} refused this call ({}): ", refusal.reason);
    match kept {
        Some(QuotaReserve { left, limit }) => {
            text.push_str(&format!("the upstream's quota is used up to its reserve: {}", status::kept(left, limit)))
        }
        None => text.push_str(meaning(refusal.reason.word())),
    }
    if let Some(key) = &refusal.key {
        text.push_str(&failures(key, now));
    }
    if refusal.retry_at != Moment::MAX {
        text.push_str(&format!("; try again in {}", short(refusal.retry_at - now)));
    }
    if !refusal.waited.is_zero() {
        text.push_str(&format!("; it waited {} here", short(refusal.waited)));
    }
    text
}

/// Adds a `Server-Timing` header with the time the call waited here, and for what (`held`).
pub(crate) fn add_timing(headers: &mut HeaderMap, held: Option<(&str, Duration)>) {
    let Some((reason, held)) = held else { return };
    let millis = held.as_secs_f64() * 1000.0;
    if let Ok(value) = HeaderValue::try_from(format!("tidegate;dur={millis:.1};desc=\"{reason}\"")) {
        headers.append(SERVER_TIMING, value);
    }
}

fn failures(key: &KeyState, now: Moment) -> String {
    let times = count(key.failures, "time", "times");
    let status = key.last_status.map_or_else(|| "no answer".to_owned(), |status| format!("status {status}"));
    let ago = short(now - key.last_failure);
    format!(" ({times} in a row, last with {status}, {ago} ago)")
}

/// Returns the `reason` field client-go's helpers look for.
fn status_reason(status: StatusCode) -> &'static str {
    match status {
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        StatusCode::UNAUTHORIZED => "Unauthorized",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
        StatusCode::GATEWAY_TIMEOUT => "Timeout",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        status if status.is_client_error() => "BadRequest",
        _ => "InternalError",
    }
}

/// Returns a duration for people, with two digits. It is rounded up, so that a retry after it is
/// not too early.
fn short(time: Duration) -> String {
    let up = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    match (time.as_secs(), up) {
        (0, _) => format!("{} ms", time.as_millis()),
        (1..=9, _) => format!("{:.1} s", time.as_secs_f64()),
        (_, seconds @ 0..=119) => format!("{seconds} s"),
        (_, seconds) => format!("{} min", seconds.div_ceil(60)),
    }
}

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_tells_gate_class_reason_wait_and_what_the_key_did() {
        let key = KeyState {
            failures: 4,
            last_status: Some(503),
            last_failure: Moment::from_millis(1_000),
            ready_at: Moment::from_millis(9_000),
        };
        let refusal = Refusal {
            reason: Reason::Backoff,
            retry_at: Moment::from_millis(9_000),
            waited: Duration::from_millis(100),
            key: Some(key),
        };
        assert_eq!(
            message("kubernetes", "default", &refusal, None, Moment::from_millis(4_500)),
            "tidegate: gate \"kubernetes\", class \"default\" refused this call (backoff): the key failed, and its delay is not \
             over (4 times in a row, last with status 503, 3.5 s ago); try again in 4.5 s; it waited 100 ms here"
        );
    }

    #[test]
    fn a_time_to_wait_is_never_told_too_short() {
        let told = |millis| short(Duration::from_millis(millis));
        assert_eq!([0, 999, 1_000, 9_949].map(told), ["0 ms", "999 ms", "1.0 s", "9.9 s"]);
        assert_eq!([10_000, 10_001, 118_001, 119_001].map(told), ["10 s", "11 s", "119 s", "2 min"]);
        assert_eq!(
            [120_000, 120_001, 179_000, 359_990, 360_000].map(told),
            ["2 min", "3 min", "3 min", "6 min", "6 min"]
        );
    }

    #[test]
    fn a_status_is_what_client_go_reads() {
        let answer = OwnAnswer {
            status: StatusCode::TOO_MANY_REQUESTS,
            reason: Some(Reason::Bucket),
            retry_after: Some(3),
            in_header: false,
            message: "why".to_owned(),
        };
        let status: serde_json::Value = serde_json::from_str(&answer.status_object()).unwrap();
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["reason"], "TooManyRequests");
        assert_eq!(status["details"]["retryAfterSeconds"], 3);
        assert_eq!(status["code"], 429);
        let problem: serde_json::Value = serde_json::from_str(&answer.problem("github")).unwrap();
        assert_eq!(problem["reason"], "bucket");
        assert_eq!(problem["title"], "Too Many Requests");
    }

    #[test]
    fn timing_says_how_long_and_why() {
        let mut headers = HeaderMap::new();
        add_timing(&mut headers, Some((Reason::Bucket.word(), Duration::from_micros(1_500))));
        assert_eq!(headers["server-timing"], "tidegate;dur=1.5;desc=\"bucket\"");
    }
}
