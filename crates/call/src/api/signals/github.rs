//! GitHub: an hourly quota per kind of resource, and secondary limits without numbers.
//!
//! <https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api>: a refusal is a
//! 403 or a 429. The next call must wait until Retry-After is over or, if no calls remain, until
//! the reset; otherwise for at least a minute, then exponentially longer. A 403 with none of these
//! may be a missing permission: only its text shows that. GraphQL may refuse by a secondary limit
//! with a 200 and Retry-After; its text is not read.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};

use super::{LimitRefusal, Reach, ResourceId, Response, SpentQuota, fields, json};

pub(super) fn wants_body(status: StatusCode, headers: &HeaderMap) -> bool {
    let silent = !headers.contains_key(RETRY_AFTER) && fields::number(headers, REMAINING) != Some(0);
    status == StatusCode::FORBIDDEN && silent
}

pub(super) fn refused(response: &Response<'_>) -> Option<LimitRefusal> {
    if !matches!(response.status, StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS) {
        return None;
    }
    match (response.retry_after(), spent(response, 0.0)) {
        // Of two waits the longer.
        (after, Some(spent)) if after.is_none_or(|after| spent.wait > after) => {
            Some(LimitRefusal::all(spent.wait).within(spent.reach))
        }
        (Some(after), _) => Some(LimitRefusal::all(after)),
        (None, _) => is_secondary(response).then_some(SECONDARY),
    }
}

pub(super) fn spent(response: &Response<'_>, reserve: f64) -> Option<SpentQuota> {
    let told = response.retry_after().filter(|wait| response.status == StatusCode::OK && !wait.is_zero());
    let secondary = told.map(|wait| SpentQuota { wait, reach: Reach::All });
    let quota = used_up(response, reserve);
    secondary.into_iter().chain(quota).max_by_key(|spent| spent.wait)
}

/// Returns the quota of a response, if nothing but the reserve is left.
fn used_up(response: &Response<'_>, reserve: f64) -> Option<SpentQuota> {
    let wait = fields::spent(response, ["x-ratelimit-limit", REMAINING, "x-ratelimit-reset"], reserve)?;
    // Each resource has a quota of its own, and some are much smaller than others.
    Some(SpentQuota { wait, reach: resource(response).map_or(Reach::Charged, Reach::Named) })
}

/// Returns the resource that the call was charged to.
pub(super) fn resource(response: &Response<'_>) -> Option<ResourceId> {
    Some(ResourceId::named(&fields::resource_word(response.headers.get(RESOURCE)?.to_str().ok()?)))
}

fn is_secondary(response: &Response<'_>) -> bool {
    response.status == StatusCode::TOO_MANY_REQUESTS
        || json::texts(response.body).iter().any(|(key, text)| match key.as_str() {
            "message" => MESSAGES.iter().any(|message| text.to_ascii_lowercase().contains(message)),
            "documentation_url" => PAGES.iter().any(|page| text.contains(page)),
            _ => false,
        })
}

