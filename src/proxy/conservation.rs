//! Conservation: driver, layers and hyper over in-memory pipes, with a seed that cuts, delays and resets at any byte.
//!
//! Time is paused, so a story of minutes takes milliseconds. Clients send calls in pieces and vanish at any byte; the upstream answers, fails,
//! stalls, breaks off and closes. Whatever happens, at rest: every call had one end, every token that is gone was sent for, and nobody holds
//! anything.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::uri::Scheme;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::{Listen, Options, RetryAfter, gate::reception, listener::Reception};
use crate::{
    api::{Failures, Throttling},
    classify::{FairBy, Kind, Matching, Rule, Rules, Traits},
    clock::Clock,
    credentials::Injector,
    limit::{
        ClassId, Policy,
        policy::{Backoff, BucketPolicy, ClassPolicy, Combine, InFlight, Lane, Per, QueuePolicy, Strategy},
    },
    telemetry::{CallLog, CallRecord},
    upstream,
};

/// Numbers from a seed (splitmix64); every task of a story draws from its own.
#[derive(Clone, Debug)]
struct Dice(Arc<AtomicU64>);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seed)))
    }

    fn roll(&self) -> u64 {
        let mut z = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&self, bound: u64) -> u64 {
        self.roll() % bound.max(1)
    }

    fn one_in(&self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    fn pause(&self) -> Duration {
        match self.below(4) {
            0 | 1 => Duration::ZERO,
            2 => Duration::from_millis(self.below(50)),
            _ => Duration::from_millis(self.below(3_000)),
        }
    }

    fn child(&self) -> Self {
        Self::new(self.roll())
    }
}

/// Writes in pieces, with pauses, and sometimes not to the end. Says whether it came to the end.
async fn dribble<W: AsyncWrite + Unpin>(
    out: &mut W,
    bytes: &[u8],
    cut: Option<usize>,
    dice: &Dice,
    clock: Clock,
) -> bool {
    let mut rest = &bytes[..cut.unwrap_or(bytes.len())];
    while !rest.is_empty() {
        let some = usize::try_from(1 + dice.below(rest.len() as u64)).expect("small");
        if out.write_all(&rest[..some]).await.is_err() {
            return false;
        }
        rest = &rest[some..];
        if dice.one_in(3) {
            clock.sleep(dice.pause()).await;
        }
    }
    cut.is_none()
}

/// One client: some calls on one connection, sent one after another or at once, and given up at any moment.
async fn client(mut stream: DuplexStream, dice: Dice, clock: Clock) {
    clock.sleep(dice.pause()).await;
    let calls = 1 + dice.below(4);
    let pipelined = dice.one_in(4);
    for _ in 0..calls {
        let request = request(&dice);
        let cut = dice.one_in(4).then(|| usize::try_from(dice.below(request.len() as u64)).expect("small"));
        if !dribble(&mut stream, &request, cut, &dice, clock).await {
            clock.sleep(dice.pause()).await;
            return;
        }
        if pipelined {
            continue;
        }
        let patience = if dice.one_in(3) { dice.pause() } else { Duration::from_secs(60) };
        let answered = tokio::select! {
            answered = answer(&mut stream) => answered,
            () = clock.sleep(patience) => false,
        };
        if !answered {
            return;
        }
    }
    if pipelined {
        clock.sleep(dice.pause()).await;
    }
}

fn request(dice: &Dice) -> Vec<u8> {
    let name = dice.below(6);
    let body = "x".repeat(usize::try_from(dice.below(5_000)).expect("small"));
    let json = format!("{{\"metadata\":{{\"name\":\"n{name}\"}},\"data\":\"{body}\"}}");
    let (line, body) = match dice.below(6) {
        0 => (format!("GET /api/v1/nodes/n{name}"), None),
        1 => (format!("GET /api/v1/pods?watch=1&n={name}"), None),
        2 => (format!("PUT /api/v1/nodes/n{name}"), Some(json)),
        3 => ("POST /api/v1/namespaces/a/configmaps".to_owned(), Some(json)),
        4 => ("PUT /apis/coordination.k8s.io/v1/namespaces/a/leases/l".to_owned(), Some(json)),
        _ => (format!("DELETE /api/v1/nodes/n{name}"), None),
    };
    let framed = match body {
        None => String::new(),
        Some(body) if dice.one_in(3) => {
            format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
        }
        Some(body) => format!("Content-Length: {}\r\n\r\n{body}", body.len()),
    };
    let end = if framed.is_empty() { "\r\n" } else { "" };
    format!("{line} HTTP/1.1\r\nHost: localhost\r\n{framed}{end}").into_bytes()
}

