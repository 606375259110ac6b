//! Checks the answers to requests, on port and socket.

use futures_util::future::BoxFuture;
use http_body_util::BodyExt as _;

use super::super::control::{Ask, Bypass, BypassReport, Forget, ForgetReport};
use super::*;
use crate::spec::ShowNames::{Always, Auto, Never};
use crate::status::{Explanation, FailingKey, GateStatus, Status};

struct Fake {
    names: ShowNames,
}

impl Operator for Fake {
    fn show_names(&self) -> ShowNames {
        self.names
    }

    fn status(&self, names: bool) -> BoxFuture<'_, Status> {
        let keys = if names {
            vec![FailingKey { key: "<script>alert(1)</script>".to_owned(), ..FailingKey::default() }]
        } else {
            vec![]
        };
        let gate = GateStatus { name: "k".to_owned(), keys_failing: 1, keys, ..GateStatus::default() };
        Box::pin(std::future::ready(Status { names_shown: names, gates: vec![gate], ..Status::default() }))
    }

    fn configuration(&self) -> String {
        "rate = 5\n".to_owned()
    }

    fn remark(&self) -> Option<String> {
        Some("bypass".to_owned())
    }

    fn egress_ca(&self) -> Option<String> {
        matches!(self.names, Never).then(|| "the root".to_owned())
    }

    fn explain<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Vec<Explanation>, String>> {
        let explained = vec![Explanation { verb: ask.method.clone(), ..Explanation::default() }];
        Box::pin(std::future::ready(Ok(explained)))
    }

    fn forget<'a>(&'a self, order: &'a Forget) -> BoxFuture<'a, Result<Vec<ForgetReport>, String>> {
        let done = order
            .gate
            .as_ref()
            .map(|gate| vec![ForgetReport { gate: gate.clone(), keys: 1, ..ForgetReport::default() }])
            .ok_or_else(|| "no gate".to_owned());
        Box::pin(std::future::ready(done))
    }

    fn bypass(&self, _order: &Bypass) -> Result<Vec<BypassReport>, String> {
        Ok(Vec::new())
    }
}

/// Returns status, headers and body of an answer.
async fn ask(names: ShowNames, from: Origin, request: http::request::Builder, body: &str) -> (u16, HeaderMap, String) {
    let handler = Handler { operator: Arc::new(OnceLock::from(Arc::new(Fake { names }) as Arc<dyn Operator>)) };
    let request = request.body(Full::new(Bytes::from(body.to_owned()))).expect("valid");
    let (parts, body) = handler.answer(request, from).await.into_parts();
    let body = body.collect().await.expect("whole").to_bytes();
    (parts.status.as_u16(), parts.headers, String::from_utf8(body.to_vec()).expect("text"))
}

fn get(path: &str) -> http::request::Builder {
    Request::get(path).header("host", "127.0.0.1:9464")
}

fn post(path: &str) -> http::request::Builder {
    Request::post(path).header("host", "localhost:9464")
}

#[tokio::test]
async fn nothing_else_is_there_and_nothing_can_be_changed_on_the_port() {
    for path in ["/debug/pprof", "/metrics/", "/env.json", "/forget", "/docs/", "/docs/../Cargo.toml"] {
        assert_eq!(ask(Auto, Origin::Loopback, get(path), "").await.0, 404, "{path}");
    }
    assert_eq!(ask(Auto, Origin::Loopback, post("/metrics"), "").await.0, 405);
    assert_eq!(ask(Auto, Origin::Loopback, Request::delete("/status"), "").await.0, 405);
    for path in ["/forget", "/bypass"] {
        let (status, _, said) = ask(Auto, Origin::Loopback, post(path), "{}").await;
        assert!(status == 403 && said.contains("admin.socket"), "{said}");
        assert_ne!(ask(Auto, Origin::Socket, post(path), "{\"gate\":\"k\"}").await.0, 403);
    }
}

