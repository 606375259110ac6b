//! `tidegate doctor` against everything that it can find wrong: each finding has a remedy, the exit
//! code is 1, and a sound setup has no findings.

use crate::cli::input::{certificate, tls_server};
use crate::command::Ended;
use crate::operate::{Connected, Process, answering, api, responding};
use crate::ports::free_port;

/// The findings: lines with their remedies.
fn wrong(ended: &Ended) -> Vec<String> {
    let lines: Vec<_> = ended.out.lines().collect();
    let pairs = lines.windows(2).filter(|pair| pair[0].starts_with("WRONG"));
    let found: Vec<_> = pairs
        .map(|pair| {
            assert!(pair[1].trim_start().starts_with("-> "), "a remedy for {}", pair[0]);
            pair.join("\n")
        })
        .collect();
    assert_eq!(ended.code, Some(i32::from(!found.is_empty())), "{}{}", ended.out, ended.err);
    found
}

/// A kubeconfig that leads to a local port, with this user.
fn kubeconfig(port: u16, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{ name: c, context: {{ cluster: c, user: u }} }}]\n\
         clusters: [{{ name: c, cluster: {{ server: 'http://127.0.0.1:{port}' }} }}]\nusers: [{{ name: u, user: {{ {user} }} }}]\n"
    )
}

/// Runs `doctor` for these gates, with a kubeconfig that leads to a local port by a token.
fn with_a_token(port: u16, gates: &str) -> Ended {
    with_a_kubeconfig(&kubeconfig(port, "token: hunter2"), gates)
}

/// Runs `doctor` for these gates, with this kubeconfig as the current one.
fn with_a_kubeconfig(text: &str, gates: &str) -> Ended {
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, text).expect("it can be written");
    let config = folder.path().join("tidegate.toml");
    std::fs::write(&config, format!("[admin]\nlisten = \"off\"\n{gates}")).expect("it can be written");
    let mut command = crate::command::with_config("doctor", &config);
    command.env("KUBECONFIG", &kubeconfig);
    crate::command::end(command)
}

#[test]
fn nothing_is_wrong_with_a_healthy_gate() {
    let (upstream, _) = api();
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), "");
    crate::cli::input::get(process.gate, "/api/v1/namespaces/n/pods/good");
    let ended = process.command(&["doctor"]);
    assert!(wrong(&ended).is_empty(), "{}", ended.out);
    for wanted in
        ["configuration: has no problems", "answers at the control socket", "listens on", "is reached", "but the gate"]
    {
        assert!(ended.out.contains(wanted), "{wanted}\n{}", ended.out);
    }
}

#[test]
fn a_saturated_gate_is_told_with_the_knob() {
    let (upstream, _) = api();
    let tight = "bucket = { rate = 0.01, burst = 1 }\nretry_bucket = \"off\"\nqueue = { max_wait = \"10m\" }\n";
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), tight);
    let waiting: Vec<_> = (0..3).map(|_| process.call("/api/v1/namespaces/n/pods/good")).collect();
    process.until(|gate| gate["queues"][0]["oldest_seconds"].as_f64().is_some_and(|oldest| oldest > 1.0));
    let ended = process.command(&["doctor"]);
    let found = wrong(&ended);
    assert!(
        found.len() == 1 && found[0].contains("gate k: 2 calls wait") && found[0].contains("bucket.rate"),
        "{}",
        ended.out
    );
    drop(process);
    drop(waiting);
}

#[test]
fn an_expired_token_is_told_from_an_upstream_that_is_away() {
    let (upstream, _) = answering(|request| if request.contains("Bearer hunter2") { 401 } else { 200 });
    let gate = format!("[gates.k]\nupstream = \"kubeconfig\"\nlisten = \"127.0.0.1:{}\"\n", free_port());
    let ended = with_a_token(upstream, &gate);
    let found = wrong(&ended);
    let token = found.iter().find(|found| found.contains("does not take the gate's credentials"));
    let token = token.unwrap_or_else(|| panic!("{}", ended.out));
    assert!(token.contains("401") && token.contains("renew the token"), "{token}");
    assert!(found.iter().any(|found| found.contains("nothing listens on")), "no gate runs: {}", ended.out);
    assert!(!format!("{}{}", ended.out, ended.err).contains("hunter2"), "no secret is told");
}

