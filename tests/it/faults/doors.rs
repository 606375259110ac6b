//! Clients that want every connection of a process with 256 descriptors and 128 MiB, at every
//! listener but the leader's.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fs, io};

use super::api::Api;
use super::clients::{Came, Client};
use super::memory::Group;
use super::say;
use crate::cli::input::get;
use crate::command::{Running, config, start, tidegate, with_config};
use crate::ports::free_port;

const DESCRIPTORS: usize = 256;
/// The limit of the chart.
const MEMORY: u64 = 128 << 20;
/// The connections of all attackers.
const ATTACKERS: usize = 4_000;
const LEASE: &str = "PUT /apis/coordination.k8s.io/v1/namespaces/n/leases/leader";

/// A process under both limits.
struct Limited {
    running: Running,
    began: Instant,
    _group: Option<Group>,
}

/// A listener to attack.
#[derive(Clone, Debug)]
enum At {
    Port(u16),
    Socket(PathBuf),
}

/// Attackers of one listener, who hold what they are left.
struct Attack {
    made: Arc<AtomicUsize>,
    thread: JoinHandle<VecDeque<Box<dyn Send>>>,
}

// === impl Limited ===

impl Limited {
    fn start(name: &str, path: &Path) -> Self {
        let gate = with_config("run", path);
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={DESCRIPTORS}")).arg(gate.get_program()).args(gate.get_args());
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let group = Group::limited(name, MEMORY);
        let mut running = start(command);
        if let Some(group) = &group {
            group.take(running.id());
        }
        running.ready();
        Self { running, began: now(), _group: group }
    }

    /// Ends the process, and checks what it held at most and how often it complained.
    fn end(self) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.running.id())).expect("it lives");
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).map(str::trim).expect("Linux says so");
        let most = most.to_owned();
        // Each of the 8 listeners says so once in each minute that has begun.
        let minutes = usize::try_from(self.began.elapsed().as_secs() / 60 + 1).expect("not long");
        let kib: u64 = most.trim_end_matches(" kB").parse().expect("a number");
        assert!(kib << 10 < MEMORY, "{most}");
        let said = self.running.end();
        let warnings: Vec<&String> = said.iter().filter(|line| line.contains("onnection")).collect();
        let of = |what: &str| warnings.iter().filter(|line| line.contains(what)).count();
        assert!(
            of("cannot accept a connection") == 0 && of("each new connection closes") <= 8 * minutes,
            "{warnings:#?}"
        );
        most
    }
}

// === impl Attack ===

impl Attack {
    /// Makes this many connections, and sends some of the bytes on each.
    fn start(at: At, count: usize, bytes: Vec<u8>) -> Self {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&made);
        let thread = thread::spawn(move || {
            let mut held = VecDeque::new();
            for _ in 0..count {
                // Many are closed before they have sent everything.
                held.extend(at.attack(&bytes).ok());
                counted.fetch_add(1, SeqCst);
            }
            held
        });
        Self { made, thread }
    }

    fn made(&self) -> usize {
        self.made.load(SeqCst)
    }
}

// === impl At ===

impl At {
    fn attack(&self, bytes: &[u8]) -> io::Result<Box<dyn Send>> {
        match self {
            Self::Port(port) => {
                let mut stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], *port)), PATIENCE)?;
                stream.set_nonblocking(true)?;
                drop(stream.write_all(bytes));
                Ok(Box::new(stream))
            }
            Self::Socket(path) => {
                let mut stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                drop(stream.write_all(bytes));
                Ok(Box::new(stream))
            }
        }
    }
}

/// As long as an attacker waits for a listener whose queue is full.
const PATIENCE: Duration = Duration::from_millis(20);

/// Real time: the process runs on it.
#[expect(clippy::disallowed_methods, reason = "another process runs on real time")]
fn now() -> Instant {
    Instant::now()
}

fn post(path: &str) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 65000\r\n\r\n");
    [head.into_bytes(), vec![b'x'; 64_900]].concat()
}

/// A process with every listener.
fn everything(
    api: &Api,
    [leader, other, egress, names, admin]: [u16; 5],
    socket: &Path,
) -> (tempfile::TempDir, PathBuf) {
    let upstream = format!("upstream = \"http://127.0.0.1:{}\"\nbucket = \"off\"\n", api.port);
    let ca = socket.with_file_name("ca");
    config(&format!(
        "[admin]\nlisten = \"127.0.0.1:{admin}\"\nsocket = {socket:?}\n\
         [egress]\nlisten = \"127.0.0.1:{egress}\"\nnames = \"127.0.0.1:{names}\"\nca.write_to = {ca:?}\n\
         [gates.aws]\nhosts = [\"@aws\"]\nintercept = true\n\
         [gates.leader]\nlisten = \"127.0.0.1:{leader}\"\n{upstream}\
         [gates.other]\nlisten = \"127.0.0.1:{other}\"\n{upstream}",
    ))
}