#[tokio::test]
async fn the_root_leads_to_the_status_and_the_manual_of_the_night_is_there() {
    let (status, headers, _) = ask(Auto, NETWORK, get("/"), "").await;
    assert_eq!((status, &headers["location"]), (307, &HeaderValue::from_static("/status")));
    for page in ["alerts", "configuration", "metrics", "operations", "troubleshooting"] {
        let (status, headers, text) = ask(Never, NETWORK, get(&format!("/docs/{page}.md")), "").await;
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/");
        let written = std::fs::read_to_string(format!("{path}{page}.md")).expect("it is there");
        assert_eq!((status, text == written), (200, true), "{page}");
        assert_eq!(&headers["content-type"], "text/plain; charset=utf-8");
    }
}

#[tokio::test]
async fn everyone_may_read_the_root_of_the_egress_ca_if_there_is_one() {
    let (status, headers, root) = ask(Never, NETWORK, get("/egress/ca.pem"), "").await;
    assert_eq!((status, &*root), (200, "the root"));
    assert_eq!(&headers["content-type"], "application/pem-certificate-chain");
    let (status, _, said) = ask(Auto, Origin::Loopback, get("/egress/ca.pem"), "").await;
    assert!(status == 404 && said.contains("no gate has intercept = true"), "{status} {said}");
}

#[tokio::test]
async fn browsers_get_a_page_that_loads_nothing_and_everybody_else_json() {
    let (status, headers, page) =
        ask(Auto, Origin::Loopback, get("/status").header("accept", "text/html,*/*"), "").await;
    assert_eq!((status, &headers["content-type"]), (200, &HeaderValue::from_static("text/html; charset=utf-8")));
    let policy = headers["content-security-policy"].to_str().expect("text");
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert!(page.contains("&lt;script&gt;alert(1)") && !page.contains("<script"), "{page}");
    assert!(page.contains("http-equiv=\"refresh\""));
    let still = get("/status?refresh=off").header("accept", "text/html");
    assert!(!ask(Auto, Origin::Loopback, still, "").await.2.contains("http-equiv=\"refresh\""));
    let (_, headers, json) = ask(Auto, Origin::Loopback, get("/status"), "").await;
    assert_eq!(&headers["content-type"], "application/json");
    assert!(serde_json::from_str::<Status>(&json).expect("the shape").names_shown);
}

#[tokio::test]
async fn names_are_for_those_on_this_machine() {
    let names = |body: &str| body.contains("alert");
    for (shown, from, wanted) in [
        (Auto, Origin::Loopback, true),
        (Auto, NETWORK, false),
        (Always, NETWORK, true),
        (Never, Origin::Loopback, false),
        (Never, Origin::Socket, true),
    ] {
        let (status, _, said) = ask(shown, from, get("/status"), "").await;
        assert_eq!((status, names(&said)), (200, wanted), "{shown} {from:?}");
        let explained = ask(shown, from, post("/explain"), QUESTION).await.0;
        assert_eq!(explained, if wanted { 200 } else { 403 }, "{shown} {from:?}");
        let (status, _, config) = ask(shown, from, get("/config"), "").await;
        assert_eq!((status, config.contains("rate = 5")), (if wanted { 200 } else { 403 }, wanted), "{shown} {from:?}");
    }
}

#[tokio::test]
async fn who_only_hands_on_a_request_or_was_led_here_sees_no_names() {
    for header in ["x-forwarded-for", "forwarded", "via"] {
        let forwarded = get("/status").header(header, "192.0.2.7");
        let (status, _, said) = ask(Auto, Origin::Loopback, forwarded, "").await;
        assert!(status == 200 && !said.contains("alert"), "{header}: {said}");
    }
    let rebound = || Request::get("/status").header("host", "evil.example:9464");
    for (shown, from) in [(Auto, Origin::Loopback), (Always, NETWORK)] {
        let (status, _, said) = ask(shown, from, rebound(), "").await;
        assert!(status == 421 && !said.contains("alert"), "{said}");
        assert!(said.contains("`Host: localhost`"), "what works through a Service: {said}");
    }
    assert_eq!(ask(Auto, NETWORK, rebound(), "").await.0, 200, "there are no names in it");
}

