//! kubectl's streams: exec, cp, attach, port-forward and followed logs, over WebSocket and over
//! SPDY, with the newest kubectl and with Debian's old one. Each behaves through the gate as it
//! does directly.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use crate::ports::free_port;
use crate::support::control_plane::{ControlPlane, User};
use crate::support::gate::{Gate, Way};
use crate::support::process::scratch_dir;
use crate::support::{installed, now, pods, say, turn};

const NAMESPACE: &str = "streams";
const STDIN: usize = 50_000_000;
const FORWARDED: usize = 100_000_000;
const COPIED: usize = 5_000_000;

/// The protocol in which kubectl asks for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    WebSocket,
    Spdy,
}

#[test]
fn kubectl_streams_by_websocket_as_it_does_directly() {
    let test = "kubectl_streams_by_websocket_as_it_does_directly";
    let Some(plane) = ControlPlane::shared(test) else { return };
    streams(plane, "websocket", &plane.binaries().path("kubectl"), Protocol::WebSocket);
}

#[test]
fn kubectl_streams_by_spdy_as_it_does_directly() {
    let test = "kubectl_streams_by_spdy_as_it_does_directly";
    let Some(plane) = ControlPlane::shared(test) else { return };
    streams(plane, "spdy", &plane.binaries().path("kubectl"), Protocol::Spdy);
}

#[test]
fn an_old_kubectl_streams_as_it_does_directly() {
    let test = "an_old_kubectl_streams_as_it_does_directly";
    let Some(plane) = ControlPlane::shared(test) else { return };
    let Some(kubectl) = installed::or_skip(test, installed::old_kubectl()) else { return };
    streams(plane, "old", &kubectl, Protocol::Spdy);
}

fn streams(plane: &'static ControlPlane, name: &str, kubectl: &std::path::Path, protocol: Protocol) {
    let _turn = turn::light();
    plane.namespace(NAMESPACE);
    let pod = format!("{name}-pod");
    pods::run(plane, NAMESPACE, &pod);
    let gate = Gate::start(plane, "");
    let hub = Gate::hub(plane, &["one"], "");
    let mut took = Vec::new();
    for way in [Way::Direct(plane), Way::Gate(&gate), Way::Gate(&hub)] {
        let user = plane.tester();
        let kubectl = Kubectl { program: kubectl.to_owned(), way, user, protocol, pod: pod.clone() };
        let begin = now();
        kubectl.all();
        took.push(begin.elapsed().as_secs_f64());
        kubectl.asked_by_its_protocol(plane);
    }
    say(format_args!(
        "{name}: exec, {} MB of stdin, cp, attach, {} MB each way by port-forward and logs in {:.1} s directly, {:.1} s through a gate, {:.1} s through a hub",
        STDIN / 1_000_000,
        FORWARDED / 1_000_000,
        took[0],
        took[1],
        took[2]
    ));
}

struct Kubectl<'a> {
    program: PathBuf,
    way: Way<'a>,
    user: User,
    protocol: Protocol,
    pod: String,
}

