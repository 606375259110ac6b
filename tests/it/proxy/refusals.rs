//! The answer to a refused call, and the effects of a failing key.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::Response;
use tidegate::classify::{ApiKind, KeyParts};
use tidegate::proxy::RetryAfter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Backend, Proxy, bucket, header, reply, rules, status, within};
use crate::window::worst_excess;

const CREATE: &str = "POST /api/v1/namespaces/n/configmaps HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";

/// The seconds after which to come again, from the body: a Status has them in its details, a
/// problem document beside them.
fn seconds_in(answer: &str) -> Option<u64> {
    let said = body(answer);
    said["details"]["retryAfterSeconds"].as_u64().or_else(|| said["retryAfterSeconds"].as_u64())
}

fn body(answer: &str) -> serde_json::Value {
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).expect("JSON")
}

#[tokio::test]
async fn an_empty_bucket_refuses_with_a_status_and_an_honest_time() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).bucket(0.1, 1).max_wait(Duration::from_millis(100)).start().await;
    within(async { while proxy.get("/first").await.0 != 200 {} }).await;
    let (status, answer) = proxy.get("/api/v1/namespaces/n/pods/p").await;
    assert_eq!(status, 429);
    assert_eq!(header(&answer, "tidegate-refusal"), Some("bucket"));
    assert_eq!(header(&answer, "content-type"), Some("application/json"));
    let seconds: u64 = header(&answer, "retry-after").expect("when").parse().expect("whole seconds");
    assert!((1..=12).contains(&seconds), "{seconds}");
    let said = body(&answer);
    assert_eq!(
        (&said["kind"], &said["apiVersion"], &said["status"]),
        (&"Status".into(), &"v1".into(), &"Failure".into())
    );
    assert_eq!((&said["reason"], &said["code"]), (&"TooManyRequests".into(), &429.into()));
    assert_eq!(said["details"]["retryAfterSeconds"], seconds);
    let message = said["message"].as_str().expect("text");
    for word in [&*proxy.name, "default", "bucket"] {
        assert!(message.contains(word), "{word} in {message}");
    }
    assert_eq!(proxy.metric("tidegate_refusals_total", &["reason=\"bucket\"", "resource=\"pods\""]), 1.0);
    assert_eq!(backend.targets(), ["/first"]);
}

/// The numbers of a structured field's list, by name: `q` and `w`, or `r` and `t`.
fn quotas(answer: &str, field: &str, keys: [&str; 2]) -> Vec<(String, [i64; 2])> {
    let lines = answer.lines().filter_map(|line| line.split_once(": "));
    let lines: Vec<_> = lines.filter(|(name, _)| name.eq_ignore_ascii_case(field)).map(|(_, value)| value).collect();
    let list = sfv::Parser::new(&lines.join(", ")).parse::<sfv::List>().expect("a list");
    let read = |entry: &sfv::ListEntry| {
        let sfv::ListEntry::Item(item) = entry else { panic!("{field} in {answer}") };
        let number =
            |key: &str| i64::from(item.params.get(key).and_then(|value| value.as_integer()).expect("a number"));
        (item.bare_item.as_string().expect("a name").as_str().to_owned(), keys.map(number))
    };
    list.iter().map(read).collect()
}

#[tokio::test]
async fn an_http_gates_refusal_has_the_buckets_of_its_call() {
    let backend = Backend::replying(200).await;
    for kind in [ApiKind::Http, ApiKind::Kubernetes] {
        let proxy = Proxy::before(backend.address).bucket(0.0001, 2).max_wait(Duration::ZERO);
        let proxy = proxy
            .with(|options| {
                options.gate.kind = kind;
                options.gate.rules = Arc::new(rules(kind));
            })
            .start()
            .await;
        for _ in 0..2 {
            let (status, answer) = proxy.get("/first").await;
            assert_eq!((status, header(&answer, "ratelimit"), header(&answer, "ratelimit-policy")), (200, None, None));
        }
        let (_, answer) = proxy.get("/second").await;
        assert_eq!(header(&answer, "tidegate-refusal"), Some("bucket"));
        if kind == ApiKind::Kubernetes {
            assert_eq!((header(&answer, "ratelimit"), header(&answer, "ratelimit-policy")), (None, None));
            continue;
        }
        assert_eq!(quotas(&answer, "ratelimit-policy", ["q", "w"]), [(proxy.name.to_string(), [2, 20_000])]);
        let left = quotas(&answer, "ratelimit", ["r", "t"]);
        let [(name, [0, whole_in])] = &left[..] else { panic!("{left:?}") };
        assert_eq!(**name, *proxy.name);
        let next: i64 = header(&answer, "retry-after").expect("when").parse().expect("seconds");
        assert!((19_000..=20_000).contains(whole_in) && next < *whole_in, "{next} {whole_in}");
    }
}

