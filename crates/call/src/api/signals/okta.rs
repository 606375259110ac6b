//! Okta: a quota per group of endpoints, and a limit on calls at once, with the same headers.
//!
//! <https://developer.okta.com/docs/reference/rl-best-practices/>: on too many calls at once limit
//! and remaining are 0, and the reset is only an estimate.

use std::time::Duration;

use super::{LimitRefusal, Reach, Response, SpentQuota, fields};

pub(super) fn refused(response: &Response<'_>) -> Option<LimitRefusal> {
    response.too_many()?;
    let reset = fields::number(response.headers, RESET).and_then(|reset| fields::until(reset, response));
    if fields::number(response.headers, LIMIT) == Some(0) {
        return Some(LimitRefusal::growing(FIRST, reset.unwrap_or(WINDOW).max(FIRST)));
    }
    Some(LimitRefusal::told(response.retry_after().or(reset), FIRST, WINDOW).within(Reach::Class))
}

pub(super) fn spent(response: &Response<'_>, reserve: f64) -> Option<SpentQuota> {
    let wait = fields::spent(response, [LIMIT, "x-rate-limit-remaining", RESET], reserve)?;
    Some(SpentQuota { wait, reach: Reach::Class })
}

const LIMIT: &str = "x-rate-limit-limit";
const RESET: &str = "x-rate-limit-reset";
const FIRST: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::signals::tests::{For, Growing, Key, headers, refusal, response};

    fn head(limit: &'static str, remaining: &'static str) -> [Key; 4] {
        [
            ("date", "Thu, 31 Dec 2020 23:59:30 GMT"),
            ("x-rate-limit-limit", limit),
            ("x-rate-limit-remaining", remaining),
            ("x-rate-limit-reset", "1609459200"),
        ]
    }

    #[test]
    fn a_used_up_quota_waits_for_its_reset_and_concurrency_only_a_moment() {
        assert_eq!(refusal(refused, 429, &head("1200", "0"), ""), Some((For(31), Reach::Class)));
        assert_eq!(refusal(refused, 429, &head("0", "0"), ""), Some((Growing(1, 31), Reach::All)));
        assert_eq!(refusal(refused, 429, &[], ""), Some((Growing(1, 60), Reach::Class)));
        assert_eq!(refusal(refused, 200, &head("1200", "0"), ""), None);
    }

    #[test]
    fn the_reserve_is_left_to_others() {
        let wait = |limit, remaining| {
            let headers = headers(&head(limit, remaining));
            spent(&response(200, &headers, ""), 0.1).map(|spent| spent.wait.as_secs())
        };
        assert_eq!(wait("1200", "120"), Some(31));
        assert_eq!(wait("1200", "121"), None);
        assert_eq!(wait("0", "0"), None);
    }
}
