//! Objects that are called too often or in vain, through a gate: each is named, with the right
//! words, and none that is healthy.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tidegate::clock::Clock;
use tidegate::config::load_text;
use tidegate::spec;
use tidegate::status;

use crate::support::{Backend, Proxy, ProxyBuilder, header, reply};

/// A gate with the defaults of its kind, but for the bucket.
fn builder(backend: &Backend, more: &str) -> ProxyBuilder {
    let text = format!("[gates.hot]\nupstream = \"http://localhost:1\"\nbucket = \"off\"\n{more}");
    let loaded = load_text("f.toml".to_owned(), text, &[]).unwrap_or_else(|problems| panic!("{problems:?}"));
    let read = loaded.settings.gates.into_values().next().expect("one");
    Proxy::before(backend.address).with(|options| {
        let (name, listen) = (options.gate.name.clone(), options.gate.listen.clone());
        options.gate = spec::Gate { name, listen, ..read };
    })
}

async fn gate(backend: &Backend, more: &str) -> Arc<Proxy> {
    Arc::new(builder(backend, more).start().await)
}

/// A program that makes calls, so often.
struct Program {
    agent: &'static str,
    every: Duration,
}

impl Program {
    /// Makes the same call for so long, the n-th with the n-th body.
    async fn calls(&self, proxy: &Proxy, call: &str, body: impl Fn(u32) -> String, time: Duration) {
        let clock = Clock::start();
        let (method, target) = call.split_once(' ').expect("a method and a target");
        let stream = TokioIo::new(proxy.connect().await);
        let (mut client, connection) = http1::handshake::<_, Full<Bytes>>(stream).await.expect("speaks");
        tokio::spawn(connection);
        let mut number = 0;
        while clock.now().since_start() < time {
            let request = Request::builder().method(method).uri(target).header("host", "localhost");
            let request = request.header("user-agent", format!("{} (linux/amd64)", self.agent));
            let request = request
                .header("authorization", SIGNED)
                .header("content-type", "application/json")
                .body(Full::from(body(number)));
            client.ready().await.expect("open");
            let answer = client.send_request(request.expect("valid")).await.expect("answered");
            answer.into_body().collect().await.expect("whole");
            clock.sleep(self.every).await;
            number += 1;
        }
    }
}

/// An update of an object, as a controller sends it: with the version that it has read.
fn update(name: &str, data: &str) -> impl Fn(u32) -> String {
    let (name, data) = (name.to_owned(), data.to_owned());
    move |version| {
        format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"{version}"}},"data":{{"a":"{data}"}}}}"#)
    }
}

async fn healthy(proxy: Arc<Proxy>) {
    for object in 0..200 {
        let program = Program { agent: "healthy-controller/1", every: Duration::from_millis(10) };
        let call = format!("PUT /api/v1/namespaces/default/configmaps/healthy-{object}");
        program.calls(&proxy, &call, update("h", "x"), Duration::from_millis(30)).await;
    }
}

async fn hot(proxy: &Proxy, names: bool) -> Vec<status::HotObject> {
    proxy.gate.status(names).await.hot
}

/// The only hot object in words, once there is one.
fn only(hot: &[status::HotObject]) -> String {
    assert_eq!(hot.len(), 1, "{hot:?}");
    format!("{}: {}", hot[0].object, hot[0].says)
}

/// AWS reads the service off it; nobody else looks at it.
const SIGNED: &str = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20260101/eu-central-1/ec2/aws4_request, SignedHeaders=host, Signature=0";
const MINUTE: Duration = Duration::from_secs(60);
const OBJECT: &str = "PUT /api/v1/namespaces/default/configmaps/a";

