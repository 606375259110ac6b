//! External APIs: base path, Host, and links that must not lead around the gate.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use http::uri::Scheme;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use tidegate::upstream;

use crate::command::{config, start, tidegate, with_config};
use crate::config::{SMALLEST, load};
use crate::operate::responding;
use crate::ports::free_port;
use crate::support::{AnyBody, Backend, Proxy, reply, within};

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
async fn a_redirect_below_the_base_path_leads_to_where_it_says() {
    let backend = Backend::start(|seen| async move {
        if seen.target.ends_with("/version/") {
            return reply(200, "here");
        }
        let mut answer = reply(301, "");
        let location = HeaderValue::try_from(format!("{}/", seen.target)).expect("valid");
        answer.headers_mut().insert("location", location);
        answer
    })
    .await;
    let proxy = Proxy::before(backend.address)
        .with(|options| options.upstream.target.base_path = "/k8s/clusters/c".into())
        .start()
        .await;
    let (status, answer) = proxy.get("/version").await;
    assert_eq!((status, lines(&answer, "location")), (301, vec!["/version/"]), "{answer}");
    assert_eq!(proxy.get("/version/").await.0, 200);
    assert_eq!(backend.targets(), ["/k8s/clusters/c/version", "/k8s/clusters/c/version/"]);
}

/// Serves four pages, each with an absolute link to the next, as GitHub does. Returns its port, and
/// the number of calls that reached it.
fn four_pages() -> (u16, Arc<AtomicUsize>) {
    responding(|request| {
        let host = lines(request, "host").first().copied().unwrap_or_default().to_owned();
        let page: u32 = match request.split_once("page=") {
            Some((_, rest)) => rest.split(' ').next().and_then(|page| page.parse().ok()).unwrap_or(4),
            None => 1,
        };
        let next = format!("Link: <http://{host}/repos/o/r/issues?page={}>; rel=\"next\"\r\n", page + 1);
        format!("HTTP/1.1 200 OK\r\n{}Content-Length: 2\r\n\r\n[]", if page < 4 { next.as_str() } else { "" })
    })
}

/// One page: to the end of its body, for the API itself does not close the connection.
fn page(port: u16, target: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it is read");
    let (mut answer, mut piece) = (String::new(), [0; 4096]);
    while !answer.ends_with("\r\n\r\n[]") {
        let read = stream.read(&mut piece).expect("it is answered");
        assert!(read > 0, "it ends early: {answer}");
        answer.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
    answer
}

/// Reads page after page as octokit, PyGithub and go-github do: by the link of each answer, at
/// whatever address it says. Returns the number of pages.
fn read_every_page(gate: u16) -> usize {
    let (mut port, mut target, mut pages) = (gate, "/repos/o/r/issues".to_owned(), 0);
    loop {
        let answer = page(port, &target);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        pages += 1;
        let Some(link) = lines(&answer, "link").first().map(|link| (*link).to_owned()) else { return pages };
        let url =
            link.split(['<', '>']).nth(1).expect("a target").strip_prefix("http://").expect("absolute").to_owned();
        let (host, rest) = url.split_once('/').expect("a path");
        port = host.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        target = format!("/{rest}");
    }
}

#[test]
fn every_page_passes_the_gate_of_the_shipped_github_file() {
    let (upstream, calls) = four_pages();
    let (gate, admin) = (free_port(), free_port());
    let mut command = tidegate(["run", "--config", concat!(env!("CARGO_MANIFEST_DIR"), "/config/github.toml")]);
    command
        .env("TIDEGATE__GATES__GITHUB__UPSTREAM", format!("http://127.0.0.1:{upstream}"))
        .env("TIDEGATE__GATES__GITHUB__LISTEN", format!("127.0.0.1:{gate}"))
        .env("TIDEGATE__ADMIN__LISTEN", format!("127.0.0.1:{admin}"));
    let mut running = start(command);
    running.ready();
    assert_eq!(read_every_page(gate), 4);
    let status = crate::cli::input::get(admin, "/status");
    let (_, body) = status.split_once("\r\n\r\n").expect("a body");
    let status: serde_json::Value = serde_json::from_str(body).expect("JSON");
    let seen = &status["gates"][0];
    assert_eq!((calls.load(Relaxed), seen["admitted"].as_u64()), (4, Some(4)), "every call is the gate's");
}

#[test]
fn an_api_whose_links_lead_past_the_gate_is_told() {
    let warned = |more: &str| {
        load(&format!("[gates.g]\nkind = \"http\"\nupstream = \"https://x\"\n{more}\n"), &[]).expect("right").warnings
    };
    let told = warned("");
    assert!(
        told.len() == 1 && told[0].contains("gates.g.rewrite_links: is false: a client that follows links"),
        "{told:?}"
    );
    for said in ["rewrite_links = true", "rewrite_links = false", "host = \"preserve\"", "preset = \"github\""] {
        assert!(warned(said).is_empty(), "{said}: {:?}", warned(said));
    }
    assert!(load(SMALLEST, &[]).expect("right").warnings.is_empty(), "kube-apiserver has no such links");
}

#[test]
fn the_preset_github_keeps_pages_behind_the_gate() {
    let loaded = load(include_str!("../../../config/github.toml"), &[]).expect("right");
    assert!(loaded.settings.gates["github"].forwarding.rewrite_links);
    let off = include_str!("../../../config/github.toml")
        .replace("[gates.github.queue]", "rewrite_links = false\n[gates.github.queue]");
    assert!(
        !load(&off, &[]).expect("right").settings.gates["github"].forwarding.rewrite_links,
        "what the file says counts"
    );
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
        let answer = tokio::task::spawn_blocking(move || crate::cli::input::get(port, "/x")).await.expect("no panic");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    assert_eq!((one.targets(), other.targets()), (vec!["/api/v3/x".to_owned()], vec!["/x".to_owned()]));
    assert_eq!(other.seen()[0].headers["host"], "management.example");
    assert_eq!(gates.terminate(), Some(0));
}
