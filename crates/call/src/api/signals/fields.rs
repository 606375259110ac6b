//! Numbers and times in providers' headers.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::DATE;

use super::Response;

/// A quota of the upstream, as a response states it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// The part of the API, in the upstream's words: `core`, `subscription-reads`.
    pub resource: Cow<'static, str>,
    /// The number of calls in the whole quota, if known.
    pub limit: Option<u64>,
    /// The number of calls left in the quota.
    pub remaining: u64,
    /// The time until the quota is full again, if known.
    pub resets_in: Option<Duration>,
}

/// Returns the whole number in the first header of this name.
pub(super) fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    digits(headers.get(name)?.to_str().ok()?.trim())
}

/// Reads a number of digits only, at most `u64::MAX`.
pub(super) fn digits(text: &str) -> Option<u64> {
    let all_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Returns the time of the response by the upstream's clock (`Date`), or else by the gate's.
pub(super) fn date(response: &Response<'_>) -> Option<SystemTime> {
    match response.headers.get(DATE) {
        Some(date) => httpdate::parse_http_date(date.to_str().ok()?.trim()).ok(),
        None => response.wall,
    }
}

/// Returns the time until a moment in seconds (or milliseconds) since 1970; zero for the past. One
/// second is added, because both times are cut to whole seconds, and a call that comes too early is
/// refused again.
pub(super) fn until(epoch: u64, response: &Response<'_>) -> Option<Duration> {
    let at = if epoch >= MILLIS { Duration::from_millis(epoch) } else { Duration::from_secs(epoch) };
    let now = date(response)?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(at.checked_sub(now).map_or(Duration::ZERO, |left| left.saturating_add(Duration::from_secs(1))))
}

/// Returns the time until a reset. `value` is in seconds to go, or a time of day if it would be
/// thirty years or more.
pub(super) fn reset(value: u64, response: &Response<'_>) -> Option<Duration> {
    if value < EPOCHS { Some(Duration::from_secs(value)) } else { until(value, response) }
}

/// Returns the time until the reset of a quota, if no more than the reserve is left. The headers
/// are those of the limit, the calls left, and the reset as a time of day.
pub(super) fn spent(response: &Response<'_>, [limit, left, reset]: [&str; 3], reserve: f64) -> Option<Duration> {
    let number = |name| number(response.headers, name);
    let limit = number(limit).filter(|limit| *limit > 0)?;
    if !is_spent(number(left)?, limit, reserve) {
        return None;
    }
    until(number(reset)?, response).filter(|wait| !wait.is_zero())
}

/// Returns true if no more than the reserve is left of a quota.
pub(super) fn is_spent(left: u64, limit: u64, reserve: f64) -> bool {
    left == 0 || left as f64 <= limit as f64 * reserve
}

/// Returns the name of a resource cut to the characters and length of a metric label.
pub(super) fn resource_word(name: &str) -> Cow<'static, str> {
    let shown = |c: char| if c.is_ascii_graphic() && c != '"' && c != '\\' { c } else { '_' };
    Cow::Owned(name.chars().take(LONGEST_NAME).map(shown).collect())
}

/// The least reset read as a time of day, in seconds since 1970 (a moment in 2001).
const EPOCHS: u64 = 1_000_000_000;
/// The least number read as milliseconds since 1970, not seconds.
const MILLIS: u64 = 100_000_000_000;

/// The longest name of a resource.
pub(super) const LONGEST_NAME: usize = 64;
/// The most quotas to read in one response: an upstream may send many more.
pub(super) const MOST_QUOTAS: usize = 16;

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn reset(value: u64, headers: &HeaderMap, wall: Option<SystemTime>) -> Option<Duration> {
        super::reset(value, &Response { status: StatusCode::OK, headers, body: b"", wall })
    }

    fn at(date: &str) -> HeaderMap {
        HeaderMap::from_iter([(DATE, date.parse().unwrap())])
    }

    #[test]
    fn a_reset_is_seconds_to_go_or_a_time_of_day() {
        let headers = at("Wed, 17 Jul 2019 00:57:57 GMT"); // 1563325077
        for (value, seconds) in [
            (0, Some(0)),
            (30, Some(30)),
            (86_400, Some(86_400)),
            (1_563_325_137, Some(61)),
            (1_563_325_077, Some(1)),
            (1_563_325_000, Some(0)),
            (1_563_325_137_000, Some(61)),
        ] {
            assert_eq!(reset(value, &headers, None).map(|wait| wait.as_secs()), seconds, "{value}");
        }
        assert_eq!(reset(1_563_325_137, &HeaderMap::new(), None), None, "by whose clock?");
        assert_eq!(reset(1_563_325_137, &at("yesterday"), None), None);
        assert!(reset(u64::MAX, &headers, None).is_some());
    }

    #[test]
    fn a_time_of_day_without_a_date_is_reckoned_by_the_gates_clock() {
        let wall = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_563_325_100));
        for (headers, seconds) in
            [(HeaderMap::new(), Some(38)), (at("yesterday"), None), (at("Wed, 17 Jul 2019 00:57:57 GMT"), Some(61))]
        {
            assert_eq!(reset(1_563_325_137, &headers, wall).map(|wait| wait.as_secs()), seconds, "{headers:?}");
        }
    }

    #[test]
    fn nothing_left_is_spent_whatever_the_reserve() {
        assert!(is_spent(0, 5000, 0.0));
        assert!(!is_spent(1, 5000, 0.0));
        assert!(is_spent(500, 5000, 0.1));
        assert!(!is_spent(501, 5000, 0.1));
    }
}
