//! The log while everything happens that has a line: one line each, in text and in JSON, none for a
//! call, and no caller can forge one.

use std::io::Write as _;
use std::net::TcpStream;

use serde_json::Value;

use crate::cli::input::get;
use crate::command::Running;
use crate::operate::{Process, responding};
use crate::support::too_busy;

/// Answers 500 to calls that name `bad`, except a DELETE, and to those that name `wait` a 429 that
/// asks all calls to wait.
fn api() -> u16 {
    let (port, _) = responding(|request| {
        let line = request.lines().next().unwrap_or_default();
        let (status, headers) = match line {
            _ if line.contains("wait") => return too_busy(3),
            _ if request.contains("bad") && !line.starts_with("DELETE") => (500, ""),
            _ => (200, ""),
        };
        format!("HTTP/1.1 {status} Said\r\n{headers}Content-Length: 2\r\n\r\nok")
    });
    port
}

fn send(gate: u16, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", gate)).expect("the gate listens");
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json");
    stream.write_all(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).expect("it is read");
    std::io::read_to_string(stream).expect("it is answered")
}

const MAPS: &str = "/api/v1/namespaces/n/configmaps";
/// A name with which a client may try to forge a line, end one, clear a screen or turn the text
/// around.
const EVIL: &str = "bad\\n{\\\"level\\\":\\\"INFO\\\"}\\r\\n2026-01-01T00:00:00Z  INFO forged\\u001b[2J\\u0007\\u007f\\u009b2J\\u0085\\u2028\\u202e";

/// Makes everything happen once that has a line; returns those lines, in order of their kind.
fn rehearse(process: &mut Process) -> Vec<String> {
    let object = |name: &str| format!("{MAPS}/{name}");
    let mut lines = Vec::new();
    let mut tell = |running: &mut Running, line: &str| lines.push(running.line(line));
    // A key fails, and recovers without a success of its own: a DELETE removes the object with all
    // its keys.
    send(process.gate, "PUT", &object("bad-1"), "{}");
    tell(&mut process.running, "key is backing off");
    send(process.gate, "DELETE", &object("bad-1"), "");
    tell(&mut process.running, "its object is gone");
    // A key is forgotten although no call comes.
    let evil = format!("{{\"metadata\":{{\"name\":\"{EVIL}\"}}}}");
    assert!(send(process.gate, "POST", MAPS, &evil).starts_with("HTTP/1.1 500"));
    tell(&mut process.running, "key is backing off");
    tell(&mut process.running, "it has not failed for backoff.forget_after");
    // One call gets a 429, and all calls wait.
    get(process.gate, "/api/v1/namespaces/n/secrets/wait");
    let both = ["key is backing off", "pausing: the upstream asked for it"];
    let first = process.running.line_of(&both);
    // Keys and pauses are each looked at every second.
    tell(&mut process.running, both[usize::from(first.contains(both[0]))]);
    tell(&mut process.running, "the pause is over");
    // More calls come than may go, for longer than three looks after the one that a gate without
    // calls takes every other second.
    let waiting: Vec<_> = (0..9).map(|_| process.call("/api/v1/namespaces/n/endpoints/e")).collect();
    tell(&mut process.running, "calls have to wait for the limits");
    for answered in waiting {
        drop(answered.join().expect("it is answered"));
    }
    tell(&mut process.running, "calls no longer wait for the limits");
    let text = std::fs::read_to_string(&process.config).expect("it is there");
    for (from, to, line) in
        [("burst = 3", "burst = 4", "the new configuration is in force"), ("burst = 3", "burst = 0", "stays in force")]
    {
        std::fs::write(&process.config, text.replace(from, to)).expect("written");
        process.running.signal("-HUP");
        tell(&mut process.running, line);
    }
    lines
}

const LIMITS: &str = "bucket = { rate = 0.9, burst = 3 }\nbackoff = { base = \"10ms\", max = \"10ms\", forget_after = \"3s\" }\nqueue = { max_wait = \"10m\" }\nsignals = { scope = \"gate\" }\n";

/// Runs the rehearsal; returns everything that was logged.
fn said(format: &str) -> (Vec<String>, Vec<String>) {
    let limits = format!("{LIMITS}[log]\nformat = \"{format}\"\n");
    let mut process = Process::start(&format!("http://127.0.0.1:{}", api()), &limits);
    let lines = rehearse(&mut process);
    (lines, process.running.end())
}

/// There are as many lines of each kind as changes of its state, and the other lines have nothing
/// to do with calls.
fn one_line_for_each_change(said: &[String]) {
    let times = |line: &str| said.iter().filter(|said| said.contains(line)).count();
    for (line, wanted) in [
        ("key is backing off", 3),
        ("its object is gone", 1),
        ("pausing: the upstream asked for it", 1),
        ("the pause is over", 1),
        ("calls have to wait for the limits", 1),
        ("calls no longer wait for the limits", 1),
        ("the new configuration is in force", 1),
        ("stays in force", 1),
        ("ready", 1),
    ] {
        assert_eq!(times(line), wanted, "{line}\n{said:#?}");
    }
    // The calls that got a 429 and those that waited made no line; nor did 9 + 5 calls.
    assert!(said.len() <= 22, "{said:#?}");
    let steers = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{202e}');
    assert!(said.iter().all(|line| !line.contains(steers)), "{said:#?}");
}

#[test]
fn every_change_of_state_is_one_line_of_text() {
    let (lines, said) = said("text");
    one_line_for_each_change(&said);
    assert!(said.iter().all(|line| !line.starts_with("2026-01-01T00:00:00Z") && !line.starts_with('{')), "{said:#?}");
    let evil = &lines[2];
    assert!(evil.contains("gate=\"k\"") && evil.contains("forged\\u{1b}[2J"), "{evil}");
}

#[test]
fn every_change_of_state_is_one_line_of_json() {
    let (lines, said) = said("json");
    one_line_for_each_change(&said);
    for line in &said {
        let read: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(read["level"].is_string() && read["timestamp"].is_string() && read["message"].is_string(), "{line}");
    }
    let evil: Value = serde_json::from_str(&lines[2]).expect("JSON");
    let name: Value = serde_json::from_str(&format!("\"{EVIL}\"")).expect("JSON");
    assert_eq!(evil["key"], format!("write configmaps/n/{}", name.as_str().expect("text")), "the name is whole");
    assert_eq!((&evil["gate"], &evil["status"]), (&"k".into(), &500.into()));
}

#[test]
fn a_storm_of_failing_keys_is_counted_in_a_few_lines() {
    let mut process =
        Process::start(&format!("http://127.0.0.1:{}", api()), "backoff = { base = \"90s\", max = \"90s\" }\n");
    for object in 0..60 {
        assert!(send(process.gate, "PUT", &format!("{MAPS}/bad-{object}"), "{}").starts_with("HTTP/1.1 500"));
    }
    let line = process.running.line("keys are backing off; the first:");
    assert!(line.contains("key=\"write configmaps/n/bad-") && line.contains("status=500"), "{line}");
    assert!(line.contains("failures=1 delay=\"1 m 30 s\""), "{line}");
    let said = process.running.end();
    let lines: Vec<_> = said.iter().filter(|line| line.contains("backing off")).collect();
    let keys = |line: &&String| line.split("keys=").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    let counted: usize = lines.iter().map(|line| keys(line).unwrap_or(1)).sum();
    // A second may have ended within the storm.
    assert!(counted == 60 && lines.len() <= 6, "{lines:#?}");
}
