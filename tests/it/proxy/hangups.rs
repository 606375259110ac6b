//! P6: the call of a client that leaves while it waits is never sent, and what it would have spent
//! is there for the next.
//!
//! Each test holds the only slot with a call that the upstream does not answer yet, lets a second
//! call wait, kills its client, lets a third wait, and then frees the slot. The bucket holds two
//! tokens and gains none, so the third call can only pass if the second spent nothing.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::support::{Backend, Proxy, within};

/// A gate with one slot and two tokens, and the semaphore that lets its upstream answer.
async fn narrow() -> (Backend, Proxy, Arc<Semaphore>) {
    let (backend, answers) = Backend::holding().await;
    let proxy = Proxy::before(backend.address).in_flight(1).bucket(0.000_001, 2).start().await;
    (backend, proxy, answers)
}

/// Runs the story around `leave`, which sends a call for `/second`, waits until that call is
/// queued, and leaves.
async fn story<F: AsyncFnOnce(&Proxy)>(leave: F) {
    let (backend, proxy, answers) = narrow().await;
    let proxy = Arc::new(proxy);
    let holder = spawn_get(&proxy, "/first");
    within(async {
        while backend.targets().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    leave(&proxy).await;
    proxy.reaches("tidegate_hangups_total", &[], 1.0).await;
    proxy.reaches("tidegate_in_flight", &[], 1.0).await;
    let last = spawn_get(&proxy, "/third");
    proxy.reaches("tidegate_in_flight", &[], 2.0).await;
    answers.add_permits(2);
    assert_eq!(within(holder).await.expect("no panic"), 200);
    assert_eq!(within(last).await.expect("no panic"), 200);
    assert_eq!(backend.targets(), ["/first", "/third"]);
}

fn spawn_get(proxy: &Arc<Proxy>, target: &'static str) -> tokio::task::JoinHandle<u16> {
    let proxy = Arc::clone(proxy);
    tokio::spawn(async move { proxy.get(target).await.0 })
}

/// Sends bytes, and returns when their call waits.
async fn waiting(proxy: &Proxy, bytes: &[u8]) -> TcpStream {
    let mut client = proxy.connect().await;
    client.write_all(bytes).await.expect("writes");
    proxy.reaches("tidegate_in_flight", &[], 2.0).await;
    client
}

#[tokio::test]
async fn a_get_whose_client_closes_is_never_sent() {
    story(async |proxy| drop(waiting(proxy, b"GET /second HTTP/1.1\r\nHost: localhost\r\n\r\n").await)).await;
}

#[tokio::test]
async fn a_get_whose_client_half_closes_is_never_sent() {
    story(async |proxy| {
        let mut client = waiting(proxy, b"GET /second HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        client.shutdown().await.expect("closes");
        proxy.reaches("tidegate_hangups_total", &[], 1.0).await;
    })
    .await;
}

#[tokio::test]
async fn a_get_whose_client_resets_is_never_sent() {
    story(async |proxy| {
        let client = waiting(proxy, b"GET /second HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        socket2::SockRef::from(&client).set_linger(Some(std::time::Duration::ZERO)).expect("a socket");
    })
    .await;
}

#[tokio::test]
async fn a_post_with_a_body_partly_sent_is_never_sent() {
    for size in [100_usize, 64 << 10, 2 << 20] {
        story(async |proxy| {
            let mut bytes = b"POST /second HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n\r\n".to_vec();
            bytes.resize(bytes.len() + size, b'x');
            drop(waiting(proxy, &bytes).await);
        })
        .await;
    }
}

#[tokio::test]
async fn a_chunked_post_partly_sent_is_never_sent() {
    story(async |proxy| {
        let head = b"POST /second HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
        drop(waiting(proxy, head).await);
    })
    .await;
}

#[tokio::test]
async fn pipelined_calls_whose_client_closes_are_never_sent() {
    story(async |proxy| {
        let one = "GET /second HTTP/1.1\r\nHost: localhost\r\n\r\n";
        drop(waiting(proxy, one.repeat(20).as_bytes()).await);
    })
    .await;
}

#[tokio::test]
async fn an_http2_call_that_is_reset_is_never_sent() {
    story(async |proxy| {
        let mut client = proxy.connect_http2().await;
        let request = Request::get("http://localhost/second").body(Full::<Bytes>::default()).expect("valid");
        let call = tokio::spawn(async move { client.send_request(request).await });
        proxy.reaches("tidegate_in_flight", &[], 2.0).await;
        call.abort();
    })
    .await;
}

#[tokio::test]
async fn an_http2_connection_that_closes_takes_its_calls_along() {
    story(async |proxy| {
        // hyper's client keeps the connection in its own task, so the test cuts a cable in between.
        let (end, mut other) = tokio::io::duplex(1 << 16);
        let mut stream = proxy.connect().await;
        let cable = tokio::spawn(async move { tokio::io::copy_bidirectional(&mut other, &mut stream).await });
        let (end, executor) = (hyper_util::rt::TokioIo::new(end), hyper_util::rt::TokioExecutor::new());
        let (mut client, connection) = hyper::client::conn::http2::handshake(executor, end).await.expect("speaks h2");
        tokio::spawn(connection);
        let request = Request::post("http://localhost/second").body(Full::<Bytes>::from("body")).expect("valid");
        let call = tokio::spawn(async move { client.send_request(request).await.map(|_| ()) });
        proxy.reaches("tidegate_in_flight", &[], 2.0).await;
        cable.abort();
        within(call).await.expect("no panic").expect_err("the connection is gone");
    })
    .await;
}

#[tokio::test]
async fn a_body_sent_while_its_call_waits_arrives_whole() {
    let (backend, proxy, answers) = narrow().await;
    let proxy = Arc::new(proxy);
    let holder = spawn_get(&proxy, "/first");
    within(async {
        while backend.targets().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut client = proxy.connect_http2().await;
    let body: Bytes = (0..4_000_000_u32).map(|place| place.to_le_bytes()[0]).collect();
    let request = Request::put("http://localhost/second").body(Full::new(body.clone())).expect("valid");
    let call = tokio::spawn(async move {
        let response = client.send_request(request).await.expect("answered");
        let timing = response.headers().get("server-timing").cloned();
        response.into_body().collect().await.expect("whole");
        timing
    });
    proxy.reaches("tidegate_in_flight", &[], 2.0).await;
    answers.add_permits(2);
    within(holder).await.expect("no panic");
    let timing = within(call).await.expect("no panic").expect("it was held");
    assert!(timing.to_str().expect("text").ends_with(";desc=\"slot\""), "{timing:?}");
    assert!(backend.seen()[1].body == body, "{} bytes", backend.seen()[1].body.len());
}

/// Answers with a head and then nothing, and reports when its client is gone.
async fn silent() -> (std::net::SocketAddr, tokio::sync::mpsc::UnboundedReceiver<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (gone, told) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let gone = gone.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {}
                stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await.ok();
                stream.read_to_end(&mut head).await.ok();
                gone.send(()).ok();
            });
        }
    });
    (address, told)
}

#[tokio::test]
async fn a_client_that_leaves_a_silent_watch_ends_it_upstream() {
    let (address, mut gone) = silent().await;
    let proxy = Proxy::before(address).start().await;
    for pipelined in [1, 5] {
        let mut client = proxy.connect().await;
        let request = "GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(pipelined);
        client.write_all(request.as_bytes()).await.expect("writes");
        let mut head = Vec::new();
        within(async {
            while !head.ends_with(b"\r\n\r\n") {
                assert!(client.read_buf(&mut head).await.expect("reads") > 0);
            }
        })
        .await;
        drop(client);
        within(gone.recv()).await.expect("told");
    }

    let mut client = proxy.connect_http2().await;
    let request = Request::get("http://localhost/api/v1/pods?watch=1").body(Full::<Bytes>::default()).expect("valid");
    let response = within(client.send_request(request)).await.expect("a head");
    drop(response);
    within(gone.recv()).await.expect("told");
    proxy.reaches("tidegate_in_flight", &[], 0.0).await;
}

#[tokio::test]
async fn a_client_that_leaves_before_the_head_ends_its_call_upstream() {
    let (address, mut gone) = raw_silent().await;
    let proxy = Proxy::before(address).start().await;
    for request in [
        "GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(3),
        "GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
    ] {
        let mut client = proxy.connect().await;
        client.write_all(request.as_bytes()).await.expect("writes");
        within(gone.recv()).await.expect("it arrived");
        drop(client);
        within(gone.recv()).await.expect("it is gone");
    }
    assert_eq!(proxy.metric("tidegate_keys_failing", &[]), 0.0, "less than a second upstream means nothing");
}

/// Never answers; reports when a request has come and when its connection is gone.
async fn raw_silent() -> (std::net::SocketAddr, tokio::sync::mpsc::UnboundedReceiver<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (news, told) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let news = news.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {}
                news.send(()).ok();
                stream.read_to_end(&mut head).await.ok();
                news.send(()).ok();
            });
        }
    });
    (address, told)
}

