//! A hub that must know its clients: who is not known does not learn which clusters there are.

use std::sync::Arc;

use tidegate::clients::Clients;
use tidegate::clock::Clock;
use tidegate::config;

use super::{RunningHub, cluster, clusters, echo};
use crate::clients::Judge;
use crate::support::status;

#[tokio::test]
async fn a_name_that_exists_and_one_that_does_not_are_alike_to_strangers() {
    let (api, judge) = (echo("api").await, Judge::knowing(&["t alice", "u bob"]).await);
    let mut all = clusters([("a".to_owned(), cluster(api.address, 1, None))]);
    let broken = tidegate::proxy::HubCluster::new(1, None, || Err("its file is wrong".to_owned()));
    all.clusters.insert("broken".into(), broken);
    let text = "[gates.g]\nclusters = \"/x\"\nlisten = \"127.0.0.1:1\"\ncredentials = \"pass_through\"\n\
                [gates.g.clients]\ntokens = \"review\"\napi = \"kubeconfig\"\nallowed = [\"alice\"]\n";
    let loaded = config::load_text("f.toml".to_owned(), text.to_owned(), &[]).expect("a good configuration");
    let gate = loaded.settings.gates.into_values().next().expect("a gate");
    let wanted = gate.access.clients.clone().expect("it knows its clients");
    let hub = RunningHub::start(all, |options| {
        options.clients = Clients::new(&gate, &wanted, Some(judge.api()), Clock::start()).map(Arc::new);
    })
    .await;
    let ask = async |path: &str, token: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{token}Connection: close\r\n\r\n");
        let answer = hub.proxy.exchange(&head).await;
        let lines = answer.lines().filter(|line| !line.starts_with("date: ")).collect::<Vec<_>>();
        (status(&answer), lines.join("\n"))
    };
    for (token, code) in [("", 401), ("Authorization: Bearer no\r\n", 401), ("Authorization: Bearer u\r\n", 403)] {
        let there = ask("/c/a/api", token).await;
        assert_eq!(there.0, code, "{}", there.1);
        for path in ["/c/b/api", "/c/broken/api", "/c/a", "/api"] {
            assert_eq!(ask(path, token).await, there, "{path}");
        }
    }
    assert_eq!(hub.hub.gates().len(), 0, "no stranger makes a gate");
    for (path, code, said) in [
        ("/c/b/api", 404, "there is no cluster"),
        ("/c/broken/api", 503, "its file is wrong"),
        ("/c/a/api", 200, "api /api Bearer t"),
    ] {
        let (found, answer) = ask(path, "Authorization: Bearer t\r\n").await;
        assert!(found == code && answer.contains(said), "{answer}");
    }
    assert_eq!(api.targets(), ["/api"]);
}
