//! A connection whose TLS was opened, over reloads: limits change under its calls, and it ends when
//! its host is no longer read.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::EC2;
use super::intercept::{Api, speak_tls};
use super::restart::Place;
use super::tunnels::head;
use crate::ports::free_port;
use crate::support::within;

/// A connection over HTTP/2 in a tunnel, and its end.
async fn connect(place: &Place, ca: &str) -> (SendRequest<Full<Bytes>>, JoinHandle<hyper::Result<()>>) {
    let mut stream = TcpStream::connect(("127.0.0.1", place.egress)).await.expect("it listens");
    stream.write_all(format!("CONNECT {EC2}:443 HTTP/1.1\r\n\r\n").as_bytes()).await.expect("sent");
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 200 "));
    let stream = speak_tls(stream, ca, EC2, &["h2"]).await.expect("it trusts the CA");
    let (send, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("h2");
    (send, tokio::spawn(connection))
}

async fn call(send: &mut SendRequest<Full<Bytes>>) -> u16 {
    let request = Request::get(format!("https://{EC2}/")).body(Full::default()).expect("a request");
    within(send.send_request(request)).await.expect("answered").status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_connection_goes_on_with_other_limits_and_ends_when_its_host_is_dropped() {
    let api = Api::start(&[EC2], &["h2", "http/1.1"]).await;
    let place = Place { folder: tempfile::tempdir().expect("a folder"), egress: free_port(), admin: free_port() };
    std::fs::write(place.folder.path().join("api.crt"), &api.ca).expect("written");
    let limits = |bucket: &str| {
        let to = format!("connect_to = {{ {EC2:?} = \"{}\" }}", api.address);
        format!("preset = \"none\"\nqueue.max_wait = \"0s\"\nbucket = {bucket}\n{to}")
    };
    place.write("\"ec2.*.amazonaws.com\"", &limits("{ rate = 0.001, burst = 2 }"));
    let mut running = place.run();
    let ca = place.read("shared/ca.crt");
    let (mut send, mut ended) = connect(&place, &ca).await;
    let calls = [call(&mut send).await, call(&mut send).await, call(&mut send).await];
    assert_eq!(calls, [200, 200, 429]);

    place.write("\"ec2.*.amazonaws.com\"", &limits("\"off\""));
    running.line("the new configuration is in force");
    for _ in 0..5 {
        assert_eq!(call(&mut send).await, 200, "the same connection, by the new limits");
    }
    place.write("\"ec2.*.amazonaws.com\"", &limits("{ rate = 0.001, burst = 1 }"));
    running.line("the new configuration is in force");
    let calls = [call(&mut send).await, call(&mut send).await];
    assert!(calls.contains(&429), "and by others again: {calls:?}");
    assert!(!ended.is_finished());

    // The host is not read any more: no call passes on a connection that was opened before, and the
    // client is not kept from making a new one.
    let before = api.calls().len();
    place.write("\"sts.*.amazonaws.com\"", "preset = \"none\"");
    running.line("the new configuration is in force");
    assert_eq!(call(&mut send).await, 403);
    within(&mut ended).await.expect("no panic").expect("with a goodbye");
    assert_eq!(api.calls().len(), before);
    assert_eq!(running.terminate(), Some(0));
}
