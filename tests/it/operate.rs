//! The operator's view of a running gate, and the operator's commands: status, top, explain,
//! forget, bypass, and the log.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use serde_json::Value;
use tidegate::clock::Clock;

use crate::cli::input::get;
use crate::command::{Ended, PATIENCE, Running, end, start, tidegate, with_config};
use crate::docs::blocks;
use crate::ports::free_port;

mod errors;

/// An API that answers 500 for every path or body with `bad` in it, else 200. Returns its port, and
/// the number of calls that reached it.
pub(crate) fn api() -> (u16, Arc<AtomicUsize>) {
    answering(|request| if request.contains("bad") { 500 } else { 200 })
}

/// An API that answers with the status that the closure returns.
pub(crate) fn answering(status: impl Fn(&str) -> u16 + Send + Sync + 'static) -> (u16, Arc<AtomicUsize>) {
    responding(move |request| format!("HTTP/1.1 {} Said\r\nContent-Length: 2\r\n\r\nok", status(request)))
}

/// An API that answers with the bytes that the closure returns.
pub(crate) fn responding<A: Into<Vec<u8>>>(
    answer: impl Fn(&str) -> A + Send + Sync + 'static,
) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", free_port())).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let answer = move |request: &str| answer(request).into();
    let (answer, calls) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&calls);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
            thread::spawn(move || serve(stream, &*answer, &seen));
        }
    });
    (port, calls)
}

fn serve(mut stream: TcpStream, answer: &dyn Fn(&str) -> Vec<u8>, seen: &AtomicUsize) {
    let (mut read, mut piece) = (String::new(), [0; 4096]);
    loop {
        while !is_whole(&read) {
            match stream.read(&mut piece) {
                Ok(0) | Err(_) => return,
                Ok(more) => read.push_str(&String::from_utf8_lossy(&piece[..more])),
            }
        }
        seen.fetch_add(1, Ordering::Relaxed);
        let answer = answer(&read);
        read.clear();
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

/// True if this is a head and all of its body.
fn is_whole(text: &str) -> bool {
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    body.len() >= length.unwrap_or(0)
}

/// A running tidegate, with a gate called `k`.
pub(crate) struct Process {
    pub(crate) running: Running,
    pub(crate) config: PathBuf,
    pub(crate) gate: u16,
    pub(crate) admin: u16,
    /// The current kubeconfig.
    pub(crate) current: PathBuf,
    _folder: tempfile::TempDir,
}

impl Process {
    /// `more` goes into the table of the gate.
    pub(crate) fn start(upstream: &str, more: &str) -> Self {
        Self::with(upstream, more, "")
    }

    /// With this kubeconfig as the current one, for the process and for commands.
    pub(crate) fn with(upstream: &str, more: &str, kubeconfig: &str) -> Self {
        Self::listening("127.0.0.1", upstream, more, kubeconfig)
    }

    /// With its admin port on this address.
    fn listening(admin_ip: &str, upstream: &str, more: &str, kubeconfig: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let current = folder.path().join("kubeconfig");
        if !kubeconfig.is_empty() {
            std::fs::write(&current, kubeconfig).expect("it can be written");
        }
        let (config, gate, admin) = (folder.path().join("tidegate.toml"), free_port(), free_port());
        let socket = folder.path().join("tidegate.sock").display().to_string();
        let text = format!(
            "[admin]\nlisten = \"{admin_ip}:{admin}\"\nsocket = {socket:?}\n\n[gates.k]\nupstream = \"{upstream}\"\n\
             listen = \"127.0.0.1:{gate}\"\n{more}"
        );
        std::fs::write(&config, text).expect("it can be written");
        let mut command = with_config("run", &config);
        command.env("KUBECONFIG", &current);
        let mut running = start(command);
        running.ready();
        Self { running, config, gate, admin, current, _folder: folder }
    }

    /// A command with the same configuration.
    pub(crate) fn command(&self, arguments: &[&str]) -> Ended {
        let (command, rest) = arguments.split_first().expect("a command");
        let mut command = tidegate([command]);
        command.args(rest).arg("--config").arg(&self.config).env("KUBECONFIG", &self.current);
        end(command)
    }

    pub(crate) fn status(&self) -> Value {
        let answer = get(self.admin, "/status");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}\n{answer}"))
    }

    /// Returns the gate's part of the status as soon as `is_so` holds.
    pub(crate) fn until(&self, is_so: impl Fn(&Value) -> bool) -> Value {
        let clock = Clock::start();
        while clock.now().since_start() < PATIENCE {
            let gate = self.status()["gates"][0].clone();
            if is_so(&gate) {
                return gate;
            }
            thread::yield_now();
        }
        panic!("it did not come to that: {}", self.status());
    }

    /// Makes a call in its own thread; returns its answer's status line.
    pub(crate) fn call(&self, path: &str) -> JoinHandle<String> {
        let (gate, path) = (self.gate, path.to_owned());
        thread::spawn(move || get(gate, &path).lines().next().unwrap_or_default().to_owned())
    }
}

/// A process that is connected to a local port for as long as it is kept.
pub(crate) struct Connected(Child);

impl Connected {
    pub(crate) fn to(port: u16) -> Self {
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; echo connected; read -r");
        let mut command = Command::new("bash");
        command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("bash is there");
        let mut line = String::new();
        let out = child.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut line).expect("it can be read");
        assert_eq!(line, "connected\n");
        Self(child)
    }

    pub(crate) fn title(&self) -> String {
        format!("bash (pid {})", self.0.id())
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().expect("it ran");
    }
}

