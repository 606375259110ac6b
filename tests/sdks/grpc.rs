//! grpcio on both sides of a gate: refusals, failures, and what a server says of its limits.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::gate::{Gates, Plan};
use crate::live::or_skip;
use crate::ports::free_port;
use crate::programs::{CLIENTS, Client, Program, venv};

/// A server; ended when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill()); // it may have ended already, which is as good
        drop(self.0.wait());
    }
}

/// Starts the server, with a certificate in this folder. Returns its port.
fn server(dir: &Path) -> Result<(Server, u16), String> {
    let (python, port) = (venv()?, free_port());
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate can be made");
    let (certificate, key) = (dir.join("server.crt"), dir.join("server.key"));
    fs::write(&certificate, made.cert.pem()).expect("the folder is ours");
    fs::write(&key, made.signing_key.serialize_pem()).expect("the folder is ours");
    let mut command = Command::new(python);
    command.arg(Path::new(CLIENTS).join("grpc_server.py")).arg(port.to_string()).args([certificate, key]);
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| format!("python: {error}"))?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("text");
    assert_eq!(line.trim(), "listens");
    Ok((Server(child), port))
}

#[test]
fn grpcio_is_told_in_its_own_statuses() {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let Some((_server, port)) = or_skip("grpcio", server(dir.path())) else { return };
    let ca = dir.path().join("server.crt");
    let plan = |name: &str, port: u16, more: &str| Plan {
        name: name.to_owned(),
        upstream: format!("https://127.0.0.1:{port}"),
        settings: format!(
            "dialect = \"google\"\npreset = \"none\"\nupstream_tls = {{ ca = {ca:?}, server_name = \"localhost\" }}\n\
             tls = {{ write_to = \"$DIR/{name}\" }}\n{more}\n"
        ),
    };
    let gates = Gates::start(&[
        plan("limited", port, "bucket = { rate = 0.01, burst = 1 }\nqueue.max_wait = \"0s\""),
        plan(
            "remembers",
            port,
            "backoff = { strategy = \"exponential\", base = \"1s\", max = \"60s\", hold = \"0s\" }",
        ),
        plan("nowhere", free_port(), ""),
    ]);
    for (gate, calls) in [
        ("limited", [("Fine", ""), ("Fine", "RESOURCE_EXHAUSTED tidegate")]),
        // The server's own refusal, and then the gate's for the time that the server has named.
        (
            "remembers",
            [("Throttled", "RESOURCE_EXHAUSTED the server's own"), ("Throttled", "RESOURCE_EXHAUSTED tidegate")],
        ),
        ("nowhere", [("Fine", "UNAVAILABLE tidegate"), ("Fine", "UNAVAILABLE tidegate")]),
    ] {
        let roots = gates.dir.path().join(gate).join("ca.crt").display().to_string();
        let client = Client::start(Program::Python, "grpcio", &[("TEST_ROOTS", &roots)]);
        let Some(mut client) = or_skip("grpcio", client) else { return };
        for (call, expected) in calls {
            let report = client.call(call, &format!("127.0.0.1:{}", gates.port(gate)));
            assert!(report.ok == expected.is_empty(), "{gate} {call}: {report:?}\n{}", gates.log());
            assert!(report.error.starts_with(expected), "{gate} {call}: {report:?}\n{}", gates.log());
        }
        // No limit holds for these.
        let health = client.call("/grpc.health.v1.Health/Check", &format!("127.0.0.1:{}", gates.port(gate)));
        assert_eq!(health.ok, gate != "nowhere", "{gate}: {health:?}\n{}", gates.log());
    }
}
