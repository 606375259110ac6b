//! External APIs: base path, Host, and links that must not lead around the gate.

use bytes::Bytes;
use http::uri::Scheme;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use tidegate::upstream;

use super::cli::{config, start, with_config};
use super::ports::free_port;
use crate::support::{AnyBody, Backend, Proxy, within};

/// The value of each line of a header, in order.
fn lines<'a>(answer: &'a str, name: &str) -> Vec<&'a str> {
    let named = |line: &'a str| line.split_once(": ").filter(|(found, _)| found.eq_ignore_ascii_case(name));
    answer.lines().filter_map(named).map(|(_, value)| value).collect()
}

/// Serves a list of three pages, with absolute links to itself.
async fn pages(base: &'static str) -> Backend {
    Backend::start(move |seen| async move {
        let own = format!("http://{}{base}", seen.headers["host"].to_str().expect("text"));
        let body = Full::new(Bytes::from("page")).map_err(|never| match never {}).boxed_unsync();
        let mut answer: Response<AnyBody> = Response::new(body);
        let next = match seen.target.rsplit_once("page=").map_or("1", |(_, page)| page) {
            "1" => 2,
            "2" => 3,
            _ => return answer,
        };
        for (name, value) in [
            ("link", format!("<{own}/items?page={next}>; rel=\"next\", <{own}/items?page=3>; rel=\"last\"")),
            ("link", "<https://elsewhere.test/>; rel=\"help\"".to_owned()),
            ("location", format!("{own}/items/7")),
            ("operation-location", format!("{own}/operations/7")),
        ] {
            answer.headers_mut().append(name, HeaderValue::try_from(value).expect("valid"));
        }
        answer
    })
    .await
}

#[tokio::test]
async fn page_after_page_comes_through_the_gate() {
    for base in ["", "/api/v3"] {
        let backend = pages(base).await;
        let proxy = Proxy::before(backend.address)
            .with(|options| {
                options.upstream.rewrite_links = Some(Scheme::HTTP);
                options.upstream.target.base_path = base.into();
            })
            .start()
            .await;
        let port = proxy.address.port();
        let mut target = "/items?page=1".to_owned();
        for next in [2, 3] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n");
            let answer = proxy.exchange(&request).await;
            let own = format!("http://localhost:{port}");
            assert_eq!(
                lines(&answer, "link"),
                [
                    format!("<{own}/items?page={next}>; rel=\"next\", <{own}/items?page=3>; rel=\"last\"").as_str(),
                    "<https://elsewhere.test/>; rel=\"help\""
                ]
            );
            assert_eq!(lines(&answer, "location"), [format!("{own}/items/7")]);
            assert_eq!(lines(&answer, "operation-location"), [format!("{own}/operations/7")]);
            target = format!("/items?page={next}");
        }
        proxy.get(&target).await;
        let targets = [1, 2, 3].map(|page| format!("{base}/items?page={page}"));
        assert_eq!(backend.targets(), targets);
    }
}

#[tokio::test]
async fn links_point_at_the_name_and_scheme_that_the_client_used() {
    let backend = pages("").await;
    let proxy = Proxy::before(backend.address)
        .with(|options| options.upstream.rewrite_links = Some(Scheme::HTTPS))
        .start()
        .await;
    let mut client = proxy.connect_http2().await;
    let request = Request::get("http://127.0.0.1:99/items").body(Full::default()).expect("valid");
    let response = within(client.send_request(request)).await.expect("answered");
    assert_eq!(response.headers()["location"], "https://127.0.0.1:99/items/7");
}

#[tokio::test]
async fn links_and_absolute_locations_stay_unless_it_is_asked_for() {
    let backend = pages("").await;
    let proxy = Proxy::before(backend.address).start().await;
    let (_, answer) = proxy.get("/items").await;
    assert_eq!(lines(&answer, "location"), [format!("http://{}/items/7", backend.address)]);
    assert!(lines(&answer, "link")[0].starts_with(&format!("<http://{}/items", backend.address)), "{answer}");
}

#[tokio::test]
async fn the_upstream_sees_the_host_that_is_configured() {
    let own = |backend: &Backend| backend.address.to_string();
    for (host, expected) in [
        (upstream::Host::Rewrite, None),
        (upstream::Host::Preserve, Some("localhost:8001")),
        (upstream::Host::Literal(HeaderValue::from_static("ec2.example")), Some("ec2.example")),
    ] {
        let backend = Backend::replying(200).await;
        let proxy = Proxy::before(backend.address).with(|options| options.upstream.host = host).start().await;
        proxy.exchange("GET /x HTTP/1.1\r\nHost: localhost:8001\r\nConnection: close\r\n\r\n").await;
        let expected = expected.map_or_else(|| own(&backend), str::to_owned);
        assert_eq!(backend.seen()[0].headers["host"], expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_serves_several_gates_each_with_its_own_upstream() {
    let (one, other) = (Backend::replying(200).await, Backend::replying(418).await);
    let ports = [free_port(), free_port()];
    let (_folder, path) = config(&format!(
        "[admin]\nlisten = \"off\"\n\
         [gates.github]\nkind = \"http\"\nupstream = \"http://{}/api/v3\"\nlisten = \"127.0.0.1:{}\"\nrewrite_links = true\n\
         [gates.azure]\nkind = \"http\"\nupstream = \"http://{}\"\nlisten = \"127.0.0.1:{}\"\nhost = \"management.example\"\n",
        one.address, ports[0], other.address, ports[1]
    ));
    let mut gates = start(with_config("run", &path));
    gates.ready();
    for (port, status) in [(ports[0], "200"), (ports[1], "418")] {
        let answer = tokio::task::spawn_blocking(move || super::cli_input::get(port, "/x")).await.expect("no panic");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    assert_eq!((one.targets(), other.targets()), (vec!["/api/v3/x".to_owned()], vec!["/x".to_owned()]));
    assert_eq!(other.seen()[0].headers["host"], "management.example");
    assert_eq!(gates.terminate(), Some(0));
}