pub(crate) fn command(config: &Path, arguments: &[&str]) -> Ended {
    let (command, rest) = arguments.split_first().expect("a command");
    let mut command = tidegate([command]);
    command.args(rest).arg("--config").arg(config);
    end(command)
}

/// One token, and then hardly any: the next call waits. A failing key waits for minutes.
const TIGHT: &str = "bucket = { rate = 0.01, burst = 2 }\nretry_bucket = \"off\"\nqueue = { max_wait = \"10m\" }\nbackoff = { base = \"5m\", max = \"5m\" }\n";

const BAD: &str = "/api/v1/namespaces/prod/pods/bad";
const SECRETS: &str = "/api/v1/namespaces/prod/secrets/s";

/// Makes a key fail and be refused once, and two calls wait for the bucket.
fn incident(process: &Process) -> Vec<JoinHandle<String>> {
    assert!(get(process.gate, BAD).starts_with("HTTP/1.1 500"));
    assert!(get(process.gate, BAD).starts_with("HTTP/1.1 429"), "it backs off");
    assert!(get(process.gate, "/api/v1/namespaces/prod/pods/good").starts_with("HTTP/1.1 200"));
    let waiting = vec![process.call(SECRETS), process.call(SECRETS)];
    process.until(|gate| gate["waiting"] == 2);
    waiting
}

#[test]
fn an_incident_is_on_the_page_in_json_and_in_the_terminal() {
    let (upstream, _) = api();
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), TIGHT);
    let waiting = incident(&process);
    let gate = &process.status()["gates"][0];
    let (key, queue, refusal) = (&gate["keys"][0], &gate["queues"][0], &gate["refusals"][0]);
    assert_eq!((&key["key"], &key["status"], &key["failures"]), (&"read pods/prod/bad".into(), &500.into(), &1.into()));
    assert_eq!((&queue["flow"], &queue["reason"], &queue["waiting"]), (&"secrets".into(), &"bucket".into(), &2.into()));
    assert_eq!((&refusal["reason"], &refusal["call"]), (&"backoff".into(), &"read pods/prod/bad".into()));
    assert_eq!((&gate["admitted"], &gate["refused"]), (&2.into(), &1.into()));

    let mut stream = TcpStream::connect(("127.0.0.1", process.admin)).expect("the admin port listens");
    let request = "GET /status HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("it is read");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("it is answered");
    let top = process.command(&["top", "--once"]);
    assert_eq!(top.code, Some(0), "{}", top.err);
    for wanted in ["read pods/prod/bad", "secrets", "2 calls wait", "bucket is empty", "backoff"] {
        assert!(page.replace("&#39;", "'").contains(wanted), "{wanted}\n{page}");
        assert!(top.out.contains(wanted), "{wanted}\n{}", top.out);
    }
    assert!(!top.out.contains('\u{1b}'), "no colours in a pipe");
    drop(process);
    drop(waiting);
}

