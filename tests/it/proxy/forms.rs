//! Actions in a body: looked for in its first 8 KiB, for a tenth of a second, whatever comes.

use tidegate::{config, spec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Backend, Proxy, status, within};

const HEAD: &str = "POST / HTTP/1.1\r\nHost: ec2.eu-central-1.amazonaws.com\r\nConnection: close\r\n\
                    Content-Type: application/x-www-form-urlencoded\r\n\
                    Authorization: AWS4-HMAC-SHA256 Credential=AKID/20261123/eu-central-1/ec2/aws4_request, \
                    SignedHeaders=content-type;host;x-amz-date, Signature=0\r\n";

/// A gate on which calls that describe something, and only those, are of a class of their own.
async fn before(backend: &Backend) -> Proxy {
    let text = "[gates.g]\nkind = \"http\"\nlisten = \"127.0.0.1:1\"\nupstream = \"http://127.0.0.1:2\"\n\
                preset = \"none\"\ndialect = \"aws\"\nallowed_hosts = [\"ec2.eu-central-1.amazonaws.com\"]\n\
                [[gates.g.classes]]\nname = \"describes\"\nmatch = { actions = [\"Describe*\"] }\n";
    let loaded = config::load_text("f.toml".to_owned(), text.to_owned(), &[]);
    let loaded = loaded.unwrap_or_else(|problems| panic!("{}", problems[0]));
    let gate = loaded.settings.gates.into_values().next().expect("a gate");
    let of_test = |options: &mut tidegate::proxy::Options| {
        let spec::Gate { name, listen, upstream, .. } = options.gate.clone();
        options.gate = spec::Gate { name, listen, upstream, ..gate };
    };
    Proxy::before(backend.address).with(of_test).start().await
}

/// Sends a body piece by piece, and returns the status of the answer.
async fn send(proxy: &Proxy, framing: &str, pieces: &[&[u8]]) -> u16 {
    let mut stream = proxy.connect().await;
    stream.write_all(format!("{HEAD}{framing}\r\n").as_bytes()).await.expect("writes");
    for piece in pieces {
        stream.write_all(piece).await.expect("writes");
    }
    answered(stream).await
}

async fn answered(mut stream: TcpStream) -> u16 {
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.expect("reads");
    status(&String::from_utf8_lossy(&answer))
}

fn length(body: &[u8]) -> String {
    format!("Content-Length: {}\r\n", body.len())
}

/// How many calls came as describing something, and as anything else.
fn counted(proxy: &Proxy) -> [f64; 2] {
    ["describes", "default"].map(|class| proxy.metric("tidegate_calls_total", &[&format!("class=\"{class}\"")]))
}

const ACTION: &[u8] = b"Version=2016-11-15&Action=DescribeInstances";

#[tokio::test]
async fn the_action_is_found_in_whatever_pieces_its_form_comes() {
    let backend = Backend::replying(200).await;
    let proxy = before(&backend).await;
    let one_by_one: Vec<&[u8]> = ACTION.chunks(1).collect();
    assert_eq!(send(&proxy, &length(ACTION), &one_by_one).await, 200);
    assert_eq!(send(&proxy, "Transfer-Encoding: chunked\r\n", &[b"2b\r\n", ACTION, b"\r\n0\r\n\r\n"]).await, 200);
    let filled = [ACTION, b"&x=".as_slice(), &vec![b'x'; 60 * 1024]].concat();
    assert_eq!(send(&proxy, &length(&filled), &[&filled]).await, 200, "only the beginning is looked at");
    assert_eq!(counted(&proxy), [3.0, 0.0]);
    let bodies: Vec<_> = backend.seen().into_iter().map(|seen| seen.body).collect();
    assert_eq!(bodies, [ACTION.to_vec(), ACTION.to_vec(), filled]);
}

#[tokio::test]
async fn what_does_not_come_in_time_or_stands_too_far_behind_is_not_waited_for_and_arrives_whole() {
    let backend = Backend::replying(200).await;
    let proxy = before(&backend).await;
    let behind = [b"x=".as_slice(), &vec![b'x'; 8 * 1024], b"&Action=DescribeInstances"].concat();
    assert_eq!(send(&proxy, &length(&behind), &[&behind]).await, 200);
    // The second half comes after the call has left for the upstream without it.
    let (first, second) = ACTION.split_at(20);
    let mut stream = proxy.connect().await;
    stream
        .write_all([format!("{HEAD}{}\r\n", length(ACTION)).as_bytes(), first].concat().as_slice())
        .await
        .expect("writes");
    proxy.reaches("tidegate_in_flight", &[], 1.0).await;
    stream.write_all(second).await.expect("writes");
    assert_eq!(answered(stream).await, 200);
    let long = [ACTION, b"&x=".as_slice(), &vec![b'x'; 64 * 1024]].concat();
    assert_eq!(send(&proxy, &length(&long), &[&long]).await, 200, "declared as longer than forms are");
    let garbage: Vec<u8> = (0..=255).cycle().take(9000).collect();
    assert_eq!(send(&proxy, &length(&garbage), &[&garbage]).await, 200);
    assert_eq!(counted(&proxy), [0.0, 4.0]);
    let bodies: Vec<_> = backend.seen().into_iter().map(|seen| seen.body).collect();
    assert_eq!(bodies, [behind, ACTION.to_vec(), long, garbage]);
}

#[tokio::test]
async fn a_client_that_waits_to_be_asked_for_its_body_is_asked_when_the_call_may_leave() {
    let backend = Backend::replying(200).await;
    let proxy = before(&backend).await;
    let mut stream = proxy.connect().await;
    let head = format!("{HEAD}Expect: 100-continue\r\n{}\r\n", length(ACTION));
    stream.write_all(head.as_bytes()).await.expect("writes");
    let mut asked = [0; 25];
    within(stream.read_exact(&mut asked)).await.expect("reads");
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(ACTION).await.expect("writes");
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.expect("reads");
    assert_eq!((status(&answer), counted(&proxy)), (200, [0.0, 1.0]));
}
