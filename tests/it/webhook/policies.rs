//! Policies over the real server: which pods of fifty namespaces get the sidecar, and with what.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use serde_json::{Value, json};
use tidegate::clock::Clock;
use tidegate::credentials::{self, Api, Environment, Source, UpstreamTls};
use tidegate::inject::Options;
use tidegate::tls::{Pem, Roots};
use tidegate::webhook::{Certificate, Namespaces, Policies, Policy, Server, Settings};
use tokio_util::sync::CancellationToken;

use super::Client;
use crate::cli::input::certificate;

const FILE: &str = r#"
[configurations.argo]
set = "bucket.rate=7 bucket.burst=14"

[[policies]]
name = "excluded"
namespaces = { team = "sre" }
mode = "off"

[[policies]]
name = "argo"
images = ["quay.io/argoproj/*"]
configuration = "argo"
mode = "enforce"

[[policies]]
name = "platform"
namespaces = { team = "platform, data-*" }
pods = { tier = "controller" }
"#;

/// Adds limits as the command does; that it checks them is held elsewhere.
fn limits(mut options: Options, sets: &[String]) -> Result<Options, Vec<String>> {
    for set in sets {
        let (key, value) = set.split_once('=').ok_or_else(|| vec![set.clone()])?;
        let key = key.to_ascii_uppercase().replace('.', "__");
        options.variables.push((format!("TIDEGATE__GATES__KUBERNETES__{key}"), value.to_owned()));
    }
    Ok(options)
}

/// An API server that knows namespaces only; it counts its readers.
fn api(namespaces: BTreeMap<String, Value>) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head);
            let name = head.strip_prefix("GET /api/v1/namespaces/").and_then(|rest| rest.split(['?', ' ']).next());
            counted.fetch_add(1, Ordering::SeqCst);
            let found = name.and_then(|name| namespaces.get(name));
            let (status, body) = match found {
                Some(namespace) => ("200 OK", namespace.clone()),
                None => ("404 Not Found", json!({"kind": "Status", "message": "not found"})),
            };
            let body = body.to_string();
            let length = body.len();
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}").ok();
        }
    });
    (address, reads)
}

/// What a pod gets: the mode of its sidecar, and the rate that is set.
type Row = Option<(&'static str, Option<&'static str>)>;

/// A namespace of the table, by its number, with the rows that its annotations give.
fn namespace(number: usize) -> Value {
    let team = ["sre", "platform", "data-eu", "web", ""][number % 5];
    let mut labels = json!({"kubernetes.io/metadata.name": format!("ns-{number}")});
    if !team.is_empty() {
        labels["team"] = team.into();
    }
    let annotations = match number {
        47 => json!({"tidegate.io/policy": "observe", "tidegate.io/set": "bucket.rate=3"}),
        48 => json!({"tidegate.io/policy": "off"}),
        49 => json!({"tidegate.io/policy": "enforce"}),
        _ => json!({}),
    };
    json!({"kind": "Namespace", "metadata": {"name": format!("ns-{number}"), "labels": labels, "annotations": annotations}})
}

/// The six pods of each namespace: with what labels, annotations and image.
fn pod(kind: usize) -> Value {
    let tier = ["controller", "controller", "web", "controller", "web", "controller"][kind];
    let image = ["op:1", "quay.io/argoproj/argocd:v3", "quay.io/argoproj/rollouts:v1", "op:2", "nginx", "op:3"][kind];
    let mut metadata = json!({"name": format!("p-{kind}"), "labels": {"tier": tier}});
    if kind == 3 {
        metadata["labels"]["tidegate.io/inject"] = "disabled".into();
    }
    if kind == 5 {
        metadata["annotations"] = json!({"tidegate.io/set": "shadow=false"});
    }
    json!({"metadata": metadata, "spec": {"containers": [{"name": "c", "image": image}]}})
}

/// The table, written out without the code that it judges.
fn expected(number: usize, kind: usize) -> Row {
    let by_annotation = [(47, Some(("observe", Some("3")))), (48, None), (49, Some(("enforce", None)))];
    if kind == 3 {
        return None;
    }
    if let Some((_, row)) = by_annotation.into_iter().find(|(annotated, _)| *annotated == number) {
        return row;
    }
    match (number % 5, kind) {
        (0, _) => None,
        (_, 1 | 2) => Some(("enforce", Some("7"))),
        (1 | 2, 0 | 5) => Some(("observe", None)),
        _ => None,
    }
}

fn review(namespace: &str, pod: &Value) -> String {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u-1", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE",
        "namespace": namespace, "object": pod}})
    .to_string()
}

/// The sidecar's variables, if the answer adds a sidecar.
fn variables(pod: &Value, answer: &str) -> Option<Vec<(String, String)>> {
    let answer: Value = serde_json::from_str(answer).unwrap_or_else(|_| panic!("{answer}"));
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
    let patch =
        base64::engine::general_purpose::STANDARD.decode(answer["response"]["patch"].as_str()?).expect("base64");
    let patch: json_patch::Patch = serde_json::from_slice(&patch).expect("a patch");
    let mut pod = pod.clone();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    json_patch::patch(&mut pod, &patch).expect("it fits");
    let env = pod["spec"]["initContainers"][0]["env"].as_array().expect("variables").clone();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    Some(env.iter().map(|variable| (text(&variable["name"]), text(&variable["value"]))).collect())
}

