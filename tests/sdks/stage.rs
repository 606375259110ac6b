//! A stage for one SDK: a gate for each reason to refuse and each way to fail, and what brings it
//! about.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::gate::{Gates, Plan, until};
use crate::matrix::Sdk;
use crate::programs::{Client, Report};
use crate::relay::{Exchange, Relay};
use crate::upstream::{Mode, Upstream};

/// The reasons for which an `http` gate refuses, and the settings with which it does. `deadline` is
/// not among them: only calls to a kube-apiserver tell when their client gives up.
pub(crate) const REASONS: [(&str, &str); 10] = [
    ("bucket", "bucket = { rate = 0.25, burst = 1 }\nqueue.max_wait = \"0s\""),
    (
        "class_bucket",
        "queue.max_wait = \"0s\"\nclasses = [{ name = \"all\", match = { paths = [\"*\"] }, bucket = { rate = 0.25, burst = 1 } }]",
    ),
    ("slot", "in_flight.max = 1\nqueue.max_wait = \"0s\""),
    ("queue_full", "in_flight.max = 1\nqueue = { max_wait = \"60s\", max_waiting = 1 }"),
    ("bytes_full", "in_flight.max = 1\nqueue = { max_wait = \"60s\", max_waiting_bytes = \"1B\" }"),
    ("pause", "signals.scope = \"gate\"\nqueue.max_wait = \"0s\""),
    ("one_at_a_time", "one_at_a_time = true\nqueue.max_wait = \"0s\""),
    ("backoff", "backoff = { strategy = \"exponential\", base = \"4s\", max = \"4s\", hold = \"0s\" }"),
    (
        "trial",
        "backoff = { strategy = \"exponential\", base = \"1ms\", max = \"1ms\", hold = \"0s\", forget_after = \"1m\" }",
    ),
    (
        "retry_bucket",
        "retry_bucket = { rate = 0.25, burst = 1 }\nbackoff = { strategy = \"exponential\", base = \"1ms\", max = \"1ms\", hold = \"0s\", forget_after = \"1m\" }",
    ),
];

/// The ways in which the upstream fails a call, and the settings for them.
const FAILURES: [(&str, &str); 4] =
    [("unconnected", ""), ("opened", ""), ("lost", ""), ("timeout", "timeouts.response = \"200ms\"")];

/// The reasons for which a call is refused once the upstream has failed it.
const FAILS_FIRST: [&str; 3] = ["backoff", "trial", "retry_bucket"];

/// The gates of one SDK, their upstreams, and what stands between.
pub(crate) struct Stage {
    pub(crate) gates: Arc<Gates>,
    scenes: Vec<Scene>,
}

/// A gate for one reason or failure.
#[derive(Clone)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) upstream: Upstream,
    pub(crate) relay: Relay,
    gates: Arc<Gates>,
}

// === impl Stage ===

impl Stage {
    pub(crate) fn new(sdk: &Sdk) -> Self {
        let all: Vec<_> = REASONS.iter().chain(&FAILURES).copied().collect();
        let upstreams: Vec<Upstream> = all
            .iter()
            .map(
                |(name, _)| {
                    if matches!(*name, "unconnected" | "opened") { Upstream::closed() } else { Upstream::start() }
                },
            )
            .collect();
        let plan = |((name, settings), upstream): (&(&str, &str), &Upstream)| Plan {
            name: (*name).to_owned(),
            upstream: upstream.url(),
            settings: format!("{}{settings}\n", sdk.settings()),
        };
        let plans: Vec<Plan> = all.iter().zip(&upstreams).map(plan).collect();
        let gates = Arc::new(Gates::start(&plans));
        let scenes = all.iter().zip(upstreams).map(|((name, _), upstream)| {
            let relay = Relay::start(gates.port(name));
            Scene { name, upstream, relay, gates: Arc::clone(&gates) }
        });
        Self { scenes: scenes.collect(), gates }
    }

    pub(crate) fn scene(&self, name: &str) -> &Scene {
        self.scenes.iter().find(|scene| scene.name == name).expect("a scene for each")
    }
}

// === impl Scene ===

