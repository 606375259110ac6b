//! Paths that two readers could read differently: forwarded byte for byte, and held to the
//! strictest class.

use std::sync::{Arc, Mutex};

use tidegate::api::Failures;
use tidegate::config;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::pool::support::Server;
use crate::support::{Proxy, ProxyBuilder, status};

/// Request lines as they reach the upstream.
async fn recording() -> (Server, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&lines);
    let server = Server::plain(move |mut socket| {
        let kept = Arc::clone(&kept);
        async move {
            let mut head = Vec::new();
            while let Ok(byte) = socket.read_u8().await {
                head.push(byte);
                if head.ends_with(b"\r\n\r\n") {
                    let text = String::from_utf8_lossy(&head).into_owned();
                    kept.lock().expect("no panic").push(text.lines().next().unwrap_or_default().to_owned());
                    head.clear();
                    drop(socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await);
                }
            }
        }
    })
    .await;
    (server, lines)
}

/// A gate with an exempt class, one for secrets and one that is stricter than all others.
fn gate(server: &Server) -> ProxyBuilder {
    let text = "[gates.g]\nupstream = \"in_cluster\"\nbucket = \"off\"\n\
        [[gates.g.classes]]\nname = \"secret\"\nmatch = { resources = [\"secrets\"] }\n\
        [[gates.g.classes]]\nname = \"strict\"\nmatch = { paths = [\"/strict\"] }\nlane = \"low\"\nbucket = { rate = 1000, burst = 1000 }\n";
    let loaded = config::load_text("f.toml".into(), text.into(), &[]);
    let loaded = loaded.unwrap_or_else(|problems| panic!("{problems:?}"));
    let gate = loaded.settings.gates.into_values().next().expect("a gate");
    Proxy::before(server.address).with(|options| {
        options.gate.answers.failures =
            vec![Failures { statuses: vec![503], transport: true, left: true }; gate.policy.classes.len()];
        (options.gate.rules, options.gate.policy) = (gate.rules, gate.policy);
    })
}

#[tokio::test]
async fn an_unclear_path_passes_byte_for_byte_and_is_held_to_the_strictest_class() {
    let (server, lines) = recording().await;
    let proxy = gate(&server).start().await;
    let mut sent = Vec::new();
    for (class, target) in [
        ("secret", "/api/v1/namespaces/d/secrets/s"),
        ("secret", "/api/v1/namespaces/d/secrets/s?x=/../../livez"),
        ("secret", "/api/v1/namespaces/d/s%65crets/s"), // as kube-apiserver reads it
        ("health", "/livez"),
        ("strict", "/livez/../api/v1/namespaces/d/secrets/s"),
        ("strict", "/livez/%2e%2e/api/v1/namespaces/d/secrets/s"),
        ("strict", "/livez/.%2E/api/v1/namespaces/d/secrets/s"),
        ("strict", "/livez/./"),
        ("strict", "//api/v1/namespaces/d/secrets/s"),
        ("strict", "/api//v1/namespaces/d/secrets/s"),
        ("strict", "/api/v1/namespaces/d%2Fsecrets%2Fs"),
        ("strict", "/api/v1/namespaces/d%2fsecrets%2fs/x"),
        ("strict", "/livez%00"),
        ("strict", "/livez%0d%0aHost:%20x"),
        ("strict", "/livez/%c0%ae%c0%ae/api/v1/secrets"), // overlong UTF-8
        ("strict", "/livez/%ff"),
        ("strict", "/livez/%zz"),
        ("strict", "/livez%"),
        ("strict", "/livez/..;/api/v1/secrets"),
        ("strict", "/livez\\..\\api\\v1\\secrets"),
    ] {
        let labels = [&*format!("class=\"{class}\"")];
        let before = proxy.metric("tidegate_calls_total", &labels);
        let (code, answer) = proxy.get(target).await;
        assert_eq!((code, status(&answer)), (200, 200), "{target}");
        sent.push(format!("GET {target} HTTP/1.1"));
        assert_eq!(*lines.lock().expect("no panic"), sent);
        let now = proxy.metric("tidegate_calls_total", &labels);
        assert!(now > before, "{target} is not of class {class}");
    }
}

#[tokio::test]
async fn another_case_or_a_slash_at_the_end_is_another_path_and_exempts_nothing() {
    let (server, _) = recording().await;
    let proxy = gate(&server).start().await;
    for target in ["/LIVEZ", "/Apis/coordination.k8s.io/v1/namespaces/a/leases/l", "/api/v1/namespaces/d/SECRETS/s"] {
        let before = proxy.metric("tidegate_calls_total", &["lane=\"exempt\""]);
        assert_eq!(proxy.get(target).await.0, 200, "{target}");
        assert_eq!(proxy.metric("tidegate_calls_total", &["lane=\"exempt\""]), before, "{target}");
    }
}
