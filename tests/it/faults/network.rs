//! The network swallows everything: no answer, no reset, no end. In its own network namespace, the
//! test takes away the upstream's address under open connections, and what is sent to it goes into
//! a cable with nothing at the other end.
//!
//! Time is tokio's and paused while nothing happens, so the minutes without an answer take none.
//! The direct connection beside each has the times of a Go client: a ping after 30 s of silence,
//! and 15 s for its answer.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::Request;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate::clock::Clock;
use tidegate::moment::Moment;
use tidegate::tls::{self, Roots};
use tokio::net::{TcpListener, TcpStream};

use super::{is_alone, must, say};
use crate::pool::support::{Answer, Server, answer};
use crate::support::{Proxy, within};

const UPSTREAM: &str = "10.77.0.1";

/// Makes a network whose only way out ends in nothing.
fn make_network() {
    must("ip", &["link", "set", "lo", "up"]);
    must("ip", &["link", "add", "out", "type", "veth", "peer", "name", "nowhere"]);
    for (end, address) in [("out", "10.77.1.1/24"), ("nowhere", "10.77.2.1/24")] {
        must("ip", &["address", "add", address, "dev", end]);
        must("ip", &["link", "set", end, "up"]);
    }
    // An address that is not here is behind the cable, and the other end of the cable passes
    // nothing on.
    must("ip", &["neighbour", "add", "10.77.1.2", "lladdr", "02:00:00:00:00:01", "dev", "out"]);
    must("ip", &["route", "add", "default", "via", "10.77.1.2", "dev", "out"]);
    plug_in();
}

fn plug_in() {
    must("ip", &["address", "add", &format!("{UPSTREAM}/32"), "dev", "lo"]);
}

fn pull_out() {
    must("ip", &["address", "del", &format!("{UPSTREAM}/32"), "dev", "lo"]);
}

/// A server that answers calls at once, and never answers a watch.
async fn server() -> Server {
    Server::http2_on(TcpListener::bind((UPSTREAM, 0)).await.expect("plugged in"), 100, |request, _| {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch"));
        async move { if is_watch { silent() } else { answer("ok") } }.boxed()
    })
}

fn silent() -> Answer {
    Answer::new(StreamBody::new(futures_util::stream::pending::<Result<_, std::io::Error>>()).boxed_unsync())
}

/// An HTTP/2 connection straight to the server, with the times of a Go client.
async fn direct(server: &Server) -> http2::SendRequest<Full<Bytes>> {
    let config = tls::client(&Roots::Unverified, None).expect("TLS");
    let socket = TcpStream::connect(server.address).await.expect("plugged in");
    let name = rustls::pki_types::ServerName::try_from(UPSTREAM).expect("an address");
    let stream = tokio_rustls::TlsConnector::from(config).connect(name, socket).await.expect("TLS");
    let (send, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(15))
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
        .await
        .expect("h2");
    tokio::spawn(connection);
    send
}

async fn proxy(server: &Server) -> Proxy {
    Proxy::before(server.address)
        .with(|options| {
            options.upstream.target.scheme = http::uri::Scheme::HTTPS;
            options.upstream.tls = Some(std::sync::Arc::new(tls::Client::new(Roots::Unverified, None).expect("TLS")));
        })
        .start()
        .await
}

fn request(target: &str) -> Request<Full<Bytes>> {
    Request::get(format!("http://localhost{target}")).body(Full::default()).expect("valid")
}

/// The moments at which a client learns that the other side is gone: with a call that gets no
/// answer, and with a watch.
struct Learned {
    call: Duration,
    watch: Duration,
    /// The call's status, or nothing if the connection broke.
    status: Option<u16>,
}