/// Reads one answer to its end; says whether there was one.
async fn answer(stream: &mut DuplexStream) -> bool {
    let mut got = Vec::new();
    loop {
        match stream.read_buf(&mut got).await {
            Ok(0) | Err(_) => return false,
            Ok(_) if is_whole(&got) => return true,
            Ok(_) => {}
        }
    }
}

/// Whether a head and the body that it announces are there.
fn is_whole(message: &[u8]) -> bool {
    let text = String::from_utf8_lossy(message).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    if head.contains("transfer-encoding: chunked") {
        return body.ends_with("0\r\n\r\n");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.trim().parse().expect("a number"))
}

/// An upstream that does whatever the dice say. Counts the requests whose head reached it.
async fn upstream(listener: TcpListener, dice: Dice, clock: Clock, heads: Arc<AtomicUsize>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve(stream, dice.child(), clock, Arc::clone(&heads)));
    }
}

async fn serve(mut stream: TcpStream, dice: Dice, clock: Clock, heads: Arc<AtomicUsize>) {
    loop {
        let Some(()) = read_request(&mut stream, &dice, &heads).await else {
            return;
        };
        clock.sleep(dice.pause()).await;
        let (answer, cut) = match dice.below(10) {
            0 => return,
            1 => ("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nnot so much", true),
            2 => ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", true),
            3 => ("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\nno", false),
            4 => ("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", false),
            5 => {
                clock.sleep(Duration::from_secs(40)).await; // longer than the gate waits for an answer
                return;
            }
            6 => ("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", true),
            _ => ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfull\r\n0\r\n\r\n", false),
        };
        let part = dice.one_in(8).then(|| usize::try_from(dice.below(answer.len() as u64)).expect("small"));
        if !dribble(&mut stream, answer.as_bytes(), part, &dice, clock).await || cut {
            return;
        }
    }
}

/// Reads one request; or closes in the middle of it.
async fn read_request<R: AsyncRead + Unpin>(stream: &mut R, dice: &Dice, heads: &AtomicUsize) -> Option<()> {
    let mut request = Vec::new();
    let mut counted = false;
    while !is_whole(&request) {
        if stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
        if !counted && request.windows(4).any(|four| four == b"\r\n\r\n") {
            counted = true;
            heads.fetch_add(1, Ordering::Relaxed);
            if dice.one_in(12) {
                return None;
            }
        }
    }
    Some(())
}

/// More tokens than any story spends, and none gained: what is missing in the end was spent.
const TOKENS: u32 = 1000;

fn options(seed: u64, address: std::net::SocketAddr, log: CallLog) -> Options {
    let bucket = |rate, burst| {
        Some(BucketPolicy { rate, burst: NonZeroU32::new(burst).expect("some"), per: Per::Gate, starts_empty: false })
    };
    let backoff = Backoff {
        strategy: Strategy::Exponential { base: Duration::from_millis(100), max: Duration::from_secs(5), jitter: 0.0 },
        hold: Duration::from_millis(100),
        forget_after: Duration::from_secs(10),
    };
    let class = |name: &str, lane, bucket| ClassPolicy {
        name: name.into(),
        lane,
        bucket,
        within: None,
        own_bucket_only: false,
        backoff,
        in_flight: None,
        meter_long_running: false,
    };
    let traits = |exempt| Traits { exempt, remembers: !exempt, strictness: 0 };
    let rule = Rule { class: ClassId(0), matching: Matching::Leases };
    let failures = Failures { statuses: vec![429, 500, 502, 503, 504], transport: true };
    Options {
        name: format!("story{seed}").into(),
        listen: vec![Listen::Unix("/never/bound".into())],
        tls: None,
        hosts: Vec::new(),
        rules: Arc::new(Rules::new(
            Kind::Kubernetes,
            FairBy::Resource,
            false,
            vec![traits(true), traits(false)],
            vec![rule],
        )),
        policy: Policy {
            bucket: bucket(1e-6, TOKENS),
            retry_bucket: bucket(20.0, 3),
            queue: QueuePolicy {
                max_wait: Duration::from_secs(8),
                max_waiting: 12,
                max_waiting_bytes: 20_000,
                combine: if seed.is_multiple_of(2) { Combine::Sequential } else { Combine::MaxOf },
            },
            in_flight: Some(InFlight { max: NonZeroU32::new(3).expect("some"), per: Per::Gate }),
            max_keys: 4,
            one_at_a_time: seed.is_multiple_of(3),
            classes: vec![class("leases", Lane::Exempt, None), class("default", Lane::Normal, bucket(5.0, 4))],
        },
        failures: vec![failures.clone(), failures],
        throttling: Throttling { honour_retry_after: true, max_pause: Duration::from_secs(60) },
        retry_after: RetryAfter::Auto,
        upstream: upstream::Options {
            target: upstream::Target {
                scheme: Scheme::HTTP,
                authority: address.to_string().parse().expect("an authority"),
                base_path: String::new(),
                server_name: None,
            },
            tls: None,
            host: upstream::Host::Rewrite,
            injector: Arc::new(Injector::pass_through()),
            connect_timeout: Duration::from_secs(5),
            response_timeout: Some(Duration::from_secs(20)),
        },
        call_log: Some(log),
        drain: Duration::ZERO,
    }
}

