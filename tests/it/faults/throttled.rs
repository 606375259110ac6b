//! The API answers 429 to everything for a minute of virtual time. Clients do what controllers do:
//! they wait for as long as Retry-After says, or else back off by themselves from 5 ms, doubling,
//! as controller-runtime's queue does.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Response;
use tidegate::clock::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::say;
use crate::support::{Backend, Proxy, reply, status};

const OBJECTS: usize = 40;
const MINUTE: Duration = Duration::from_secs(60);

/// Refuses everything for a minute.
async fn api(clock: Clock) -> Backend {
    let begun = clock.now();
    Backend::start(move |_| async move {
        if clock.now() - begun >= MINUTE {
            return reply(200, "ok");
        }
        let body = reply(429, "no").into_body();
        Response::builder().status(429).header("retry-after", "1").body(body).expect("valid")
    })
    .await
}

/// The status, and the value of Retry-After.
async fn ask(to: SocketAddr, target: &str) -> (u16, Option<u64>) {
    let mut stream = TcpStream::connect(to).await.expect("it listens");
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it is answered");
    let after = answer.to_ascii_lowercase().lines().find_map(|line| line.strip_prefix("retry-after: ")?.parse().ok());
    (status(&answer), after)
}

/// Tries until it succeeds; returns the time that this took.
async fn reconcile(to: SocketAddr, object: usize, clock: Clock, tries: Arc<AtomicUsize>) -> Duration {
    let (begun, mut own) = (clock.now(), Duration::from_millis(5));
    loop {
        tries.fetch_add(1, Ordering::Relaxed);
        let (status, after) = ask(to, &format!("/api/v1/namespaces/n/configmaps/c{object}")).await;
        match (status, after) {
            (200, _) => return clock.now() - begun,
            (429, Some(seconds)) => clock.sleep(Duration::from_secs(seconds)).await,
            (429, None) => {
                clock.sleep(own).await;
                own *= 2;
            }
            (other, _) => panic!("{other}"),
        }
    }
}

struct Went {
    /// Tries by clients.
    tries: usize,
    /// Arrivals at the API, by object.
    reached: HashMap<String, Vec<Duration>>,
    /// The time until the last object had succeeded.
    took: Duration,
}

async fn minute(to: SocketAddr, api: &Backend, clock: Clock) -> Went {
    let tries = Arc::new(AtomicUsize::new(0));
    let all: Vec<_> =
        (0..OBJECTS).map(|object| tokio::spawn(reconcile(to, object, clock, Arc::clone(&tries)))).collect();
    let mut took = Duration::ZERO;
    for one in all {
        took = took.max(one.await.expect("it succeeds in the end"));
    }
    let mut reached: HashMap<String, Vec<Duration>> = HashMap::new();
    for seen in api.seen() {
        reached.entry(seen.target).or_default().push(seen.at);
    }
    Went { tries: tries.load(Ordering::Relaxed), reached, took }
}

#[tokio::test(start_paused = true)]
async fn a_minute_of_429_for_everything_costs_the_api_fewer_calls_than_directly_and_everybody_succeeds() {
    let clock = Clock::start();
    let alone = api(clock).await;
    let direct = minute(alone.address, &alone, clock).await;
    let behind = api(clock).await;
    let proxy = Proxy::before(behind.address).start().await;
    let through = minute(proxy.address, &behind, clock).await;
    let calls = |went: &Went| went.reached.values().map(Vec::len).sum::<usize>();
    say(format_args!(
        "429 for a minute, {OBJECTS} objects: directly {} calls reached the API and all had succeeded after {:.0?}; through the gate {} of \
         {} tries and {:.0?}",
        calls(&direct),
        direct.took,
        calls(&through),
        through.tries,
        through.took
    ));
    assert_eq!(through.reached.len(), OBJECTS, "every object was tried");
    assert!(calls(&through) < calls(&direct), "{} calls, {} directly", calls(&through), calls(&direct));
    for (object, at) in &through.reached {
        for (number, pair) in at.windows(2).enumerate() {
            // The wait that the API asked for, and the key's own backoff of 200 ms, doubling.
            let backoff = Duration::from_millis(200) * 2_u32.pow(u32::try_from(number).expect("few"));
            let rest = backoff.max(Duration::from_secs(1));
            let rested = pair[1] - pair[0];
            assert!(rested + Duration::from_millis(2) >= rest, "{object}: try {} came after {rested:?}", number + 2);
        }
    }
    assert_eq!(proxy.metric("tidegate_keys_failing", &[]), 0.0, "all is forgotten");
    // No call waits beyond the minute for more than the longest wait that began within it.
    assert!(through.took <= 3 * MINUTE, "{:?}", through.took);
}