/// The status as a client at this address of the machine sees it.
fn status_at(address: IpAddr, admin: u16) -> Value {
    let mut stream = TcpStream::connect((address, admin)).expect("the admin port listens");
    let request = format!("GET /status HTTP/1.1\r\nHost: {address}:{admin}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it is read");
    let answer = std::io::read_to_string(stream).expect("it is answered");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}\n{answer}"))
}

/// An address of this machine that is not on loopback, if it has one.
fn outer_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?; // sends nothing
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback())
}

#[test]
fn who_asks_over_loopback_sees_names_wherever_the_admin_port_listens() {
    let (upstream, _) = api();
    let process = Process::listening("0.0.0.0", &format!("http://127.0.0.1:{upstream}"), TIGHT, "");
    assert!(get(process.gate, BAD).starts_with("HTTP/1.1 500"));
    let near = status_at([127, 0, 0, 1].into(), process.admin);
    let key = &near["gates"][0]["keys"][0];
    assert_eq!((&near["names_shown"], &key["key"]), (&true.into(), &"read pods/prod/bad".into()));
    let Some(outer) = outer_address() else {
        eprintln!("skipped in part: this machine has no address but loopback");
        return;
    };
    let far = status_at(outer, process.admin);
    let (gate, nameless) = (&far["gates"][0], &far["gates"][0]["keys"][0]);
    assert_eq!((&far["names_shown"], &nameless["key"], &gate["keys_failing"]), (&false.into(), &"".into(), &1.into()));
    for field in ["status", "failures", "failed_at_ms", "next_at_ms"] {
        assert_eq!(nameless[field], key[field], "{field} is no name");
    }
    assert!(!far.to_string().contains("prod"), "{far}");
}

const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
current-context: c
contexts: [{ name: c, context: { cluster: c, user: u } }]
clusters: [{ name: c, cluster: { server: 'http://127.0.0.1:PORT' } }]
users: [{ name: u, user: { token: t } }]
";

/// The README's own file, with its ports set from outside, and a folder for this user's sockets.
struct Newcomer {
    folder: tempfile::TempDir,
    gate: u16,
    admin: u16,
}

impl Newcomer {
    fn new(upstream: u16) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let readme = include_str!("../../README.md");
        let (_, text) = blocks(readme, "toml").into_iter().next().expect("the README has a configuration");
        std::fs::write(folder.path().join("tidegate.toml"), text).expect("it can be written");
        let kubeconfig = KUBECONFIG.replace("PORT", &upstream.to_string());
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig).expect("it can be written");
        for (name, mode) in [("session", 0o700), ("open", 0o777)] {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).expect("it can be made");
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("it is ours");
        }
        Self { folder, gate: free_port(), admin: free_port() }
    }

    fn command(&self, arguments: &[&str], session: Option<&str>, temporary: &str) -> Command {
        let mut command = tidegate(arguments);
        command
            .arg("--config")
            .arg(self.folder.path().join("tidegate.toml"))
            .env("KUBECONFIG", self.folder.path().join("kubeconfig"))
            .env("TIDEGATE__GATES__KUBERNETES__LISTEN", format!("127.0.0.1:{}", self.gate))
            .env("TIDEGATE__ADMIN__LISTEN", format!("127.0.0.1:{}", self.admin))
            .env("TMPDIR", self.folder.path().join(temporary));
        match session {
            Some(session) => command.env("XDG_RUNTIME_DIR", self.folder.path().join(session)),
            None => command.env_remove("XDG_RUNTIME_DIR"),
        };
        command
    }
}

