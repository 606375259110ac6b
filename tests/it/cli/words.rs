//! What commands and pages say: that it is true, that one is not told as many, and that nothing in
//! it steers a terminal.

use std::fs;

use crate::cli::input::get;
use crate::command::{config, end, tidegate, with_config};
use crate::operate::{Process, api};
use crate::ports::free_port;

/// Characters past ASCII that steer a terminal or a reader.
fn steers(c: char) -> bool {
    matches!(c, '\u{7f}'..='\u{9f}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[test]
fn status_and_call_log_have_no_raw_controls() {
    let (upstream, _) = api();
    let folder = tempfile::tempdir().expect("a folder");
    let calls = folder.path().join("calls.jsonl");
    let process = Process::start(
        &format!("http://127.0.0.1:{upstream}"),
        &format!("[log]\ncalls = {:?}\n", calls.display().to_string()),
    );
    let path = "/api/v1/namespaces/a%E2%80%AEb%E2%81%A6/pods/bad%C2%9B%E2%80%AE";
    assert!(get(process.gate, path).starts_with("HTTP/1.1 500"));
    let status = get(process.admin, "/status");
    assert!(!status.contains(steers), "{status:?}");
    let key = process.status()["gates"][0]["keys"][0]["key"].as_str().expect("a failing key").to_owned();
    assert!(key.contains('\u{202e}'), "as JSON it is what it was: {key:?}");
    drop(process.running.end());
    let log = fs::read_to_string(&calls).expect("it was written");
    let line: serde_json::Value = serde_json::from_str(log.lines().next().expect("a call")).expect("JSON");
    assert!(!log.contains(steers), "{log:?}");
    assert_eq!(line["namespace"], "a\u{202e}b\u{2066}");
}

#[test]
fn check_begins_with_a_summary_in_ten_lines() {
    let listen = free_port();
    let more = "bucket = { rate = 20, burst = 30 }\nqueue = { max_wait = \"3s\" }\n";
    let (_folder, path) =
        config(&format!("[gates.api]\nupstream = \"http://127.0.0.1:9\"\nlisten = \"127.0.0.1:{listen}\"\n{more}"));
    let ended = end(with_config("check", &path));
    let (summary, rest) = ended.out.split_once("\n\n").expect("a summary");
    assert!(summary.lines().count() <= 10 && summary.lines().all(|line| line.starts_with("# ")), "{summary}");
    let gate = format!("# gate api (kubernetes), 127.0.0.1:{listen}");
    for wanted in [
        gate.as_str(),
        "20/s, burst 30",
        "; down to ",
        "at once  leases, health",
        "more than 3s, at once",
        "1s doubling to 1m",
    ] {
        assert!(summary.contains(wanted), "{wanted}\n{summary}");
    }
    assert!(rest.contains("[gates.api"), "the whole is below: {rest}");
}

#[test]
fn check_has_a_line_for_each_of_many_gates() {
    let gate = |name: &str| {
        format!("[gates.{name}]\nupstream = \"http://127.0.0.1:9\"\nlisten = \"127.0.0.1:{}\"\n", free_port())
    };
    let (_folder, path) = config(&["a", "b", "c", "d"].map(gate).concat());
    let ended = end(with_config("check", &path));
    let (summary, _) = ended.out.split_once("\n\n").expect("a summary");
    assert_eq!(summary.lines().count(), 4, "{summary}");
}

#[test]
fn a_gate_that_is_its_own_upstream_is_a_problem() {
    for host in ["127.0.0.1", "localhost"] {
        let port = free_port();
        let text = format!("[gates.k]\nupstream = \"http://{host}:{port}\"\nlisten = \"127.0.0.1:{port}\"\n");
        let (_folder, path) = config(&text);
        for command in ["check", "run"] {
            let ended = end(with_config(command, &path));
            assert_eq!(ended.code, Some(78), "{}{}", ended.out, ended.err);
            let says =
                format!("gates.k.upstream: {host}:{port} is this gate itself, which listens on 127.0.0.1:{port}");
            assert!(ended.err.contains(&says), "{}", ended.err);
        }
    }
}

#[test]
fn the_first_promise_says_that_calls_may_be_refused() {
    let help = end(tidegate(["--help"])).out;
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).expect("it is there");
    let (begin, _) = readme.split_once("![").expect("a picture");
    assert!(help.lines().next().is_some_and(|line| line.contains("refuses")), "{help}");
    assert!(begin.contains("refusing (429) at once") && !readme.contains("instead of rejecting"), "{begin}");
}
