//! The IETF's `RateLimit` and `RateLimit-Policy`, in the three forms in use.
//!
//! - List (draft-ietf-httpapi-ratelimit-headers-10): `RateLimit: "default";r=50;t=30`,
//!   `RateLimit-Policy: "default";q=100;w=60`
//! - Dictionary (draft 07): `RateLimit: limit=100, remaining=50, reset=5`
//! - Triple (drafts 00 to 06): `RateLimit-Limit: 100, 100;w=60`, `RateLimit-Remaining: 50`,
//!   `RateLimit-Reset: 5`
//!
//! Malformed fields are ignored as a whole. Retry-After wins over `t`. Only quotas of requests
//! count.

use std::borrow::Cow;
use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;
use sfv::{Item, ListEntry, Parameters, Parser};

use super::fields::{Quota, resource_word};
use super::{LimitRefusal, Reach, ResourceId, Response, SpentQuota, fields};

pub(super) fn refused(response: &Response<'_>) -> Option<LimitRefusal> {
    response.too_many()?;
    let quotas = Some(quotas(response)).filter(|quotas| !quotas.is_empty())?;
    let of = |spent: bool| quotas.iter().filter(move |quota| (quota.remaining == 0) == spent);
    let quota =
        last(of(true)).or_else(|| of(false).filter(|quota| quota.resets_in.is_some()).min_by_key(|q| q.resets_in));
    let wait = response.retry_after().or_else(|| quota.and_then(|quota| quota.resets_in))?;
    Some(LimitRefusal::all(wait).within(quota.map_or(Reach::All, reach)))
}

pub(super) fn spent(response: &Response<'_>, reserve: f64) -> Option<SpentQuota> {
    if response.headers.contains_key(RETRY_AFTER) {
        return None; // it wins over everything else
    }
    let quotas = quotas(response);
    let spent = quotas.iter().filter(|quota| fields::is_spent(quota.remaining, quota.limit.unwrap_or(0), reserve));
    let last = last(spent)?;
    let wait = last.resets_in.filter(|wait| !wait.is_zero())?;
    Some(SpentQuota { wait, reach: reach(last) })
}

/// Returns the quota with the last reset.
fn last<'q>(quotas: impl Iterator<Item = &'q Quota>) -> Option<&'q Quota> {
    quotas.filter(|quota| quota.resets_in.is_some()).max_by_key(|quota| quota.resets_in)
}

/// Returns the resource of a policy; an unnamed one is of everything.
pub(super) fn reach(quota: &Quota) -> Reach {
    if quota.resource == UNNAMED { Reach::All } else { Reach::Named(ResourceId::named(&quota.resource)) }
}

/// Returns a count and its time window: `100;w=21600`, or the first of `100, 100;w=60,
/// 1000;w=3600`.
pub(super) fn counted(headers: &HeaderMap, name: &str) -> Option<(u64, Option<Duration>)> {
    let entries = Parser::new(&joined(headers, name)?).parse::<sfv::List>().ok()?;
    let counts = entries.iter().filter_map(item);
    let mut items = counts.filter_map(|item| Some((whole(&item.bare_item)?, window(&item.params))));
    let first = items.next()?;
    // Older drafts tell the window only in the policy beside the limit.
    let window = first.1.or_else(|| items.find(|(count, window)| *count == first.0 && window.is_some())?.1);
    Some((first.0, window))
}

/// Returns the quotas in a response.
pub(super) fn quotas(response: &Response<'_>) -> Vec<Quota> {
    let headers = response.headers;
    let Some(field) = joined(headers, "ratelimit") else { return triple(response).into_iter().collect() };
    if let Ok(list) = Parser::new(&field).parse::<sfv::List>() {
        let policies =
            joined(headers, "ratelimit-policy").and_then(|field| Parser::new(&field).parse::<sfv::List>().ok());
        let policies = policies.unwrap_or_default();
        return list.iter().take(fields::MOST_QUOTAS).filter_map(|entry| named(entry, &policies)).collect();
    }
    let Ok(dictionary) = Parser::new(&field).parse::<sfv::Dictionary>() else { return Vec::new() };
    let number = |key: &str| whole(&dictionary.get(key).and_then(item)?.bare_item);
    let quota = number("remaining").map(|remaining| Quota {
        resource: UNNAMED,
        remaining,
        limit: number("limit"),
        resets_in: number("reset").and_then(|reset| fields::reset(reset, response)),
    });
    quota.into_iter().collect()
}

