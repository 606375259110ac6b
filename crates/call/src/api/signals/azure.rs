//! Azure Resource Manager: 429 with Retry-After, and the number of calls left to a subscription or
//! tenant.
//!
//! <https://learn.microsoft.com/azure/azure-resource-manager/management/request-limits-and-throttling>:
//! the calls left are those of token buckets, which refill every second. Without their size nothing
//! can be reserved. If they are not near 0, the resource provider refused the call.

use std::time::Duration;

use http::HeaderMap;

use super::{LimitRefusal, Reach, ResourceId, Response, SpentQuota, fields};

pub(super) fn refused(response: &Response<'_>) -> Option<LimitRefusal> {
    response.too_many()?;
    let told = response.retry_after().or_else(|| millis(response.headers));
    let refused = LimitRefusal::told(told, Duration::from_secs(1), Duration::from_secs(60));
    Some(refused.within(match least(response.headers) {
        Some(Left { calls: 0, resource }) => Reach::Named(resource),
        Some(_) => Reach::Class,
        None => Reach::All,
    }))
}

pub(super) fn spent(response: &Response<'_>) -> Option<SpentQuota> {
    let empty = least(response.headers).filter(|left| left.calls == 0)?;
    Some(SpentQuota { wait: Duration::from_secs(1), reach: Reach::Named(empty.resource) })
}

/// The calls left of a subscription's or tenant's quota.
struct Left {
    calls: u64,
    resource: ResourceId,
}

/// Returns the smallest number of calls left.
fn least(headers: &HeaderMap) -> Option<Left> {
    let left = headers.iter().filter_map(|(name, value)| {
        let kind = name.as_str().strip_prefix("x-ms-ratelimit-remaining-")?;
        let is_of_manager = kind.starts_with("subscription-") || kind.starts_with("tenant-");
        let calls = fields::digits(value.to_str().ok()?.trim()).filter(|_| is_of_manager)?;
        Some(Left { calls, resource: ResourceId::named(kind) })
    });
    left.min_by_key(|left| left.calls)
}

fn millis(headers: &HeaderMap) -> Option<Duration> {
    let given = ["x-ms-retry-after-ms", "retry-after-ms"].into_iter().find_map(|name| fields::number(headers, name));
    given.map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::signals::tests::{For, Growing, headers, refusal, response};

    #[test]
    fn who_refused_decides_whom_it_concerns() {
        let by_manager = [("retry-after", "17"), ("x-ms-ratelimit-remaining-subscription-reads", "0")];
        let reads = Reach::Named(ResourceId::named("subscription-reads"));
        assert_eq!(refusal(refused, 429, &by_manager, ""), Some((For(17), reads)));
        let by_provider = [
            ("retry-after", "40"),
            ("x-ms-ratelimit-remaining-subscription-reads", "11999"),
            ("x-ms-ratelimit-remaining-resource", "Microsoft.Compute/HighCostGet3Min;0"),
        ];
        assert_eq!(refusal(refused, 429, &by_provider, ""), Some((For(40), Reach::Class)));
        assert_eq!(refusal(refused, 429, &[("x-ms-retry-after-ms", "2500")], ""), Some((For(2), Reach::All)));
        assert_eq!(refusal(refused, 429, &[], ""), Some((Growing(1, 60), Reach::All)));
        assert_eq!(refusal(refused, 503, &by_manager, ""), None);
    }

    #[test]
    fn an_empty_bucket_gains_some_in_a_second() {
        let wait = |left| {
            let headers = headers(&[("x-ms-ratelimit-remaining-tenant-writes", left)]);
            spent(&response(200, &headers, "")).map(|spent| spent.wait.as_secs())
        };
        assert_eq!(wait("0"), Some(1));
        assert_eq!(wait("1"), None);
        assert_eq!(wait("?"), None);
    }
}
