//! What a provider denies for ever is asked for less and less often, and only by those who are
//! denied it. What is part of the usual work is never held back.

use http::{HeaderMap, Method, Uri};
use tidegate::api::Key;
use tidegate::classify::Salt;
use tidegate::spec::Gate;

use crate::presets::{Signed, gate, providers};
use crate::support::{Backend, Proxy, header, reply, status};

/// A gate with the preset of GitHub, whose upstream answers with the status in the path.
async fn scene(more: &str) -> (Backend, Proxy) {
    let backend = Backend::start(|seen| async move {
        let status = seen.target.trim_start_matches("/status/").split('/').next().and_then(|word| word.parse().ok());
        reply(status.unwrap_or(200), "no")
    })
    .await;
    let proxy = Proxy::before(backend.address).with(|options| {
        let (name, listen) = (options.gate.name.clone(), options.gate.listen.clone());
        options.gate = Gate { name, listen, ..gate("github", more) };
    });
    (backend, proxy.start().await)
}

async fn call(proxy: &Proxy, method: &str, target: &str, token: &str) -> (u16, Option<String>) {
    let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n");
    let answer = proxy.exchange(&format!("{head}Authorization: Bearer {token}\r\n\r\n")).await;
    (status(&answer), header(&answer, "tidegate-refusal").map(str::to_owned))
}

#[tokio::test]
async fn who_may_not_asks_less_often_and_who_may_is_not_held_back() {
    let (backend, proxy) = scene("").await;
    for denied in [401, 403] {
        let target = format!("/status/{denied}/repos/o/r");
        assert_eq!(call(&proxy, "GET", &target, "one").await, (denied, None));
        assert_eq!(call(&proxy, "GET", &target, "one").await, (429, Some("backoff".to_owned())));
        assert_eq!(call(&proxy, "GET", &target, "two").await, (denied, None), "another caller is asked for itself");
        assert_eq!(call(&proxy, "GET", &format!("{target}/other"), "one").await, (denied, None), "another object");
        assert_eq!(call(&proxy, "DELETE", &target, "one").await, (denied, None), "another kind of call");
    }
    assert_eq!(backend.targets().len(), 8);
}

#[tokio::test]
async fn what_is_part_of_the_usual_work_is_never_a_failure() {
    let (backend, proxy) = scene("bucket = \"off\"\nclasses = [{ name = \"writes\", bucket = \"off\" }]\n").await;
    let usual = [400, 402, 404, 405, 406, 408, 409, 410, 412, 415, 422, 423, 424, 425, 428, 451, 501];
    for answer in usual {
        for _ in 0..3 {
            for method in ["GET", "PUT", "PATCH"] {
                assert_eq!(call(&proxy, method, &format!("/status/{answer}/repos/o/r"), "one").await, (answer, None));
            }
        }
    }
    assert_eq!(backend.targets().len(), usual.len() * 9);
}

#[test]
fn denials_count_in_the_presets_of_providers_except_where_they_hide_what_is_missing() {
    for preset in providers() {
        let gate = gate(preset, "");
        for (class, failures) in gate.policy.classes.iter().zip(&gate.answers.failures) {
            let wanted: &[u16] = if &*class.name == "s3" {
                &[401, 429, 500, 502, 503, 504]
            } else {
                &[401, 403, 429, 500, 502, 503, 504]
            };
            assert_eq!(failures.statuses, wanted, "{preset} {}", class.name);
        }
    }
    let chosen = gate("github", "backoff.failures = [\"500\"]\n");
    assert!(chosen.answers.failures.iter().all(|failures| failures.statuses == [500]));
}

/// The key of a GET with this token.
fn key(gate: &Gate, token: &str, hasher: &Salt) -> Key {
    let headers = HeaderMap::from_iter([(http::header::AUTHORIZATION, token.parse().expect("a value"))]);
    let call = gate.rules.classify(&Method::GET, &Uri::from_static("/repos/o/r"), &headers, hasher);
    call.key.known().expect("the path tells it")
}

#[test]
fn failures_are_each_callers_own_where_denials_count_or_a_signal_is_honoured() {
    let hasher = Salt::random();
    let failures = "backoff.failures = [\"500\"]\n";
    let neither = format!("{failures}signals.honour = []\n");
    for (more, are_apart) in [("", true), (failures, true), (&*neither, false), ("one_at_a_time = true\n", false)] {
        let gate = gate("github", more);
        let keys = ["one", "two", "one"].map(|token| key(&gate, token, &hasher));
        assert_eq!((keys[0] == keys[1], keys[0] == keys[2]), (!are_apart, true), "{more}");
        assert_eq!(keys[0].facet, keys[1].facet);
    }
}

#[test]
fn changes_to_a_zone_go_one_at_a_time_whoever_makes_them() {
    let hasher = Salt::random();
    let gate = gate("aws", "");
    let path = "/2013-04-01/hostedzone/Z1/rrset";
    let of = |account, path| {
        let signed = Signed { account, region: "us-east-1", service: "route53", method: Method::POST, path, form: "" };
        signed.classified(&gate, &hasher).key
    };
    assert_eq!(of(1, path), of(1, path));
    assert!(of(1, path).known().is_some(), "a change has its zone's key");
}