/// There is more than the gate reads ahead, so it asks the kernel whether the client is still
/// there.
#[tokio::test]
async fn a_client_that_leaves_behind_more_pipelined_calls_than_are_read_ahead_is_never_sent_for() {
    let one = "GET /second HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let bytes = one.repeat((90 << 10) / one.len());
    story(async |proxy| drop(waiting(proxy, bytes.as_bytes()).await)).await;
    story(async |proxy| {
        let mut client = waiting(proxy, bytes.as_bytes()).await;
        client.shutdown().await.expect("closes");
        proxy.reaches("tidegate_hangups_total", &[], 1.0).await;
    })
    .await;
    story(async |proxy| {
        let client = waiting(proxy, bytes.as_bytes()).await;
        socket2::SockRef::from(&client).set_linger(Some(std::time::Duration::ZERO)).expect("a socket");
    })
    .await;
}

#[tokio::test]
async fn a_client_with_more_pipelined_calls_than_are_read_ahead_is_answered_while_it_is_there() {
    let (backend, proxy, answers) = narrow().await;
    let one = "GET /second HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut client = proxy.connect().await;
    client.write_all(one.repeat((90 << 10) / one.len()).as_bytes()).await.expect("writes");
    proxy.reaches("tidegate_in_flight", &[], 1.0).await;
    answers.add_permits(1);
    let mut answer = [0; 15];
    within(client.read_exact(&mut answer)).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    proxy.reaches("tidegate_hangups_total", &[], 0.0).await;
    assert_eq!(backend.targets()[0], "/second");
}
