//! Conservation: driver, layers and hyper over in-memory pipes, with a seed that cuts, delays and
//! resets at any byte.
//!
//! Time is paused, so a story of minutes takes milliseconds. Clients send calls in pieces and
//! vanish at any byte; the upstream answers, fails, stalls, breaks off and closes. Afterwards, at
//! rest, every call had one end, every token that is gone was sent for, and no call holds anything.

mod client;
mod dice;
mod upstream;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::uri::Scheme;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::client::client;
use self::dice::Dice;
use super::driver::Driver;
use super::listener::Server;
use super::peer::Peer;
use super::section::Section;
use super::{Listen, Options, RetryAfter};
use crate::api::{Failures, PausePolicy, Scope, Signal};
use crate::classify::{ApiKind, CostBy, FairBy, Rule, RuleMatch, Rules, Traits};
use crate::clock::Clock;
use crate::credentials::Injector;
use crate::limit::policy::{Backoff, BucketPolicy, ClassPolicy, Combine, InFlight, Lane, QueuePolicy, Strategy};
use crate::limit::quota::QuotaKind;
use crate::limit::{ClassId, Policy};
use crate::telemetry::call_log::Entry;
use crate::telemetry::{CallLog, CallRecord};
use crate::{spec, upstream as pool};

/// More tokens than any story spends, and none gained: what is missing in the end was spent.
const TOKENS: u32 = 1000;

fn policy(seed: u64) -> Policy {
    let bucket = |rate, burst| Some(BucketPolicy::new(rate, NonZeroU32::new(burst).expect("some")));
    let backoff = Backoff {
        strategy: Strategy::Exponential { base: Duration::from_millis(100), max: Duration::from_secs(5), jitter: 0.0 },
        hold: Duration::from_millis(100),
        forget_after: Duration::from_secs(10),
    };
    let class =
        |name: &str, lane, bucket| ClassPolicy { name: name.into(), lane, bucket, backoff, ..ClassPolicy::default() };
    Policy {
        bucket: bucket(1e-6, TOKENS),
        retry_bucket: bucket(20.0, 3),
        queue: QueuePolicy {
            max_wait: Duration::from_secs(8),
            max_waiting: 12,
            max_waiting_bytes: 20_000,
            combine: if seed.is_multiple_of(2) { Combine::Sequential } else { Combine::MaxOf },
        },
        in_flight: Some(InFlight::new(NonZeroU32::new(3).expect("some"))),
        max_keys: 4,
        classes: vec![class("leases", Lane::Exempt, None), class("default", Lane::Normal, bucket(5.0, 4))],
        ..Policy::default()
    }
}

pub(super) fn options(seed: u64, address: std::net::SocketAddr, log: CallLog) -> Options {
    Options {
        gate: gate(seed),
        clients: None,
        tls: None,
        upstream: pool::Options {
            target: pool::Target {
                scheme: Scheme::HTTP,
                authority: address.to_string().parse().expect("an authority"),
                base_path: String::new(),
                server_name: None,
                proxy: None,
            },
            tls: None,
            host: pool::Host::Rewrite,
            rewrite_links: None,
            mount: String::new(),
            injector: Arc::new(Injector::pass_through()),
            own: Vec::new(),
            dns: pool::Dns::default(),
            connect_timeout: Duration::from_secs(5),
            response_timeout: Some(Duration::from_secs(20)),
        },
        call_log: Some(log),
        stores: crate::proxy::Stores::default(),
        drain: Duration::ZERO,
    }
}

