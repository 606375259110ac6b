//! GitHub's clients through the configuration that ships, with lists of several pages: each takes
//! the road that docs/external-apis.md has for it, and no call goes past the gate. Elsewhere than
//! at the gate there is no GitHub here, so a call past it fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fetched::{debian, install};
use crate::gate::Gates;
use crate::hub::{Hub, NAME, PAGES};
use crate::live::or_skip;
use crate::ports::free_port;
use crate::programs::{Client, Program, Report};

/// Starts the gate of `config/github.toml` in front of a hub, with these variables besides.
fn shipped(hub: &Hub, more: &[(&'static str, String)]) -> Gates {
    let port = free_port();
    let mut variables = hub.variables();
    variables.push(("TIDEGATE__GATES__GITHUB__LISTEN", format!("127.0.0.1:{port}")));
    variables.extend_from_slice(more);
    Gates::of(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config/github.toml")), &variables, ("github", port))
}

/// Holds that a client got all pages, and that the gate counted as many calls as the hub.
fn all_counted(client: &str, report: &Report, hub: &Hub, gates: &Gates) {
    let came = hub.came();
    assert!(report.ok, "{client}: {report:?}\n{came:#?}\n{}", gates.log());
    let pages =
        came.iter().filter(|call| call.contains("/issues") && call.starts_with("GET") && !call.contains("comments"));
    assert!(pages.count() >= PAGES as usize, "{client}: {came:#?}");
    assert_eq!(gates.metric("tidegate_calls_total", "github"), came.len() as f64, "{client}: {came:#?}");
}

#[test]
fn octokit_and_go_github_with_the_gates_base_url_bring_every_page_and_redirect_through_it() {
    for (program, name) in [(Program::JavaScript, "octokit"), (Program::Go, "go-github")] {
        let Some(mut client) = or_skip(name, Client::start(program, name, &[])) else { continue };
        let hub = Hub::start();
        let gates = shipped(&hub, &[]);
        let report = client.call("github_pages", &format!("http://127.0.0.1:{}", gates.port("github")));
        all_counted(name, &report, &hub, &gates);
    }
}

/// PyGithub asserts that each URL of a body is of its base URL's host. As the gate's client by
/// `HTTP_PROXY` it keeps GitHub's name, without TLS as far as the gate.
#[test]
fn pygithub_with_the_gate_for_its_proxy_brings_every_page_and_url_of_a_body_through_it() {
    let hub = Hub::start();
    let gates = shipped(&hub, &[]);
    let gate = format!("http://127.0.0.1:{}", gates.port("github"));
    let start = |variables: &[(&str, &str)]| or_skip("PyGithub", Client::start(Program::Python, "PyGithub", variables));
    let Some(mut client) = start(&[("HTTP_PROXY", &gate), ("http_proxy", &gate)]) else { return };
    let report = client.call("github_pages", &format!("http://{NAME}"));
    all_counted("PyGithub", &report, &hub, &gates);

    let Some(mut by_base_url) = start(&[]) else { return };
    let report = by_base_url.call("github_pages", &gate);
    assert_eq!(report.error, format!("AssertionError: {NAME}"), "the table has another road because of this");
}

/// The gate of the documents for clients that keep GitHub's name, and TLS.
#[test]
fn clients_that_keep_githubs_name_are_led_to_the_gate_and_follow_every_link_there() {
    let document = include_str!("../../docs/external-apis.md");
    let section = document.split("\n### GitHub's name over TLS").nth(1).expect("the section is there");
    let config = section.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a configuration");
    for (program, name, trusts) in
        [(Program::Python, "PyGithub", "REQUESTS_CA_BUNDLE"), (Program::Go, "go-github", "SSL_CERT_DIR")]
    {
        let (hub, port, dir) = (Hub::start(), free_port(), tempfile::tempdir().expect("a folder"));
        let config = config.replace("127.0.0.1:443", &format!("127.0.0.1:{port}"));
        let config = config.replace("/run/tidegate", &dir.path().display().to_string());
        let file = dir.path().join("github.toml");
        fs::write(&file, config).expect("the folder is ours");
        // The stand-in has to be told the name that a client's Host would tell.
        let gates = Gates::of(&file, &hub.variables(), ("github", port));
        let ca = dir.path().join("ca.crt").display().to_string();
        let trusted = if trusts == "SSL_CERT_DIR" { dir.path().display().to_string() } else { ca };
        let variables = [("TEST_ALIASES", port.to_string()), (trusts, trusted)];
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
        let Some(mut client) = or_skip(name, Client::start(program, name, &variables)) else { continue };
        let report = client.call("github_pages", &format!("https://{NAME}"));
        all_counted(name, &report, &hub, &gates);
    }
}

/// GitHub's own command knows no other base URL, but a socket.
#[test]
fn gh_brings_every_page_through_the_gates_socket() {
    let Some(gh) = or_skip("gh", gh()) else { return };
    let (hub, dir) = (Hub::start(), tempfile::tempdir().expect("a folder"));
    let socket = dir.path().join("github.sock");
    let gates = shipped(&hub, &[("TIDEGATE__GATES__GITHUB__LISTEN", format!("unix:{}", socket.display()))]);
    fs::write(dir.path().join("config.yml"), format!("http_unix_socket: {}\n", socket.display())).expect("ours");
    let mut command = Command::new(gh);
    command.args(["api", "--paginate", "repos/o/moved/issues"]).env("GH_CONFIG_DIR", dir.path());
    let out = command.env("GH_TOKEN", "token").env("HOME", dir.path()).output().expect("gh runs");
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    all_counted("gh", &Report { ok: out.status.success(), error, attempts: None }, &hub, &gates);
}

/// GitHub's command, from Debian.
fn gh() -> Result<PathBuf, String> {
    Ok(install("gh", &[], |dir| debian("gh", dir))?.join("usr/bin/gh"))
}
