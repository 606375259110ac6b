//! Answers that come before the request's body was read, such as kube-apiserver's 401 and a Go
//! server's 413. Real clients see each of them through the gate, and get an answer to their next
//! call.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::ports::free_port;
use crate::support::control_plane::ControlPlane;
use crate::support::gate::{Gate, Way};
use crate::support::installed::{self, CLIENTS};
use crate::support::process::{command, scratch_dir};
use crate::support::programs::Program;
use crate::support::{now, say, turn, wait_for};

/// The size of each body in bytes, and how often it is sent.
const BODIES: [&str; 3] = ["300:20", "4000000:5", "30000000:2"];

const LIMIT: Duration = Duration::from_secs(20);

/// A way to a server that refuses by the head alone.
struct Refusing {
    name: &'static str,
    url: String,
    ca: Option<PathBuf>,
    /// True if the server is kube-apiserver.
    kubernetes: bool,
}

impl Refusing {
    fn new(name: &'static str, port: u16, ca: Option<&Path>, kubernetes: bool) -> Self {
        let scheme = if ca.is_some() { "https" } else { "http" };
        Self { name, url: format!("{scheme}://127.0.0.1:{port}"), ca: ca.map(Path::to_owned), kubernetes }
    }

    /// Runs a client, and returns the lines that it prints: bytes, uploads, answers to uploads,
    /// answers to the calls after them, and the first error.
    fn run(&self, client: &str, mut run: Command) -> Vec<String> {
        if let Some(ca) = &self.ca {
            run.env("CA_FILE", ca).env("REQUESTS_CA_BUNDLE", ca);
        }
        let out = run.stdin(Stdio::null()).output().expect("the client runs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{client}, {}: {}\n{said}", self.name, out.status);
        let counted: Vec<String> = String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect();
        assert_eq!(counted.len(), BODIES.len(), "{client}, {}: {counted:?}\n{said}", self.name);
        counted
    }
}

/// True if every call that a line counts was answered.
fn complete(line: &str) -> bool {
    let counts: Vec<&str> = line.split(' ').take(4).collect();
    counts[1] == counts[2] && counts[1] == counts[3]
}

/// Ways to a server that refuses, directly and through gates.
struct Ways {
    ways: Vec<Refusing>,
    _server: Program,
    _gate: Gate,
    dir: tempfile::TempDir,
}

impl Ways {
    fn start(plane: &ControlPlane) -> Self {
        let server = Program::start(plane, Way::Direct(plane), &ControlPlane::harness(), &["refuse"]);
        let listening = server.wait_events("listening", 1, LIMIT).remove(0).number("port");
        let dir = scratch_dir();
        let [plain, clear, sealed] = [(); 3].map(|()| free_port());
        let other = format!("kind = \"http\"\nupstream = \"http://127.0.0.1:{listening}\"\npreset = \"none\"");
        // The usual gate has TLS on both sides and speaks HTTP/2 to the API server. The others have
        // a plain listener, or a server that speaks HTTP/1.1, or both.
        let gate = Gate::start(
            plane,
            &format!(
                "preset = \"none\"\n[gates.plain]\nlisten = \"127.0.0.1:{plain}\"\nupstream = \"{}\"\n\
                 credentials = \"pass_through\"\npreset = \"none\"\nupstream_tls = {{ ca = \"{}\" }}\n\
                 [gates.clear]\nlisten = \"127.0.0.1:{clear}\"\n{other}\n\
                 [gates.sealed]\nlisten = \"127.0.0.1:{sealed}\"\n{other}\n\
                 tls = {{ mode = \"self_signed\", write_to = \"{}\" }}",
                plane.url(),
                plane.ca_file().display(),
                dir.path().join("out").display(),
            ),
        );
        let sealed_ca = dir.path().join("out/ca.crt");
        wait_for("the other gate with TLS is there", LIMIT, || sealed_ca.exists().then_some(()));
        let port = u16::try_from(listening).expect("a port");
        let ways = vec![
            Refusing::new("kube-apiserver, directly", plane.port(), Some(&plane.ca_file()), true),
            Refusing::new("HTTP/1.1 in the clear, directly", port, None, false),
            Refusing::new("kube-apiserver, through TLS", gate.port(), Some(&gate.ca_file()), true),
            Refusing::new("kube-apiserver, through the clear", plain, None, true),
            Refusing::new("HTTP/1.1, through TLS", sealed, Some(&sealed_ca), false),
            Refusing::new("HTTP/1.1, through the clear", clear, None, false),
        ];
        Self { ways, _server: server, _gate: gate, dir }
    }
}

/// The programs of the clients.
struct Clients {
    controller: PathBuf,
    python: PathBuf,
    node: PathBuf,
    java: PathBuf,
    fabric8: String,
}