#[tokio::test(start_paused = true)]
async fn an_object_that_feeds_itself_is_named_beside_two_hundred_healthy_ones_until_it_ends() {
    let backend = Backend::replying(200).await;
    let proxy = gate(&backend, "").await;
    let others = tokio::spawn(healthy(Arc::clone(&proxy)));
    let manager = Program { agent: "manager/1.2", every: Duration::from_millis(200) };
    manager.calls(&proxy, OBJECT, update("a", "x"), MINUTE).await;
    others.await.expect("no panic");
    let says = only(&hot(&proxy, true).await);
    assert!(says.starts_with("configmaps default/a: written "), "{says}");
    assert!(says.ends_with(" seconds by manager/1.2, the same body each time"), "{says}");
    assert_eq!(proxy.metric("tidegate_hot_objects", &[]), 1.0);

    let nameless = hot(&proxy, false).await;
    let text = serde_json::to_string(&nameless).expect("it is data");
    assert!(!text.contains("manager") && !text.contains("default/a"), "{text}");
    assert_eq!((nameless[0].title(), nameless[0].callers.len()), ("configmaps", 0));

    Clock::start().sleep(2 * MINUTE).await;
    assert_eq!(proxy.metric("tidegate_hot_objects", &[]), 0.0);
}

thread_local! {
    /// What the gates of this thread log.
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Writes to the log of the thread that it is called on.
struct Log;

impl Log {
    /// Listens on all threads: where only one has a subscriber, a line that another comes to first
    /// is off for all of them, since whether anybody listens is looked up once for each line.
    fn start() {
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Self).finish();
        tracing::subscriber::set_global_default(subscriber).expect("no other test sets one");
    }

    /// The lines with these words.
    fn lines(words: &str) -> Vec<String> {
        let log = LOG.with_borrow(|log| String::from_utf8(log.clone()).expect("text"));
        log.lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.write(line))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn the_log_tells_of_a_loop_once_and_once_of_its_end() {
    Log::start();
    let backend = Backend::replying(200).await;
    let proxy = gate(&backend, "").await;
    let manager = Program { agent: "manager/1.2", every: Duration::from_millis(200) };
    manager.calls(&proxy, OBJECT, update("a", "x"), 5 * MINUTE).await;
    let begun = Log::lines("object is hot: ");
    assert_eq!(begun.len(), 1, "{begun:?}");
    let words = ["WARN", "gate=\"gate", "configmaps default/a", "by manager/1.2, the same body each time"];
    assert!(words.iter().all(|words| begun[0].contains(words)), "{begun:?}");
    Clock::start().sleep(3 * MINUTE).await;
    assert_eq!((Log::lines("object is hot: ").len(), Log::lines("object is no longer hot: ").len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_what_is_known_of_an_object() {
    let backend = Backend::replying(200).await;
    let proxy = gate(&backend, "").await;
    let manager = Program { agent: "manager/1.2", every: Duration::from_millis(200) };
    manager.calls(&proxy, OBJECT, update("a", "x"), MINUTE / 2).await;
    assert_eq!(hot(&proxy, true).await, [], "half a minute may be a burst");
    proxy.gate.reconfigure(builder(&backend, "queue.max_wait = \"9s\"").options());
    manager.calls(&proxy, OBJECT, update("a", "x"), MINUTE / 3).await;
    assert!(only(&hot(&proxy, true).await).contains(" by manager/1.2, the same body each time"));
}

#[tokio::test(start_paused = true)]
async fn a_slow_loop_is_named_by_the_versions_in_its_answers() {
    for is_in_vain in [true, false] {
        let writes = AtomicU64::new(0);
        let backend = Backend::start(move |_| {
            let version = if is_in_vain { 7 } else { writes.fetch_add(1, Relaxed) };
            let object = format!(r#"{{"kind":"ConfigMap","metadata":{{"name":"a","resourceVersion":"{version}"}}}}"#);
            async move { reply(200, object.leak()) }
        });
        let backend = backend.await;
        let proxy = gate(&backend, "").await;
        let manager = Program { agent: "manager/1.2", every: Duration::from_secs(10) };
        manager.calls(&proxy, OBJECT, |number| update("a", &number.to_string())(number), 10 * MINUTE).await;
        let hot = hot(&proxy, true).await;
        assert_eq!(hot.len(), usize::from(is_in_vain), "{hot:?}");
        if is_in_vain {
            assert!(only(&hot).ends_with(" by manager/1.2; 100% of the writes changed nothing"), "{hot:?}");
            assert_eq!((&*hot[0].kind_of_loop, proxy.metric("tidegate_hot_objects", &[])), ("unchanged", 1.0));
            let facts = proxy.gate.status(true).await.facts(0);
            assert!(
                facts.iter().any(|fact| fact.says.starts_with("configmaps default/a is hot: written")),
                "{facts:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_that_fight_over_an_object_are_both_named() {
    let backend = Backend::replying(200).await;
    let proxy = gate(&backend, "").await;
    let program = |agent| Program { agent, every: Duration::from_millis(400) };
    let (one, other) = (program("kustomize-controller/1"), program("my-operator/2"));
    tokio::join!(
        one.calls(&proxy, OBJECT, update("a", "x"), MINUTE),
        other.calls(&proxy, OBJECT, update("a", "y"), MINUTE)
    );
    let says = only(&hot(&proxy, true).await);
    let wanted =
        ": two writers take turns, kustomize-controller/1 and my-operator/2, each with the same body each time";
    assert!(says.ends_with(wanted), "{says}");
}

#[tokio::test(start_paused = true)]
async fn a_create_that_may_not_be_is_named_by_the_object_in_its_body() {
    let backend = Backend::replying(403).await;
    let proxy = gate(&backend, "").await;
    let manager = Program { agent: "manager/1.2", every: Duration::from_secs(3) };
    manager.calls(&proxy, "POST /api/v1/namespaces/default/configmaps", update("made", "x"), MINUTE).await;
    let says = only(&hot(&proxy, true).await);
    let wanted = "configmaps default/made: 403 for ever: every create by manager/1.2 got it, ";
    assert!(says.starts_with(wanted), "{says}");
}

#[tokio::test(start_paused = true)]
async fn an_external_api_is_told_of_by_action_where_per_key_asks_for_it() {
    let backend = Backend::start(|_| async { reply(404, "{}") }).await;
    for (more, is_named) in [("per_key = { reads = \"1/s\" }", true), ("", false)] {
        let more = format!("kind = \"http\"\ndialect = \"aws\"\nbackoff = \"off\"\n{more}");
        let proxy = gate(&backend, &more).await;
        let manager = Program { agent: "manager/1.2", every: Duration::from_millis(500) };
        manager.calls(&proxy, "GET /?Action=DescribeInstances&InstanceId.1=i-0", |_| String::new(), MINUTE).await;
        let hot = hot(&proxy, true).await;
        assert_eq!(!hot.is_empty(), is_named, "{hot:?}");
        if is_named {
            let says = only(&hot);
            assert!(says.contains("404 for ever: every DescribeInstances by manager/1.2 got it"), "{says}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn where_it_is_enforced_a_loop_is_slow_and_named_and_nobody_else_waits() {
    for (more, is_held) in [("per_key.enforce = true", true), ("per_key.enforce = true\nshadow = true", false)] {
        let backend = Backend::replying(200).await;
        let proxy = gate(&backend, more).await;
        let others = tokio::spawn(healthy(Arc::clone(&proxy)));
        let manager = Program { agent: "manager/1.2", every: Duration::from_millis(50) };
        manager.calls(&proxy, OBJECT, update("a", "x"), 2 * MINUTE).await;
        others.await.expect("no panic");
        let of_loop: Vec<_> = backend.seen().into_iter().filter(|seen| seen.target.ends_with("/a")).collect();
        assert_eq!(of_loop.len() <= 10 + 121, is_held, "{}", of_loop.len());
        let metric = if is_held { "tidegate_refusals_total" } else { "tidegate_shadow_refusals_total" };
        assert!(proxy.metric(metric, &["reason=\"per_key\""]) > 500.0);
        assert_eq!(proxy.metric(metric, &[]), proxy.metric(metric, &["reason=\"per_key\""]), "only the loop");
        let says = only(&hot(&proxy, true).await);
        assert!(says.contains(" by manager/1.2, the same body each time"), "{says}");
        assert_eq!(says.ends_with(" refused by this gate"), is_held, "{says}");
        // What it was told is the object's, so that a controller's own queue takes over.
        let told = proxy.exchange(&format!("{OBJECT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")).await;
        if is_held && told.starts_with("HTTP/1.1 429") {
            assert!(told.contains("per_key") && header(&told, "retry-after").is_none(), "{told}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_is_written_once_about_a_loop_where_it_is_asked_for() {
    let object = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default","uid":"u-1"}}"#;
    for (more, wanted) in [("events = true", 1), ("", 0)] {
        let backend = Backend::start(move |_| async move { reply(200, object) }).await;
        let proxy = gate(&backend, more).await;
        let manager = Program { agent: "manager/1.2", every: Duration::from_millis(200) };
        manager.calls(&proxy, OBJECT, update("a", "x"), 2 * MINUTE).await;
        only(&hot(&proxy, true).await);
        let events: Vec<_> = backend.seen().into_iter().filter(|seen| seen.target.ends_with("/events")).collect();
        assert_eq!(events.len(), wanted);
        for seen in events {
            assert_eq!(seen.target, "/api/v1/namespaces/default/events");
            let event: serde_json::Value = serde_json::from_slice(&seen.body).expect("JSON");
            let of =
                json!({ "apiVersion": "v1", "kind": "ConfigMap", "namespace": "default", "name": "a", "uid": "u-1" });
            assert_eq!((&event["involvedObject"], &event["reason"]), (&of, &json!("HotObject")));
            let message = event["message"].as_str().expect("text");
            assert!(message.starts_with("written ") && message.contains(" by manager/1.2, the same body"), "{message}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_is_about_the_object_of_the_path_and_none_is_written_about_a_path_that_is_not_clear() {
    let object = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default","uid":"u-1"}}"#;
    for (name, read) in [
        ("My%20Role", Some("My%20Role")),
        ("other%3Fdry=1", Some("other%3Fdry%3D1")),
        ("system:a+b", Some("system%3Aa%2Bb")),
        ("a..%2Fb", None),
    ] {
        let backend = Backend::start(move |_| async move { reply(200, object) }).await;
        let proxy = gate(&backend, "events = true").await;
        let manager = Program { agent: "manager/1.2", every: Duration::from_millis(200) };
        let call = format!("PUT /api/v1/namespaces/default/configmaps/{name}");
        manager.calls(&proxy, &call, update("a", "x"), MINUTE).await;
        only(&hot(&proxy, true).await);
        let own: Vec<_> = backend.seen().into_iter().filter(|seen| seen.headers["user-agent"] == "tidegate").collect();
        assert_eq!(own.len(), if read.is_some() { 2 } else { 0 }, "{name}");
        if let Some(read) = read {
            assert_eq!(own[0].target, format!("/api/v1/namespaces/default/configmaps/{read}"));
            // A GET has no body.
            assert!(!own[0].headers.contains_key("transfer-encoding"), "{:?}", own[0].headers);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_this_gate_refuses_is_no_answer_of_the_upstream() {
    let backend = Backend::replying(200).await;
    let class = "classes = [{ name = \"default\", bucket = { rate = 0.1, burst = 1 } }]";
    let proxy = gate(&backend, &format!("queue.max_wait = \"0s\"\n{class}")).await;
    let manager = Program { agent: "manager/1.2", every: Duration::from_millis(200) };
    manager.calls(&proxy, OBJECT, update("a", "x"), MINUTE).await;
    let says = only(&hot(&proxy, true).await);
    assert!(says.ends_with(" refused by this gate") && !says.contains("4xx"), "{says}");
}

/// It is one of the failing keys.
#[tokio::test(start_paused = true)]
async fn an_object_whose_calls_are_refused_for_its_failures_is_no_loop() {
    let backend = Backend::replying(500).await;
    let proxy = gate(&backend, "").await;
    let manager = Program { agent: "manager/1.2", every: Duration::from_millis(500) };
    manager.calls(&proxy, OBJECT, update("a", "x"), 2 * MINUTE).await;
    assert!(backend.seen().len() < 20);
    assert_eq!(hot(&proxy, true).await, []);
}

#[tokio::test(start_paused = true)]
async fn of_many_programs_each_is_judged_by_its_own_calls() {
    let backend = Backend::replying(403).await;
    let proxy = gate(&backend, "").await;
    let call = |agent: String| {
        let request = format!("{OBJECT} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: {agent}\r\nContent-Length: 0\r\n");
        let proxy = &proxy;
        async move {
            let answer = proxy.exchange(&format!("{request}Connection: close\r\n\r\n")).await;
            assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
            Clock::start().sleep(Duration::from_secs(3)).await;
        }
    };
    // More than have a row of their own on the status page.
    for number in 0..60 {
        call(format!("program-{number}/1")).await;
    }
    assert_eq!(hot(&proxy, true).await, []);
    for _ in 0..12 {
        call("late/1".to_owned()).await;
        call("later/1".to_owned()).await;
    }
    let hot = hot(&proxy, true).await;
    assert_eq!(hot.len(), 2, "{hot:?}");
    for hot in hot {
        assert!(hot.says.starts_with("403 for ever: every update by another program got it, "), "{}", hot.says);
    }
}

#[tokio::test(start_paused = true)]
async fn no_part_of_an_odd_path_is_shown_where_names_are_not() {
    let backend = Backend::replying(403).await;
    let proxy = gate(&backend, "").await;
    let manager = Program { agent: "manager/1.2", every: Duration::from_secs(3) };
    let long = "topsecretname".repeat(20);
    let odd = format!("PUT /api/v1/namespaces/secretns//configmaps/{long}");
    manager.calls(&proxy, &odd, update("a", "x"), MINUTE).await;
    let nameless = serde_json::to_string(&hot(&proxy, false).await).expect("it is data");
    assert!(nameless.contains("403 for ever: every update got it"), "{nameless}");
    assert!(!nameless.contains("topsecretname"), "{nameless}");
    let named = hot(&proxy, true).await;
    assert!(named[0].says.contains("every update of its ") && !named[0].says.contains(&long), "{named:?}");
}

/// Its object is not known before the body is read, which is done only while a key of its collection
/// fails.
#[tokio::test(start_paused = true)]
async fn a_create_keeps_to_no_pace_whatever_else_fails() {
    for fails in [false, true] {
        let backend =
            Backend::start(|seen| async move { reply(if seen.target.ends_with("/broken") { 500 } else { 409 }, "{}") })
                .await;
        let proxy = gate(&backend, "per_key = { burst = 2, enforce = true }").await;
        if fails {
            let broken = "PUT /api/v1/namespaces/default/configmaps/broken";
            let manager = Program { agent: "manager/1.2", every: Duration::from_millis(10) };
            manager.calls(&proxy, broken, update("broken", "x"), Duration::from_millis(15)).await;
        }
        let manager = Program { agent: "manager/1.2", every: Duration::from_millis(50) };
        let create = "POST /api/v1/namespaces/default/configmaps";
        manager.calls(&proxy, create, update("made", "x"), Duration::from_millis(500)).await;
        assert_eq!(proxy.metric("tidegate_refusals_total", &["reason=\"per_key\""]), 0.0, "{fails}");
    }
}

#[tokio::test(start_paused = true)]
async fn leases_are_never_named_and_an_object_that_keeps_to_its_pace_is_not() {
    let backend = Backend::replying(200).await;
    let proxy = gate(&backend, "per_key = { writes = \"20/s\" }").await;
    let manager = Program { agent: "manager/1.2", every: Duration::from_millis(100) };
    let lease = "PUT /apis/coordination.k8s.io/v1/namespaces/default/leases/a";
    tokio::join!(
        manager.calls(&proxy, lease, update("a", "x"), MINUTE),
        manager.calls(&proxy, OBJECT, update("a", "x"), MINUTE)
    );
    assert_eq!(hot(&proxy, true).await, []);
}