#[test]
fn orders_work_with_the_readme_s_own_file() {
    let (upstream, _) = api();
    for (session, temporary) in [(Some("session"), "open"), (None, "session"), (Some("open"), "session")] {
        let newcomer = Newcomer::new(upstream);
        let mut running = start(newcomer.command(&["run"], session, temporary));
        running.ready();
        assert!(get(newcomer.gate, BAD).starts_with("HTTP/1.1 500"));
        let forget = end(newcomer.command(&["forget", "--all"], session, temporary));
        let said = (forget.code, forget.out.as_str());
        assert_eq!(said, (Some(0), "kubernetes: 1 key forgotten\n"), "{session:?}: {}", forget.err);
        let bypass = end(newcomer.command(&["bypass", "on", "--for", "1m"], session, temporary));
        assert!(bypass.code == Some(0) && bypass.out.contains("everything is let through"), "{}", bypass.err);
        // Another process of this user has a socket of its own.
        let other = Newcomer::new(upstream);
        let nobody = end(other.command(&["forget", "--all"], session, temporary));
        assert!(nobody.code == Some(1) && nobody.err.contains("is tidegate running with this"), "{}", nobody.err);
        assert_eq!(running.terminate(), Some(0));
    }
}

#[test]
fn a_folder_that_others_can_write_to_gets_no_control_socket() {
    let newcomer = Newcomer::new(api().0);
    let mut running = start(newcomer.command(&["run"], Some("open"), "open"));
    let said = running.line("running without a control socket");
    assert!(said.contains("other users can enter or replace") && said.contains("admin.socket"), "{said}");
    running.ready();
    let forget = end(newcomer.command(&["forget", "--all"], Some("open"), "open"));
    assert!(forget.code == Some(1) && forget.err.contains("admin.socket sets a path"), "{}", forget.err);
}

/// Makes this thread, and what it starts, one of a kernel that has no IPv6.
#[cfg(target_os = "linux")]
fn without_ipv6() {
    use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule};
    let (socket, family) = if cfg!(target_arch = "x86_64") { (41, 10) } else { (198, 10) };
    let ipv6 = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, family).expect("a condition");
    let rule = SeccompRule::new(vec![ipv6]).expect("a rule");
    let refuse = SeccompAction::Errno(97); // EAFNOSUPPORT
    let machine = std::env::consts::ARCH.try_into().expect("a machine that has seccomp");
    let rules = [(socket, vec![rule])].into_iter().collect();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, machine).expect("a filter");
    let program: seccompiler::BpfProgram = filter.try_into().expect("a program");
    seccompiler::apply_filter(&program).expect("the kernel takes it");
}

#[cfg(target_os = "linux")]
#[test]
fn a_node_without_ipv6_has_its_admin_port_on_ipv4_and_says_so_in_a_line() {
    let (upstream, _) = api();
    let ended = thread::spawn(move || {
        without_ipv6();
        let process = Process::listening("[::]", &format!("http://127.0.0.1:{upstream}"), "", "");
        let said: Vec<_> = process.running.seen.iter().filter(|line| line.contains("IPv6")).cloned().collect();
        assert!(said.len() == 1 && said[0].contains("uses the IPv4 address instead"), "{:#?}", process.running.seen);
        assert!(get(process.admin, "/livez").starts_with("HTTP/1.1 200"));
        for command in [&["health"][..], &["top", "--once"]] {
            let ended = process.command(command);
            assert_eq!(ended.code, Some(0), "{command:?}: {}", ended.err);
        }
    });
    ended.join().expect("it holds");
}

#[test]
fn a_process_is_asked_whatever_has_become_of_its_file() {
    let (upstream, _) = api();
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), "");
    let whole = std::fs::read_to_string(&process.config).expect("it is there");
    let socket = process.config.with_file_name("tidegate.sock");
    let run = |arguments: &[&str]| {
        let mut command = tidegate(arguments);
        command.arg("--config").arg(&process.config).env("KUBECONFIG", &process.current);
        // What is not TOML says nothing of where the process is.
        command.env("TIDEGATE__ADMIN__LISTEN", format!("127.0.0.1:{}", process.admin));
        command.env("TIDEGATE__ADMIN__SOCKET", &socket);
        end(command)
    };
    for (broken, problem) in
        [(format!("{whole}colour = 1\n"), "colour: is not a valid key"), ("[gates\n".into(), ":1:7: ")]
    {
        std::fs::write(&process.config, broken).expect("ours");
        for command in [&["health"][..], &["top", "--once"], &["forget", "--all"], &["bypass", "off"]] {
            let ended = run(command);
            assert_eq!(ended.code, Some(0), "{command:?}: {}", ended.err);
            assert!(ended.err.contains(problem), "{command:?}: {}", ended.err);
        }
        let doctor = run(&["doctor"]);
        assert_eq!(doctor.code, Some(1), "{}", doctor.out);
        for wanted in [problem, "process: answers at the control socket"] {
            assert!(doctor.out.contains(wanted), "{wanted}\n{}", doctor.out);
        }
        let explained = run(&["explain", "GET", SECRETS]);
        assert_eq!(explained.code, Some(78), "{}", explained.err);
        assert!(explained.err.contains("1 problem in the configuration\n"), "{}", explained.err);
    }
    std::fs::remove_file(&process.config).expect("ours");
    assert_eq!(run(&["health"]).code, Some(0), "a file that is gone, too");
}