fn gate(seed: u64) -> spec::Gate {
    let traits = |exempt| Traits { exempt, remembers: !exempt, strictness: 0, cost: CostBy::Number(1) };
    let rule = Rule { class: ClassId(0), matching: RuleMatch::Leases };
    let failures = Failures { statuses: vec![429, 500, 502, 503, 504], transport: true, left: true };
    spec::Gate {
        name: format!("story{seed}").into(),
        listen: vec![Listen::Unix("/never/bound".into())],
        rules: Arc::new(Rules::new(
            ApiKind::Kubernetes,
            FairBy::Resource,
            vec![traits(true), traits(false)],
            vec![rule],
        )),
        policy: policy(seed),
        answers: spec::AnswerRules {
            failures: vec![failures.clone(), failures],
            throttling: PausePolicy {
                kubernetes: true,
                honour: [Signal::RetryAfter].into_iter().collect(),
                scope: Scope::Key,
                max_pause: Duration::from_secs(60),
                reserve: 0.0,
                quota: QuotaKind::Unknown,
                pace: false,
            },
            revalidation: spec::Revalidation::default(),
        },
        candidate: None,
        figures: None,
        refusals: spec::RefusalRules { retry_after: RetryAfter::Auto, status: 429, ratelimit_on_answers: false },
        shadow: false,
        kind: ApiKind::Kubernetes,
        upstream: spec::Source::InCluster,
        hosts: None,
        identity: spec::GateIdentity {
            credentials: spec::Credentials::PassThrough,
            file: None,
            impersonation: false,
            events: false,
        },
        access: spec::ClientAccess { allowed_hosts: Vec::new(), tls: None, clients: None },
        forwarding: spec::ForwardRules {
            host: spec::Host::Rewrite,
            rewrite_links: false,
            connect_timeout: Duration::from_secs(5),
            response_timeout: Some(Duration::from_secs(20)),
            tls: spec::UpstreamTls::default(),
        },
    }
}

pub(super) fn server(options: Options, clock: Clock) -> (Server, Driver) {
    let section = Arc::new(Section::new(options, Default::default(), clock));
    let server = Server::new(&section, None, None, CancellationToken::new().drop_guard());
    let driver = server.parts.driver.clone();
    (server, driver)
}

/// A gate without calls, for tests that need one.
pub(super) fn idle_gate(clock: Clock) -> Server {
    let (log, _) = mpsc::channel(1);
    server(options(0, ([127, 0, 0, 1], 1).into(), CallLog::to(log)), clock).0
}

/// Plays one story and holds its end against the promises.
async fn story(seed: u64) {
    let clock = Clock::start();
    let dice = Dice::new(seed);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let heads = Arc::new(AtomicUsize::new(0));
    tokio::spawn(upstream::serve_all(listener, dice.child(), clock, Arc::clone(&heads)));

    let (log, mut records) = mpsc::channel(10_000);
    let (gate, driver) = server(options(seed, address, CallLog::to(log)), clock);
    let gate = Arc::new(gate);
    let stop = CancellationToken::new();
    let ticking = tokio::spawn(driver.clone().tick(stop.clone(), || ()));
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let (end, other) = tokio::io::duplex(usize::try_from(64 + dice.below(4096)).expect("small"));
            let served = tokio::spawn({
                let gate: Arc<Server> = Arc::clone(&gate);
                async move { gate.serve(Box::new(other), Peer::default(), false).await }
            });
            // Some never read what they pipelined, and would write into full pipes without end.
            (tokio::spawn(tokio::time::timeout(PATIENCE, client(end, dice.child(), clock))), served)
        })
        .collect();
    for (client, served) in clients {
        client.await.expect("no panic").ok();
        served.await.expect("no panic");
    }
    let mut seen: Vec<CallRecord> = Vec::new();
    while let Ok(Entry::Call(record)) = records.try_recv() {
        seen.push(record);
    }
    let rest = driver.look(|limiter, now| limiter.snapshot(now));
    assert_eq!((rest.waiting, rest.waiting_bytes, rest.slots.used), (0, 0, 0), "seed {seed}: somebody holds something");
    assert_eq!(driver.remembered(), 0, "seed {seed}: a waker is left");
    for record in &seen {
        assert!(record.times.sent.is_none() || record.refused.is_none(), "seed {seed}: two ends: {record:?}");
    }
    let sent = seen.iter().filter(|record| record.times.sent.is_some()).count();
    let spent = seen
        .iter()
        .filter(|record| record.times.sent.is_some() && record.class.lane != "exempt" && record.verb != "watch");
    let missing = f64::from(TOKENS) - rest.buckets[0].level;
    let spent = f64::from(u32::try_from(spent.count()).expect("few"));
    assert!((missing - spent).abs() < 0.1, "seed {seed}: {missing} tokens are gone, {spent} calls were sent for them");
    let reached = heads.load(Ordering::Relaxed);
    // A request that the upstream closed before reading, or that was cut on its way, was sent and
    // did not reach it.
    assert!(reached <= sent + replays(sent), "seed {seed}: {reached} requests reached the upstream, {sent} were sent");
    stop.cancel();
    ticking.await.expect("no panic");
}

/// Longer than any honest client's story.
const PATIENCE: Duration = Duration::from_secs(600);

/// The requests that the pool may send again by itself: at most two for each.
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
