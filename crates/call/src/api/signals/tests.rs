//! Tests of every family, and of all of them together.

use http::header::HeaderName;
use http::{HeaderValue, Method, Uri};
use proptest::prelude::*;

pub(super) use self::Told::{For, Growing};
use super::*;
use crate::api::{Failures, Outcome, PausePolicy, Scope, external, outcome};
use crate::limit::outcome::Charged;
use crate::limit::quota::QuotaKind;

/// A header field.
pub(super) type Key = (&'static str, &'static str);

/// A wait in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Told {
    For(u64),
    Growing(u64, u64),
}

pub(super) fn headers(pairs: &[Key]) -> HeaderMap {
    let field = |(name, value): &Key| (HeaderName::from_static(name), HeaderValue::from_static(value));
    pairs.iter().map(field).collect()
}

pub(super) fn response<'a>(status: u16, headers: &'a HeaderMap, body: &'a str) -> Response<'a> {
    Response { status: StatusCode::from_u16(status).unwrap(), headers, body: body.as_bytes(), wall: None }
}

/// Reads a response by one family.
pub(super) fn refusal(
    family: fn(&Response<'_>) -> Option<LimitRefusal>,
    status: u16,
    pairs: &[Key],
    body: &str,
) -> Option<(Told, Reach)> {
    let refused = family(&response(status, &headers(pairs), body))?;
    let told = match refused.wait {
        PauseLength::Known(wait) => For(wait.as_secs()),
        PauseLength::Growing { first, most } => Growing(first.as_secs(), most.as_secs()),
    };
    Some((told, refused.reach))
}

fn all() -> Signals {
    Signal::ALL.into_iter().collect()
}

#[test]
fn a_set_has_what_was_put_into_it() {
    let two: Signals = [Signal::Google, Signal::RetryAfter].into_iter().collect();
    assert_eq!(two.iter().collect::<Vec<_>>(), [Signal::RetryAfter, Signal::Google]);
    assert!(!two.contains(Signal::Aws));
    assert_eq!(all().iter().collect::<Vec<_>>(), Signal::ALL);
    assert_eq!(Signals::default().iter().next(), None);
}

#[test]
fn what_is_not_honoured_is_not_heard() {
    let headers = headers(&[("retry-after", "7"), ("x-amzn-errortype", "Throttling")]);
    let response = response(400, &headers, "");
    let one = |signal| read([signal].into_iter().collect(), 0.0, &response).refused.map(|(signal, _)| signal);
    assert_eq!(one(Signal::Aws), Some(Signal::Aws));
    assert_eq!(one(Signal::RetryAfter), None, "a 400 is the call's own fault");
    assert_eq!(read(Signals::default(), 0.5, &response), LimitFacts::default());
}

#[test]
fn a_provider_knows_better_than_its_retry_after_whom_it_concerns() {
    let headers = headers(&[("retry-after", "7"), ("x-ms-ratelimit-remaining-subscription-reads", "99")]);
    let reading = read([Signal::RetryAfter, Signal::Azure].into_iter().collect(), 0.0, &response(429, &headers, ""));
    let (signal, refused) = reading.refused.unwrap();
    assert_eq!(
        (signal, refused.wait, refused.reach),
        (Signal::Azure, PauseLength::Known(Duration::from_secs(7)), Reach::Class)
    );
}

#[test]
fn the_longest_of_several_quotas_counts() {
    let headers = headers(&[
        ("date", "Wed, 17 Jul 2019 00:57:57 GMT"),
        ("ratelimit", "\"default\";r=0;t=30"),
        ("x-ratelimit-limit", "5000"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1563325137"),
    ]);
    let reading = read([Signal::Ietf, Signal::Github].into_iter().collect(), 0.0, &response(200, &headers, ""));
    assert_eq!(reading.spent.map(|(signal, spent)| (signal, spent.wait.as_secs())), Some((Signal::Github, 61)));
    assert_eq!(reading.refused, None);
}

#[test]
fn a_body_is_asked_for_where_it_can_be_read() {
    let wants = |pairs: &[Key]| wants_body(all(), StatusCode::FORBIDDEN, &headers(pairs));
    assert!(wants(&[]));
    assert!(wants(&[("content-encoding", "identity")]));
    for coding in ["gzip", "GZIP", "x-gzip", "deflate"] {
        assert!(wants(&[("content-encoding", coding)]), "{coding}");
    }
    for coding in ["br", "zstd", "gzip, br"] {
        assert!(!wants(&[("content-encoding", coding)]), "{coding}");
    }
    assert!(!wants_body(Signals::default(), StatusCode::FORBIDDEN, &HeaderMap::new()));
}

fn fields() -> impl Strategy<Value = Vec<(&'static str, String)>> {
    let name = prop::sample::select(vec![
        "retry-after",
        "date",
        "ratelimit",
        "ratelimit-policy",
        "ratelimit-limit",
        "ratelimit-remaining",
        "ratelimit-reset",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "x-ratelimit-resource",
        "x-rate-limit-limit",
        "x-rate-limit-remaining",
        "x-rate-limit-reset",
        "x-ms-ratelimit-remaining-subscription-reads",
        "x-ms-retry-after-ms",
        "x-amzn-errortype",
        "x-retry-after",
    ]);
    let value = prop_oneof![
        "[ -~]{0,40}",
        "[0-9]{1,25}",
        "\"[a-z]{1,3}\";r=[0-9]{1,3};t=[0-9]{1,18}",
        "[0-9]{1,4};w=[0-9]{1,16}",
        "limit=[0-9]{1,3}, remaining=[0-9]{1,2}, reset=[0-9]{1,12}",
        Just("Sun, 06 Nov 1994 08:49:37 GMT".to_owned()),
        Just("0".to_owned()),
    ];
    prop::collection::vec((name, value), 0..8)
}

fn head(fields: &[(&'static str, String)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.append(*name, value);
        }
    }
    headers
}

proptest! {
    #[test]
    fn any_response_is_survived(
        fields in fields(),
        status in prop::sample::select(vec![200_u16, 304, 400, 403, 404, 429, 500, 503]),
        body in prop::collection::vec(any::<u8>(), 0..200),
        reserve in 0.0..1.0_f64,
    ) {
        let headers = head(&fields);
        let response = Response { status: StatusCode::from_u16(status).unwrap(), headers: &headers, body: &body, wall: None };
        prop_assert!(status >= 400 || !wants_body(all(), response.status, &headers));
        let reading = read(all(), reserve, &response);
        if let Some((_, LimitRefusal { wait: PauseLength::Growing { first, most }, .. })) = reading.refused {
            prop_assert!(!first.is_zero() && first <= most);
        }
        if status < 400 {
            prop_assert_eq!(reading.refused, None);
        }
        if let Some((_, spent)) = reading.spent {
            prop_assert!(!spent.wait.is_zero());
        }
    }

    #[test]
    fn nothing_waits_longer_than_max_pause(
        fields in fields(),
        status in prop::sample::select(vec![200_u16, 400, 403, 429, 503]),
        most in 0_u64..10_000,
        scope in prop::sample::select(vec![Scope::Key, Scope::Class, Scope::Credential, Scope::Gate]),
        kubernetes: bool,
    ) {
        let headers = head(&fields);
        let response = Response { status: StatusCode::from_u16(status).unwrap(), headers: &headers, body: b"", wall: None };
        let max_pause = Duration::from_secs(most);
        let throttling = PausePolicy { kubernetes, honour: all(), scope, max_pause, reserve: 0.5, quota: QuotaKind::Unknown, pace: false };
        let failures = Failures { statuses: vec![429, 503], transport: true, left: true };
        let call = external::read(&Method::GET, &Uri::from_static("/a"));
        let answer = outcome::answer(&failures, &throttling, &call, &response).answer;
        if let Outcome::Throttled { after } = answer.outcome {
            prop_assert!(after <= max_pause);
        }
        if let Some(pause) = answer.pause {
            prop_assert!(scope != Scope::Key && (scope != Scope::Class || pause.charged != Charged::All));
            match pause.length {
                PauseLength::Known(length) => prop_assert!(length <= max_pause),
                PauseLength::Growing { first, most } => prop_assert!(first <= most && most <= max_pause),
            }
        }
    }

    #[test]
    fn the_more_is_left_to_others_the_sooner_and_the_longer_it_pauses(
        fields in fields(), low in 0.0..1.0_f64, more in 0.0..1.0_f64,
    ) {
        let headers = head(&fields);
        let response = Response { status: StatusCode::OK, headers: &headers, body: b"", wall: None };
        let wait = |reserve| read(all(), reserve, &response).spent.map(|(_, spent)| spent.wait);
        prop_assert!(wait(low) <= wait(low + more * (1.0 - low)));
    }

    #[test]
    fn a_later_reset_is_a_longer_wait(left in 0_u64..3, one in 0_u32..4_000_000, other in 0_u32..4_000_000) {
        let wait = |signal, seconds: u32| {
            let reset = (784_111_777 + 779_000_000 + u64::from(seconds)).to_string();
            let left = left.to_string();
            let fields = [
                ("date", "Sun, 06 Nov 1994 08:49:37 GMT".to_owned()),
                ("x-ratelimit-limit", "100".to_owned()),
                ("x-ratelimit-remaining", left.clone()),
                ("x-ratelimit-reset", reset.clone()),
                ("ratelimit-limit", "100".to_owned()),
                ("ratelimit-remaining", left.clone()),
                ("ratelimit-reset", reset.clone()),
                ("x-rate-limit-limit", "100".to_owned()),
                ("x-rate-limit-remaining", left),
                ("x-rate-limit-reset", reset),
            ];
            let headers = head(&fields);
            let response = Response { status: StatusCode::TOO_MANY_REQUESTS, headers: &headers, body: b"", wall: None };
            let reading = read([signal].into_iter().collect(), 0.0, &response);
            reading.refused.map(|(_, refused)| match refused.wait {
                PauseLength::Known(wait) => wait,
                PauseLength::Growing { first, .. } => first,
            })
        };
        let sooner = one.min(other);
        let later = one.max(other);
        for signal in [Signal::Ietf, Signal::Github, Signal::Gitlab, Signal::Okta] {
            prop_assert!(wait(signal, sooner) <= wait(signal, later), "{signal:?}");
        }
    }
}

#[test]
fn each_signal_says_what_it_tells() {
    for signal in Signal::ALL {
        // A new signal does not compile before it is said here.
        let expected = match signal {
            Signal::RetryAfter => "",
            Signal::Aws | Signal::Google => "provider",
            Signal::Azure | Signal::Github | Signal::Ietf => "quota resource provider",
            Signal::Docker | Signal::Gitlab | Signal::Okta => "quota provider",
        };
        let one = Signals::from_iter([signal]);
        let told =
            [(one.tell_quotas(), "quota"), (one.name_resources(), "resource"), (one.are_of_providers(), "provider")];
        let told: Vec<_> = told.iter().filter(|(tells, _)| *tells).map(|(_, what)| *what).collect();
        assert_eq!(told.join(" "), expected, "{signal}");
    }
}