/// Reads a quota of the list form, with its policy of the same name.
fn named(entry: &ListEntry, policies: &sfv::List) -> Option<Quota> {
    let item = item(entry)?;
    let policies = policies.iter().take(fields::MOST_QUOTAS);
    let policy = policies.filter_map(self::item).find(|policy| policy.bare_item == item.bare_item);
    let unit = policy.and_then(|policy| policy.params.get("qu")).and_then(|unit| unit.as_string());
    if unit.is_some_and(|unit| unit.as_str() != "requests") {
        return None;
    }
    let number = |params: &Parameters, key: &str| params.get(key).and_then(whole);
    let window = policy.and_then(|policy| window(&policy.params));
    Some(Quota {
        resource: item.bare_item.as_string().map_or(UNNAMED, |name| resource_word(name.as_str())),
        remaining: number(&item.params, "r")?,
        limit: policy.and_then(|policy| number(&policy.params, "q")),
        resets_in: number(&item.params, "t").map(Duration::from_secs).or(window),
    })
}

fn triple(response: &Response<'_>) -> Option<Quota> {
    let headers = response.headers;
    let (remaining, _) = counted(headers, "ratelimit-remaining")?;
    let limit = counted(headers, "ratelimit-limit");
    let reset = fields::number(headers, "ratelimit-reset").and_then(|reset| fields::reset(reset, response));
    let window = limit.and_then(|(_, window)| window);
    Some(Quota { resource: UNNAMED, remaining, limit: limit.map(|(limit, _)| limit), resets_in: reset.or(window) })
}

fn item(entry: &ListEntry) -> Option<&Item> {
    match entry {
        ListEntry::Item(item) => Some(item),
        ListEntry::InnerList(_) => None,
    }
}

fn whole(item: &sfv::BareItem) -> Option<u64> {
    u64::try_from(i64::from(item.as_integer()?)).ok()
}

fn window(params: &Parameters) -> Option<Duration> {
    params.get("w").and_then(whole).map(Duration::from_secs)
}

/// Returns the value of a header, joined if it has several lines.
fn joined(headers: &HeaderMap, name: &str) -> Option<String> {
    let lines: Option<Vec<&str>> = headers.get_all(name).iter().map(|line| line.to_str().ok()).collect();
    lines.filter(|lines| !lines.is_empty()).map(|lines| lines.join(", "))
}

