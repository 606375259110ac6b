//! What an operator sees of a candidate beside the limits in force, and how it comes into force.

use std::fs;

use serde_json::Value;

use crate::cli::input::get;
use crate::command::{end, tidegate};
use crate::operate::{Process, api};

/// In force nothing waits; the candidate would let two calls through.
const STRICT: &str = "bucket = { rate = 1000, burst = 1000 }\n[gates.k.candidate]\nbucket = { rate = 1e-6, burst = 2 }\nqueue.max_wait = \"0s\"\n";
/// The same with a candidate that lets one more through.
const WIDER: &str = "[gates.k.candidate]\nbucket = { rate = 1e-6, burst = 3 }\nqueue.max_wait = \"0s\"\n";

fn call(process: &Process) {
    assert!(get(process.gate, "/api/v1/namespaces/n/secrets/s").starts_with("HTTP/1.1 200"));
}

fn refused(gate: &Value) -> Option<u64> {
    gate["candidate"]["candidate"]["would_have_been_refused"].as_u64()
}

/// Writes another file in the place of the process's configuration, with what follows the gate's own
/// keys.
fn reload(process: &Process, more: &str) {
    let text = fs::read_to_string(&process.config).expect("readable");
    let (before, _) = text.split_once("[gates.k.candidate]").unwrap_or((&text, ""));
    fs::write(&process.config, format!("{before}{more}")).expect("it can be written");
    process.running.signal("-HUP");
}

#[test]
fn page_top_metrics_and_explain_show_both_limits() {
    let (upstream, calls) = api();
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), STRICT);
    (0..5).for_each(|_| call(&process));
    assert_eq!(calls.load(std::sync::atomic::Ordering::Relaxed), 5, "no call was touched");
    let gate = process.until(|gate| refused(gate) == Some(3));
    let both = &gate["candidate"];
    assert_eq!((&both["calls"], &both["in_force"]["would_have_been_refused"]), (&5.into(), &0.into()));
    assert_eq!(both["candidate"]["by"][0]["reason"], "bucket");
    let says = ["In force and candidate", "in force", "candidate", "all", "bucket", "5 calls, the first", "promote"];
    let top = process.command(&["top", "--once"]).out;
    let page = get(process.admin, "/status?refresh=off HTTP/1.1\r\nAccept: text/html\r\nX-Rest:");
    for wanted in says {
        assert!(top.contains(wanted) && page.contains(wanted), "{wanted}\n{top}\n{page}");
    }
    let metrics = get(process.admin, "/metrics");
    let refusals = "tidegate_candidate_refusals_total{gate=\"k\",class=\"default\",reason=\"bucket\"} 3\n";
    assert!(metrics.contains(refusals) && !metrics.contains("tidegate_refusals_total{"), "{metrics}");
    let explained = process.command(&["explain", "GET", "/api/v1/namespaces/n/secrets/s"]).out;
    let row = |name: &str| explained.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_default();
    assert!(row("now").contains("it would go at once"), "{explained}");
    assert!(row("candidate").contains("it would be refused (bucket: "), "{explained}");
}

#[test]
fn a_reload_adds_changes_and_removes_a_candidate() {
    let (upstream, _) = api();
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), "bucket = { rate = 1000, burst = 1000 }\n");
    call(&process);
    assert_eq!(process.status()["gates"][0].get("candidate"), None);
    let (_, candidate) = STRICT.split_once('\n').expect("two lines");
    reload(&process, candidate);
    process.until(|gate| refused(gate) == Some(0));
    (0..5).for_each(|_| call(&process));
    process.until(|gate| refused(gate) == Some(3));
    reload(&process, WIDER);
    process.until(|gate| gate["candidate"]["calls"] == 0);
    (0..5).for_each(|_| call(&process));
    process.until(|gate| refused(gate) == Some(2));
    reload(&process, "");
    process.until(|gate| gate.get("candidate").is_none());
    call(&process);
    assert_eq!(process.status()["gates"][0]["refused"], 0, "no call was touched");
}

#[test]
fn a_candidate_stands_beside_a_shadow() {
    let (upstream, _) = api();
    let limits =
        "shadow = true\nbucket = { rate = 1e-6, burst = 3 }\nqueue.max_wait = \"0s\"\ncandidate.bucket.burst = 1\n";
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), limits);
    (0..5).for_each(|_| call(&process));
    let gate = process.until(|gate| refused(gate) == Some(4));
    assert_eq!(gate["candidate"]["in_force"]["would_have_been_refused"], 2, "{gate}");
}

#[test]
fn promote_prints_a_file_that_has_the_candidate_in_force() {
    let (upstream, _) = api();
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), STRICT);
    let promoted = process.command(&["promote", "--gate", "k"]);
    assert_eq!((promoted.code, promoted.err.as_str()), (Some(0), ""));
    assert!(!promoted.out.contains("candidate"), "{}", promoted.out);
    let file = process.config.with_file_name("promoted.toml");
    fs::write(&file, &promoted.out).expect("it can be written");
    let mut check = tidegate(["check"]);
    check.arg(&file);
    let checked = end(check);
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    assert!(checked.out.contains("bucket = { rate = 0.000001, burst = 2,"), "{}", checked.out);
    let none = process.command(&["promote", "--gate", "other"]);
    assert_eq!(none.code, Some(1));
    assert!(
        none.err
            .contains("gates.other.candidate is missing in the file, expected a table with the limits to put in force"),
        "{}",
        none.err
    );
}
