//! Floods against a separate `tidegate` process: its memory stays below the bound stated here,
//! leases keep flowing during the flood, the metrics page does not grow with the calls, nothing
//! panics, and nothing is left afterwards.
//!
//! Every bound is on the peak of resident memory above what the process had before the flood, in a
//! build without optimization.

mod clients;
mod frames;
mod many;

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::cli::input::get;
use crate::operate::Process;
use crate::pool::support::soon;
use crate::support::{Backend, reply};

/// A gate under attack, and a leader that keeps renewing its lease through it.
struct Flooded {
    process: Process,
    backend: Backend,
    /// Lease renewals answered with 200.
    leases: Arc<AtomicUsize>,
    leader: JoinHandle<()>,
    /// Resident memory before the flood.
    before: u64,
    page: usize,
}

/// The metrics page may grow by this much: classes, verbs and reasons that were not there before.
const PAGE: usize = 64 << 10;
/// This many leases must be renewed during a flood.
const LEASES: usize = 10;

impl Flooded {
    /// `more` goes into the gate's table.
    async fn start(more: &str) -> Self {
        more_files();
        let big: &'static str = Box::leak("x".repeat(4 << 20).into_boxed_str());
        let backend = Backend::start(move |seen| async move {
            match () {
                () if seen.target.contains("/big") => reply(200, big),
                () if seen.target.contains("/bad") => reply(503, "bad"),
                () => reply(200, "ok"),
            }
        })
        .await;
        let upstream = format!("http://{}", backend.address);
        Self::before(backend, &upstream, more).await
    }

    /// A gate in front of this upstream.
    async fn before(backend: Backend, upstream: &str, more: &str) -> Self {
        let process = Process::start(upstream, more);
        let leases = Arc::new(AtomicUsize::new(0));
        let leader = tokio::spawn(lead(process.gate, Arc::clone(&leases)));
        let mut this = Self { process, backend, leases, leader, before: 0, page: 0 };
        this.leases(LEASES).await; // allocates what is allocated only once
        this.page = this.metrics().len();
        fs::write(this.proc("clear_refs"), "5").expect("the peak can be reset");
        this.before = this.memory("VmRSS");
        this
    }

    fn proc(&self, what: &str) -> String {
        format!("/proc/{}/{what}", self.process.running.id())
    }