/// The wait after a secondary limit: at least a minute, then exponentially longer.
const SECONDARY: LimitRefusal = LimitRefusal::growing(Duration::from_secs(60), Duration::from_secs(3600));
const REMAINING: &str = "x-ratelimit-remaining";
const RESOURCE: &str = "x-ratelimit-resource";
/// Texts in the refusals. Secondary limits were once called abuse detection, and still are on older
/// Enterprise servers.
const MESSAGES: [&str; 3] = ["secondary rate limit", "abuse detection", "api rate limit exceeded"];
const PAGES: [&str; 2] = ["secondary-rate-limits", "abuse-rate-limits"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::signals::tests::{For, Growing, Key, headers, refusal, response};

    const DATE: (&str, &str) = ("date", "Wed, 17 Jul 2019 00:57:57 GMT"); // 1563325077
    const SECONDARY_BODY: &str = r#"{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again.","documentation_url":"https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api#about-secondary-rate-limits"}"#;

    fn quota(remaining: &'static str, resource: &'static str) -> Vec<(&'static str, &'static str)> {
        vec![
            DATE,
            ("x-ratelimit-limit", "5000"),
            ("x-ratelimit-remaining", remaining),
            ("x-ratelimit-used", "1"),
            ("x-ratelimit-reset", "1563328677"),
            ("x-ratelimit-resource", resource),
        ]
    }

    fn named(word: &str) -> Reach {
        Reach::Named(ResourceId::named(word))
    }

    #[test]
    fn a_used_up_quota_waits_for_its_reset() {
        for status in [403, 429] {
            assert_eq!(refusal(refused, status, &quota("0", "core"), ""), Some((For(3601), named("core"))));
            assert_eq!(refusal(refused, status, &quota("0", "search"), ""), Some((For(3601), named("search"))));
        }
        assert_eq!(refusal(refused, 404, &quota("0", "core"), ""), None);
    }

    #[test]
    fn a_secondary_limit_says_when_or_grows_from_a_minute() {
        let mut with = quota("4000", "core");
        with.push(("retry-after", "30"));
        assert_eq!(refusal(refused, 403, &with, ""), Some((For(30), Reach::All)));
        assert_eq!(refusal(refused, 429, &with, ""), Some((For(30), Reach::All)));
        let minute = Some((Growing(60, 3600), Reach::All));
        assert_eq!(refusal(refused, 429, &[], ""), minute);
        assert_eq!(refusal(refused, 403, &quota("4000", "core"), SECONDARY_BODY), minute);
        let old = r#"{ "message" : "You have triggered an abuse detection mechanism. Please wait" }"#;
        assert_eq!(refusal(refused, 403, &[], old), minute);
    }

    #[test]
    fn graphql_may_refuse_with_a_success_that_says_when() {
        let wait = |status, pairs: &[Key]| {
            let headers = headers(pairs);
            let response = Response { status: StatusCode::from_u16(status).unwrap(), ..response(200, &headers, "") };
            assert_eq!(refused(&response), None, "it is a success for its key");
            spent(&response, 0.0).map(|spent| (spent.wait.as_secs(), spent.reach))
        };
        let mut with = quota("4000", "graphql");
        assert_eq!(wait(200, &with), None);
        with.push(("retry-after", "30"));
        assert_eq!(wait(200, &with), Some((30, Reach::All)));
        assert_eq!(wait(202, &with), None, "it says when the work may be done");
        let mut both = quota("0", "graphql");
        both.push(("retry-after", "30"));
        assert_eq!(wait(200, &both), Some((3601, named("graphql"))));
        assert_eq!(wait(200, &[("retry-after", "0")]), None);
        assert_eq!(wait(200, &[("retry-after", "soon")]), None);
    }

    #[test]
    fn both_waits_must_be_over() {
        let mut both = quota("0", "core");
        both.push(("retry-after", "30"));
        assert_eq!(refusal(refused, 403, &both, ""), Some((For(3601), named("core"))));
        both.pop();
        both.push(("retry-after", "7200"));
        assert_eq!(refusal(refused, 403, &both, ""), Some((For(7200), Reach::All)));
    }

    #[test]
    fn a_missing_permission_is_no_limit() {
        let body = r#"{"message":"Resource not accessible by integration","documentation_url":"https://docs.github.com/rest"}"#;
        assert_eq!(refusal(refused, 403, &quota("4000", "core"), body), None);
        assert_eq!(refusal(refused, 403, &[], ""), None);
        let text = r#"{"message":"no","body":"You have exceeded a secondary rate limit"}"#;
        assert_eq!(refusal(refused, 403, &[], text), None, "only the message counts");
    }

    #[test]
    fn the_body_is_asked_for_only_where_the_head_does_not_tell() {
        let wants = |status: u16, pairs: &[Key]| wants_body(StatusCode::from_u16(status).unwrap(), &headers(pairs));
        assert!(wants(403, &quota("4000", "core")));
        assert!(wants(403, &[]));
        assert!(!wants(403, &quota("0", "core")));
        assert!(!wants(403, &[("retry-after", "60")]));
        assert!(!wants(429, &[]));
        assert!(!wants(200, &[]));
    }

    #[test]
    fn the_reserve_is_left_to_others() {
        let left = |remaining, reserve| {
            let headers = headers(&quota(remaining, "core"));
            spent(&response(200, &headers, ""), reserve).map(|spent| spent.wait.as_secs())
        };
        assert_eq!(left("501", 0.1), None);
        assert_eq!(left("500", 0.1), Some(3601));
        assert_eq!(left("1", 0.0), None);
        assert_eq!(left("0", 0.0), Some(3601));
        let mut over = quota("0", "core");
        over[4].1 = "1563325000";
        assert_eq!(spent(&response(200, &headers(&over), ""), 0.1), None, "the window is over");
    }
}
