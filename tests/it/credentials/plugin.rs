//! Calls of a gate whose exec plugin hangs after the upstream has answered 401 to one of them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::StatusCode;
use tidegate::api::Group;
use tidegate::clock::Clock;
use tidegate::credentials::{Environment, Inject, Injector, Source, UpstreamTls, resolve};

use crate::pool::support::{Caller, Server, answer, options};

/// A kubeconfig for this server, whose plugin answers once and then hangs.
fn kubeconfig(server: &Server) -> String {
    let plugin = "test -e \"$0\" && exec sleep 1000; : > \"$0\"; printf '{\"kind\":\"ExecCredential\",\
        \"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{\"token\":\"good\"}}'";
    serde_json::json!({
        "current-context": "c",
        "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
        "clusters": [{ "name": "k", "cluster": { "server": format!("http://{}", server.address) } }],
        "users": [{ "name": "u", "user": { "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", plugin, "RAN"],
        } } }],
    })
    .to_string()
}

#[tokio::test]
async fn a_lease_does_not_wait_for_a_plugin_after_a_401() {
    let server = Server::http2(10, |request, _| {
        async move {
            let mut answer = answer("ok");
            let is_known = request.headers().get("authorization").is_some_and(|value| value == "Bearer good");
            if !is_known || request.uri().path() == "/denied" {
                *answer.status_mut() = StatusCode::UNAUTHORIZED;
            }
            answer
        }
        .boxed()
    })
    .await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config");
    let ran = folder.path().join("ran").display().to_string();
    std::fs::write(&path, kubeconfig(&server).replace("RAN", &ran)).expect("written");
    let variables = vec![("KUBECONFIG".to_owned(), path.display().to_string())];
    let around = Environment { variables, service_account: "/nowhere".into() };
    let resolved = resolve(&Source::Kubeconfig(None), &UpstreamTls::default(), &around).expect("resolved");
    let (credential, clock) = (resolved.credential, Clock::start());
    let inject = Inject { credential, impersonation: false, acting_as: Vec::new(), required_token: None, clock };
    let mut options = options(server.address, server.ca.as_deref());
    options.injector = Arc::new(Injector::inject(inject));
    let caller = Caller::start(options);
    let status = async |group, path| caller.get(group, path).await.expect("an answer").status();
    assert_eq!(status(Group::Short, "/").await, 200);
    assert_eq!(status(Group::Short, "/denied").await, 401);

    // Time stands still: while something is to do, it is not moved on.
    tokio::time::pause();
    let busy = tokio::spawn(async {
        loop {
            tokio::task::yield_now().await;
        }
    });
    let mut waiting = Box::pin(status(Group::Short, "/"));
    assert!((&mut waiting).now_or_never().is_none());
    assert_eq!(status(Group::Exempt, "/").await, 200, "neither its connection nor the call waits");
    assert!((&mut waiting).now_or_never().is_none(), "another call waits for a better token");
    tokio::time::advance(Duration::from_secs(3)).await; // timers have whole milliseconds
    assert_eq!(waiting.await, 200, "and goes with the one that is held");
    busy.abort();
}