    /// A line of the kernel's about the process, in bytes.
    fn memory(&self, what: &str) -> u64 {
        let status = fs::read_to_string(self.proc("status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(what)).expect("Linux says so");
        let kib: u64 = line.trim_matches([':', '\t', ' ']).trim_end_matches(" kB").parse().expect("a number");
        kib << 10
    }

    fn metrics(&self) -> String {
        get(self.process.admin, "/metrics")
    }

    /// The sum of a metric's series.
    fn metric(&self, name: &str) -> f64 {
        let page = self.metrics();
        let lines = page.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Returns when this many more leases are renewed.
    async fn leases(&self, more: usize) {
        let goal = self.leases.load(SeqCst) + more;
        while self.leases.load(SeqCst) < goal {
            assert!(!self.leader.is_finished(), "a lease was not renewed");
            pause().await;
        }
    }

    /// Floods in rounds: at least this many, and until leases were renewed meanwhile.
    async fn rounds(&self, at_least: usize, mut round: impl AsyncFnMut()) {
        let goal = self.leases.load(SeqCst) + LEASES;
        let mut rounds = 0;
        while rounds < at_least || self.leases.load(SeqCst) < goal {
            assert!(!self.leader.is_finished() && rounds < 10_000, "leases were not renewed meanwhile");
            soon(round()).await;
            rounds += 1;
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.process.gate)).await.expect("the gate listens")
    }

    async fn connect_http2(&self) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
        let io = hyper_util::rt::TokioIo::new(self.connect().await);
        let executor = hyper_util::rt::TokioExecutor::new();
        let (send, connection) = hyper::client::conn::http2::handshake(executor, io).await.expect("speaks h2");
        tokio::spawn(connection);
        send
    }

    /// The flood is over and its connections are closed: only the leader is left, and it cost no
    /// more than `most`.
    async fn over(self, most: u64) {
        let goal = self.leases.load(SeqCst) + LEASES;
        for (name, rest) in [
            ("tidegate_client_connections", 1.0),
            ("tidegate_waiting", 0.0),
            ("tidegate_waiting_bytes", 0.0),
            ("tidegate_slots_in_use", 0.0),
        ] {
            for _ in 0..5_000 {
                if self.metric(name) <= rest {
                    break;
                }
                pause().await;
            }
            let left = self.metric(name);
            assert!(left <= rest, "{left} are left of {name}");
        }
        while self.leases.load(SeqCst) < goal {
            assert!(!self.leader.is_finished(), "a lease was not renewed");
            pause().await;
        }
        let (peak, page) = (self.memory("VmHWM"), self.metrics().len());
        println!(
            "{} KiB more at the peak, {} KiB after; metrics page {page} bytes",
            peak.saturating_sub(self.before) >> 10,
            self.memory("VmRSS").saturating_sub(self.before) >> 10
        );
        assert!(peak < self.before + most, "{} bytes before, {peak} at the peak", self.before);
        assert!(page < self.page + PAGE, "the metrics page grew from {} to {page} bytes", self.page);
        self.leader.abort();
        let said = self.process.running.end().join("\n");
        assert!(!said.contains("panicked") && said.contains("stopped"), "{said}");
    }
}

/// Renews a lease over and over on one connection.
async fn lead(port: u16, renewed: Arc<AtomicUsize>) {
    const RENEWAL: &[u8] = b"PUT /apis/coordination.k8s.io/v1/namespaces/a/leases/l HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}";
    let mut leader = TcpStream::connect(("127.0.0.1", port)).await.expect("the gate listens");
    let mut some = [0; 4096];
    loop {
        leader.write_all(RENEWAL).await.expect("writes");
        let mut answer = String::new();
        while !answer.ends_with("ok") {
            let read = soon(leader.read(&mut some)).await.expect("an answer");
            assert!(read > 0, "{answer}");
            answer.push_str(&String::from_utf8_lossy(&some[..read]));
        }
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        renewed.fetch_add(1, SeqCst);
        pause().await;
    }
}

/// Lets other tasks run.
async fn pause() {
    drop(tokio::time::timeout(Duration::from_millis(2), std::future::pending::<()>()).await);
}

/// The size of a flood; with `TIDEGATE_FLOODS=full`, which takes minutes, as many as a determined
/// attacker would send.
fn many(usual: usize, full: usize) -> usize {
    if std::env::var_os("TIDEGATE_FLOODS").is_some_and(|floods| floods == "full") { full } else { usual }
}

/// Raises the limit of open files as far as possible, for this process and those that it starts.
pub(crate) fn more_files() {
    let of = std::process::id().to_string();
    let most = limit("Max open files", 4);
    // Without prlimit the limit stays, and there are fewer connections.
    drop(Command::new("prlimit").args(["--pid", &of, &format!("--nofile={most}:{most}")]).status());
}

/// The number of connections that one process can have, at most `wanted`. A gate takes half as many
/// as it may have descriptors.
fn connections(wanted: usize) -> usize {
    let can = limit("Max open files", 3).saturating_sub(400) / 2;
    if can < wanted {
        println!("{can} connections instead of {wanted}: no more files can be open");
    }
    wanted.min(can)
}

/// A limit of this process: column 3 is the soft, 4 the hard one.
fn limit(name: &str, column: usize) -> usize {
    let limits = fs::read_to_string("/proc/self/limits").expect("Linux says so");
    let line = limits.lines().find(|line| line.starts_with(name)).expect("a limit");
    line.split_whitespace().nth(column).and_then(|limit| limit.parse().ok()).unwrap_or(1 << 20)
}
