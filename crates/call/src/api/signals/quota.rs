//! Quotas in responses: their size, the calls left, and the time of their reset.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::RETRY_AFTER;

use super::fields::{Quota, resource_word};
use super::{Reach, Response, Signal, Signals, docker, fields, github, ietf};
use crate::limit::outcome::{Charged, QuotaReading};
use crate::limit::quota::QuotaKind;

/// Returns how many calls are left of the scarcest quota, without the reserve for others; `None` if
/// no quota counts the calls of one bucket.
pub fn left(honoured: Signals, quotas: &[Quota], reserve: f64) -> Option<u32> {
    // Azure's numbers are of many quotas at once, which a bucket does not distinguish.
    if honoured.contains(Signal::Azure) {
        return None;
    }
    let least = quotas.iter().map(|quota| quota.remaining.saturating_sub(kept(quota, reserve))).min()?;
    Some(u32::try_from(least).unwrap_or(u32::MAX))
}

/// Returns the number of calls of a quota to leave to others.
#[expect(clippy::cast_possible_truncation, reason = "calls")]
fn kept(quota: &Quota, reserve: f64) -> u64 {
    (quota.limit.unwrap_or(0) as f64 * reserve).floor() as u64
}

/// Returns the scarcest quota in a response; `None` if the response has a Retry-After. `charged`
/// returns the resource of a pause.
pub(in crate::api) fn scarcest(
    honoured: Signals,
    reserve: f64,
    response: &Response<'_>,
    charged: impl Fn(Reach) -> Option<Charged>,
) -> Option<QuotaReading> {
    if response.headers.contains_key(RETRY_AFTER) {
        return None;
    }
    let (signal, quotas) = told(honoured, response)?;
    let kind = match signal {
        Signal::Github | Signal::Gitlab | Signal::Okta => QuotaKind::Window,
        Signal::Docker if docker::pace(response).is_some() => QuotaKind::Refill,
        _ => QuotaKind::Unknown,
    };
    let reading = |quota: &Quota| {
        let limit = quota.limit.filter(|limit| *limit > 0)?;
        let reach = match signal {
            Signal::Github => github::resource(response).map_or(Reach::Charged, Reach::Named),
            Signal::Docker | Signal::Okta => Reach::Class,
            _ => ietf::reach(quota),
        };
        let resets_in = quota.resets_in.filter(|wait| !wait.is_zero())?;
        let kept = kept(quota, reserve);
        Some(QuotaReading {
            charged: charged(reach)?,
            limit,
            left: quota.remaining,
            kept,
            resets_in,
            kind,
            paces: false,
        })
    };
    // Of those used up, the one that is whole last.
    let order = |reading: &QuotaReading| match reading.left.saturating_sub(reading.kept) {
        0 => (0, u64::MAX - reading.resets_in.as_secs()),
        left => (left.saturating_mul(1 << 20) / reading.limit + 1, 0),
    };
    quotas.iter().filter_map(reading).min_by_key(order)
}

/// Returns the quotas in a response.
pub fn quotas(honoured: Signals, response: &Response<'_>) -> Vec<Quota> {
    told(honoured, response).map(|(_, quotas)| quotas).unwrap_or_default()
}

/// Returns the quotas in a response. The first signal obeyed that has a quota counts.
fn told(honoured: Signals, response: &Response<'_>) -> Option<(Signal, Vec<Quota>)> {
    let quotas = honoured.iter().map(|signal| (signal, of_signal(signal, response)));
    quotas.into_iter().find(|(_, found)| !found.is_empty())
}

fn of_signal(signal: Signal, response: &Response<'_>) -> Vec<Quota> {
    match signal {
        Signal::Github => headed(response, &GITHUB).into_iter().collect(),
        Signal::Okta => headed(response, &OKTA).into_iter().collect(),
        Signal::Docker => {
            let registry = ietf::quotas(response);
            if registry.is_empty() { headed(response, &GITHUB).into_iter().collect() } else { registry }
        }
        Signal::Gitlab | Signal::Ietf => ietf::quotas(response),
        Signal::Azure => azure(response.headers),
        Signal::Aws | Signal::Google | Signal::RetryAfter => Vec::new(),
    }
}

/// Reads a quota from four headers: limit, remaining, reset and resource.
fn headed(response: &Response<'_>, [limit, remaining, reset, resource]: &[&str; 4]) -> Option<Quota> {
    let number = |name: &str| fields::number(response.headers, name);
    let resource = response.headers.get(*resource).and_then(|value| value.to_str().ok()).map(resource_word);
    Some(Quota {
        remaining: number(remaining)?,
        resource: resource.unwrap_or(Cow::Borrowed("core")),
        limit: number(limit),
        resets_in: number(reset).and_then(|reset| fields::reset(reset, response)),
    })
}

