//! One trace over client, gate and upstream at a real OpenTelemetry Collector.
//! Client and upstream are instrumented with OpenTelemetry's own SDK for Go, so that the gate is
//! the only part under test. The collector passes everything on to this test as JSON.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

use crate::fetched::{install, run};
use crate::gate::{Gates, Plan, until};
use crate::live::or_skip;
use crate::ports::free_port;
use crate::wire::Head;

/// What the collector passes on.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<Value>>>);

/// A program that runs; ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill()); // it may have ended already, which is as good
        drop(self.0.wait());
    }
}

// === impl Told ===

impl Told {
    /// Takes what comes to a port of its own, which it returns.
    fn listen(&self) -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let port = listener.local_addr().expect("it listens").port();
        let told = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let told = told.clone();
                thread::spawn(move || told.serve(&stream));
            }
        });
        port
    }

    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let request = Head::read(&mut reader)?;
            let mut body = Vec::new();
            request.request_body(&mut reader, &mut |piece| body.extend(piece))?;
            self.0.lock().expect("no panic").push(serde_json::from_slice(&body).expect("the collector sends JSON"));
            let answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
            (&mut &*stream).write_all(answer).ok()?;
        }
    }

    /// The spans so far, each with the name of its service.
    fn spans(&self) -> Vec<(String, Value)> {
        let mut found = Vec::new();
        for message in &*self.0.lock().expect("no panic") {
            for resource in message["resourceSpans"].as_array().into_iter().flatten() {
                let service = attributes(&resource["resource"]).remove("service.name").unwrap_or_default();
                let scopes = resource["scopeSpans"].as_array().into_iter().flatten();
                let spans = scopes.flat_map(|scope| scope["spans"].as_array().cloned().unwrap_or_default());
                found.extend(spans.map(|span| (service.clone(), span)));
            }
        }
        found
    }
}

/// The attributes of something, as text.
fn attributes(of: &Value) -> BTreeMap<String, String> {
    let pair = |attribute: &Value| {
        let value = attribute["value"].as_object().and_then(|value| value.values().next());
        let text = value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        Some((attribute["key"].as_str()?.to_owned(), text?))
    };
    of["attributes"].as_array().into_iter().flatten().filter_map(pair).collect()
}