/// Opens a watch, has the cable pulled, and sends a call.
async fn swallowed(send: &mut http2::SendRequest<Full<Bytes>>, pull: impl FnOnce(), clock: Clock) -> Learned {
    assert_eq!(within(send.send_request(request("/api/v1/nodes/n"))).await.expect("an answer").status(), 200);
    let watch = within(send.send_request(request("/api/v1/pods?watch=1"))).await.expect("a head");
    pull();
    let pulled = clock.now();
    let call = send.send_request(request("/api/v1/nodes/n"));
    tokio::time::pause();
    let since = |moment: Moment| moment - pulled;
    let call = async {
        let status = call.await.ok().map(|answer| answer.status().as_u16());
        (since(clock.now()), status)
    };
    let watch = async {
        drop(watch.into_body().collect().await);
        since(clock.now())
    };
    let ((call, status), watch) = tokio::join!(call, watch);
    tokio::time::resume();
    Learned { call, watch, status }
}

#[tokio::test]
async fn an_upstream_that_is_swallowed_by_the_network_is_noticed_as_soon_as_directly_and_found_again() {
    let test =
        "faults::network::an_upstream_that_is_swallowed_by_the_network_is_noticed_as_soon_as_directly_and_found_again";
    if !is_alone(test, &["--net"]) {
        return;
    }
    make_network();
    let clock = Clock::start();
    let control_server = server().await;
    let control = swallowed(&mut direct(&control_server).await, pull_out, clock).await;
    plug_in();

    let server = server().await;
    let proxy = proxy(&server).await;
    let through = swallowed(&mut proxy.connect_http2().await, pull_out, clock).await;
    // A call while the upstream cannot be reached gets its answer after the connect timeout, and
    // nothing waits forever.
    tokio::time::pause();
    let begun = clock.now();
    let (status, said) = proxy.get("/api/v1/nodes/dialled").await;
    let refused = clock.now() - begun;
    tokio::time::resume();
    assert_eq!(status, 502, "{said}");
    assert!(said.contains("cannot be reached"), "{said}");
    plug_in();
    let back = within(async {
        let mut tries = 1;
        while proxy.get("/api/v1/nodes/afterwards").await.0 != 200 {
            tries += 1;
        }
        tries
    })
    .await;
    say(format_args!(
        "black hole: directly the call is lost after {:.1?} and the watch after {:.1?}; through the gate after {:.1?} ({:?}) and {:.1?}; \
         a call that has to dial meanwhile is told after {refused:.1?}; plugged in again, call {back} was answered",
        control.call, control.watch, through.call, through.status, through.watch
    ));
    assert_eq!(through.status, Some(502), "the client is told, by a Status");
    let slack = Duration::from_secs(1);
    assert!(through.call <= control.call + slack, "{:?}, directly {:?}", through.call, control.call);
    assert!(through.watch <= control.watch + slack, "{:?}, directly {:?}", through.watch, control.watch);
    assert!(refused <= Duration::from_secs(5) + slack, "{refused:?}");
    assert_eq!(proxy.metric("tidegate_slots_in_use", &[]), 0.0);
}

/// The peer's machine disappears without a word and another takes its place: the gate must not put
/// a call on a connection that only seems to be open.
#[tokio::test]
async fn a_half_open_connection_costs_one_ping_and_no_call_that_comes_after_it() {
    let test = "faults::network::a_half_open_connection_costs_one_ping_and_no_call_that_comes_after_it";
    if !is_alone(test, &["--net"]) {
        return;
    }
    make_network();
    let clock = Clock::start();
    let first = server().await;
    let address = first.address;
    let proxy = proxy(&first).await;
    assert_eq!(proxy.get("/api/v1/nodes/n").await.0, 200);
    pull_out();
    // Its sockets close, and nothing of that reaches the gate.
    drop(first);
    tokio::time::pause();
    clock.sleep(Duration::from_secs(46)).await;
    tokio::time::resume();
    proxy.reaches("tidegate_upstream_connections", &[], 0.0).await;
    plug_in();
    let socket = TcpListener::bind(address).await.expect("the port is free again");
    let second = Server::http2_on(socket, 100, |_, _| async { answer("ok") }.boxed());
    let (status, said) = within(proxy.get("/api/v1/nodes/n")).await;
    assert_eq!(status, 200, "{said}");
    say("half-open: noticed by the ping within 45 s while idle; the next call was answered at the first try");
    drop(second);
}
