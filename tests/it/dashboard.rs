//! The dashboard over the series of a real gate in a real Prometheus: its variables find their
//! values, every query finds series, and every legend names labels that these have.
//!
//! No Grafana can be had from the registries that the tests use. What it does with a dashboard
//! before it draws is done here in its place.

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;

use crate::command::{start, with_config};
use crate::fetched::prometheus;
use crate::live::or_skip;
use crate::metrics::{asked, bad_days, fetch, load, until};
use crate::ports::free_port;

/// A query of the dashboard, and the form of its series' names.
struct Query {
    panel: String,
    expr: String,
    legend: String,
}

/// The text in its form for a URL.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn queries(dashboard: &Value) -> Vec<Query> {
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().expect("each panel asks for something") {
            let text = |value: &Value| value.as_str().expect("text").to_owned();
            let (expr, legend) = (text(&target["expr"]), text(&target["legendFormat"]));
            found.push(Query { panel: text(&panel["title"]), expr, legend });
        }
    }
    found
}

/// The labels that a legend names: `{{class}}`.
fn labels(legend: &str) -> Vec<&str> {
    legend.split("{{").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0.trim())).collect()
}

/// Puts the chosen values in the place of the variables, as Grafana does for "All".
fn filled(text: &str, chosen: &[(String, String)]) -> String {
    let filled = chosen.iter().fold(text.to_owned(), |text, (name, values)| text.replace(&format!("${name}"), values));
    filled.replace("$__rate_interval", "2s")
}

#[test]
fn every_panel_of_the_dashboard_shows_the_series_of_a_gate_that_works() {
    let test = "every_panel_of_the_dashboard_shows_the_series_of_a_gate_that_works";
    let Some(programs) = or_skip(test, prometheus()) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        path
    };
    let (admin, web, upstream) = (free_port(), free_port(), bad_days());
    let gates = [free_port(), free_port(), free_port()];
    let tight = "bucket = { rate = 40, burst = 2 }\nqueue = { max_wait = \"100ms\" }\n";
    let config = format!(
        "[admin]\nlisten = \"127.0.0.1:{admin}\"\nsocket = \"off\"\n\
         [gates.main]\nupstream = \"http://127.0.0.1:{upstream}\"\nlisten = \"127.0.0.1:{}\"\n{tight}\
         [gates.main.candidate]\n{tight}\
         [gates.shadow]\nupstream = \"http://127.0.0.1:{upstream}\"\nlisten = \"127.0.0.1:{}\"\nshadow = true\n{tight}\
         [stores.account]\nurl = \"redis://127.0.0.1:{}\"\n\
         [gates.file]\nkind = \"http\"\nbucket = {{ rate = 1000, burst = 1000, shared = \"account\" }}\nupstream = \"http://127.0.0.1:{upstream}\"\nlisten = \"127.0.0.1:{}\"\nsignals = {{ honour = [\"ietf\"], scope = \"credential\" }}\nrewrite_links = true\n",
        gates[0],
        gates[1],
        free_port(),
        gates[2] // nothing listens for the store: the gate goes on with its part
    );
    let mut gate = start(with_config("run", &file("tidegate.toml", &config)));
    gate.ready();
    // The labels are those that Prometheus gives to the pods that it finds in a cluster.
    let scrape = format!(
        "global: {{scrape_interval: 250ms, scrape_timeout: 250ms}}\nscrape_configs:\n- job_name: tidegate\n  static_configs:\n  \
         - {{targets: ['127.0.0.1:{admin}'], labels: {{namespace: prod, pod: manager-0}}}}\n"
    );
    let mut server = Command::new(programs.join("prometheus"));
    server
        .arg(format!("--config.file={}", file("prometheus.yml", &scrape).display()))
        .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{web}"))
        .args(["--web.console.libraries=/nonexistent", "--web.console.templates=/nonexistent"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let mut server = start(server);
    server.line("Server is ready to receive web requests");
    let web = SocketAddr::from(([127, 0, 0, 1], web));

    let ends = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&ends);
    let works = thread::spawn(move || {
        while !ended.load(Ordering::SeqCst) {
            load(gates);
            // A quota is that of a credential.
            let call =
                "GET /planted-path HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\nConnection: close\r\n\r\n";
            drop(fetch(SocketAddr::from(([127, 0, 0, 1], gates[2])), call)); // what it is answered does not matter
        }
    });
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/grafana/tidegate.json"));
    let dashboard: Value = serde_json::from_str(&text.expect("it is there")).expect("JSON");
    let mut chosen: Vec<(String, String)> = Vec::new();
    for variable in dashboard["templating"]["list"].as_array().expect("variables") {
        let (name, query) = (variable["name"].as_str().expect("a name"), variable["query"]["query"].as_str());
        let Some(query) = query else { continue }; // the data source
        let query = filled(query, &chosen);
        let inside = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).expect("a query");
        let (series, label) = inside.rsplit_once(", ").expect("a label");
        let path = format!("/api/v1/label/{label}/values?match[]={}", encoded(series));
        let values = until(|| asked(web, &path).as_array().filter(|values| !values.is_empty()).cloned());
        let values: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        let expected: &[&str] = match name {
            "namespace" => &["prod"],
            "pod" => &["manager-0"],
            _ => &["file", "main", "shadow"],
        };
        assert_eq!(values, expected, "{name}");
        chosen.push((name.to_owned(), format!("({})", values.join("|"))));
    }
    let queries = queries(&dashboard);
    assert!(queries.len() >= 15, "{} queries", queries.len());
    for Query { panel, expr, legend } in &queries {
        let path = format!("/api/v1/query?query={}", encoded(&filled(expr, &chosen)));
        let found = until(|| {
            let found = asked(web, &path)["result"].as_array()?.clone();
            let number = |one: &Value| one["value"][1].as_str().and_then(|number| number.parse::<f64>().ok());
            found.iter().filter_map(number).any(f64::is_finite).then_some(found)
        });
        for label in labels(legend) {
            let is_there = found.iter().any(|one| one["metric"][label].is_string());
            assert!(is_there, "{panel}: {legend} names {label}, which no series of {expr} has: {found:?}");
        }
        let names: Vec<&Value> = found.iter().map(|one| &one["metric"]).collect();
        let unnamed = found.len() > 1 && labels(legend).is_empty();
        assert!(!unnamed, "{panel}: {legend} is the name of {} series: {names:?}", found.len());
    }
    ends.store(true, Ordering::SeqCst);
    works.join().expect("it calls");
}
