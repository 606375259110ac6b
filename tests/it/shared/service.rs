//! Two replicas of a gate as a Service: each client is known by its token, and has one bucket,
//! which both replicas share through a real store.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tidegate::clock::Clock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::command::{Running, config, start, with_config};
use crate::ports::free_port;
use crate::store_server::{program, spawn};
use crate::support::{Backend, reply};

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// An API server that knows `TOKEN` as `system:serviceaccount:apps:TOKEN`, and notes when the calls
/// of each came.
async fn api_server(clock: Clock) -> (Backend, Arc<Mutex<Vec<(String, Duration)>>>) {
    let came = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&came);
    let backend = Backend::start(move |call| {
        let token = |call: &crate::support::Seen| {
            let shown = call.headers.get("authorization").and_then(|value| value.to_str().ok());
            shown.and_then(|shown| shown.strip_prefix("Bearer ")).unwrap_or_default().to_owned()
        };
        let answer = if call.target == REVIEWS {
            let question: Value = serde_json::from_slice(&call.body).expect("JSON");
            let token = question["spec"]["token"].as_str().expect("a token");
            let name = format!("system:serviceaccount:apps:{token}");
            let status = json!({ "authenticated": true, "user": { "username": name } });
            let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status });
            reply(201, Box::leak(review.to_string().into_boxed_str()))
        } else {
            seen.lock().expect("no panic").push((token(&call), clock.now().since_start()));
            reply(200, "{}")
        };
        async { answer }
    });
    (backend.await, came)
}

fn replica(upstream: std::net::SocketAddr, store: &std::path::Path) -> (Running, u16, tempfile::TempDir) {
    let port = free_port();
    let (kept, path) = config("");
    let text = format!(
        "[admin]\nlisten = \"off\"\nsocket = \"{}\"\n[stores.main]\nurl = \"unix:{}\"\n[gates.kubernetes]\n\
         upstream = \"http://{upstream}\"\nlisten = \"127.0.0.1:{port}\"\ncredentials = \"pass_through\"\n\
         preset = \"none\"\nqueue = {{ fair_by = \"client\", max_wait = \"1m\" }}\n\
         clients = {{ tokens = \"review\", api = \"kubeconfig\" }}\n\
         bucket = {{ rate = {RATE}, burst = {BURST}, per = \"client\", adapt = \"off\", shared = \"cluster\" }}\n",
        kept.path().join("socket").display(),
        store.display(),
    );
    std::fs::write(&path, text).expect("it can be written");
    let kubeconfig = kept.path().join("kubeconfig");
    let identity = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{ name: c, cluster: {{ server: 'http://{upstream}' }} }}]\n\
         users: [{{ name: u, user: {{ token: gate }} }}]\ncontexts: [{{ name: c, context: {{ cluster: c, user: u }} }}]\n"
    );
    std::fs::write(&kubeconfig, identity).expect("it can be written");
    let mut run = with_config("run", &path);
    run.env("KUBECONFIG", &kubeconfig);
    let mut gate = start(run);
    gate.ready();
    (gate, port, kept)
}

/// Calls a replica as the client with this token.
async fn call(port: u16, token: &str, number: usize) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
    let head = format!(
        "GET /api/v1/namespaces/apps/configmaps/{token}-{number} HTTP/1.1\r\nHost: localhost\r\n\
         Authorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("it is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it is answered");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// The most calls of a client in any window beyond its burst and rate.
fn over(came: &[(String, Duration)], client: &str) -> f64 {
    let (mut least, mut most) = (f64::MAX, 0.0_f64);
    for (number, (_, at)) in (0_u32..).zip(came.iter().filter(|(of, _)| of == client)) {
        let ahead = f64::from(number) - RATE * at.as_secs_f64();
        least = least.min(ahead);
        most = most.max(ahead + 1.0 - least);
    }
    most - BURST
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_of_a_service_give_each_client_one_rate_through_the_store() {
    let Some(program) = program() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let _store = spawn(&program, folder.path(), &[]);
    let (api, came) = api_server(Clock::start()).await;
    let replicas = [0, 1].map(|_| replica(api.address, &folder.path().join("s")));

    // A greedy client calls through both replicas at once, another makes a few calls meanwhile.
    let greedy = replicas.iter().flat_map(|(_, port, _)| (0..GREEDY).map(|number| call(*port, "greedy", number)));
    let modest = replicas.iter().map(|(_, port, _)| async {
        for number in 0..MODEST {
            call(*port, "modest", number).await;
        }
    });
    tokio::join!(join_all(greedy), join_all(modest));

    let came = came.lock().expect("no panic").clone();
    let of = |client: &str| came.iter().filter(|(of, _)| of == client).count();
    assert_eq!((of("greedy"), of("modest")), (2 * GREEDY, 2 * MODEST));
    let (greedy, modest) = (over(&came, "greedy"), over(&came, "modest"));
    println!("two replicas: {greedy:.1} and {modest:.1} calls above burst and rate");
    // Alone, each replica would let its own burst out.
    assert!(greedy <= RATE * LATE && modest <= RATE * LATE, "{greedy} and {modest} over");

    // Each client has a bucket there that two gates use, and its key does not say whose it is.
    let client = redis::Client::open(format!("redis+unix://{}", folder.path().join("s").display())).expect("a URL");
    let mut connection = client.get_connection().expect("it takes connections");
    let keys: Vec<String> = redis::cmd("KEYS").arg("tidegate:1:{cluster}:*").query(&mut connection).expect("keys");
    assert_eq!(keys.len(), 2, "{keys:?}");
    for key in keys {
        let fields: Vec<String> = redis::cmd("HKEYS").arg(&key).query(&mut connection).expect("fields");
        assert_eq!(fields.iter().filter(|field| field.starts_with("m:")).count(), 2, "{key}: {fields:?}");
        assert!(!key.contains("greedy") && !key.contains("modest"), "{key}");
    }
}

const RATE: f64 = 20.0;
const BURST: f64 = 10.0;
/// The calls of the greedy client at each replica; more than its burst, so that some wait.
const GREEDY: usize = 20;
const MODEST: usize = 4;
/// The seconds by which a busy machine may bring calls closer together: less than what a second
/// burst would be.
const LATE: f64 = 0.25;