impl Scene {
    /// Makes one call that is refused, or fails, `times` times and then gets through; with
    /// `times = 0` it never does. Returns what became of it, and what went between.
    pub(crate) fn play(&self, client: &mut Client, call: &str, times: usize) -> (Report, Vec<Exchange>) {
        if self.name == "one_at_a_time" {
            self.relay.watch(Box::new(|_| {}));
            let report = client.call(call, &self.relay.url());
            assert!(report.ok, "{call}: {report:?}");
        }
        self.prepare();
        let scene = self.clone();
        let (mut released, mut staged) = (false, false);
        // The failure with which a key begins to fail costs an attempt, too.
        let times = if FAILS_FIRST.contains(&self.name) { times.saturating_sub(1).max(1) } else { times };
        let ended = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&ended);
        self.relay.watch(Box::new(move |exchanges| {
            let last = exchanges.last().expect("one has come");
            if over.load(Ordering::SeqCst) || last.status() < 400 {
                return;
            }
            if last.status() == 500 && !staged {
                staged = true;
                scene.failed_once(last);
            }
            let denied = exchanges.iter().filter(|exchange| exchange.status() >= 400 && exchange.status() != 500);
            if !released && denied.count() == times {
                released = true;
                scene.release();
            }
        }));
        let report = client.call(call, &self.relay.url());
        ended.store(true, Ordering::SeqCst);
        let exchanges = self.relay.watch(Box::new(|_| {}));
        self.upstream.set(Mode::Answer);
        until("all calls have ended", || self.upstream.held() == 0);
        (report, exchanges)
    }

    /// Brings about that the next call is refused or fails, or fails at first.
    fn prepare(&self) {
        self.gates.bypass(self.name, false);
        match self.name {
            "bucket" | "class_bucket" => {
                // Another call has the token when the SDK's call comes, however long that takes.
                let scene = self.clone();
                self.relay.before_the_next(move || drop(scene.raw().join()));
            }
            "slot" | "queue_full" | "bytes_full" => {
                self.upstream.set(Mode::Hold);
                self.raw();
                until("the slot is taken", || self.upstream.held() == 1);
                if self.name == "queue_full" {
                    self.raw();
                    until("one waits", || self.gates.metric("tidegate_waiting", self.name) > 0.0);
                }
            }
            "pause" => {
                let scene = self.clone();
                self.relay.before_the_next(move || {
                    scene.upstream.set(Mode::Throttle);
                    drop(scene.raw().join());
                    scene.upstream.set(Mode::Answer);
                });
            }
            "one_at_a_time" => {
                self.upstream.set(Mode::Hold);
                let before = self.relay.exchanges().pop().expect("one went before");
                self.send(before.bytes);
                until("the other write is out", || self.upstream.held() == 1);
            }
            "backoff" | "trial" | "retry_bucket" => self.upstream.set(Mode::Fail),
            "lost" => self.upstream.set(Mode::Close),
            "timeout" => self.upstream.set(Mode::Hold),
            "unconnected" | "opened" => {}
            other => panic!("no way to bring about {other:?}"),
        }
    }

    /// Goes on from the first answer of the upstream, with which the key began to fail.
    fn failed_once(&self, first: &Exchange) {
        match self.name {
            "trial" => {
                self.upstream.set(Mode::Hold);
                // Refused until the delay is over.
                until("the trial is out", || {
                    let sent = self.send(first.bytes.clone());
                    until("it has come or is refused", || sent.is_finished() || self.upstream.held() == 1);
                    self.upstream.held() == 1
                });
            }
            // Some SDKs retry at once: the delay of the second failure must be over by then.
            "retry_bucket" => until("a retry is refused for want of a token", || {
                let answer = self.send(first.bytes.clone()).join().expect("it read");
                answer.to_ascii_lowercase().contains("tidegate-refusal: retry_bucket\r\n")
            }),
            _ => {}
        }
    }

    /// Lets everything through.
    fn release(&self) {
        if self.name == "opened" {
            self.upstream.open();
            let before = self.upstream.came();
            until("the gate has dialled again", || {
                drop(self.raw().join());
                self.upstream.came() > before
            });
        }
        if REASONS.iter().any(|(name, _)| *name == self.name) {
            self.gates.bypass(self.name, true);
        }
        self.upstream.set(Mode::Answer);
    }

    /// Makes a call past the relay.
    fn raw(&self) -> thread::JoinHandle<String> {
        self.send(b"GET /raw HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec())
    }

    /// Sends a request past the relay, and returns the first bytes of its answer.
    fn send(&self, request: Vec<u8>) -> thread::JoinHandle<String> {
        let port = self.gates.port(self.name);
        thread::spawn(move || {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the gate listens");
            stream.write_all(&request).expect("the gate reads");
            let mut answer = [0; 4096];
            let length = stream.read(&mut answer).unwrap_or(0); // some scenes close it
            String::from_utf8_lossy(&answer[..length]).into_owned()
        })
    }
}
