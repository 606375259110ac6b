//! What a connection whose TLS was opened remembers of its last call is no reason to treat the next
//! one by rules that are over, or to keep an origin that nobody uses.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate::config;
use tidegate::proxy::Directory;

use super::intercept::{Api, ca, speak_tls};
use super::tunnels::tunnel;
use super::{Around, Listener, listener};
use crate::support::{Backend, within};

const HOST: &str = "a.example.com";
const OTHER: &str = "b.example.com";

/// A connection over HTTP/2 in a tunnel to a host.
struct Client(SendRequest<Full<Bytes>>);

impl Client {
    async fn connect(listener: &Listener, host: &str) -> Self {
        let stream = tunnel(listener, &format!("{host}:443")).await;
        let stream = speak_tls(stream, &ca(listener), host, &["h2"]).await.expect("it trusts the CA");
        let (send, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("h2");
        tokio::spawn(connection);
        Self(send)
    }

    /// The status of the answer to a call.
    async fn call(&mut self, authority: &str) -> u16 {
        let request = Request::get(format!("https://{authority}/")).body(Full::default()).expect("a request");
        let answer = within(self.0.send_request(request)).await.expect("answered");
        let status = answer.status().as_u16();
        within(answer.into_body().collect()).await.expect("a whole answer");
        status
    }
}

/// A gate that opens TLS to a host and lets one call through.
fn gate(name: &str, host: &str, to: SocketAddr) -> String {
    format!(
        "[gates.{name}]\nhosts = [{host:?}]\nintercept = true\npreset = \"none\"\nqueue.max_wait = \"0s\"\n\
         bucket = {{ rate = 0.001, burst = 1 }}\nconnect_to = {{ {host:?} = \"{to}\" }}\n"
    )
}

fn hosts(listener: &Listener, gate: &str) -> Vec<String> {
    listener.egress.origins(gate).iter().map(|(origin, _)| origin.to_string()).collect()
}

fn reload(listener: &Listener, text: &str) {
    let text = format!("[egress]\nlisten = \"127.0.0.1:0\"\n{text}");
    let settings = config::load_text("f.toml".to_owned(), text, &[]).expect("a good configuration").settings;
    listener.egress.reconfigure(Directory::new(&settings).expect("a listener"));
}

#[tokio::test]
async fn the_next_call_of_a_connection_is_limited_by_the_gate_that_lists_its_host_by_now() {
    let api = Api::start(&[HOST, OTHER], &["h2"]).await;
    let both = |first: &str, second: &str| gate("one", first, api.address) + &gate("two", second, api.address);
    let listener = listener(&both(HOST, OTHER), Around { ca: Some(api.ca.clone()), ..Around::default() }).await;
    let mut client = Client::connect(&listener, HOST).await;
    assert_eq!([client.call(HOST).await, client.call(HOST).await], [200, 429]);

    reload(&listener, &both(OTHER, HOST));
    assert_eq!([client.call(HOST).await, client.call(HOST).await], [200, 429], "by the bucket of the other gate");
    assert_eq!(hosts(&listener, "two"), [format!("{HOST}:443")]);

    // The same rules as at first: the origin that was met then has spent what it had.
    reload(&listener, &both(HOST, OTHER));
    assert_eq!(client.call(HOST).await, 429);
    assert_eq!(api.calls().len(), 2);

    reload(&listener, &both(HOST, OTHER).replace("intercept = true", "intercept = false"));
    assert_eq!(client.call(HOST).await, 403, "it is not read any more");
    assert_eq!(api.calls().len(), 2);
}

#[tokio::test]
async fn each_call_of_a_connection_is_for_the_host_of_its_tunnel_in_whatever_spelling() {
    let api = Api::start(&[HOST, OTHER], &["h2"]).await;
    let text = gate("one", HOST, api.address) + &gate("two", OTHER, api.address);
    let text = text.replace("burst = 1", "burst = 99");
    let listener = listener(&text, Around { ca: Some(api.ca.clone()), ..Around::default() }).await;
    for (authority, expected) in [
        (HOST, 200),
        ("a.example.com:443", 200),
        ("A.example.com", 200),
        ("a.example.com.", 200),
        (OTHER, 421),
        ("a.example.com:80", 421),
        ("a.example.co", 421),
        ("a.example.com.evil.example", 421),
    ] {
        // A refusal ends a connection.
        let mut client = Client::connect(&listener, HOST).await;
        assert_eq!([client.call(HOST).await, client.call(authority).await], [200, expected], "{authority}");
    }
    assert!(hosts(&listener, "two").is_empty());
}

#[tokio::test]
async fn an_origin_goes_between_two_calls_of_a_connection_and_is_met_anew() {
    let api = Api::start(&[HOST], &["h2"]).await;
    let other = Backend::replying(200).await;
    let text = format!("max_origins = 1\n{}", gate("one", HOST, api.address));
    let listener = listener(&text, Around { ca: Some(api.ca.clone()), ..Around::default() }).await;
    let mut client = Client::connect(&listener, HOST).await;
    assert_eq!([client.call(HOST).await, client.call(HOST).await], [200, 429]);
    // The connection stays, and does not keep its origin from going. A call is given back a moment
    // after its answer.
    let url = format!("http://{}/", other.address);
    while within(listener.get(&url, "")).await.0 != 200 {
        tokio::task::yield_now().await;
    }
    assert!(hosts(&listener, "one").is_empty());
    let mut status = client.call(HOST).await;
    while status == 503 {
        // So for the other call's.
        client = Client::connect(&listener, HOST).await;
        status = client.call(HOST).await;
    }
    assert_eq!(status, 200, "by a bucket that is full again");
    assert_eq!(hosts(&listener, "one"), [format!("{HOST}:443")]);
    assert_eq!(client.call(HOST).await, 429, "and by the same from then on");
    assert_eq!(listener.egress.status().origins, 1);
}