/// What a sidecar with these variables does. One that observes holds nothing back, and logs.
fn row(variables: &[(String, String)]) -> (&'static str, Option<String>) {
    let loaded = tidegate::config::load_text("none".to_owned(), String::new(), variables).expect("a gate takes them");
    let calls = variables.iter().find(|(name, _)| name == "TIDEGATE__LOG__CALLS").map(|(_, path)| path.as_str());
    let rate =
        variables.iter().find(|(name, _)| name.ends_with("KUBERNETES__BUCKET__RATE")).map(|(_, rate)| rate.clone());
    let limited = |gate: &tidegate::spec::Gate| !gate.shadow || gate.policy.classes.iter().any(|class| !class.shadow);
    match (loaded.settings.gates.values().any(limited), calls) {
        (false, Some("/dev/stdout")) => ("observe", rate),
        (true, None) => ("enforce", rate),
        found => panic!("{found:?}: {variables:?}"),
    }
}

async fn serve(api: SocketAddr, folder: &std::path::Path) -> Client {
    let made = certificate();
    let cert = folder.join("tls.crt");
    let key = folder.join("tls.key");
    std::fs::write(&cert, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let clock = Clock::start();
    let environment = Environment { variables: Vec::new(), service_account: folder.to_owned() };
    let source = Source::Url(format!("http://{api}").parse().expect("a URL"));
    let resolved = credentials::resolve(&source, &UpstreamTls::default(), &environment).expect("it is one");
    let namespaces = Namespaces::new(Api::new(&resolved, "tidegate-webhook", clock).expect("plain HTTP"));
    let options = Options::default();
    let policies = Policies::read(FILE, &options, limits).expect("good");
    let settings = Settings {
        listen: "127.0.0.1:0".parse().expect("an address"),
        options,
        check: limits,
        policies: Some(Arc::new(policies)),
        namespaces: Some(Arc::new(namespaces)),
        policy: Policy::Fail,
        namespace: Some("tidegate-system".into()),
    };
    let certificate = Certificate::files(&cert, &key, clock).expect("both are good");
    let server = Server::bind(settings, certificate, clock).await.expect("a port");
    let address = server.address();
    tokio::spawn(async move { server.serve(CancellationToken::new()).await });
    Client { address, roots: Roots::Only(Pem::new(made.cert.pem().into_bytes(), "the test")) }
}

#[tokio::test]
async fn three_hundred_pods_of_fifty_namespaces_get_what_the_table_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut namespaces: BTreeMap<_, _> = (0..50).map(|number| (format!("ns-{number}"), namespace(number))).collect();
    let platform =
        json!({"metadata": {"labels": {"team": "platform"}, "annotations": {"tidegate.io/policy": "enforce"}}});
    let untouched = ["kube-system", "kube-public", "kube-node-lease", "tidegate-system"];
    namespaces.extend(untouched.map(|name| (name.to_owned(), platform.clone())));
    let (address, reads) = api(namespaces);
    let webhook = serve(address, folder.path()).await;
    let mut counted = BTreeMap::new();
    for number in 0..50 {
        for kind in 0..6 {
            let pod = pod(kind);
            let (_, answer) = webhook.ask(false, "POST", "/policies", &review(&format!("ns-{number}"), &pod)).await;
            let found = variables(&pod, &answer).map(|variables| row(&variables));
            let found = found.as_ref().map(|(mode, rate)| (*mode, rate.as_deref()));
            assert_eq!(found, expected(number, kind), "ns-{number}, pod {kind}");
            *counted.entry(found.map_or("none", |(mode, _)| mode)).or_insert(0) += 1;
        }
    }
    println!("{counted:?}");
    assert_eq!(counted.values().sum::<i32>(), 300);
    assert_eq!(counted.keys().copied().collect::<Vec<_>>(), ["enforce", "none", "observe"]);

    // Whatever their labels, the system's pods and the webhook's own are not even looked up.
    let before = reads.load(Ordering::SeqCst);
    for name in untouched {
        for path in ["/inject", "/policies"] {
            let (_, answer) = webhook.ask(false, "POST", path, &review(name, &pod(1))).await;
            assert_eq!(variables(&pod(1), &answer), None, "{name}");
        }
    }
    assert_eq!(reads.load(Ordering::SeqCst), before);
    // A label asks without a policy, and a policy that says off wins over it.
    for (name, sidecar) in [("ns-4", true), ("ns-3", true), ("ns-0", false)] {
        let (_, answer) = webhook.ask(true, "POST", "/inject", &review(name, &pod(4))).await;
        assert_eq!(variables(&pod(4), &answer).is_some(), sidecar, "{name}");
    }
}

#[tokio::test]
async fn a_pod_whose_namespace_cannot_be_read_is_made_without_the_sidecar_and_its_creator_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    for (api, says) in [(api(BTreeMap::new()).0, "404 Not Found"), (closed, "failed")] {
        let webhook = serve(api, folder.path()).await;
        for (name, says) in [("ns-1", says), ("../secrets", "is not the name of a namespace")] {
            let (_, answer) = webhook.ask(false, "POST", "/policies", &review(name, &pod(1))).await;
            assert_eq!(variables(&pod(1), &answer), None);
            assert!(answer.contains("created without the sidecar") && answer.contains(says), "{name}: {answer}");
        }
    }
}