#[tokio::test]
async fn an_http_gates_answers_have_what_is_left_if_asked_for() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).bucket(0.0001, 3).with(|options| {
        options.gate.kind = ApiKind::Http;
        options.gate.rules = Arc::new(rules(ApiKind::Http));
        options.gate.refusals.ratelimit_on_answers = true;
        options.gate.policy.classes[1].bucket = Some(bucket(0.0001, 5));
    });
    let proxy = proxy.start().await;
    let class = format!("{}.default", proxy.name);
    for left in [2, 1, 0] {
        let (status, answer) = proxy.get("/first").await;
        let policies = [(proxy.name.to_string(), [3, 30_000]), (class.clone(), [5, 50_000])];
        assert_eq!((status, quotas(&answer, "ratelimit-policy", ["q", "w"])), (200, policies.to_vec()));
        let found = quotas(&answer, "ratelimit", ["r", "t"]);
        assert_eq!(found.iter().map(|(_, [left, _])| *left).collect::<Vec<_>>(), [left, left + 2], "{answer}");
        // After that time each bucket is full: ten thousand seconds for each call.
        let whole_in = (3 - left) * 10_000;
        assert!(found.iter().all(|(_, [_, t])| (whole_in - 1000..=whole_in).contains(t)), "{found:?}");
    }
}

#[tokio::test]
async fn fields_of_the_upstream_stay_alone() {
    let backend = Backend::start(|_| async {
        let mut reply = reply(200, "ok");
        reply.headers_mut().insert("ratelimit", http::HeaderValue::from_static("limit=100, remaining=50, reset=5"));
        reply
    });
    let proxy = Proxy::before(backend.await.address).with(|options| {
        options.gate.kind = ApiKind::Http;
        options.gate.rules = Arc::new(rules(ApiKind::Http));
        options.gate.refusals.ratelimit_on_answers = true;
    });
    let (_, answer) = proxy.start().await.get("/first").await;
    assert_eq!(header(&answer, "ratelimit"), Some("limit=100, remaining=50, reset=5"));
    assert_eq!(header(&answer, "ratelimit-policy"), None);
}

#[tokio::test]
async fn a_refused_head_has_no_body_but_says_how_long_it_would_be() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).bucket(0.1, 1).max_wait(Duration::from_millis(100)).start().await;
    within(async { while proxy.get("/first").await.0 != 200 {} }).await;
    let answer = proxy.exchange("HEAD /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert_eq!(status(&answer), 429);
    assert!(answer.ends_with("\r\n\r\n") && header(&answer, "content-length") != Some("0"), "{answer}");
}

#[tokio::test]
async fn an_external_api_is_refused_with_a_problem_document() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address)
        .bucket(0.1, 1)
        .max_wait(Duration::from_millis(100))
        .with(|options| options.gate.rules = Arc::new(rules(ApiKind::Http)))
        .start()
        .await;
    within(async { while proxy.get("/first").await.0 != 200 {} }).await;
    let (_, answer) = proxy.get("/repos").await;
    assert_eq!(header(&answer, "content-type"), Some("application/problem+json"));
    let said = body(&answer);
    assert_eq!((&said["status"], &said["reason"]), (&429.into(), &"bucket".into()));
}