#[test]
fn a_call_is_explained_with_its_lines_and_what_would_happen_now() {
    let (upstream, calls) = api();
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), TIGHT);
    let explain = |path: &str| process.command(&["explain", "GET", path]);
    let goes = explain(SECRETS);
    assert!(goes.out.contains("it would go at once"), "{}{}", goes.out, goes.err);
    assert_eq!(calls.load(Ordering::Relaxed), 0, "nothing is sent for it");
    let waiting = incident(&process);
    let refused = explain(BAD);
    assert_eq!(refused.code, Some(0), "{}", refused.err);
    for wanted in [
        "read as       get pods, namespace prod, name bad",
        "default, lane normal",
        "read pods/prod/bad",
        "0.01/s, burst 2",
        "tidegate.toml:8:1",
        "fair_by = \"resource\"",
        "it would be refused (backoff:",
        "its key failed 1 time in a row and last got 500",
    ] {
        assert!(refused.out.contains(wanted), "{wanted}\n{}", refused.out);
    }
    let waits = explain(SECRETS);
    assert!(waits.out.contains("it would wait for") && waits.out.contains("(bucket: "), "{}", waits.out);
    let lease = explain("/apis/coordination.k8s.io/v1/namespaces/n/leases/l");
    assert!(lease.out.contains("leases, lane exempt") && lease.out.contains("it would go at once"), "{}", lease.out);
    assert_eq!(process.until(|_| true)["waiting"], 2, "to ask changes nothing");
    let unknown = process.command(&["explain", "GET", "nowhere"]);
    assert!(unknown.code == Some(1) && unknown.err.contains("\"nowhere\" is not a path"), "{}", unknown.err);
    let config = process.config.clone();
    let alone = std::fs::read_to_string(&config).expect("it is there");
    drop(process);
    drop(waiting);
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("tidegate.toml");
    std::fs::write(&config, alone).expect("it can be written");
    let alone = command(&config, &["explain", "GET", BAD]);
    assert!(alone.code == Some(0) && alone.out.contains("not known: nothing answers at"), "{}", alone.out);
}

/// A client that reads only after it has written everything loses an answer that comes before, with
/// its connection.
#[test]
fn an_order_that_is_too_long_is_read_to_its_end_before_it_is_answered() {
    let (upstream, _) = api();
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), "");
    let mut stream = TcpStream::connect(("127.0.0.1", process.admin)).expect("the admin port listens");
    for (path, read, status) in [("/explain", true, 400), ("/status", false, 405)] {
        let length: usize = 16 << 20;
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("a head");
        // Others are answered at once.
        let body = if read { vec![b' '; length] } else { Vec::new() };
        stream.write_all(&body).expect("all of the body is read");
        let mut answer = vec![0; 4096];
        let read = stream.read(&mut answer).expect("an answer");
        let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
    }
}

