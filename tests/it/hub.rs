//! One gate before many clusters: `/c/NAME/` is the cluster `NAME`, and nothing leads from one to
//! another.

mod known;
mod page;
mod process;
mod shared;
mod spellings;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http_body_util::BodyExt;
use tidegate::clock::Clock;
use tidegate::credentials::{Credential, Inject, Injector, Secret, Target};
use tidegate::proxy::{Hub, HubCluster, HubClusters, OpenCluster, Options, Past};
use tidegate::spec::Gate;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::pool::support::Server;
use crate::support::{Backend, Proxy, header, reply, status, within};

/// The way to a cluster at an address. With `token` the gate adds that as its own credential.
fn open(address: SocketAddr, token: Option<&String>) -> OpenCluster {
    let target = Target {
        scheme: http::uri::Scheme::HTTP,
        authority: address.to_string().parse().expect("an authority"),
        base_path: String::new(),
        server_name: None,
        proxy: None,
    };
    let own = token.map(|token| Inject {
        credential: Some(Credential {
            header: AUTHORIZATION,
            prefix: "Bearer ".to_owned(),
            secret: Secret::fixed(token, "test").expect("a token"),
        }),
        impersonation: false,
        acting_as: Vec::new(),
        required_token: None,
        clock: Clock::start(),
    });
    let injector = own.map_or_else(Injector::pass_through, Injector::inject);
    OpenCluster { target, tls: None, injector, warnings: Vec::new() }
}

pub(crate) fn cluster(address: SocketAddr, version: u64, token: Option<String>) -> HubCluster {
    HubCluster::new(version, None, move || Ok(open(address, token.as_ref())))
}

/// A cluster with the limits of a pattern.
fn limited(address: SocketAddr, pattern: &str) -> HubCluster {
    HubCluster::new(1, Some(pattern.into()), move || Ok(open(address, None)))
}

pub(crate) fn clusters(all: impl IntoIterator<Item = (String, HubCluster)>) -> HubClusters {
    let clusters = all.into_iter().map(|(name, cluster)| (name.into(), cluster)).collect();
    HubClusters { clusters, limits: BTreeMap::new() }
}

/// A running hub, with a gate for calls to it.
pub(crate) struct RunningHub {
    pub(crate) proxy: Proxy,
    pub(crate) hub: Arc<Hub>,
}

impl RunningHub {
    pub(crate) async fn start(clusters: HubClusters, change: impl FnOnce(&mut Options)) -> Self {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 9));
        let mut options = Proxy::before(nowhere).with(change).options();
        options.upstream.rewrite_links = Some(http::uri::Scheme::HTTP);
        let name = Arc::clone(&options.gate.name);
        let stop = CancellationToken::new();
        let started = Hub::start(options, clusters, Past::default(), Clock::start(), stop.clone());
        let (gate, hub) = started.await.expect("it listens");
        Self { proxy: Proxy { address: gate.addresses()[0], name, gate, stop }, hub }
    }

    async fn get(&self, target: &str) -> (u16, String) {
        self.proxy.get(target).await
    }
}

/// Answers each call with its target and credential.
pub(crate) async fn echo(name: &'static str) -> Backend {
    Backend::start(move |seen| async move {
        let said = seen.headers.get(AUTHORIZATION).map_or("-", |value| value.to_str().expect("text"));
        let text = format!("{name} {} {said}", seen.target);
        let body = http_body_util::Full::from(text).map_err(|never| match never {}).boxed_unsync();
        http::Response::new(body)
    })
    .await
}