#[test]
fn a_forward_proxy_that_may_not_review_its_clients_tokens_is_told() {
    let (cannot, _) = responding(|_| {
        let forbidden = r#"{"kind": "Status", "message": "tokenreviews is forbidden"}"#;
        format!("HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\n\r\n{forbidden}", forbidden.len())
    });
    let (can, _) = responding(|_| {
        let review = r#"{"kind": "TokenReview", "status": {"authenticated": false}}"#;
        format!("HTTP/1.1 201 Created\r\nContent-Length: {}\r\n\r\n{review}", review.len())
    });
    for (api, is_fine) in [(cannot, false), (can, true)] {
        let gates = format!(
            "[egress]\nlisten = \"127.0.0.1:{}\"\nclients = {{ tokens = \"review\", api = \"kubeconfig\" }}\n\
             [gates.github]\nhosts = [\"api.github.com\"]\n",
            free_port()
        );
        let ended = with_a_token(api, &gates);
        let found = wrong(&ended);
        let said = found.iter().find(|found| found.contains("clients of egress"));
        assert_eq!(said.is_none(), is_fine, "{}{}", ended.out, ended.err);
        assert!(said.is_none_or(|said| said.contains("403") && said.contains("system:auth-delegator")), "{said:?}");
        let judged = ended.out.contains("clients of egress: the API server judges their tokens");
        assert_eq!(judged, is_fine, "{}", ended.out);
        assert!(!format!("{}{}", ended.out, ended.err).contains("hunter2"), "no secret is told");
    }
}

#[test]
fn a_wrong_ca_and_an_upstream_that_is_away_are_told_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, theirs) = (certificate(), certificate());
    let ca = folder.path().join("ca.crt");
    std::fs::write(&ca, ours.cert.pem()).expect("it can be written");
    let process = Process::start(
        &format!("https://127.0.0.1:{}", tls_server(&theirs)),
        &format!("upstream_tls = {{ ca = {:?} }}\n", ca.display().to_string()),
    );
    let found = wrong(&process.command(&["doctor"]));
    assert!(
        found.len() == 1 && found[0].contains("signed by an unknown authority") && found[0].contains("upstream_tls.ca"),
        "{found:#?}"
    );
    drop(process);
    let process = Process::start(&format!("http://127.0.0.1:{}", free_port()), "");
    let found = wrong(&process.command(&["doctor"]));
    assert!(
        found.len() == 1 && found[0].contains("connection refused") && found[0].contains("is the upstream running"),
        "{found:#?}"
    );
}

#[test]
fn a_missing_exec_plugin_is_named_with_its_cause() {
    let (upstream, _) = api();
    let user = "exec: { apiVersion: client.authentication.k8s.io/v1, command: no-such-plugin, interactiveMode: Never, installHint: 'apt install it' }";
    let gate = format!("[gates.k]\nupstream = \"kubeconfig\"\nlisten = \"127.0.0.1:{}\"\n", free_port());
    let ended = with_a_kubeconfig(&kubeconfig(upstream, user), &gate);
    let found = wrong(&ended);
    let plugin = found.iter().find(|found| found.contains("no-such-plugin")).unwrap_or_else(|| panic!("{}", ended.out));
    assert!(plugin.contains("not installed") && plugin.contains("apt install it"), "{plugin}");
    assert!(!ended.out.contains("its log says why"), "{}", ended.out);
}