impl Kubectl<'_> {
    fn all(&self) {
        self.exit_codes();
        self.fifty_megabytes_of_stdin();
        self.copies();
        self.attaches();
        self.forwards();
        self.follows_logs();
    }

    fn exit_codes(&self) {
        let said = self.run(&["exec", &self.pod, "--", "sh", "-c", "echo out; echo err >&2; exit 42"], b"");
        assert_eq!(said.status.code(), Some(42), "{self}: {}", stderr(&said));
        assert_eq!(said.stdout, b"out\n", "{self}");
        assert!(stderr(&said).starts_with("err\n"), "{self}: {}", stderr(&said));
        let said = self.run(&["exec", &self.pod, "--", "true"], b"");
        assert!(said.status.success(), "{self}: {}", stderr(&said));
    }

    /// Input comes out again: 50 MB in each direction at the same time.
    fn fifty_megabytes_of_stdin(&self) {
        let sent = noise(STDIN);
        let said = self.run(&["exec", "-i", &self.pod, "--", "cat"], &sent);
        assert!(said.status.success(), "{self}: {}", stderr(&said));
        assert!(said.stdout == sent, "{self}: {} bytes came back, and not those that were sent", said.stdout.len());
    }

    fn copies(&self) {
        let (here, there) = (scratch_dir(), scratch_dir());
        let sent = noise(COPIED);
        let path = |dir: &tempfile::TempDir, name: &str| dir.path().join(name).display().to_string();
        fs::write(path(&here, "sent"), &sent).expect("the folder is ours");
        let in_pod = |name: &str| format!("{}:{}", self.pod, path(&there, name));
        let said = self.run(&["cp", &path(&here, "sent"), &in_pod("arrived")], b"");
        assert!(said.status.success(), "{self}: {}", stderr(&said));
        assert!(fs::read(path(&there, "arrived")).expect("it was copied") == sent, "{self}: cp in");
        let said = self.run(&["cp", &in_pod("arrived"), &path(&here, "returned")], b"");
        assert!(said.status.success(), "{self}: {}", stderr(&said));
        assert!(fs::read(path(&here, "returned")).expect("it was copied") == sent, "{self}: cp out");
    }

    fn attaches(&self) {
        let said = self.run(&["attach", "-i", &self.pod, "-c", "main"], b"hello\nand goodbye\n");
        assert!(said.status.success(), "{self}: {}", stderr(&said));
        assert_eq!(String::from_utf8_lossy(&said.stdout), "out\nhello\nand goodbye\n", "{self}");
        assert!(stderr(&said).lines().any(|line| line == "err"), "{self}: {}", stderr(&said));
    }

    /// Sends 100 MB to an echo and back over one forwarded connection, with a second one beside it.
    fn forwards(&self) {
        let echo = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let remote = echo.local_addr().expect("it is bound").port();
        std::thread::spawn(move || {
            for stream in echo.incoming().take(2) {
                let mut stream = stream.expect("a connection");
                std::thread::spawn(move || {
                    let mut back = stream.try_clone().expect("a socket");
                    drop(std::io::copy(&mut stream, &mut back));
                    drop(back.shutdown(Shutdown::Write));
                });
            }
        });
        let local = free_port();
        let ports = format!("{local}:{remote}");
        let mut child = Ended(self.start(&["port-forward", &self.pod, &ports]));
        let mut said = String::new();
        let mut stdout = BufReader::new(child.0.stdout.take().expect("it is piped"));
        stdout.read_line(&mut said).expect("text");
        assert!(said.starts_with("Forwarding from"), "{self}: {said:?}");
        let sent = noise(FORWARDED);
        let (small, large) = std::thread::scope(|scope| {
            let small = scope.spawn(|| through(local, &sent[..1_000]));
            let large = scope.spawn(|| through(local, &sent));
            (small.join().expect("it ran"), large.join().expect("it ran"))
        });
        assert!(small == sent[..1_000], "{self}: {} bytes of the small one came back", small.len());
        assert!(
            large == sent,
            "{self}: {} bytes of the large one came back, and not those that were sent",
            large.len()
        );
    }

    /// Each line arrives when it is written: the first before the last is written.
    fn follows_logs(&self) {
        let whole: Vec<String> = (0..20).map(|line| format!("line {line}")).collect();
        let said = self.run(&["logs", &self.pod], b"");
        assert_eq!(
            String::from_utf8_lossy(&said.stdout).lines().collect::<Vec<_>>(),
            whole,
            "{self}: {}",
            stderr(&said)
        );
        let mut child = Ended(self.start(&["logs", "-f", &self.pod]));
        let mut lines = BufReader::new(child.0.stdout.take().expect("it is piped")).lines();
        let first = lines.next().expect("a first line").expect("text");
        assert!(
            child.0.try_wait().expect("a child can be asked").is_none(),
            "{self}: the first line came with the last"
        );
        let followed: Vec<String> = std::iter::once(first).chain(lines.map(|line| line.expect("text"))).collect();
        assert_eq!(followed, whole, "{self}");
        assert!(child.0.wait().expect("it ends").success(), "{self}");
    }

    /// kubectl falls back to SPDY by itself. The audit log shows which it used: a GET for a
    /// WebSocket and a POST for SPDY.
    fn asked_by_its_protocol(&self, plane: &ControlPlane) {
        let wanted = if self.protocol == Protocol::WebSocket { "get" } else { "create" };
        let seen = plane.audit().of(&self.user.name);
        for subresource in ["/exec?", "/attach?", "/portforward"] {
            let verbs = seen.only(|event| event.uri.contains(subresource)).0;
            assert!(!verbs.is_empty(), "{self}: no {subresource}");
            assert!(verbs.iter().all(|event| event.verb == wanted), "{self}: {subresource} by another way: {verbs:?}");
        }
    }

    /// Runs kubectl to its end, with this on its standard input.
    fn run(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = self.start(args);
        let mut stdin = child.stdin.take().expect("it is piped");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // A command that ends before it has read everything is judged by its output.
                drop(stdin.write_all(input));
            });
            child.wait_with_output().expect("kubectl ends")
        })
    }

    fn start(&self, args: &[&str]) -> Child {
        let flag = (self.protocol == Protocol::WebSocket).to_string();
        let mut run: Command = self.way.command(&self.program, &self.user, &[&["-n", NAMESPACE], args].concat());
        run.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", &flag).env("KUBECTL_PORT_FORWARD_WEBSOCKETS", &flag);
        run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kubectl runs")
    }
}

impl std::fmt::Display for Kubectl<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let way = match self.way {
            Way::Direct(_) => "directly",
            Way::Gate(gate) if gate.base().is_empty() => "through the gate",
            Way::Gate(_) => "through the hub",
        };
        write!(f, "{} by {:?} {way}", self.program.display(), self.protocol)
    }
}

/// A child that ends with the test, in whichever way that ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn stderr(said: &Output) -> String {
    String::from_utf8_lossy(&said.stderr).into_owned()
}

/// Sends everything, ends its direction, and reads until the other side ends as well.
fn through(port: u16, sent: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let mut writer = stream.try_clone().expect("a socket");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            drop(writer.write_all(sent));
            drop(writer.shutdown(Shutdown::Write));
        });
        let mut back = Vec::with_capacity(sent.len());
        drop(stream.read_to_end(&mut back));
        back
    })
}

/// Bytes in which nothing repeats: any loss, duplicate or change of order shows.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
