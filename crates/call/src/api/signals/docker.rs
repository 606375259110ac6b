//! Docker: pulls per rolling window (`ratelimit-remaining: 76;w=21600`) on the registry,
//! `X-RateLimit-*` on the Hub's own API.
//!
//! <https://docs.docker.com/docker-hub/usage/pulls/> and
//! <https://docs.docker.com/reference/api/hub/latest/>. A rolling window has no reset: on average
//! one more pull is allowed every window/limit, which is the wait.

use std::time::Duration;

use super::{LimitRefusal, Reach, Response, SpentQuota, fields, ietf};

pub(super) fn refused(response: &Response<'_>) -> Option<LimitRefusal> {
    response.too_many()?;
    let reset = || fields::until(fields::number(response.headers, RESET)?, response);
    let hub = || fields::until(fields::number(response.headers, "x-retry-after")?, response);
    let told = response.retry_after().or_else(hub).or_else(reset).or_else(|| pace(response));
    Some(LimitRefusal::told(told, FIRST, MOST).within(Reach::Class))
}

pub(super) fn spent(response: &Response<'_>, reserve: f64) -> Option<SpentQuota> {
    let wait = match ietf::counted(response.headers, "ratelimit-limit") {
        Some((limit, _)) => {
            let (left, _) = ietf::counted(response.headers, "ratelimit-remaining")?;
            pace(response).filter(|_| fields::is_spent(left, limit, reserve))
        }
        None => fields::spent(response, ["x-ratelimit-limit", "x-ratelimit-remaining", RESET], reserve),
    };
    Some(SpentQuota { wait: wait?, reach: Reach::Class })
}

/// Returns the average time until one more pull is allowed.
pub(super) fn pace(response: &Response<'_>) -> Option<Duration> {
    let (limit, window) = ietf::counted(response.headers, "ratelimit-limit")?;
    let every = window?.as_secs().checked_div(limit)?;
    Some(Duration::from_secs(every.max(1)))
}

const RESET: &str = "x-ratelimit-reset";
const FIRST: Duration = Duration::from_secs(60);
const MOST: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::signals::tests::{For, Growing, Key, headers, refusal, response};

    const EMPTY: [Key; 3] = [
        ("ratelimit-limit", "100;w=21600"),
        ("ratelimit-remaining", "0;w=21600"),
        ("docker-ratelimit-source", "192.0.2.1"),
    ];

    #[test]
    fn a_refused_pull_comes_again_when_one_is_allowed_on_average() {
        assert_eq!(refusal(refused, 429, &EMPTY, ""), Some((For(216), Reach::Class)));
        assert_eq!(refusal(refused, 429, &[("retry-after", "9")], ""), Some((For(9), Reach::Class)));
        let hub = [("date", "Thu, 31 Dec 2020 23:59:30 GMT"), ("x-retry-after", "1609459200")];
        assert_eq!(refusal(refused, 429, &hub, ""), Some((For(31), Reach::Class)));
        assert_eq!(refusal(refused, 429, &[], ""), Some((Growing(60, 3600), Reach::Class)));
        assert_eq!(refusal(refused, 200, &EMPTY, ""), None);
    }

    #[test]
    fn the_reserve_is_left_to_others() {
        let wait = |remaining: &'static str| {
            let headers = headers(&[("ratelimit-limit", "100;w=21600"), ("ratelimit-remaining", remaining)]);
            spent(&response(200, &headers, ""), 0.1).map(|spent| spent.wait.as_secs())
        };
        assert_eq!(wait("76;w=21600"), None);
        assert_eq!(wait("10;w=21600"), Some(216));
        let hub = headers(&[
            ("date", "Thu, 31 Dec 2020 23:59:30 GMT"),
            ("x-ratelimit-limit", "600"),
            ("x-ratelimit-remaining", "60"),
            ("x-ratelimit-reset", "1609459200"),
        ]);
        assert_eq!(spent(&response(200, &hub, ""), 0.1).map(|spent| spent.wait.as_secs()), Some(31));
    }
}
