//! Go's net/http reads every request that the guard lets in as the gate does: a corpus of requests,
//! good, bad and odd, and 100,000 mutations of them go through a gate, and a Go program gets both
//! sides of it (`tests/golden/requests`). Needs Go.
//!
//! Time is paused in each gate's runtime, so that the end of an answer is known at once.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tidegate::proxy::Gate;
use tidegate::upstream::Host;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::net::{TcpListener, TcpStream};

use super::corpus::{CORPUS, Mutations};
use crate::live::{self, or_skip};
use crate::support::Proxy;

/// The number of mutations of the corpus.
const MUTATIONS: usize = 100_000;
const SEED: u64 = 7;

/// The bytes that a client sent, and those that the gate sent on.
type Pair = (Vec<u8>, Vec<u8>);

/// A gate in this thread's runtime, and the bytes that reach its upstream.
struct Bench {
    proxy: Proxy,
    reached: Arc<Mutex<Vec<u8>>>,
}

impl Bench {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let upstream = listener.local_addr().expect("bound");
        let reached = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&reached);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(tap(socket, Arc::clone(&kept)));
            }
        });
        let proxy = Proxy::before(upstream).with(|options| options.upstream.host = Host::Preserve).start().await;
        Self { proxy, reached }
    }

    /// Returns what the gate sends on for these bytes.
    async fn through(&self, bytes: &[u8]) -> Vec<u8> {
        exchange(&self.proxy.gate, bytes).await;
        // the bytes of a call that was given up
        drop(tokio::time::timeout(Duration::from_millis(1), std::future::pending::<()>()).await);
        std::mem::take(&mut self.reached.lock().expect("no panic"))
    }
}

async fn exchange(gate: &Gate, bytes: &[u8]) {
    let (mut client, server) = duplex(1 << 18);
    let talk = async {
        client.write_all(bytes).await.expect("room for all of it");
        let mut answers = Vec::new();
        drop(tokio::time::timeout(Duration::from_millis(10), client.read_to_end(&mut answers)).await);
        drop(client);
    };
    tokio::join!(gate.serve(server), talk);
}

/// An upstream that keeps every byte and answers every request.
async fn tap(mut socket: TcpStream, reached: Arc<Mutex<Vec<u8>>>) {
    let mut some = Vec::new();
    loop {
        let before = some.len();
        if !matches!(socket.read_buf(&mut some).await, Ok(read) if read > 0) {
            return;
        }
        reached.lock().expect("no panic").extend_from_slice(&some[before..]);
        while let Some(end) = whole(&some) {
            some.drain(..end);
            if socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.is_err() {
                return;
            }
        }
    }
}

/// The end of the first request, if all of it is there. The gate's requests are well formed.
fn whole(bytes: &[u8]) -> Option<usize> {
    let find = |from: usize, what: &[u8]| {
        bytes.get(from..)?.windows(what.len()).position(|some| some == what).map(|at| from + at)
    };
    let mut at = find(0, b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..at]).to_ascii_lowercase();
    if head.contains("\r\ntransfer-encoding: chunked\r\n") {
        loop {
            let line = find(at, b"\r\n")?;
            let size = usize::from_str_radix(str::from_utf8(&bytes[at..line]).ok()?, 16).ok()?;
            at = line + 2 + size;
            if size == 0 {
                // trailers, and an empty line
                let end = if bytes.get(at..at + 2)? == b"\r\n" { at } else { find(at, b"\r\n\r\n")? + 2 };
                return Some(end + 2);
            }
            at += 2;
        }
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    let end = at + length.unwrap_or(0);
    (bytes.len() >= end).then_some(end)
}

/// Sends each of them through a gate, and returns it with what the gate sent on.
fn pairs(sent: Vec<Vec<u8>>) -> Vec<Pair> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let bench = Bench::start().await;
        let mut pairs = Vec::with_capacity(sent.len());
        for bytes in sent {
            let reached = bench.through(&bytes).await;
            pairs.push((bytes, reached));
        }
        pairs
    })
}

/// Go's verdict on each pair.
fn compared(program: &Path, pairs: &[Pair]) -> Vec<String> {
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it was built");
    let mut stdin = child.stdin.take().expect("piped");
    let output = thread::scope(|scope| {
        scope.spawn(move || {
            for bytes in pairs.iter().flat_map(|(sent, reached)| [sent, reached]) {
                let length = u32::try_from(bytes.len()).expect("short").to_be_bytes();
                stdin.write_all(&length).and_then(|()| stdin.write_all(bytes)).expect("it reads");
            }
        });
        child.wait_with_output().expect("it ends")
    });
    let lines: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), pairs.len(), "a line for each pair");
    lines
}

/// Builds the Go program, or says why it cannot be built.
fn program(folder: &Path) -> Result<PathBuf, String> {
    let program = folder.join("requests");
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg("./requests").current_dir(source);
    match build.output() {
        Ok(built) if built.status.success() => Ok(program),
        Ok(built) => Err(format!("tests/golden/requests cannot be built: {}", String::from_utf8_lossy(&built.stderr))),
        Err(error) => Err(format!("go cannot be run: {error}")),
    }
}

#[test]
fn what_the_guard_lets_in_go_reads_as_the_gate_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = live::required().and_then(|()| program(folder.path()));
    let Some(program) = or_skip("Go's net/http", program) else { return };
    let mut sent: Vec<Vec<u8>> = CORPUS.iter().map(|text| text.as_bytes().to_vec()).collect();
    sent.extend(Mutations::new(SEED).take(MUTATIONS));
    let half = sent.split_off(sent.len() / 2);
    let pairs: Vec<Pair> = thread::scope(|scope| {
        let other = scope.spawn(|| pairs(half));
        let mut all = pairs(sent);
        all.extend(other.join().expect("no panic"));
        all
    });
    let said = compared(&program, &pairs);

    // A byte that the kernel delivered late would count for the next pair: each pair that differs
    // is tried again, alone.
    let suspects = || pairs.iter().zip(&said).filter(|(_, said)| said.starts_with("differs"));
    let again: Vec<_> = suspects().take(200).flat_map(|(pair, _)| self::pairs(vec![pair.0.clone()])).collect();
    let wrong: Vec<_> = compared(&program, &again)
        .into_iter()
        .zip(&again)
        .filter(|(said, _)| said.starts_with("differs"))
        .map(|(said, (sent, reached))| {
            format!("{said}\n    {:?}\n => {:?}", String::from_utf8_lossy(sent), String::from_utf8_lossy(reached))
        })
        .collect();
    let shown = wrong[..wrong.len().min(20)].join("\n");
    assert!(wrong.is_empty(), "{} of {} differ:\n{shown}", wrong.len(), pairs.len());

    let count = |start: &str| said.iter().filter(|said| said.starts_with(start)).count();
    let (none, refused) = (count("same 0"), count("refused"));
    let went_on = pairs.len() - none - refused;
    println!(
        "{} streams: of {went_on} requests went on, of {refused} one that Go refuses as a server too",
        pairs.len()
    );
    let reasons: std::collections::BTreeMap<&str, usize> = said
        .iter()
        .filter_map(|said| said.strip_prefix("refused ")?.split_once(' '))
        .fold(std::collections::BTreeMap::new(), |mut counts, (_, why)| {
            *counts.entry(why.split(['"', ':']).next().unwrap_or_default()).or_default() += 1;
            counts
        });
    println!("{reasons:?}");
    assert!(went_on > pairs.len() / 10, "too few pass to say much: {went_on} of {}", pairs.len());
}