#[test]
fn a_shared_bucket_is_seen_with_who_shares_it() {
    let (upstream, _) = api();
    let shared = "bucket = { rate = 100, burst = 50, adapt = \"off\", shared = \"account\" }\n";
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), shared);
    assert!(get(process.gate, SECRETS).starts_with("HTTP/1.1 200"));
    let shown = &process.status()["gates"][0]["buckets"][0]["shared"];
    let word = |key: &str| shown[key].as_str().unwrap_or_default().to_owned();
    assert_eq!((word("name"), word("state"), shown["members"].as_u64()), ("account".into(), "shared".into(), Some(1)));
    let page = get(process.admin, "/metrics");
    for line in [
        "tidegate_shared_members{gate=\"k\",bucket=\"gate\"} 1",
        "tidegate_shared_away{gate=\"k\",bucket=\"gate\"} 0",
        "tidegate_shared_tokens_total{gate=\"k\",bucket=\"gate\",what=\"spent\"} 1",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
    let top = process.command(&["top", "--once"]);
    assert!(top.out.contains("shared as account with 0 others"), "{}", top.out);
    let explained = process.command(&["explain", "GET", SECRETS]);
    let says = "100/s, burst 50, shared as account with 0 others in this process: ";
    assert!(explained.out.contains(says) && explained.out.contains(" there, "), "{}", explained.out);
}

#[test]
fn what_is_forgotten_is_tried_at_once() {
    let (upstream, calls) = api();
    let process =
        Process::start(&format!("http://127.0.0.1:{upstream}"), "backoff = { base = \"5m\", max = \"5m\" }\n");
    let mut process = process;
    assert!(get(process.gate, BAD).starts_with("HTTP/1.1 500"));
    assert!(get(process.gate, BAD).starts_with("HTTP/1.1 429"));
    let none = process.command(&["forget", "write pods/prod/bad"]);
    assert!(none.code == Some(1) && none.err.contains("no failing key is called"), "{}", none.err);
    let done = process.command(&["forget", "read pods/*"]);
    assert_eq!((done.code, done.out.as_str()), (Some(0), "k: 1 key forgotten\n"), "{}", done.err);
    process.running.line("failing keys forgotten by an operator");
    assert!(get(process.gate, BAD).starts_with("HTTP/1.1 500"), "it was tried again");
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    assert!(get(process.admin, "/metrics").contains("tidegate_forgotten_keys_total{gate=\"k\"} 1"));
    assert_eq!(process.command(&["forget"]).code, Some(64), "which one?");
    let other = process.command(&["forget", "--all", "--gate", "other"]);
    assert!(other.code == Some(1) && other.err.contains("the gates are: k"), "{}", other.err);
}

#[test]
fn a_pause_is_lifted_by_hand_and_nothing_else_is() {
    let (upstream, calls) = responding(|request| {
        let (status, more) = match request {
            wait if wait.contains("/wait") => (429, "Retry-After: 600\r\n"),
            bad if bad.contains("bad") => (500, ""),
            _ => (200, ""),
        };
        format!("HTTP/1.1 {status} Said\r\n{more}Content-Length: 2\r\n\r\nok")
    });
    let gate = "kind = \"http\"\nsignals = { scope = \"gate\" }\nbackoff = { base = \"5m\", max = \"5m\" }\n";
    let mut process = Process::start(&format!("http://127.0.0.1:{upstream}"), gate);
    assert!(get(process.gate, "/bad").starts_with("HTTP/1.1 500"));
    assert!(get(process.gate, "/wait").starts_with("HTTP/1.1 429"));
    let refused = get(process.gate, "/other");
    assert!(refused.contains("pause"), "{refused}");
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    let paused = process.until(|gate| gate["pauses"][0]["who"] == "gate");
    assert_eq!(paused["keys_failing"], 2);
    let doctor = process.command(&["doctor"]);
    assert!(doctor.out.contains("Paused (gate): the upstream asked for it; that ends in"), "{}", doctor.out);
    assert!(
        doctor.out.contains("-> wait; if it takes calls again already, tidegate forget --pauses"),
        "{}",
        doctor.out
    );

    let keys = process.command(&["forget", "read /bad"]);
    let said = "k: 1 key forgotten; 1 pause goes on, because the upstream asked for it (tidegate forget --pauses)\n";
    assert_eq!((keys.code, keys.out.as_str()), (Some(0), said), "{}", keys.err);
    let lifted = process.command(&["forget", "--pauses"]);
    assert_eq!((lifted.code, lifted.out.as_str()), (Some(0), "k: 1 pause lifted\n"), "{}", lifted.err);
    process.running.line("an operator ended pauses");
    assert!(get(process.gate, "/other").starts_with("HTTP/1.1 200"), "it goes at once");
    let after = process.status()["gates"][0].clone();
    assert_eq!((&after["pauses"], &after["keys_failing"]), (&Value::Array(Vec::new()), &1.into()), "a key is no pause");
    assert!(get(process.admin, "/metrics").contains("tidegate_lifted_pauses_total{gate=\"k\"} 1"));
    let all = process.command(&["forget", "--all", "--pauses"]);
    assert_eq!(all.out, "k: 1 key forgotten; 0 pauses lifted\n", "{}", all.err);
    for both in [&["forget", "--all", "a"][..], &["forget", "--gate", "k"]] {
        assert_eq!(process.command(both).code, Some(64), "{both:?}");
    }
}