#[tokio::test]
async fn a_cluster_gets_the_path_below_it_and_its_own_credentials() {
    let (one, other) = (echo("one").await, echo("other").await);
    let all = [("a", one.address, Some("of-a".to_owned())), ("b", other.address, None)];
    let all = all.map(|(name, address, token)| (name.to_owned(), cluster(address, 1, token)));
    let hub = RunningHub::start(clusters(all), |_| ()).await;
    for (target, expected) in [
        ("/c/a/api/v1/pods?limit=5&x=%2f", "one /api/v1/pods?limit=5&x=%2f Bearer of-a"),
        ("/c/a/", "one / Bearer of-a"),
        ("/c/a//c/b/x", "one //c/b/x Bearer of-a"),
        ("/c/b/apis/%7e/..;/x", "other /apis/%7e/..;/x -"),
    ] {
        let (code, answer) = hub.get(target).await;
        assert!(code == 200 && answer.ends_with(&format!("\r\n\r\n{expected}")), "{target}: {answer}");
    }
    let mut http2 = hub.proxy.connect_http2().await;
    for (name, expected) in [("a", "one /x?y Bearer of-a"), ("b", "other /x?y -")] {
        let request = http::Request::get(format!("http://localhost/c/{name}/x?y")).body(Default::default());
        let answer = within(http2.send_request(request.expect("valid"))).await.expect("answered");
        assert_eq!(answer.into_body().collect().await.expect("whole").to_bytes(), expected);
    }
    for (made, (cluster, of)) in ["a", "b"].into_iter().zip(hub.hub.gates()) {
        assert_eq!((made, of.status(true).await.name.as_str()), (&*cluster, &*hub.proxy.name));
    }
    let calls = |labels: &[&str]| hub.proxy.metric("tidegate_hub_calls_total", labels);
    assert_eq!((calls(&["cluster=\"a\"", "decision=\"go\""]), calls(&["cluster=\"b\""])), (4.0, 2.0));
    assert_eq!(hub.proxy.metric("tidegate_hub_clusters", &[]), 2.0);
}

#[tokio::test]
async fn what_is_no_cluster_is_404_with_a_status_that_names_it() {
    let api = echo("api").await;
    let mut all = clusters([("a".to_owned(), cluster(api.address, 1, None))]);
    let broken = HubCluster::new(0, None, || Err("its file is wrong".to_owned()));
    all.clusters.insert("broken".into(), broken);
    let hub = RunningHub::start(all, |_| ()).await;
    for (target, code, said) in [
        ("/c/nowhere/api", 404, "there is no cluster \\\"nowhere\\\"; expected /c/NAME/"),
        ("/c/A/api", 404, "there is no cluster \\\"A\\\""),
        ("/c/a", 404, "the path is not below a cluster; expected /c/NAME/ and the path of the call"),
        ("/api/v1/pods", 404, "the path is not below a cluster"),
        ("/c/broken/api", 503, "the cluster \\\"broken\\\" cannot be called: its file is wrong"),
    ] {
        let (found, answer) = hub.get(target).await;
        assert!(found == code && answer.contains("\"kind\":\"Status\"") && answer.contains(said), "{target}: {answer}");
    }
    assert_eq!(api.targets(), [""; 0]);
    assert_eq!(hub.proxy.metric("tidegate_guarded_total", &["rule=\"cluster\""]), 5.0);
}

#[tokio::test]
async fn a_redirect_of_a_cluster_stays_below_it() {
    let api = Backend::start(|seen| async move {
        let mut answer = reply(302, "");
        let to = seen.target.split_once("?to=").expect("a query").1.to_owned();
        answer.headers_mut().insert("location", to.parse().expect("a value"));
        answer.headers_mut().insert("set-cookie", "id=1; Path=/".parse().expect("a value"));
        answer
    })
    .await;
    let hub = RunningHub::start(clusters([("a".to_owned(), cluster(api.address, 1, None))]), |_| ()).await;
    let own = format!("http://{}/x", api.address);
    for (to, becomes) in [
        ("/api/v1", Some("/c/a/api/v1")),
        ("/c/b/api", Some("/c/a/c/b/api")),
        (own.as_str(), Some("http://localhost/c/a/x")),
        ("http://localhost/c/b/x", Some("http://localhost/c/a/c/b/x")),
        ("/../b/x", None),
        ("../../b/x", None),
    ] {
        let (_, answer) = hub.get(&format!("/c/a/go?to={to}")).await;
        assert_eq!(header(&answer, "location"), becomes, "{answer}");
        assert_eq!(header(&answer, "set-cookie"), Some("id=1; Path=/c/a/"));
    }
}

#[tokio::test]
async fn an_upgrade_is_a_tunnel_to_its_cluster() {
    let echoing = |name: &'static str| async move {
        Server::plain(move |mut socket| async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(socket.read_u8().await.expect("reads"));
            }
            assert!(head.starts_with(b"GET /api/v1/namespaces/d/pods/p/exec?x=/c/b/ HTTP/1.1\r\n"));
            let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nSet-Cookie: s=1; Path=/\r\n\r\n";
            socket.write_all(format!("{switched}{name}").as_bytes()).await.expect("writes");
            socket.read_u8().await.ok();
        })
        .await
    };
    let (one, other) = (echoing("one").await, echoing("other").await);
    let all = [("a", one.address), ("b", other.address)];
    let all = all.map(|(name, address)| (name.to_owned(), cluster(address, 1, None)));
    let hub = RunningHub::start(clusters(all), |_| ()).await;
    for (name, expected) in [("a", "one"), ("b", "other")] {
        let mut client = hub.proxy.connect().await;
        let asked = format!(
            "GET /c/{name}/api/v1/namespaces/d/pods/p/exec?x=/c/b/ HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
        );
        client.write_all(asked.as_bytes()).await.expect("writes");
        let mut said = String::new();
        while !said.ends_with(expected) {
            said.push(char::from(within(client.read_u8()).await.expect("a tunnel")));
        }
        assert_eq!(status(&said), 101);
        assert!(said.contains(&format!("s=1; Path=/c/{name}/\r\n")), "{said}");
    }
}