#[test]
fn leases_go_on_while_4000_connections_attack_every_other_door() {
    crate::floods::more_files();
    let (api, ports) = (Api::start(), [(); 5].map(|()| free_port()));
    let [leader, other, egress, names, admin] = ports;
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("tidegate.sock");
    let (_folder, path) = everything(&api, ports, &socket);
    let process = Limited::start("doors", &path);
    let mut early = Client::plain(leader).expect("it listens");
    assert_eq!(early.ask(LEASE, "{}"), Came::Whole(200));

    let halves = |head: &str| head.as_bytes().to_vec();
    let attacks = [
        (At::Port(admin), post("/explain")),
        (At::Port(admin), halves("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")),
        (At::Port(admin), Vec::new()),
        (At::Socket(socket), post("/explain")),
        (At::Port(egress), Vec::new()),
        (At::Port(egress), halves("CONNECT ")),
        (At::Port(names), b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03".to_vec()),
        (At::Port(other), post("/api/v1/namespaces/n/configmaps")),
        (At::Port(other), halves("GET /api HTTP/1.1\r\nX: ")),
        (At::Port(other), Vec::new()),
    ];
    let each = ATTACKERS / attacks.len();
    let attacks = attacks.map(|(at, bytes)| Attack::start(at, each, bytes));
    let (mut renewed, mut longest, mut new) = (0, Duration::ZERO, 0);
    while attacks.iter().map(Attack::made).sum::<usize>() < ATTACKERS || renewed < 200 {
        let asked = now();
        assert_eq!(early.ask(LEASE, "{}"), Came::Whole(200), "lease {renewed}");
        (renewed, longest) = (renewed + 1, longest.max(asked.elapsed()));
        // A leader that has just started has a place as well.
        if renewed % 20 == 0 {
            let mut late = Client::plain(leader).expect("it listens");
            assert_eq!(late.ask(LEASE, "{}"), Came::Whole(200));
            new += 1;
        }
    }
    // Everything is still there for others, too.
    let probe = get(admin, "/readyz");
    assert!(probe.starts_with("HTTP/1.1 200"), "{probe}");
    let held: Vec<_> = attacks.into_iter().map(|attack| attack.thread.join().expect("no panic")).collect();
    let waited = get(admin, "/metrics");
    assert!(
        waited.lines().all(|line| !line.starts_with("tidegate_refusals_total{") || line.ends_with(" 0")),
        "{waited}"
    );
    let open = fs::read_dir(format!("/proc/{}/fd", process.running.id())).expect("it runs").count();
    drop((held, early));
    // Those that were closed for others are counted as gone.
    let mut left = 60_000;
    while counted(&get(admin, "/metrics")) != 0.0 {
        assert!(left > 0, "connections that are gone are still counted");
        left -= 1;
        thread::yield_now();
    }
    let most = process.end();
    say(format_args!(
        "{ATTACKERS} connections at every other listener of a process with {DESCRIPTORS} descriptors and 128 MiB: {renewed} of {renewed} leases \
         renewed, the slowest in {longest:?}, {new} of {new} on a new connection; {open} descriptors, at most {most} resident"
    ));
}

/// The clients of all gates, by the metrics.
fn counted(page: &str) -> f64 {
    let lines = page.lines().filter_map(|line| line.strip_prefix("tidegate_client_connections{"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn probe(admin: u16) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", admin))?;
    write!(stream, "GET /livez HTTP/1.1\r\nHost: localhost:{admin}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn an_admin_port_full_of_bodies_answers_probes() {
    crate::floods::more_files();
    let (api, port, admin) = (Api::start(), free_port(), free_port());
    let (_folder, path) = config(&format!(
        "[admin]\nlisten = \"127.0.0.1:{admin}\"\n[gates.kubernetes]\nupstream = \"http://127.0.0.1:{}\"\nlisten = \"127.0.0.1:{port}\"\n",
        api.port
    ));
    let process = Limited::start("admin", &path);
    let attack = Attack::start(At::Port(admin), 1_190, post("/forget"));
    while attack.made() < 1_190 {
        // Both share the loopback's places: a probe that is slow to ask may be the idlest, and a kubelet tries again.
        let answered = (0..20).any(|_| probe(admin).is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")));
        assert!(answered, "no probe is answered");
    }
    let held = attack.thread.join().expect("no panic");
    let open = fs::read_dir(format!("/proc/{}/fd", process.running.id())).expect("it runs").count();
    assert!(open < 80, "{open}");
    drop(held);
    process.end();
}

#[test]
fn a_control_socket_full_of_clients_takes_orders() {
    crate::floods::more_files();
    let (api, port) = (Api::start(), free_port());
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("tidegate.sock");
    let (_folder, path) = config(&format!(
        "[admin]\nlisten = \"off\"\nsocket = {socket:?}\n[gates.kubernetes]\nupstream = \"http://127.0.0.1:{}\"\nlisten = \"127.0.0.1:{port}\"\n",
        api.port
    ));
    let process = Limited::start("socket", &path);
    let attack = Attack::start(At::Socket(socket), 300, post("/explain"));
    let held = attack.thread.join().expect("no panic");
    let arguments = ["forget".as_ref(), "--config".as_ref(), path.as_os_str(), "--pauses".as_ref()];
    let ordered = crate::command::end(tidegate(arguments));
    assert_eq!(ordered.code, Some(0), "{} {}", ordered.out, ordered.err);
    drop(held);
    process.end();
}