#[test]
fn a_kubeconfig_for_the_gate_accuses_nobody() {
    let (upstream, _) = api();
    let process = Process::with("kubeconfig", "", &kubeconfig(upstream, "token: hunter2"));
    std::fs::write(&process.current, kubeconfig(process.gate, "token: hunter2")).expect("it can be written");
    let operator = Connected::to(process.gate);
    let ended = process.command(&["doctor"]);
    assert!(wrong(&ended).is_empty(), "{}", ended.out);
    let (real, here) = (format!("http://127.0.0.1:{upstream}"), format!("http://127.0.0.1:{}", process.gate));
    let note = ended.out.lines().find(|line| line.starts_with("note") && line.contains("upstream of k"));
    assert!(note.is_some_and(|note| note.contains(&real) && note.contains(&here)), "{}", ended.out);
    drop(operator);

    let past = Connected::to(upstream);
    let found = wrong(&process.command(&["doctor"]));
    assert!(found.len() == 1 && found[0].contains(&past.title()), "the real upstream is known: {found:#?}");
}

#[test]
fn a_gate_without_its_upstream_is_wrong_from_any_shell() {
    let away = free_port();
    let process = Process::with("kubeconfig", "", &kubeconfig(away, "token: hunter2"));
    std::fs::write(&process.current, kubeconfig(process.gate, "token: hunter2")).expect("it can be written");
    assert!(crate::cli::input::get(process.gate, "/api").starts_with("HTTP/1.1 502"));
    let found = wrong(&process.command(&["doctor"]));
    assert!(found.len() == 1 && found[0].contains("connection refused"), "{found:#?}");
}

#[test]
fn each_cluster_of_a_gate_is_tried() {
    let ((api, _), dead, folder) = (api(), free_port(), tempfile::tempdir().expect("a folder"));
    let at = |server: &str| kubeconfig(api, "token: hunter2").replace(&format!("127.0.0.1:{api}"), server);
    for (name, text) in [
        ("good", kubeconfig(api, "token: hunter2")),
        ("dead", kubeconfig(dead, "token: hunter2")),
        ("itself", at("gate.svc/c/itself")),
        ("wrong", String::new()),
    ] {
        std::fs::write(folder.path().join(name), text).expect("it can be written");
    }
    let gates = format!(
        "[gates.hub]\nclusters = {:?}\nallowed_hosts = [\"gate.svc\"]\nlisten = \"127.0.0.1:{}\"\n",
        folder.path(),
        free_port()
    );
    let ended = with_a_token(api, &gates);
    let found: Vec<_> = wrong(&ended).into_iter().filter(|line| line.contains("cluster ")).collect();
    assert!(ended.out.contains("clusters of hub: 1 cluster is reached"), "{}", ended.out);
    let expected = [
        ["cluster itself of hub: ", "is this gate; expected the address of the API server"],
        ["cluster wrong of hub: ", "expected a current-context, or a single context"],
        ["cluster dead of hub: ", "refused"],
    ];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (line, expected) in found.iter().zip(&expected) {
        assert!(expected.iter().all(|part| line.contains(part)), "{line}");
    }
}

#[test]
fn other_gates_are_not_accused() {
    let (upstream, _) = api();
    let url = format!("http://127.0.0.1:{upstream}");
    let (process, other) = (Process::start(&url, ""), Process::start(&url, ""));
    for gate in [process.gate, other.gate] {
        crate::cli::input::get(gate, "/api/v1/namespaces/n/pods/good");
    }
    let ended = process.command(&["doctor"]);
    assert!(wrong(&ended).is_empty(), "{}", ended.out);
    let other_is_named = format!("tidegate (pid {})", other.running.id());
    assert!(ended.out.contains(&other_is_named), "{}", ended.out);

    let past = Connected::to(upstream);
    let found = wrong(&process.command(&["doctor"]));
    assert!(found.len() == 1 && found[0].contains("1 connection to") && found[0].contains(&past.title()), "{found:#?}");
}

#[test]
fn a_controller_that_goes_past_the_gate_is_found() {
    let (upstream, _) = api();
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), "");
    let direct = Connected::to(upstream);
    let found = wrong(&process.command(&["doctor"]));
    assert!(
        found.len() == 1 && found[0].contains("1 connection to") && found[0].contains(&direct.title()),
        "{found:#?}"
    );
}