impl Clients {
    fn or_skip(plane: &ControlPlane, test: &str) -> Option<Self> {
        Some(Self {
            controller: plane.binaries().path("controller"),
            python: installed::or_skip(test, installed::python())?,
            node: installed::or_skip(test, installed::node())?,
            java: installed::or_skip(test, installed::java())?,
            fabric8: installed::or_skip(test, installed::fabric8())?,
        })
    }

    fn command(&self, client: &str, way: &Refusing) -> Command {
        let (program, args): (&Path, Vec<String>) = match client {
            "net/http" => (&self.controller, vec!["upload".to_owned()]),
            "client-go" => (&self.controller, vec!["upload".to_owned(), "-typed".to_owned()]),
            "python" => (&self.python, vec![format!("{CLIENTS}/upload.py")]),
            "node" => (&self.node, vec![format!("{CLIENTS}/upload.mjs")]),
            "fabric8" => (&self.java, ["-cp", &self.fabric8, "Upload"].map(str::to_owned).to_vec()),
            other => panic!("no client {other:?}"),
        };
        let mut run = command(program, args);
        run.arg(&way.url).args(BODIES);
        run
    }
}

#[test]
fn every_client_sees_the_answer_that_comes_before_its_body_was_read_and_goes_on() {
    let test = "every_client_sees_the_answer_that_comes_before_its_body_was_read_and_goes_on";
    let Some(plane) = ControlPlane::shared(test) else { return };
    let Some(clients) = Clients::or_skip(plane, test) else { return };
    let _turn = turn::light();
    let Ways { ways, dir, .. } = &Ways::start(plane);
    let begin = now();
    let (mut directly, mut through) = (Vec::new(), Vec::new());
    for client in ["net/http", "client-go", "python", "node", "curl", "fabric8"] {
        for way in ways.iter().filter(|way| way.kubernetes || !["client-go", "fabric8"].contains(&client)) {
            let counted = match client {
                "curl" => curl(way, dir.path()),
                _ => way.run(client, clients.command(client, way)),
            };
            say(format_args!("uploads: {client}, {}: {}", way.name, counted.join("; ")));
            let lost = counted.into_iter().filter(|line| !complete(line)).map(|line| (client, way.name, line));
            if way.name.ends_with("directly") {
                directly.extend(lost);
            } else {
                through.extend(lost);
            }
        }
    }
    say(format_args!("uploads: {:.1} s", begin.elapsed().as_secs_f64()));
    // A client that loses large uploads without the gate may lose them with it.
    let size = |line: &str| line.split(' ').next().map(str::to_owned);
    through.retain(|(client, _, line)| !directly.iter().any(|(c, _, l)| c == client && size(l) == size(line)));
    assert!(through.is_empty(), "bytes, uploads, answered, next answered, first error:\n{through:#?}");
}

/// Runs curl, which sends both calls on one connection while that stays open.
fn curl(way: &Refusing, dir: &Path) -> Vec<String> {
    BODIES
        .map(|what| {
            let (size, runs) = what.split_once(':').expect("bytes and runs");
            let body = dir.join("body");
            fs::write(&body, "x".repeat(size.parse().expect("bytes"))).expect("the folder is ours");
            let (mut answered, mut followed, mut first) = (0, 0, String::new());
            let count: usize = runs.parse().expect("runs");
            for _ in 0..count {
                // Without `Expect`, curl sends the body at once.
                let common = "-sS --http1.1 --max-time 20 -o /dev/null -w %{http_code}\\n -H Authorization:Bearer%wrong -H Expect:";
                let common: Vec<String> = common.split(' ').map(|word| word.replace("r%w", "r w")).collect();
                let mut run = command("curl", &common);
                run.arg("--data-binary").arg(format!("@{}", body.display()));
                run.arg(format!("{}/api/v1/namespaces/default/configmaps", way.url)).arg("--next");
                run.args(&common).arg(format!("{}/version", way.url));
                if let Some(ca) = &way.ca {
                    run.env("CURL_CA_BUNDLE", ca);
                }
                let out = run.output().expect("curl runs");
                let codes = String::from_utf8_lossy(&out.stdout).into_owned();
                let codes: Vec<&str> = codes.lines().collect();
                let is = |number: usize| codes.get(number).is_some_and(|code| code.len() == 3 && *code != "000");
                answered += usize::from(is(0));
                followed += usize::from(is(1));
                if first.is_empty() {
                    first = String::from_utf8_lossy(&out.stderr).trim().replace('\n', ", ");
                }
            }
            format!("{size} {runs} {answered} {followed} {first}")
        })
        .to_vec()
}