/// Plays one story and holds its end against the promises.
async fn story(seed: u64) {
    let clock = Clock::start();
    let dice = Dice::new(seed);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let heads = Arc::new(AtomicUsize::new(0));
    tokio::spawn(upstream(listener, dice.child(), clock, Arc::clone(&heads)));

    let (log, mut records) = mpsc::channel(10_000);
    let (gate, driver) = reception(options(seed, address, CallLog::to(log)), clock);
    let gate = Arc::new(gate);
    let stop = CancellationToken::new();
    let ticking = tokio::spawn(driver.clone().tick(stop.clone()));
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let (end, other) = tokio::io::duplex(usize::try_from(64 + dice.below(4096)).expect("small"));
            let served = tokio::spawn({
                let gate: Arc<Reception> = Arc::clone(&gate);
                async move { gate.serve(other, None, false).await }
            });
            // Some never read what they pipelined, and would write for ever into full pipes.
            (tokio::spawn(tokio::time::timeout(PATIENCE, client(end, dice.child(), clock))), served)
        })
        .collect();
    for (client, served) in clients {
        client.await.expect("no panic").ok();
        served.await.expect("no panic");
    }
    let mut seen: Vec<CallRecord> = Vec::new();
    while let Ok(record) = records.try_recv() {
        seen.push(record);
    }
    let rest = driver.look(|limiter, now| limiter.snapshot(now));
    assert_eq!((rest.waiting, rest.waiting_bytes, rest.slots.used), (0, 0, 0), "seed {seed}: somebody holds something");
    assert_eq!(driver.remembered(), 0, "seed {seed}: a waker is left");
    for record in &seen {
        assert!(record.sent.is_none() || record.refused.is_none(), "seed {seed}: two ends: {record:?}");
    }
    let sent = seen.iter().filter(|record| record.sent.is_some()).count();
    let spent = seen.iter().filter(|record| record.sent.is_some() && record.lane != "exempt" && record.verb != "watch");
    let missing = f64::from(TOKENS) - rest.buckets[0].level;
    let spent = f64::from(u32::try_from(spent.count()).expect("few"));
    assert!((missing - spent).abs() < 0.1, "seed {seed}: {missing} tokens are gone, {spent} calls were sent for them");
    let reached = heads.load(Ordering::Relaxed);
    // A request that the upstream closed before reading, or that was cut on its way, was sent and did not reach it.
    assert!(reached <= sent + replays(sent), "seed {seed}: {reached} requests reached the upstream, {sent} were sent");
    stop.cancel();
    ticking.await.expect("no panic");
}

/// Longer than any honest client's story.
const PATIENCE: Duration = Duration::from_secs(600);

/// What the pool may send again by itself: at most twice each.
const fn replays(sent: usize) -> usize {
    2 * sent
}

#[test]
fn whatever_breaks_nothing_is_lost_and_nothing_is_kept() {
    for seed in 0..100 {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(story(seed));
    }
}