/// The name of a quota without one.
const UNNAMED: Cow<'static, str> = Cow::Borrowed("requests");

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;
    use crate::api::signals::tests::{For, Key, headers, refusal, response};

    fn quota(left: u64, limit: u64, resets_in: u64) -> Quota {
        Quota {
            resource: UNNAMED,
            remaining: left,
            limit: Some(limit),
            resets_in: Some(Duration::from_secs(resets_in)),
        }
    }

    /// The quotas without their names.
    fn unnamed(pairs: &[Key]) -> Vec<Quota> {
        let quotas = quotas(&response(200, &headers(pairs), ""));
        quotas.into_iter().map(|quota| Quota { resource: UNNAMED, ..quota }).collect()
    }

    #[test]
    fn the_list_form_names_its_quotas() {
        let found = unnamed;
        let policy = ("ratelimit-policy", "\"burst\";q=100;w=60,\"daily\";q=1000;w=86400");
        assert_eq!(found(&[policy, ("ratelimit", "\"burst\";r=50;t=30")]), [quota(50, 100, 30)]);
        assert_eq!(
            found(&[policy, ("ratelimit", "\"burst\";r=5;t=3, \"daily\";r=0;t=4000")]),
            [quota(5, 100, 3), quota(0, 1000, 4000)]
        );
        assert_eq!(found(&[policy, ("ratelimit", "\"daily\";r=9")]), [quota(9, 1000, 86_400)], "the window at most");
        let alone = [Quota { resource: UNNAMED, remaining: 50, limit: None, resets_in: Some(Duration::from_secs(30)) }];
        assert_eq!(found(&[("ratelimit", "\"default\";r=50;t=30")]), alone);
        assert_eq!(found(&[("ratelimit", "default;r=50;t=30")]), alone, "a token, as draft 08 had it");
        assert_eq!(found(&[("ratelimit", "\"a\";r=50;t=30"), ("ratelimit-policy", "\"a\";q=")]), alone);
        assert_eq!(
            found(&[("ratelimit-policy", "\"b\";q=9;qu=\"content-bytes\""), ("ratelimit", "\"b\";r=0;t=9")]),
            []
        );
        assert_eq!(found(&[("ratelimit", "\"default\";t=30")]), [], "r is required");
        assert_eq!(found(&[("ratelimit", "\"default\";r=5;t=30;")]), [], "malformed: ignored as a whole");
        assert_eq!(found(&[("ratelimit", "\"default\";r=-5;t=30")]), []);
    }

    #[test]
    fn of_more_quotas_than_an_answer_can_mean_the_first_are_read() {
        let list = |item: fn(usize) -> String| (0..1000).map(item).collect::<Vec<_>>().join(",");
        let read = |lines: [(&'static str, String); 2]| {
            let lines = lines.map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
            quotas(&response(200, &lines.into_iter().collect(), ""))
        };
        let left = list(|at| format!("\"{at}\";r=1;t=2"));
        let policy = list(|at| format!("\"{at}\";q={at}"));
        let limits = read([("ratelimit", left), ("ratelimit-policy", policy)]).into_iter().map(|quota| quota.limit);
        assert_eq!(limits.collect::<Vec<_>>(), (0..16).map(Some).collect::<Vec<_>>());
        // What is no quota of calls counts as well: it has to be looked at.
        let unusable = list(|at| format!("\"{at}\";t=2"));
        assert_eq!(read([("ratelimit", format!("{unusable},\"a\";r=1")), ("x", String::new())]), []);
    }

    #[test]
    fn a_field_may_stand_on_several_lines() {
        let mut lines = HeaderMap::new();
        lines.append("ratelimit", "\"a\";r=1;t=2".parse().unwrap());
        lines.append("ratelimit", "\"b\";r=3;t=4".parse().unwrap());
        assert_eq!(quotas(&response(200, &lines, "")).len(), 2);
    }

    #[test]
    fn the_older_forms_are_read_too() {
        let found = unnamed;
        assert_eq!(found(&[("ratelimit", "limit=100, remaining=50, reset=5")]), [quota(50, 100, 5)]);
        assert_eq!(
            found(&[("ratelimit-limit", "100, 100;w=60"), ("ratelimit-remaining", "7"), ("ratelimit-reset", "42")]),
            [quota(7, 100, 42)]
        );
        assert_eq!(found(&[("ratelimit-limit", "100, 100;w=60"), ("ratelimit-remaining", "7")]), [quota(7, 100, 60)]);
        assert_eq!(found(&[("ratelimit-limit", "100")]), []);
    }

    #[test]
    fn a_count_may_have_its_window_beside_it() {
        let count = |value| counted(&headers(&[("ratelimit-limit", value)]), "ratelimit-limit");
        let window = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(count("100;w=21600"), Some((100, window(21_600))));
        assert_eq!(count("100, 10;w=1, 100;w=60"), Some((100, window(60))));
        assert_eq!(count("100"), Some((100, None)));
        assert_eq!(count("many"), None);
    }

    fn named(word: &str) -> Reach {
        Reach::Named(ResourceId::named(word))
    }

    #[test]
    fn retry_after_goes_first_then_what_is_used_up_then_the_next_reset() {
        let list = ("ratelimit", "\"a\";r=0;t=30, \"b\";r=0;t=50, \"c\";r=9;t=5");
        assert_eq!(refusal(refused, 429, &[list, ("retry-after", "3")], ""), Some((For(3), named("b"))));
        assert_eq!(refusal(refused, 429, &[list], ""), Some((For(50), named("b"))));
        assert_eq!(refusal(refused, 429, &[("ratelimit", "\"c\";r=9;t=5")], ""), Some((For(5), named("c"))));
        assert_eq!(refusal(refused, 429, &[("retry-after", "3")], ""), None, "no field of ours");
        assert_eq!(refusal(refused, 503, &[list], ""), None);
    }

    #[test]
    fn the_reserve_is_left_to_others() {
        let wait = |pairs: &[Key], reserve| {
            spent(&response(200, &headers(pairs), ""), reserve).map(|spent| spent.wait.as_secs())
        };
        let list = [("ratelimit-policy", "\"a\";q=100;w=60"), ("ratelimit", "\"a\";r=10;t=30")];
        assert_eq!(wait(&list, 0.1), Some(30));
        assert_eq!(wait(&list, 0.09), None);
        assert_eq!(wait(&[("ratelimit", "\"a\";r=10;t=30")], 0.5), None, "of how many?");
        assert_eq!(wait(&[("ratelimit", "\"a\";r=0;t=30")], 0.0), Some(30));
        assert_eq!(wait(&[("ratelimit", "\"a\";r=0;t=30"), ("retry-after", "1")], 0.0), None);
    }
}
