//! A thousand reloads under load: no call is dropped or fails, the order is kept, and the rate
//! holds across all of them (P11, P5, P1).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate::clock::Clock;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::command::{config, start, with_config};
use crate::ports::free_port;
use crate::support::{Backend, reply};

const RELOADS: usize = 1000;
/// Tokens that a window may have beyond the rate under any of the configurations: the largest
/// burst, and 2 ms of the largest rate.
const BURST: f64 = 21.0;
const KINDS: [&str; 3] = ["pods", "secrets", "configmaps"];
/// Calls of each kind that are out at the same time.
const OUT: usize = 8;

/// The n-th configuration, its rate if it is valid, and the line that the log will have about it.
fn nth(n: usize, port: u16, upstream: SocketAddr) -> (String, Option<f64>, &'static str) {
    let rate = [150.0, 400.0, 250.0][n % 3];
    let listen = if n % 10 == 7 { free_port() } else { port };
    let mut text = format!(
        "[admin]\nlisten = \"off\"\n[gates.k]\nupstream = \"http://{upstream}\"\nlisten = \"127.0.0.1:{listen}\"\n\
         in_flight = {{ max = 1 }}\nbucket = {{ rate = {rate}, burst = {} }}\nqueue = {{ max_wait = \"{}s\" }}\n",
        [20, 10][n % 2],
        60 + n % 5,
    );
    // More classes, so that the numbers of those in use change.
    for class in 0..n % 4 {
        text.push_str(&format!(
            "[[gates.k.classes]]\nname = \"other_{class}_{}\"\nmatch = {{ resources = [\"things\"] }}\n",
            n % 7
        ));
    }
    match n % 10 {
        3 => (format!("{text}nonsense = 1\n"), None, "stays in force"),
        5 => (text.replace("rate = ", "rate = = "), None, "stays in force"),
        7 => (text, None, "needs a restart"),
        _ => (text, Some(rate), "the new configuration is in force"),
    }
}

fn put(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).expect("it can be written");
    std::fs::rename(&beside, path).expect("it can be renamed");
}

#[test]
fn a_thousand_reloads_drop_no_call_lose_no_order_and_hold_the_rate() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let began = Clock::start();
    let arrivals = Arc::new(Mutex::new(Vec::<(f64, String)>::new()));
    let seen = Arc::clone(&arrivals);
    let backend = runtime.block_on(Backend::start(move |call| {
        seen.lock().expect("no panic").push((began.now().since_start().as_secs_f64(), call.target));
        async { reply(200, "ok") }
    }));
    let port = free_port();
    let (_folder, path) = config(&nth(0, port, backend.address).0);
    let mut gate = start(with_config("run", &path));
    gate.ready();
    let over = Arc::new(AtomicBool::new(false));
    let load = runtime.spawn(load(port, Arc::clone(&over)));

    // For each moment, the highest rate that may have been in force from then on.
    let mut rates = vec![(0.0, nth(0, port, backend.address).1.expect("valid"))];
    for n in 1..=RELOADS {
        let (text, rate, said) = nth(n, port, backend.address);
        put(&path, &text);
        if let Some(rate) = rate {
            let before = rates.last().expect("there is one").1;
            rates.push((began.now().since_start().as_secs_f64(), before.max(rate)));
        }
        gate.signal("-HUP");
        gate.line(said);
        if let Some(rate) = rate {
            rates.push((began.now().since_start().as_secs_f64(), rate));
        }
    }
    over.store(true, Ordering::Relaxed);
    let answered = runtime.block_on(load).expect("every call is answered with 200");
    let arrivals = arrivals.lock().expect("no panic").clone();
    assert!(answered > RELOADS, "the load was one: {answered}");
    judge_order(&arrivals);
    assert_eq!(arrivals.len(), answered, "each call was sent once");
    judge_rate(&arrivals, &rates);
    let reloads = gate.seen.iter().filter(|line| line.contains("is in force")).count();
    assert_eq!(reloads, RELOADS / 10 * 7);
    assert_eq!(gate.terminate(), Some(0));
}

/// Keeps calls of every kind waiting, in order, on one connection; returns the number of answers,
/// all of them 200.
async fn load(port: u16, over: Arc<AtomicBool>) -> usize {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the gate listens");
    let (send, connection) =
        hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("it speaks h2");
    tokio::spawn(connection);
    let mut kinds = JoinSet::new();
    for kind in KINDS {
        let (mut send, over) = (send.clone(), Arc::clone(&over));
        kinds.spawn(async move {
            let places = Arc::new(Semaphore::new(OUT));
            let mut calls = JoinSet::new();
            while !over.load(Ordering::Relaxed) {
                let place = Arc::clone(&places).acquire_owned().await.expect("it is open");
                let uri = format!("http://localhost:{port}/api/v1/namespaces/n/{kind}/{}", calls.len());
                let answer = send.send_request(Request::get(uri).body(Full::default()).expect("valid"));
                calls.spawn(async move {
                    let answer = answer.await.expect("it is answered");
                    assert_eq!(answer.status(), 200);
                    answer.into_body().collect().await.expect("to its end");
                    drop(place);
                });
            }
            calls.join_all().await.len()
        });
    }
    kinds.join_all().await.into_iter().sum()
}

/// Calls of one flow left in the order in which they came.
fn judge_order(arrivals: &[(f64, String)]) {
    let mut next: HashMap<&str, usize> = HashMap::new();
    for (_, target) in arrivals {
        let (kind, number) = target.rsplit_once('/').expect("a path");
        let expected = next.entry(kind).or_default();
        assert_eq!(number.parse(), Ok(*expected), "{kind}");
        *expected += 1;
    }
    assert_eq!(next.len(), KINDS.len());
}

/// No window has more calls than the burst and what was gained in it. One call is upstream at a
/// time, so a call left after the one before it had arrived there: that is where the window begins.
fn judge_rate(arrivals: &[(f64, String)], rates: &[(f64, f64)]) {
    let (mut gained, mut at, mut rate, mut changes) = (0.0, 0.0, 0.0, rates.iter().peekable());
    let mut least = f64::INFINITY;
    let mut before = None;
    for (n, (time, _)) in (0_u32..).zip(arrivals) {
        while let Some((from, next)) = changes.next_if(|(from, _)| from <= time) {
            gained += rate * (from - at);
            (at, rate) = (*from, *next);
        }
        let now = gained + rate * (time - at);
        if let Some(before) = before.replace(now) {
            least = least.min(f64::from(n) - before);
            let window = f64::from(n) + 1.0 - now - least;
            assert!(window <= BURST, "{window} calls beyond the rate at {time}");
        }
    }
}