#[test]
fn a_bypass_lets_everything_go_is_shown_and_ends() {
    let (upstream, calls) = api();
    let mut process = Process::start(&format!("http://127.0.0.1:{upstream}"), TIGHT);
    let waiting = incident(&process);
    let on = process.command(&["bypass", "on", "--for", "1h"]);
    assert!(on.code == Some(0) && on.out.contains("everything is let through until"), "{}{}", on.out, on.err);
    for answered in waiting {
        assert!(answered.join().expect("it is answered").starts_with("HTTP/1.1 200"), "who waited goes");
    }
    assert!(get(process.gate, BAD).starts_with("HTTP/1.1 500"), "failing keys too");
    assert!((0..10).all(|_| get(process.gate, SECRETS).starts_with("HTTP/1.1 200")));
    assert!(get(process.admin, "/readyz").contains("bypass: k lets everything through"));
    let gate = process.until(|gate| gate["bypassed"] == 13);
    assert!(gate["bypass"]["until_ms"].as_u64().is_some());
    assert_eq!(gate["keys"][0]["failures"], 2, "what is remembered goes on");
    let metrics = get(process.admin, "/metrics");
    assert!(
        metrics.contains("tidegate_bypass{gate=\"k\"} 1") && metrics.contains("tidegate_bypassed_total{gate=\"k\"} 13")
    );
    assert_eq!(process.command(&["bypass", "off"]).out, "k: every limit holds\n");
    process.running.line("bypass is over");
    let before = calls.load(Ordering::Relaxed);
    assert!(get(process.gate, BAD).starts_with("HTTP/1.1 429"), "every limit holds again");
    assert_eq!(calls.load(Ordering::Relaxed), before);
    assert_eq!(process.status()["gates"][0]["bypass"], Value::Null);
    process.command(&["bypass", "on", "--for", "1s"]);
    process.running.line("every call is let through");
    process.running.line("bypass is over");
}

#[test]
fn nobody_writes_lines_of_their_own_into_the_log() {
    let (upstream, _) = api();
    let mut process = Process::start(&format!("http://127.0.0.1:{upstream}"), "");
    let name = "bad\\n2026-01-01T00:00:00.000000Z  INFO forged\\u001b[2J\\u0007";
    let body = format!("{{\"metadata\":{{\"name\":\"{name}\"}}}}");
    let head = "POST /api/v1/namespaces/n/configmaps HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n";
    let mut stream = TcpStream::connect(("127.0.0.1", process.gate)).expect("the gate listens");
    stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).expect("it is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it is answered");
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    process.running.line("key is backing off");
    let before = process.running.seen.len();
    for _ in 0..50 {
        get(process.gate, "/api/v1/namespaces/n/pods/good");
    }
    let top = process.command(&["top", "--once"]);
    assert!(top.out.contains("forged\\u{1b}[2J") && !top.out.contains('\u{1b}'), "{}", top.out);
    let said = process.running.end();
    assert!(said.iter().any(|line| line.contains("forged")));
    assert!(said.iter().all(|line| !line.starts_with("2026-01-01") && !line.contains(char::is_control)), "{said:#?}");
    let after: Vec<_> =
        said[before..].iter().filter(|line| !line.contains("stop") && !line.contains("drain")).collect();
    assert!(after.is_empty(), "no line for a call: {after:#?}");
}