/// Waits until a call has come to a cluster as so many before it.
async fn arrived(cluster: &Backend, calls: usize) {
    within(async {
        while cluster.targets().len() < calls {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn calls_that_wait_while_their_cluster_changes_are_counted() {
    let (slow, answers) = Backend::holding().await;
    let of = |version| clusters([("a".to_owned(), cluster(slow.address, version, None))]);
    let hub = RunningHub::start(of(1), |options| {
        let slots = std::num::NonZeroU32::MIN;
        options.gate.policy.in_flight = Some(tidegate::limit::policy::InFlight::new(slots));
    })
    .await;
    let asked = "GET /c/a/api HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut clients = Vec::new();
    for waiting in [0.0, 1.0] {
        let mut client = hub.proxy.connect().await;
        client.write_all(asked.as_bytes()).await.expect("writes");
        arrived(&slow, 1).await;
        hub.proxy.reaches("tidegate_waiting", &[], waiting).await;
        clients.push(client);
    }
    hub.hub.adopt(of(2));
    clients.push(hub.proxy.connect().await);
    clients[2].write_all(asked.as_bytes()).await.expect("writes");
    arrived(&slow, 2).await; // its new gate has a slot of its own
    let counted = |calls| hub.proxy.reaches("tidegate_hub_calls_total", &["cluster=\"a\"", "decision=\"go\""], calls);
    counted(2.0).await;
    answers.add_permits(3);
    for mut client in clients {
        let mut answer = String::new();
        within(client.read_to_string(&mut answer)).await.expect("whole");
        assert_eq!(status(&answer), 200, "{answer}");
    }
    counted(3.0).await;
}

#[tokio::test]
async fn a_failing_key_keeps_its_name_when_its_cluster_changes() {
    let api = Backend::replying(500).await;
    let of = |version| clusters([("a".to_owned(), cluster(api.address, version, None))]);
    let hub = RunningHub::start(of(1), |_| ()).await;
    let put = "PUT /c/a/api/v1/namespaces/n/configmaps/m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    let mut client = hub.proxy.connect().await;
    client.write_all(put.as_bytes()).await.expect("writes");
    hub.proxy.reaches("tidegate_keys_failing", &[], 1.0).await;
    let names = async || {
        let (gate, _) = hub.hub.carrier("/c/a/").await.expect("a cluster");
        gate.status(true).await.keys.into_iter().map(|key| key.key).collect::<Vec<_>>()
    };
    let before = names().await;
    hub.hub.adopt(of(2));
    assert_eq!(
        (before, names().await),
        (vec!["write configmaps/n/m".to_owned()], vec!["write configmaps/n/m".to_owned()])
    );
}

/// Of 200 clusters one does not listen, one never answers and one is not what its settings say.
#[tokio::test]
async fn clusters_that_fail_hold_up_no_other() {
    let (api, (stuck, _answers)) = (echo("api").await, Backend::holding().await);
    let mut all = clusters((0..197).map(|number| (format!("c{number}"), cluster(api.address, 1, None))));
    let dead = SocketAddr::from(([127, 0, 0, 1], 1));
    for (name, address) in [("dead", dead), ("stuck", stuck.address)] {
        all.clusters.insert(name.into(), cluster(address, 1, None));
    }
    let refusing = HubCluster::new(1, None, || Err("no such CA".to_owned()));
    all.clusters.insert("refusing".into(), refusing);
    let hub = RunningHub::start(all, |options| {
        let slots = std::num::NonZeroU32::MIN;
        options.gate.policy.in_flight = Some(tidegate::limit::policy::InFlight::new(slots));
    })
    .await;
    // It takes the one slot of its cluster, and one more waits.
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let mut client = hub.proxy.connect().await;
        client.write_all(b"GET /c/stuck/api HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("writes");
        waiting.push(client);
    }
    hub.proxy.reaches("tidegate_waiting", &[], 1.0).await;
    assert_eq!((hub.get("/c/dead/api").await.0, hub.get("/c/refusing/api").await.0), (502, 503));
    for number in 0..197 {
        let (code, answer) = hub.get(&format!("/c/c{number}/api")).await;
        assert!(code == 200 && answer.ends_with("api /api -"), "{answer}");
    }
    let lease = "/c/stuck/apis/coordination.k8s.io/v1/namespaces/n/leases/l";
    let mut client = hub.proxy.connect().await;
    client
        .write_all(format!("PUT {lease} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").as_bytes())
        .await
        .expect("writes");
    within(async {
        while !stuck.targets().iter().any(|target| target.ends_with("/leases/l")) {
            Clock::start().sleep(std::time::Duration::from_millis(1)).await;
        }
    })
    .await;
    assert_eq!(hub.hub.gates().len(), 199, "one for each that could be made");
    drop(waiting);
}

#[tokio::test]
async fn the_burst_of_a_cluster_is_its_own_or_that_of_its_pattern() {
    let api = echo("api").await;
    let prod = ["prod-1", "prod-2"].map(|name| (name.to_owned(), limited(api.address, "prod-*")));
    let mut all = clusters([("test-1".to_owned(), cluster(api.address, 1, None))].into_iter().chain(prod));
    let of_burst = |gate: &mut Gate, burst| {
        gate.policy.bucket = Some(crate::support::bucket(1e-6, burst));
        gate.policy.queue.max_wait = std::time::Duration::ZERO;
    };
    let mut strict = Proxy::before(api.address).options().gate;
    of_burst(&mut strict, 2);
    let hub = RunningHub::start(
        {
            all.limits.insert("prod-*".into(), strict);
            all
        },
        |options| of_burst(&mut options.gate, 4),
    )
    .await;
    let allowed = async |name: &str| {
        let mut allowed = 0;
        while hub.get(&format!("/c/{name}/api/v1/pods/p")).await.0 == 200 {
            allowed += 1;
        }
        allowed
    };
    assert_eq!([allowed("test-1").await, allowed("prod-1").await, allowed("prod-2").await], [4, 2, 2]);
    // A pattern that comes is in force for a cluster that was called before.
    let mut all = clusters([("test-1".to_owned(), limited(api.address, "test-*"))]);
    let mut none = Proxy::before(api.address).options().gate;
    none.policy.bucket = None;
    all.limits.insert("test-*".into(), none);
    hub.hub.adopt(all);
    assert_eq!(hub.get("/c/test-1/api/v1/pods/p").await.0, 200);
}

#[tokio::test]
async fn clusters_come_change_and_go_while_calls_go_on() {
    let (api, (slow, answers)) = (echo("api").await, Backend::holding().await);
    let stays = |version| ("stays".to_owned(), cluster(api.address, 1, Some(format!("token-{version}"))));
    let hub = RunningHub::start(clusters([stays(0)]), |options| {
        options.gate.policy.bucket = Some(crate::support::bucket(1e-6, 400));
        options.gate.policy.queue.max_wait = std::time::Duration::ZERO;
    })
    .await;
    for round in 0..100_u64 {
        let comes = ("comes".to_owned(), cluster(slow.address, round, None));
        hub.hub.adopt(clusters([stays(0), comes]));
        let mut client = hub.proxy.connect().await;
        let asked = "GET /c/comes/api HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        client.write_all(asked.as_bytes()).await.expect("writes");
        let arrived = usize::try_from(round).expect("small") + 1;
        within(async {
            while slow.targets().len() < arrived {
                tokio::task::yield_now().await;
            }
        })
        .await;
        hub.hub.adopt(clusters([stays(0)]));
        assert_eq!(hub.get("/c/comes/api").await.0, 404);
        assert_eq!(hub.get("/c/stays/api").await.0, 200);
        answers.add_permits(1);
        let mut answer = String::new();
        within(client.read_to_string(&mut answer)).await.expect("whole");
        assert_eq!(status(&answer), 200, "it was under way when its cluster went");
    }
    // Another version takes over the level of the bucket: 100 of 400 tokens are spent.
    hub.hub.adopt(clusters([("stays".to_owned(), cluster(api.address, 2, Some("new".to_owned())))]));
    let mut left = 0;
    while let (200, answer) = hub.get("/c/stays/api/v1/pods/p").await {
        assert!(answer.ends_with("Bearer new"), "{answer}");
        left += 1;
    }
    assert_eq!(left, 300);
}