/// Reads the calls left of Azure Resource Manager, and of a resource provider:
/// `Microsoft.Compute/GetVM3Min;239,Microsoft.Compute/GetVM30Min;2384`.
fn azure(headers: &HeaderMap) -> Vec<Quota> {
    let quota = |name: &str, remaining| Quota { resource: resource_word(name), remaining, ..Quota::default() };
    let mut quotas = Vec::new();
    for (name, value) in headers {
        let Some(resource) = name.as_str().strip_prefix("x-ms-ratelimit-remaining-") else { continue };
        let Ok(value) = value.to_str() else { continue };
        let of_providers = value.split(',').filter_map(|part| part.trim().rsplit_once(';'));
        quotas.extend(of_providers.filter_map(|(name, left)| Some(quota(name, fields::digits(left)?))));
        quotas.extend(fields::digits(value.trim()).map(|left| quota(resource, left)));
    }
    quotas.truncate(fields::MOST_QUOTAS);
    quotas
}

const GITHUB: [&str; 4] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "x-ratelimit-resource"];
const OKTA: [&str; 4] = ["x-rate-limit-limit", "x-rate-limit-remaining", "x-rate-limit-reset", "x-rate-limit-resource"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::signals::fields::LONGEST_NAME;
    use crate::api::signals::tests::{Key, headers, response};

    #[test]
    fn what_is_left_is_that_of_the_scarcest_quota_without_the_reserve() {
        let quota = |limit, remaining| Quota { resource: "core".into(), limit, remaining, resets_in: None };
        let of = |quotas: &[Quota], reserve| left(Signals::from_iter([Signal::Github]), quotas, reserve);
        assert_eq!(of(&[], 0.1), None);
        assert_eq!(of(&[quota(Some(5_000), 700)], 0.1), Some(200));
        assert_eq!(of(&[quota(Some(5_000), 400)], 0.1), Some(0));
        assert_eq!(of(&[quota(Some(5_000), 700), quota(None, 90)], 0.0), Some(90));
        assert_eq!(of(&[quota(None, u64::MAX)], 0.5), Some(u32::MAX));
        assert_eq!(left(Signals::from_iter([Signal::Azure]), &[quota(None, 90)], 0.0), None);
    }

    fn told(signal: Signal, pairs: &[Key]) -> Vec<(String, Option<u64>, u64, Option<u64>)> {
        let headers = headers(pairs);
        let quotas = quotas(std::iter::once(signal).collect(), &response(200, &headers, ""));
        let row = |quota: Quota| {
            (quota.resource.into_owned(), quota.limit, quota.remaining, quota.resets_in.map(|wait| wait.as_secs()))
        };
        quotas.into_iter().map(row).collect()
    }

    #[test]
    fn each_provider_is_read_in_its_own_words() {
        let date = ("date", "Wed, 17 Jul 2019 00:57:57 GMT"); // 1563325077
        let github = [
            date,
            ("x-ratelimit-limit", "5000"),
            ("x-ratelimit-remaining", "4321"),
            ("x-ratelimit-reset", "1563325137"),
            ("x-ratelimit-resource", "search"),
        ];
        assert_eq!(told(Signal::Github, &github), [("search".to_owned(), Some(5000), 4321, Some(61))]);
        assert_eq!(told(Signal::Github, &[("x-ratelimit-remaining", "7")]), [("core".to_owned(), None, 7, None)]);
        let azure = [
            ("x-ms-ratelimit-remaining-subscription-reads", "249"),
            ("x-ms-ratelimit-remaining-resource", "Microsoft.Compute/GetVM3Min;239,Microsoft.Compute/GetVM30Min;2384"),
            ("x-ms-ratelimit-remaining-tenant-writes", "?"),
        ];
        let mut found = told(Signal::Azure, &azure);
        found.sort();
        let expected =
            [("Microsoft.Compute/GetVM30Min", 2384), ("Microsoft.Compute/GetVM3Min", 239), ("subscription-reads", 249)];
        assert_eq!(found, expected.map(|(name, left)| (name.to_owned(), None, left, None)));
        let ietf = [("ratelimit", "\"hourly\";r=50;t=30"), ("ratelimit-policy", "\"hourly\";q=100;w=60")];
        assert_eq!(told(Signal::Ietf, &ietf), [("hourly".to_owned(), Some(100), 50, Some(30))]);
        let triple = [("ratelimit-limit", "100;w=21600"), ("ratelimit-remaining", "76;w=21600")];
        assert_eq!(told(Signal::Docker, &triple), [("requests".to_owned(), Some(100), 76, Some(21600))]);
        let okta = [date, ("x-rate-limit-limit", "1200"), ("x-rate-limit-remaining", "3")];
        assert_eq!(told(Signal::Okta, &okta), [("core".to_owned(), Some(1200), 3, None)]);
    }

    #[test]
    fn malformed_numbers_and_long_names_tell_nothing_or_little() {
        assert_eq!(told(Signal::Github, &[("x-ratelimit-remaining", "-1")]), []);
        assert_eq!(told(Signal::Aws, &[("x-ratelimit-remaining", "1")]), []);
        let long = "x".repeat(200);
        let headers = headers(&[("x-ratelimit-remaining", "1")]);
        let mut headers = headers;
        headers.insert("x-ratelimit-resource", long.parse().expect("a value"));
        let quotas = quotas(std::iter::once(Signal::Github).collect(), &response(200, &headers, ""));
        assert_eq!(quotas[0].resource.len(), LONGEST_NAME);
    }
}
