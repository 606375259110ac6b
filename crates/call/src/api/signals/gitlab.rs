//! GitLab: `RateLimit-Limit`, `-Remaining` and `-Reset` (a time of day), Retry-After on most of its
//! 429s.
//!
//! <https://docs.gitlab.com/administration/settings/user_and_ip_rate_limits/>. Refusals of GraphQL
//! and of the layers before it have no headers (gitlab issues 352409, 365728). Windows last a minute,
//! so that half of one is left on average.

use std::time::Duration;

use super::{LimitRefusal, Reach, Response, fields};

pub(super) fn refused(response: &Response<'_>) -> Option<LimitRefusal> {
    response.too_many()?;
    let headers = response.headers;
    let reset = || fields::reset(fields::number(headers, "ratelimit-reset")?, response);
    let Some(wait) = response.retry_after().or_else(reset) else {
        return Some(LimitRefusal::growing(HALF_WINDOW, WINDOW));
    };
    // With calls left, it was the limit of one endpoint (gitlab issue 199738).
    let left = fields::number(headers, "ratelimit-remaining").is_some_and(|left| left > 0);
    Some(LimitRefusal::all(wait).within(if left { Reach::Key } else { Reach::All }))
}

const WINDOW: Duration = Duration::from_secs(60);
const HALF_WINDOW: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::signals::ietf;
    use crate::api::signals::tests::{For, Growing, Key, headers, refusal, response};

    /// As in GitLab's own documentation.
    const HEAD: [Key; 6] = [
        ("date", "Wed, 17 Jul 2019 00:57:57 GMT"),
        ("ratelimit-limit", "600"),
        ("ratelimit-observed", "6"),
        ("ratelimit-remaining", "594"),
        ("ratelimit-reset", "1563325137"),
        ("ratelimit-resettime", "Wed, 17 Jul 2019 00:58:57 GMT"),
    ];

    #[test]
    fn a_refusal_waits_for_retry_after_then_for_the_reset_then_for_half_a_window() {
        assert_eq!(refusal(refused, 429, &HEAD, ""), Some((For(61), Reach::Key)), "another limit than that one");
        let mut none_left = HEAD;
        none_left[3].1 = "0";
        assert_eq!(refusal(refused, 429, &none_left, ""), Some((For(61), Reach::All)));
        assert_eq!(refusal(refused, 429, &[("retry-after", "25")], ""), Some((For(25), Reach::All)));
        assert_eq!(refusal(refused, 429, &[], ""), Some((Growing(30, 60), Reach::All)));
        assert_eq!(refusal(refused, 403, &none_left, ""), None);
    }

    #[test]
    fn the_reserve_is_left_to_others() {
        let mut few = HEAD;
        few[3].1 = "60";
        let headers = headers(&few);
        let wait = |reserve| ietf::spent(&response(200, &headers, ""), reserve).map(|spent| spent.wait.as_secs());
        assert_eq!(wait(0.1), Some(61));
        assert_eq!(wait(0.05), None);
    }
}
