//! The SDKs of AWS as `inject --egress` points them at a gate that opens TLS, before a server that
//! verifies their signatures: by exactly the variables that it writes, and nothing else.

use std::fs;

use tidegate::inject::{Client, Egress, Mode, Options, inject};

use crate::fetched::{or_skip, say};
use crate::gate::Gates;
use crate::ports::free_port;
use crate::signed::{Judge, SDKS, SERVICES, Sdk, calls, is_about_the_signature};

/// The variables that a container is given, with the gate's files in this folder.
fn variables(port: u16, folder: &str) -> Vec<(String, String)> {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n    image: i\n";
    let egress = Egress {
        presets: vec!["aws".to_owned()],
        port,
        plain: Vec::new(),
        direct: Vec::new(),
        cluster_domain: None,
        intercept: true,
        clients: vec![Client::Go, Client::Python, Client::Node, Client::Java, Client::Grpc],
    };
    let options = Options { mode: Mode::Kubeconfig, egress: Some(egress), ..Options::default() };
    let edited = inject(pod, &options).expect("it is YAML");
    let pod: serde_json::Value = serde_saphyr::from_str(&edited.text).expect("it is YAML");
    let variables = pod["spec"]["containers"][0]["env"].as_array().expect("a list").iter().map(|variable| {
        let text = |key: &str| variable[key].as_str().expect("text").to_owned();
        // Kubelet fills in the address of the API server.
        let value = text("value").replace("/run/tidegate", folder).replace("$(KUBERNETES_SERVICE_HOST)", "10.96.0.1");
        (text("name"), value)
    });
    variables.filter(|(name, _)| name != "KUBECONFIG").collect()
}

/// A gate before the judge that opens TLS to all services; every call but the first is held for a
/// moment. The JavaScript SDK takes no proxy: its names lead to `named`.
fn gates(judge: &Judge, port: u16, named: u16) -> Gates {
    let hosts: Vec<&str> = SERVICES.iter().map(|(_, host)| *host).collect();
    let connect_to: Vec<String> = hosts
        .iter()
        .map(|host| format!("{host:?} = \"127.0.0.1:{}\"", judge.tls))
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    let (ca, folder) = (judge.dir.path().join("judge.crt"), judge.dir.path().join("egress"));
    let config = format!(
        "[egress]\nlisten = \"127.0.0.1:{port}\"\nnames = [\"127.0.0.1:{named}\"]\nothers = \"refuse\"\nca.write_to = {folder:?}\n\
         [gates.aws]\nhosts = {hosts:?}\nintercept = true\ndialect = \"aws\"\npreset = \"none\"\n\
         bucket = {{ rate = 20, burst = 1 }}\nqueue.max_wait = \"30s\"\nupstream_tls = {{ ca = {ca:?} }}\nconnect_to = {{ {} }}\n",
        connect_to.join(", ")
    );
    let file = judge.dir.path().join("egress.toml");
    fs::write(&file, config).expect("the folder is ours");
    Gates::of(&file, &[], ("aws", port))
}

#[test]
fn a_signature_is_good_through_tls_that_is_opened_with_what_inject_writes() {
    let Some(judge) = or_skip("the judge of signatures", Judge::start()) else { return };
    let (port, named) = (free_port(), free_port());
    let gates = gates(&judge, port, named);
    let all = variables(port, &judge.dir.path().display().to_string());
    let named = named.to_string();
    for sdk in &SDKS {
        let Sdk { name, takes_a_proxy, .. } = *sdk;
        let mut variables: Vec<(&str, &str)> =
            all.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        if !takes_a_proxy {
            variables.push(("TEST_ALIASES", &named)); // as its pod's hosts file would
        }
        let Some(made) = calls(&judge, sdk, &judge.key.secret, &variables, ("https", &[])) else { continue };
        assert!(made.iter().all(String::is_empty), "{name}: {made:?}\n{}", gates.log());
        say(format_args!("{name}: {} signatures were good through TLS that the gate has opened", made.len()));
        let wrong = calls(&judge, sdk, "wrong", &variables, ("https", &[])).expect("it was there before");
        assert!(wrong.iter().all(|error| !error.is_empty()) && is_about_the_signature(&wrong[0]), "{name}: {wrong:?}");
    }
    assert!(gates.metric("tidegate_wait_seconds_count", "aws") > 0.0, "no call was held");
    assert_eq!(gates.metric("tidegate_egress_handshake_failures_total", "aws"), 0.0, "{}", gates.log());
    for (how, expected) in [("intercepted", true), ("tunnelled", false)] {
        let counted = gates.counted(&format!("tidegate_egress_connections_total{{how=\"{how}\"}}"));
        assert_eq!(counted > 0.0, expected, "{how}");
    }
}
