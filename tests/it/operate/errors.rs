//! Why keys fail, in the upstream's own words: on the page, in JSON, in the terminal, and nowhere
//! else.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use miniz_oxide::deflate::compress_to_vec_zlib;
use serde_json::{Value, json};

use super::{BAD, Process, TIGHT, api, responding};
use crate::cli::input::get;
use crate::command::PATIENCE;
use crate::ports::free_port;

/// An answer of 500 with these fields and this body.
fn answer(fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 500 Said\r\nContent-Type: application/json\r\n{fields}Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// A Kubernetes Status with this message.
fn status(message: &str) -> Vec<u8> {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": "InternalError", "code": 500 })
    .to_string()
    .into_bytes()
}

/// A gate of which one key fails, after this answer.
fn failing(answer: Vec<u8>) -> Process {
    let (upstream, _) = responding(move |_| answer.clone());
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), TIGHT);
    let mut stream = TcpStream::connect(("127.0.0.1", process.gate)).expect("the gate listens");
    write!(stream, "GET {BAD} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it is read");
    let mut answer = Vec::new(); // it may be compressed
    stream.read_to_end(&mut answer).expect("it is answered");
    assert!(answer.starts_with(b"HTTP/1.1 500"));
    process
}

fn key(process: &Process) -> Value {
    process.status()["gates"][0]["keys"][0].clone()
}

/// The body of `/status` for a client that sends these fields.
fn asked(process: &Process, fields: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", process.admin)).expect("the admin port listens");
    let request = format!("GET /status HTTP/1.1\r\nHost: localhost\r\n{fields}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it is answered");
    answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
}

const CAUSE: &str = "failed calling webhook \"a.b\":\u{1b}[2J no\u{9b}\nendpoints\u{202e}";

#[test]
fn a_failing_key_is_shown_with_its_last_error() {
    let process = failing(answer("", &status(CAUSE)));
    let message = CAUSE.replace('\n', " ");
    assert_eq!((&key(&process)["error"], &key(&process)["message"]), (&json!("InternalError"), &json!(message)));
    let raw = asked(&process, "");
    let page = asked(&process, "Accept: text/html\r\n");
    let top = process.command(&["top", "--once"]).out;
    let explained = process.command(&["explain", "GET", BAD]).out;
    assert!(page.contains("InternalError: failed calling webhook &quot;a.b&quot;:"), "{page}");
    assert!(top.contains("InternalError: "), "{top}");
    let wanted = r#"last got 500 (InternalError: failed calling webhook "a.b":\u{1b}[2J no\u{9b} endpoints\u{202e})"#;
    assert!(explained.contains(wanted), "{explained}");
    for text in [raw, page, top, explained] {
        assert!(!text.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "it steers: {text:?}");
    }
}

#[test]
fn a_long_message_is_shown_in_part() {
    let process = failing(answer("", &status(&"x".repeat(10 << 10))));
    assert_eq!(key(&process)["message"], format!("{}\u{2026}", "x".repeat(159)));
}

#[test]
fn a_compressed_error_is_read() {
    let body = compress_to_vec_zlib(&status("no endpoints"), 6);
    let process = failing(answer("Content-Encoding: deflate\r\n", &body));
    assert_eq!((&key(&process)["error"], &key(&process)["message"]), (&"InternalError".into(), &"no endpoints".into()));
}

#[test]
fn without_names_an_error_is_shown_by_its_code_alone() {
    let process = failing(answer("", &status("the token s3cret is not known")));
    let hidden = asked(&process, "X-Forwarded-For: 10.0.0.1\r\n");
    let status: Value = serde_json::from_str(&hidden).expect("JSON");
    assert_eq!(
        (&status["names_shown"], &status["gates"][0]["keys"][0]["error"]),
        (&false.into(), &"InternalError".into())
    );
    let page = asked(&process, "X-Forwarded-For: 10.0.0.1\r\nAccept: text/html\r\n");
    assert!(page.contains("InternalError"), "{page}");
    let metrics = get(process.admin, "/metrics");
    let log = process.running.end().join("\n");
    assert!(log.contains("backing off"), "{log}");
    for text in [&hidden, &page, &metrics, &log] {
        assert!(!text.contains("s3cret"), "{text}");
    }
    assert!(!metrics.contains("InternalError") && !log.contains("InternalError"), "{metrics}{log}");
}

#[test]
fn an_error_without_a_type_is_not_read() {
    let (upstream, _) = api();
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), "");
    assert!(get(process.gate, BAD).starts_with("HTTP/1.1 500"));
    assert!(key(&process)["error"].is_null() && key(&process)["message"].is_null(), "{}", key(&process));
}

#[test]
fn an_error_that_is_still_coming_is_not_held_back() {
    let listener = TcpListener::bind(("127.0.0.1", free_port())).expect("a port");
    let upstream = listener.local_addr().expect("bound").port();
    let (seen, is_seen) = mpsc::channel();
    let is_seen = Arc::new(Mutex::new(is_seen));
    let whole = answer("", &status("no endpoints"));
    let first = whole.len() - 20;
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (whole, is_seen) = (whole.clone(), Arc::clone(&is_seen));
            // The gate may make connections that it does not use.
            thread::spawn(move || {
                if stream.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {
                    stream.write_all(&whole[..first]).expect("it is read");
                    is_seen.lock().expect("one call").recv().expect("the client has it");
                    stream.write_all(&whole[first..]).expect("it is read");
                }
            });
        }
    });
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), TIGHT);
    let mut client = TcpStream::connect(("127.0.0.1", process.gate)).expect("the gate listens");
    client.set_read_timeout(Some(PATIENCE)).expect("a TCP socket");
    write!(client, "GET {BAD} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it is read");
    let (mut read, mut piece) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&read).contains("no endpoints") {
        let more = client.read(&mut piece).expect("it comes");
        assert!(more > 0, "{read:?}");
        read.extend_from_slice(&piece[..more]);
    }
    seen.send(()).expect("it waits for that");
    client.read_to_end(&mut read).expect("the rest");
    assert_eq!((&key(&process)["error"], &key(&process)["message"]), (&"InternalError".into(), &"no endpoints".into()));
}