#[tokio::test]
async fn a_failing_key_is_refused_without_retry_after_and_told_why() {
    let backend = Backend::replying(503).await;
    let proxy = Proxy::before(backend.address)
        .policy(|policy| {
            policy.classes[1].backoff.strategy = tidegate::limit::policy::Strategy::Exponential {
                base: Duration::from_secs(30),
                max: Duration::from_secs(60),
                jitter: 0.0,
            };
        })
        .start()
        .await;
    let target = "/apis/apps/v1/namespaces/n/deployments/web";
    assert_eq!(proxy.get(target).await.0, 503);
    let (status, answer) = proxy.get(target).await;
    assert_eq!(status, 429);
    assert_eq!(header(&answer, "tidegate-refusal"), Some("backoff"));
    assert_eq!(header(&answer, "retry-after"), None, "the error belongs to the reconcile loop");
    assert!(
        seconds_in(&answer).is_some_and(|seconds| (20..=30).contains(&seconds)),
        "which is told when to come again"
    );
    let message = body(&answer)["message"].as_str().expect("text").to_owned();
    assert!(message.contains("1 time in a row") && message.contains("status 503"), "{message}");
    assert_eq!(proxy.metric("tidegate_keys_failing", &[]), 1.0);
    assert_eq!(proxy.get("/apis/apps/v1/namespaces/n/deployments/other").await.0, 503, "another key");
    assert_eq!(backend.targets().len(), 2);
}

#[tokio::test]
async fn retry_after_is_as_the_setting_says() {
    for (setting, expected) in [(RetryAfter::Always, true), (RetryAfter::Never, false)] {
        let backend = Backend::replying(500).await;
        let proxy =
            Proxy::before(backend.address).with(|options| options.gate.refusals.retry_after = setting).start().await;
        let answer = within(async {
            loop {
                let (status, answer) = proxy.get("/api/v1/nodes/n").await;
                if status == 429 {
                    return answer;
                }
            }
        })
        .await;
        assert_eq!(header(&answer, "retry-after").is_some(), expected, "{answer}");
        assert_eq!(seconds_in(&answer), Some(1), "the body says it in any case: {answer}");
    }
}

#[tokio::test]
async fn a_refusal_of_a_failing_key_says_in_its_body_when_to_come_again_whatever_its_header_says() {
    for (kind, setting) in [ApiKind::Kubernetes, ApiKind::Http]
        .into_iter()
        .flat_map(|kind| [RetryAfter::Auto, RetryAfter::Never].map(|set| (kind, set)))
    {
        let backend = Backend::start(|_| async {
            let mut answer = reply(503, "no");
            answer.headers_mut().insert("retry-after", http::HeaderValue::from_static("600"));
            answer
        })
        .await;
        let gate = Proxy::before(backend.address).with(|options| {
            options.gate.rules = Arc::new(rules(kind));
            options.gate.answers.throttling.kubernetes = kind == ApiKind::Kubernetes;
            options.gate.refusals.retry_after = setting;
        });
        let proxy = gate.start().await;
        assert_eq!(proxy.get("/api/v1/nodes/n").await.0, 503);
        let (_, answer) = proxy.get("/api/v1/nodes/n").await;
        assert_eq!(header(&answer, "tidegate-refusal"), Some("backoff"));
        let in_header = kind == ApiKind::Http && setting == RetryAfter::Auto;
        assert_eq!(header(&answer, "retry-after").is_some(), in_header, "{kind} {setting:?}: {answer}");
        let seconds = seconds_in(&answer).expect("it says when");
        assert!((540..=600).contains(&seconds), "{kind} {setting:?}: {seconds}");
    }
}