#[tokio::test]
async fn names_are_asked_for_at_this_machine_and_by_no_other_site() {
    let own = ["localhost", "LOCALHOST:1", "127.0.0.1:9464", "[::1]:9464", "127.0.0.6"];
    for host in own.into_iter().chain(["10.1.2.3:9464"]) {
        let from = if host.starts_with("10.") { NETWORK } else { Origin::Loopback };
        let asked = Request::get("/status").header("host", host).header("origin", format!("http://{host}"));
        assert_eq!(ask(Always, from, asked, "").await.0, 200, "{host}");
    }
    let foreign: [(&[(&str, &str)], u16); 8] = [
        (&[("host", "8.8.8.8")], 421),
        (&[("host", "10.1.2.4")], 421),
        (&[("host", "me@localhost")], 421),
        (&[("host", "localhost"), ("host", "localhost")], 400),
        (&[], 400),
        (&[("host", "localhost"), ("origin", "null")], 403),
        (&[("host", "localhost"), ("origin", "http://evil.example")], 403),
        (&[("host", "localhost"), ("sec-fetch-site", "cross-site")], 403),
    ];
    for (headers, refused) in foreign {
        for (method, path, body) in [("GET", "/status", ""), ("GET", "/config", ""), ("POST", "/explain", QUESTION)] {
            for (from, expected) in [(Origin::Loopback, refused), (NETWORK, refused), (Origin::Socket, 200)] {
                let asked = Request::builder().method(method).uri(path);
                let asked = headers.iter().fold(asked, |asked, (name, value)| asked.header(*name, *value));
                let (status, _, said) = ask(Always, from, asked, body).await;
                assert_eq!(status, expected, "{path} {headers:?} {from:?}: {said}");
            }
        }
    }
}

/// A body that panics when it is read.
struct Unread;

impl Body for Unread {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        panic!("it was read")
    }
}

#[tokio::test]
async fn bodies_are_read_only_from_where_orders_may_come() {
    let handler = Handler { operator: Arc::new(OnceLock::from(Arc::new(Fake { names: Auto }) as Arc<dyn Operator>)) };
    for (path, from) in [
        ("/explain", NETWORK),
        ("/forget", Origin::Loopback),
        ("/bypass", Origin::Loopback),
        ("/status", Origin::Socket),
        ("/livez", NETWORK),
    ] {
        let answer = handler.answer(post(path).body(Unread).expect("valid"), from).await;
        assert!(answer.status().is_client_error(), "{path}");
    }
}

/// A body that does not come to its end.
#[tokio::test(start_paused = true)]
async fn an_order_that_is_not_whole_keeps_nobody_waiting() {
    let handler = Handler { operator: Arc::new(OnceLock::from(Arc::new(Fake { names: Auto }) as Arc<dyn Operator>)) };
    let never = http_body_util::StreamBody::new(futures_util::stream::pending::<Result<http_body::Frame<Bytes>, ()>>());
    let order = post("/explain").body(never).expect("valid");
    let order = handler.answer(order, Origin::Loopback);
    let status = handler.answer(get("/status").body(Full::<Bytes>::default()).expect("valid"), Origin::Loopback);
    tokio::select! {
        biased;
        answer = order => panic!("{}", answer.status()),
        answer = status => assert_eq!(answer.status().as_u16(), 200),
    }
}

const NETWORK: Origin = Origin::Network(Some(IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 2, 3))));

const QUESTION: &str = "{\"method\":\"GET\",\"path\":\"/\",\"headers\":[]}";

#[tokio::test]
async fn what_cannot_be_done_is_said() {
    let (status, _, said) = ask(Auto, Origin::Socket, post("/forget"), "{}").await;
    assert_eq!((status, said.as_str()), (400, "no gate\n"));
    assert_eq!(ask(Auto, Origin::Socket, post("/forget"), "[").await.0, 400);
    assert_eq!(ask(Auto, Origin::Socket, post("/forget"), &" ".repeat(LONGEST + 1)).await.0, 400);
    assert_eq!(ask(Auto, Origin::Socket, get("/readyz"), "").await.2, "ok (bypass)\n");
}
