//! The requests that other tests mutate are what the SDKs send: method, path and fields of each.
//! `TIDEGATE_WRITE_RECORDED=1` writes them again.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::gate::{Gates, Plan};
use crate::matrix::SDKS;
use crate::relay::{Exchange, Relay};
use crate::upstream::Upstream;
use crate::wire::unchunked;

/// A request as text: its head with plain line ends, and the beginning of its body.
fn written(call: &str, exchange: &Exchange) -> String {
    let head = String::from_utf8_lossy(&exchange.request.bytes).replace("\r\n", "\n");
    let body = &exchange.bytes[exchange.request.bytes.len()..];
    let body = if exchange.request.is_chunked() { unchunked(body) } else { body.to_vec() };
    let body = String::from_utf8_lossy(&body).chars().filter(|c| *c != '\r').take(MOST).collect::<String>();
    format!("=== {call}\n{head}{}\n", body.trim_end())
}

/// The method, the target and the names of the fields of each request.
fn shapes(text: &str) -> Vec<Vec<String>> {
    let shape = |request: &str| {
        let head = request.split("\n\n").next().unwrap_or_default();
        let mut lines: Vec<_> = head.lines().skip(2).filter_map(|line| line.split(':').next()).collect();
        lines.sort_unstable();
        head.lines().take(2).chain(lines).map(str::to_lowercase).collect()
    };
    text.split("=== ").skip(1).map(shape).collect()
}

#[test]
fn the_recorded_requests_are_what_the_sdks_send() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/recorded");
    for sdk in SDKS.iter().filter(|sdk| sdk.variables.is_empty()) {
        let Some(mut client) = sdk.start() else { continue };
        let upstream = Upstream::start();
        let gates = Gates::start(&[Plan { name: "open".into(), upstream: upstream.url(), settings: sdk.settings() }]);
        let relay = Relay::start(gates.port("open"));
        let mut text = String::new();
        let mut calls: Vec<_> = sdk.calls.iter().map(|(call, ..)| *call).chain([sdk.write, sdk.alone]).collect();
        calls.dedup();
        for call in calls {
            let report = client.call(call, &relay.url());
            assert!(report.ok, "{} {call}: {report:?}", sdk.name);
            let sent = relay.watch(Box::new(|_| {}));
            write!(text, "{}", written(call, sent.last().expect("one was sent"))).expect("memory");
        }
        let text = text.replace(&relay.port.to_string(), "8002");
        let file = folder.join(format!("{}.txt", sdk.name));
        if std::env::var_os("TIDEGATE_WRITE_RECORDED").is_some() {
            fs::write(&file, &text).expect("the folder is there");
        }
        let recorded = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert_eq!(shapes(&recorded), shapes(&text), "{}: TIDEGATE_WRITE_RECORDED=1 writes it again", file.display());
    }
}

/// The characters of a body that are kept: actions are at the beginning.
const MOST: usize = 600;