#[tokio::test]
async fn attempts_on_a_failing_key_are_spaced_by_the_backoff_and_one_success_forgets_it() {
    let backend = Backend::start(|seen| async move {
        let healed = seen.headers.contains_key("x-healed");
        if healed { reply(200, "ok") } else { reply(500, "no") }
    })
    .await;
    let proxy = Proxy::before(backend.address).start().await;
    let try_again = |extra: &'static str| {
        let proxy = &proxy;
        async move {
            let request =
                format!("GET /api/v1/nodes/n HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{extra}\r\n");
            status(&proxy.exchange(&request).await)
        }
    };
    within(async {
        while backend.targets().len() < 4 {
            try_again("").await;
        }
        while try_again("X-Healed: 1\r\n").await != 200 {}
    })
    .await;
    let times: Vec<Duration> = backend.seen().iter().map(|seen| seen.at).collect();
    for (place, pair) in times.windows(2).enumerate() {
        // base 200 ms; the upstream sees a call a little after the gate releases it, and the gate
        // sees the answer a little after that.
        let least = Duration::from_millis(200 << place);
        assert!(pair[1] - pair[0] >= least, "attempt {place}: {:?} apart, at least {least:?}", pair[1] - pair[0]);
    }
    proxy.reaches("tidegate_keys_failing", &[], 0.0).await;
    assert_eq!(try_again("X-Healed: 1\r\n").await, 200);
}

#[tokio::test]
async fn a_create_is_remembered_by_the_name_in_its_body() {
    let backend = Backend::start(|seen| async move {
        let bad = String::from_utf8_lossy(&seen.body).contains("\"bad\"");
        if bad { reply(500, "no") } else { reply(201, "ok") }
    })
    .await;
    let proxy = Proxy::before(backend.address)
        .policy(|policy| {
            policy.classes[1].backoff.strategy = tidegate::limit::policy::Strategy::Exponential {
                base: Duration::from_secs(60),
                max: Duration::from_secs(60),
                jitter: 0.0,
            };
        })
        .start()
        .await;
    let create = |name: &str| {
        let text = format!("{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"{name}\"}}}}");
        let request = format!("{CREATE}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}", text.len());
        let proxy = &proxy;
        async move { status(&proxy.exchange(&request).await) }
    };
    assert_eq!(create("bad").await, 500);
    assert_eq!(create("good").await, 201);
    assert_eq!(create("bad").await, 429);
    assert_eq!(create("good").await, 201);
    assert_eq!(backend.targets().len(), 3);
}

#[tokio::test]
async fn a_held_call_says_how_long_and_why_and_others_say_nothing() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).bucket(50.0, 1).start().await;
    let (_, first) = proxy.get("/first").await;
    assert_eq!(header(&first, "server-timing"), None);
    // On a machine of any speed, two of them come within 20 ms.
    let calls = (0..10).map(|place| format!("/{place}")).collect::<Vec<_>>();
    let answers = join_all(calls.iter().map(|target| proxy.get(target))).await;
    let held: Vec<&str> = answers.iter().filter_map(|(_, answer)| header(answer, "server-timing")).collect();
    assert!(!held.is_empty(), "nobody was held");
    for timing in &held {
        assert!(timing.starts_with("tidegate;dur=") && timing.ends_with(";desc=\"bucket\""), "{timing}");
    }
    let counted = f64::from(u32::try_from(held.len()).expect("few"));
    assert_eq!(proxy.metric("tidegate_wait_seconds_count", &["reason=\"bucket\""]), counted);
}

/// An upstream that closes each connection behind its answer.
async fn closing() -> Backend {
    Backend::start(|_| async {
        let mut answer = reply(200, "ok");
        answer.headers_mut().insert("connection", http::HeaderValue::from_static("close"));
        answer
    })
    .await
}

#[tokio::test]
async fn a_connection_to_be_made_is_not_what_a_queue_waits_for() {
    let backend = closing().await;
    let proxy = Arc::new(Proxy::before(backend.address).bucket(0.000_001, 1).start().await);
    assert_eq!(proxy.get("/first").await.0, 200);
    proxy.reaches("tidegate_upstream_connections", &["group=\"short\""], 0.0).await;
    let other = Arc::clone(&proxy);
    let waiting = tokio::spawn(async move { other.get("/second").await });
    proxy.reaches("tidegate_waiting", &[], 1.0).await;
    let told = proxy.gate.status(true).await;
    assert_eq!(told.queues.iter().map(|queue| &*queue.reason).collect::<Vec<_>>(), ["bucket"]);
    waiting.abort();
}

