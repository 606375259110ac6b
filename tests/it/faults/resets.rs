//! A connection is reset in the middle of a body, in either direction: the other side sees it as
//! incomplete, as it would without the gate.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::say;
use crate::support::{Proxy, within};

/// A body cut in its middle, with its framing.
const FRAMINGS: [(&str, &str, &str); 2] = [
    ("length", "Content-Length: 100", "half of a list, and then no more"),
    ("chunked", "Transfer-Encoding: chunked", "20\r\nhalf of a list, and then no more\r\n"),
];

fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a socket");
    drop(stream);
}

/// Reads until these bytes have come.
async fn until(stream: &mut TcpStream, read: &mut Vec<u8>, wanted: &str) {
    within(async {
        while !String::from_utf8_lossy(read).contains(wanted) {
            assert!(stream.read_buf(read).await.expect("not reset yet") > 0, "{}", String::from_utf8_lossy(read));
        }
    })
    .await;
}

/// An API that sends half an answer and resets.
async fn breaking_off(framing: &'static str, half: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            until(&mut stream, &mut Vec::new(), "\r\n\r\n").await;
            let answer = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n{half}");
            stream.write_all(answer.as_bytes()).await.expect("it is read");
            // Bytes on their way arrive before the reset.
            until(&mut stream, &mut Vec::new(), "go on").await;
            reset(stream);
        }
    });
    address
}

/// True if a client could take an answer that is reset for a whole one.
async fn sees_a_whole_answer(to: SocketAddr) -> bool {
    let mut client = TcpStream::connect(to).await.expect("it listens");
    let ask = "POST /api/v1/pods HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n";
    client.write_all(ask.as_bytes()).await.expect("it is read");
    let mut answer = Vec::new();
    until(&mut client, &mut answer, "no more").await;
    client.write_all(b"go on").await.expect("it is read");
    // An end or a reset: neither is the end of a body here.
    within(client.read_to_end(&mut answer)).await.ok();
    is_whole(&String::from_utf8_lossy(&answer))
}

/// True if an API could take a request whose client resets for a whole one.
async fn gets_a_whole_request(framing: &str, half: &str, through: bool) -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (halfway, mut told) = mpsc::channel(1);
    let api = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("somebody comes");
        let mut request = Vec::new();
        until(&mut stream, &mut request, "no more").await;
        halfway.send(()).await.expect("somebody waits");
        within(stream.read_to_end(&mut request)).await.ok();
        is_whole(&String::from_utf8_lossy(&request))
    });
    let proxy = Proxy::before(address).start().await;
    let to = if through { proxy.address } else { address };
    let mut client = TcpStream::connect(to).await.expect("it listens");
    let head = format!("PUT /api/v1/namespaces/n/configmaps/c HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n{half}");
    client.write_all(head.as_bytes()).await.expect("it is read");
    within(told.recv()).await.expect("half of it arrives");
    reset(client);
    within(api).await.expect("no panic")
}

fn is_whole(message: &str) -> bool {
    let (head, body) = message.split_once("\r\n\r\n").expect("a head");
    if head.to_ascii_lowercase().contains("chunked") { body.ends_with("0\r\n\r\n") } else { body.len() >= 100 }
}

#[tokio::test]
async fn a_reset_in_the_middle_of_a_body_leaves_it_as_incomplete_as_directly() {
    for (name, framing, half) in FRAMINGS {
        let api = breaking_off(framing, half).await;
        let proxy = Proxy::before(api).start().await;
        let answers = (sees_a_whole_answer(api).await, sees_a_whole_answer(proxy.address).await);
        assert_eq!(answers, (false, false), "{name}: an answer cut short, directly and through the gate");
        let requests =
            (gets_a_whole_request(framing, half, false).await, gets_a_whole_request(framing, half, true).await);
        assert_eq!(requests, (false, false), "{name}: a request cut short, directly and through the gate");
    }
    say(
        "resets in the middle of 4 bodies (answer and request, by length and chunked): incomplete directly and through the gate",
    );
}