fn programs() -> Result<PathBuf, String> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdks/telemetry");
    let dir = install("telemetry", &[&module.join("go.sum"), &module.join("main.go")], |dir| {
        let mut go = Command::new("go");
        go.current_dir(&module).env("CGO_ENABLED", "0");
        go.args(["build", "-p", "2", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o"]);
        run("go", go.arg(dir.join("telemetry")).arg("."))
    })?;
    Ok(dir.join("telemetry"))
}

/// Starts one of the programs, and waits until it listens.
fn start(program: &Path, arguments: &[&str], port: u16) -> Running {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let running = Running(command.spawn().expect("it was built"));
    until("the program listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    running
}

/// Starts a collector that passes on to `told`; returns its URL.
fn collector(program: &Path, told: &Told, folder: &Path) -> (Running, String) {
    let (port, to) = (free_port(), told.listen());
    let config = folder.join("collector.yaml");
    let text = format!(
        "receivers:\n  otlp:\n    protocols:\n      http:\n        endpoint: 127.0.0.1:{port}\n\
         exporters:\n  otlp_http:\n    endpoint: http://127.0.0.1:{to}\n    encoding: json\n    compression: none\n\
         service:\n  telemetry:\n    metrics:\n      level: none\n  pipelines:\n    \
         traces: {{ receivers: [otlp], exporters: [otlp_http] }}\n"
    );
    std::fs::write(&config, text).expect("the folder is ours");
    let running = start(program, &["collector", &format!("file:{}", config.display())], port);
    (running, format!("http://127.0.0.1:{port}"))
}

#[test]
fn one_trace_leads_over_client_gate_and_upstream_and_says_what_held_the_call() {
    let Some(program) = or_skip("OpenTelemetry", programs()) else { return };
    let (told, dir, port) = (Told::default(), tempfile::tempdir().expect("a folder"), free_port());
    let (_collector, url) = collector(&program, &told, dir.path());
    let _upstream = start(&program, &["upstream", &format!("127.0.0.1:{port}"), &url], port);
    let calls = dir.path().join("calls.jsonl");
    let settings = format!(
        "preset = \"none\"\nbucket = {{ rate = 5, burst = 1 }}\nqueue.max_wait = \"30s\"\n\
         [otlp]\nendpoint = \"{url}\"\nsample = 0.0\n"
    );
    let plan = Plan { name: "api".into(), upstream: format!("http://127.0.0.1:{port}"), settings };
    let gates = Gates::start_logging(&[plan], Some(&calls));
    let gate = format!("http://127.0.0.1:{}/things", gates.port("api"));
    // The second waits for a token, and the third is in no trace.
    let client = || Command::new(&program).args(["client", &gate, &url]).output().expect("it was built");
    let seen = [client(), client()].map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    let plain = gates.ask("api", "/things");
    assert!(plain.ends_with("\n\n") || plain.contains("\r\n\r\n\n"), "the upstream was told of no trace: {plain}");

    let count = |service: &str| told.spans().iter().filter(|(of, _)| of == service).count();
    let expected = [("client", 2), ("tidegate", 2), ("upstream", 3)];
    until("all spans have come", || expected.iter().all(|(service, spans)| count(service) >= *spans));
    let spans = told.spans();
    for (traceparent, waits) in [(&seen[0], false), (&seen[1], true)] {
        let parts: Vec<&str> = traceparent.split('-').collect();
        let of = |service: &str| {
            let mut found = spans.iter().filter(|(of, span)| of == service && span["traceId"] == parts[1]);
            let span = found.next().unwrap_or_else(|| panic!("no span of {service}: {spans:#?}")).1.clone();
            assert!(found.next().is_none(), "{service} has another");
            span
        };
        let (client, own, upstream) = (of("client"), of("tidegate"), of("upstream"));
        // The field passed untouched: both are told by the client.
        assert_eq!((&own["parentSpanId"], &upstream["parentSpanId"]), (&client["spanId"], &client["spanId"]));
        assert_eq!(client["spanId"], parts[2]);
        let said = attributes(&own);
        assert_eq!(said["tidegate.gate"], "api");
        assert_eq!(said["http.response.status_code"], "200");
        // The first waits for a connection, if for anything.
        let reason = said.get("tidegate.wait.reason").map(String::as_str);
        assert_eq!(reason == Some("bucket"), waits, "{own:#}");
        let waited: f64 = said["tidegate.wait.seconds"].parse().expect("a number");
        assert_eq!(waited > 0.0, reason.is_some(), "{own:#}");
        let time = |span: &Value, key: &str| span[key].as_str().and_then(|time| time.parse::<u64>().ok());
        let spanned = |span: &Value| time(span, "startTimeUnixNano").zip(time(span, "endTimeUnixNano")).expect("two");
        let ((from, to), (begun, _)) = (spanned(&own), spanned(&client));
        assert!(begun <= from && from <= to, "{client:#} {own:#}");
    }
    assert_eq!(count("tidegate"), 2, "the call without a trace has no span: {spans:#?}");

    drop(gates);
    let log = std::fs::read_to_string(&calls).expect("the log");
    for traceparent in &seen {
        let id = traceparent.split('-').nth(1).expect("a trace");
        assert!(log.contains(&format!("\"trace\":\"{id}\"")), "{log}");
    }
}

#[test]
fn a_collector_that_is_away_costs_one_line_and_no_call() {
    let Some(program) = or_skip("OpenTelemetry", programs()) else { return };
    let (dir, told, away) = (tempfile::tempdir().expect("a folder"), Told::default(), free_port());
    let (_collector, url) = collector(&program, &told, dir.path());
    let port = free_port();
    let _upstream = start(&program, &["upstream", &format!("127.0.0.1:{port}"), &url], port);
    let settings = format!("preset = \"none\"\n[otlp]\nendpoint = \"http://127.0.0.1:{away}\"\n");
    let plan = Plan { name: "api".into(), upstream: format!("http://127.0.0.1:{port}"), settings };
    let gates = Gates::start(&[plan]);
    let failed = || gates.counted("tidegate_otlp_sendings_total{signal=\"traces\",result=\"failed\"}");
    until("it was tried twice", || {
        assert!(gates.ask("api", "/things").starts_with("HTTP/1.1 200"));
        failed() >= 2.0
    });
    let log = gates.log();
    // By its field: a sentence may be written anew.
    assert_eq!(log.matches(&format!("collector=\"http://127.0.0.1:{away}\"")).count(), 1, "{log}");
}