#[tokio::test]
async fn a_connection_to_be_made_is_not_the_reason_of_a_wait() {
    let backend = closing().await;
    let proxy = Proxy::before(backend.address).bucket(0.5, 1).start().await;
    assert_eq!(proxy.get("/first").await.0, 200);
    let (_, answer) = proxy.get("/second").await;
    let timing = header(&answer, "server-timing").expect("it was held");
    assert!(timing.ends_with(";desc=\"bucket\""), "{timing}");
}

#[tokio::test]
async fn leases_pass_while_everything_else_waits() {
    let backend = Backend::replying(200).await;
    let proxy = Arc::new(Proxy::before(backend.address).bucket(0.000_001, 1).start().await);
    assert_eq!(proxy.get("/first").await.0, 200);
    let mut waiting = Vec::new();
    for place in 0..50 {
        let proxy = Arc::clone(&proxy);
        waiting.push(tokio::spawn(async move { proxy.get(&format!("/api/v1/nodes/n{place}")).await }));
    }
    proxy.reaches("tidegate_in_flight", &["class=\"default\""], 50.0).await;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/n/leases/leader";
    for _ in 0..20 {
        let (status, answer) = proxy.get(lease).await;
        assert_eq!(status, 200);
        assert_eq!(header(&answer, "server-timing"), None);
    }
    assert_eq!(backend.targets().len(), 21);
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn bodies_of_waiting_calls_fill_the_room_and_then_are_refused() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address)
        .bucket(0.000_001, 1)
        .policy(|policy| policy.queue.max_waiting_bytes = 1000)
        .start()
        .await;
    assert_eq!(proxy.get("/first").await.0, 200);
    let text = "x".repeat(2000);
    let request = format!(
        "PUT /api/v1/nodes/n HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000\r\nConnection: close\r\n\r\n{text}"
    );
    let answer = proxy.exchange(&request).await;
    assert_eq!((status(&answer), header(&answer, "tidegate-refusal")), (429, Some("bytes_full")));
}

#[tokio::test]
async fn the_guard_answers_before_anything_is_counted_or_sent() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    for (request, expected) in [
        ("GET /api HTTP/1.1\r\nHost: evil.test:8001\r\nConnection: close\r\n\r\n", 421),
        ("GET http://169.254.169.254/latest HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 421),
        ("GET /api HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
        ("GET /api HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        ("CONNECT a:443 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
        (
            "GET /api HTTP/1.1\r\nHost: localhost\r\nConnection: close, Impersonate-User\r\nImpersonate-User: low\r\n\r\n",
            400,
        ),
        (
            "POST /api HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.test\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            403,
        ),
        ("GET /api HTTP/1.1\r\nHost: localhost\r\nOrigin: http://127.0.0.1:8001\r\nConnection: close\r\n\r\n", 200),
    ] {
        let answer = proxy.exchange(request).await;
        assert_eq!(status(&answer), expected, "{request}\n{answer}");
    }
    assert_eq!(backend.targets(), ["/api"]);
    assert_eq!(proxy.metric("tidegate_guarded_total", &[]), 7.0);
    assert_eq!(proxy.metric("tidegate_calls_total", &[]), 1.0);
}

#[tokio::test]
async fn the_gates_own_call_log_says_what_was_sent_when() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("calls");
    let log = tidegate::telemetry::CallLog::open(Some(&path), None, tidegate::clock::Clock::start()).expect("opens");
    let backend = Backend::start(|_| async {
        Response::builder().status(200).body(reply(200, "ok").into_body()).expect("valid")
    })
    .await;
    let proxy =
        Proxy::before(backend.address).bucket(50.0, 2).with(|options| options.call_log = Some(log)).start().await;
    for _ in 0..6 {
        assert_eq!(proxy.get("/api/v1/namespaces/n/pods/p?secret=canary").await.0, 200);
    }
    let text = within(async {
        loop {
            let text = std::fs::read_to_string(&path).expect("readable");
            if text.lines().count() == 6 {
                return text;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(!text.contains("canary"), "{text}");
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let moments = |field: &str| -> Vec<Duration> {
        lines.iter().map(|line| Duration::from_nanos(line[field].as_u64().expect("it was sent"))).collect()
    };
    let (granted, sent) = (moments("granted_ns"), moments("sent_ns"));
    // Tokens are taken by the bucket's time. On a busy machine the call's task may leave a while
    // after it has taken its token, and never before.
    let excess = worst_excess(&granted, 50.0, 2.0, Duration::from_millis(2));
    assert!(excess <= 1e-6, "{excess:.3} calls too many: {granted:?}");
    assert!(granted.iter().zip(&sent).all(|(granted, sent)| granted <= sent), "{granted:?}, {sent:?}");
}

#[tokio::test]
async fn a_gate_that_never_holds_still_lets_calls_find_a_connection() {
    let backend = Backend::replying(200).await;
    let proxy = Arc::new(Proxy::before(backend.address).max_wait(Duration::ZERO).start().await);
    assert_eq!(proxy.get("/first").await.0, 200, "the first call waits for the first connection");
    let together: Vec<_> = (0..20)
        .map(|place| {
            let proxy = Arc::clone(&proxy);
            tokio::spawn(async move { proxy.get(&format!("/{place}")).await.0 })
        })
        .collect();
    for call in together {
        assert_eq!(within(call).await.expect("no panic"), 200);
    }
}

#[tokio::test]
async fn a_refused_call_reads_its_body_so_that_the_answer_is_not_lost_to_a_reset() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).bucket(0.1, 1).max_wait(Duration::from_millis(1)).start().await;
    within(async { while proxy.get("/first").await.0 != 200 {} }).await;
    let mut client = proxy.connect().await;
    for size in [1_000, 100_000, 200_000] {
        let head = format!("PUT /api/v1/nodes/n HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n");
        client.write_all(head.as_bytes()).await.expect("writes");
        client.write_all(&vec![b'x'; size]).await.expect("the gate reads on");
        let mut answer = Vec::new();
        within(async {
            while !answer.ends_with(b"}") {
                assert!(client.read_buf(&mut answer).await.expect("no reset") > 0, "closed before the answer");
            }
        })
        .await;
        assert_eq!(status(&String::from_utf8_lossy(&answer)), 429, "{size}");
    }
    let expecting =
        "PUT /api/v1/nodes/n HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n";
    client.write_all(expecting.as_bytes()).await.expect("writes");
    let mut answer = Vec::new();
    within(client.read_to_end(&mut answer)).await.expect("no reset");
    assert!(answer.starts_with(b"HTTP/1.1 429 "), "no 100 Continue: {}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn a_key_of_ones_own_decides_what_fails_together() {
    let backend =
        Backend::start(|call| async move { reply(if call.target.contains("Bad") { 503 } else { 200 }, "") }).await;
    let parts = ["query:Action", "body"].map(|part| part.parse().expect("a part")).to_vec();
    let keys = vec![None, Some(KeyParts::new(parts).expect("a key"))];
    let proxy = Proxy::before(backend.address)
        .with(|options| options.gate.rules = Arc::new(rules(ApiKind::Http).with_keys(keys)))
        .start()
        .await;
    let call = async |method: &str, target: &str, body: &str| {
        let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{length}\r\n");
        status(&proxy.exchange(&format!("{head}{body}")).await)
    };
    assert_eq!(call("PUT", "/a?Action=Bad", "one").await, 503);
    assert_eq!(call("PUT", "/b?Action=Bad", "one").await, 429, "the same parts on another path");
    assert_eq!(call("PUT", "/a?Action=Bad", "two").await, 503, "another body");
    assert_eq!(call("PUT", "/a?Action=Good", "one").await, 200, "another action");
    assert_eq!(call("GET", "/a?Action=Bad", "").await, 503, "no body is a body too");
    assert_eq!(call("GET", "/b?Action=Bad", "").await, 429);
}
