//! Tunnels: not a byte is read or changed, and none leads where it must not.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustls::pki_types::ServerName;
use tidegate::tls::{self, Pem, Roots};
use tidegate::upstream::{Dns, ForbiddenAddress};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;

use super::{Around, EC2, Listener, aws, encrypted, in_a_tunnel, listener, takes_no_more};
use crate::proxy::names::{NameServer, Says};
use crate::support::{Backend, within};

/// A host that sends `says`, reads to the end, ends its own half, and hands over what it read.
async fn host(says: Vec<u8>) -> (SocketAddr, tokio::task::JoinHandle<Vec<u8>>) {
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = socket.local_addr().expect("bound");
    let task = tokio::spawn(async move {
        let (stream, _) = socket.accept().await.expect("a client");
        let (mut read, mut write) = stream.into_split();
        let saying = async move {
            write.write_all(&says).await.expect("sent");
            write.shutdown().await.expect("ended");
        };
        let mut heard = Vec::new();
        let (heard_all, ()) = tokio::join!(read.read_to_end(&mut heard), saying);
        heard_all.expect("read");
        heard
    });
    (address, task)
}

/// Reads the answer to a CONNECT, to the end of its head.
pub(super) async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within(stream.read_u8()).await.expect("a whole head"));
    }
    String::from_utf8(head).expect("text")
}

pub(super) async fn tunnel(listener: &Listener, to: &str) -> TcpStream {
    let mut stream = listener.connect().await;
    stream.write_all(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes()).await.expect("sent");
    assert_eq!(head(&mut stream).await, "HTTP/1.1 200 Connection established\r\n\r\n");
    stream
}

/// P23: what is not listed passes byte for byte, in pieces of any size, some of it sent before the
/// answer, and each side may end before the other.
#[test]
fn every_byte_of_a_tunnel_passes_and_no_other() {
    let runtime = Runtime::new().expect("a runtime");
    let listener = runtime.block_on(listener("", Around::default()));
    let bytes = || prop::collection::vec(any::<u8>(), 0..40_000);
    let strategy = (bytes(), bytes(), 1_usize..20_000, any::<bool>());
    let mut runner = TestRunner::new(Config { cases: 64, failure_persistence: None, ..Config::default() });
    let passed = runner.run(&strategy, |(up, down, piece, early)| {
        runtime.block_on(async {
            let (address, heard) = host(down.clone()).await;
            let mut stream = listener.connect().await;
            stream.set_nodelay(true).expect("a socket");
            let mut sent = format!("CONNECT {address} HTTP/1.0\r\n\r\n").into_bytes();
            let first = if early { piece.min(up.len()) } else { 0 };
            sent.extend(&up[..first]);
            stream.write_all(&sent).await.expect("sent");
            assert!(head(&mut stream).await.starts_with("HTTP/1.1 200 "));
            let (mut read, mut write) = stream.into_split();
            let saying = async {
                for piece in up[first..].chunks(piece) {
                    write.write_all(piece).await.expect("sent");
                }
                write.shutdown().await.expect("ended");
            };
            let mut got = Vec::new();
            let (read, ()) = within(async { tokio::join!(read.read_to_end(&mut got), saying) }).await;
            read.expect("read");
            assert!(got == down, "{} bytes came of {}", got.len(), down.len());
            let heard = within(heard).await.expect("no panic");
            assert!(heard == up, "{} bytes came of {}", heard.len(), up.len());
        });
        Ok(())
    });
    passed.unwrap_or_else(|error| panic!("{error}"));
    assert!(listener.egress.status().tunnel_hosts > 50);
}

#[tokio::test]
async fn the_certificate_that_a_client_sees_in_a_tunnel_is_the_host_s_own() {
    let backend = Backend::replying(200).await;
    let (address, ca) = encrypted(backend.address, &["api.example"]).await;
    let listener = listener("", Around::default()).await;
    let config = tls::client(&Roots::Only(Pem::new(ca.into(), "the CA")), None).expect("TLS");
    let name = || ServerName::try_from("api.example").expect("a name");
    let direct = TcpStream::connect(address).await.expect("connects");
    let direct = TlsConnector::from(Arc::clone(&config)).connect(name(), direct).await.expect("trusted");
    let tunnelled = tunnel(&listener, &address.to_string()).await;
    let tunnelled = within(TlsConnector::from(config).connect(name(), tunnelled)).await.expect("trusted");
    assert_eq!(direct.get_ref().1.peer_certificates(), tunnelled.get_ref().1.peer_certificates());
    let (_, mut tunnelled) = (direct, tunnelled);
    tunnelled.write_all(b"GET /x HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n").await.expect("sent");
    let mut answer = Vec::new();
    within(tunnelled.read_to_end(&mut answer)).await.ok();
    assert!(answer.starts_with(b"HTTP/1.1 200 OK") && backend.targets() == ["/x"]);
    let tunnels = listener.egress.status().tunnels;
    assert_eq!((tunnels[0].host.as_str(), tunnels[0].total), (address.to_string().as_str(), 1));
    assert!(tunnels[0].bytes_up > 200 && tunnels[0].bytes_down > 500, "{tunnels:?}");
}

/// P25: whatever a client writes, an address of loopback or of metadata is never dialled.
#[tokio::test]
async fn no_text_leads_to_an_address_that_is_refused() {
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (port, dialled) = (socket.local_addr().expect("bound").port(), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&dialled);
    tokio::spawn(async move {
        while socket.accept().await.is_ok() {
            seen.fetch_add(1, Ordering::SeqCst);
        }
    });
    let listener = listener("", Around { judge: None, ..Around::default() }).await;
    for host in [
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "017700000001",
        "0",
        "0.0.0.0",
        "127.0.0.1.",
        "localhost",
        "LOCALHOST.",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[0:0:0:0:0:ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "127.255.255.254",
        "169.254.169.254",
        "0xa9fea9fe",
        "2852039166",
        "[::ffff:169.254.169.254]",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "[fd20:ce::254]",
        "[::ffff:0:127.0.0.1]",
        "169.254.170.23",
        "168.63.129.16",
        "100.100.100.200",
        "224.0.0.1",
        "255.255.255.255",
        "127.0.0.1%00.example",
        "127.0.0.1#.example",
        "me@127.0.0.1",
        "%31%32%37.0.0.1",
        "①27.0.0.1",
    ] {
        let connect = listener.exchange(&format!("CONNECT {host}:{port} HTTP/1.1\r\n\r\n")).await;
        let call = listener
            .exchange(&format!(
                "GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
            ))
            .await;
        for answer in [connect, call] {
            assert!(answer.starts_with("HTTP/1.1 403 ") || answer.starts_with("HTTP/1.1 400 "), "{host}: {answer}");
        }
    }
    let answer = listener.exchange("CONNECT 169.254.169.254:80 HTTP/1.0\r\n\r\n").await;
    let line = "HTTP/1.1 403 tidegate: 169.254.169.254: the address is a metadata service, which gives out credentials; put it in NO_PROXY\r\n";
    assert!(answer.starts_with(line), "{answer}");
    assert_eq!(dialled.load(Ordering::SeqCst), 0);
}

/// P25: names whose addresses change between two lookups. Only 127.0.0.3 may be dialled here, and
/// nothing is looked up between the judgement and the dial.
#[tokio::test]
async fn the_address_that_was_judged_is_the_one_that_is_dialled() {
    fn judge(address: IpAddr) -> Result<(), ForbiddenAddress> {
        let may = address == IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));
        let metadata = address == IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));
        if may {
            Ok(())
        } else if metadata {
            Err(ForbiddenAddress::Metadata)
        } else {
            Err(ForbiddenAddress::Loopback)
        }
    }
    let (folder, names) = (tempfile::tempdir().expect("a folder"), NameServer::start().await);
    let file = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("it can be written");
        folder.path().join(name)
    };
    // The name servers are asked for a name that the hosts file gives to the listener itself.
    let dns = Dns {
        hosts: file("hosts", "127.0.0.1 rebind.test\n"),
        resolv_conf: file("resolv.conf", "nameserver 127.0.0.1\n"),
        port: names.address.port(),
        judge: None,
    };
    let listener = listener("", Around { judge: Some(judge), dns, ..Around::default() }).await;
    let port = listener.address.port();
    let mut dialled = Vec::new();
    for last in [2, 3] {
        let socket = TcpListener::bind((Ipv4Addr::new(127, 0, 0, last), port)).await.expect("the port is free there");
        let count = Arc::new(AtomicUsize::new(0));
        dialled.push(Arc::clone(&count));
        tokio::spawn(async move {
            while socket.accept().await.is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    let (two, three) = (Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3));
    let metadata = Ipv4Addr::new(169, 254, 169, 254);
    let connect = format!("CONNECT rebind.test:{port} HTTP/1.1\r\n");
    for (addresses, expected) in [
        (vec![three], "200 "),
        (vec![two], "403 tidegate: rebind.test: the address is loopback"),
        (vec![metadata], "403 tidegate: rebind.test: the address is a metadata service"),
        (vec![two, three, metadata], "200 "),
        (vec![two, metadata], "403 "),
    ] {
        names.now_says("rebind.test", Says::Here(addresses.clone(), 0));
        let mut stream = listener.connect().await;
        stream.write_all(format!("{connect}\r\n").as_bytes()).await.expect("sent");
        let head = head(&mut stream).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {expected}")), "{addresses:?}: {head}");
    }
    assert_eq!((dialled[0].load(Ordering::SeqCst), dialled[1].load(Ordering::SeqCst)), (0, 2));
    assert!(names.asked().len() <= 5, "one lookup for each dial at most: {:?}", names.asked());
}

#[tokio::test]
async fn the_listener_does_not_connect_to_itself() {
    let listener = listener("", Around::default()).await;
    let answer = listener.exchange(&format!("CONNECT {} HTTP/1.1\r\n\r\n", listener.address)).await;
    assert!(answer.starts_with("HTTP/1.1 508 tidegate: 127.0.0.1 is this gate itself\r\n"), "{answer}");
}

#[tokio::test]
async fn a_listener_on_every_address_is_reached_by_none_of_them() {
    // One as the admin port, which a CONNECT must not reach by the pod's own address.
    let socket = TcpListener::bind("0.0.0.0:0").await.expect("a port");
    let own = socket.local_addr().expect("bound");
    let listener = listener("", Around { own: vec![own], ..Around::default() }).await;
    let address = own_address();
    let answer = listener.exchange(&format!("CONNECT {address}:{} HTTP/1.1\r\n\r\n", own.port())).await;
    assert!(answer.starts_with(&format!("HTTP/1.1 508 tidegate: {address} is this gate itself\r\n")), "{answer}");
}

/// An address of this machine that others reach it by, if it has one.
fn own_address() -> Ipv4Addr {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a port");
    // Nothing is sent: the system only looks for a way there.
    let led = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
    match led.map(|address| address.ip()) {
        Ok(IpAddr::V4(address)) => address,
        _ => Ipv4Addr::LOCALHOST,
    }
}

#[tokio::test]
async fn a_dial_that_fails_is_said_in_the_answer_to_the_connect() {
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound");
    let listener = listener("", Around::default()).await;
    let answer = listener.exchange(&format!("CONNECT {closed} HTTP/1.1\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 502 tidegate: 127.0.0.1 refused the connection\r\n"), "{answer}");
    // Nobody loses the answer for what he sent behind the head already.
    let sent = "x".repeat(1 << 20);
    let mut stream = listener.connect().await;
    stream.write_all(format!("CONNECT {closed} HTTP/1.1\r\n\r\n{sent}").as_bytes()).await.expect("sent");
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.expect("not reset");
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    let answer = listener.exchange("CONNECT no-such-name.invalid:443 HTTP/1.1\r\n\r\n").await;
    let line = "HTTP/1.1 502 tidegate: no-such-name.invalid has no address; check the name, and the pod's DNS\r\n";
    assert!(answer.starts_with(line), "{answer}");
}

/// A proxy that connects whatever is asked for to one address, and tells what it was asked.
async fn next_proxy(to: SocketAddr) -> (SocketAddr, Arc<std::sync::Mutex<Vec<String>>>) {
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, asked) = (socket.local_addr().expect("bound"), Arc::<std::sync::Mutex<Vec<String>>>::default());
    let log = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = socket.accept().await {
            let head = head(&mut stream).await;
            log.lock().expect("no panic").push(head.split("\r\n").next().unwrap_or_default().to_owned());
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("sent");
            let mut behind = TcpStream::connect(to).await.expect("it listens");
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut stream, &mut behind).await.ok() });
        }
    });
    (address, asked)
}

/// A proxy whose answer and what the host says come in two pieces, cut at this place.
async fn proxy_cut_at(says: Vec<u8>, place: usize) -> SocketAddr {
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = socket.local_addr().expect("bound");
    tokio::spawn(async move {
        let (mut stream, _) = socket.accept().await.expect("it dials");
        stream.set_nodelay(true).expect("a TCP socket");
        head(&mut stream).await;
        for piece in [&says[..place], &says[place..]] {
            stream.write_all(piece).await.expect("sent");
            tokio::task::yield_now().await;
        }
        stream.shutdown().await.expect("ended");
    });
    address
}

#[tokio::test]
async fn what_a_host_says_first_comes_through_another_proxy() {
    let answer = "HTTP/1.1 200 Connection established\r\nVia: 1.1 next\r\n\r\n";
    let banner = "SSH-2.0-OpenSSH_9.6\r\n";
    let says = format!("{answer}{banner}");
    for place in 0..says.len() {
        let via = proxy_cut_at(says.clone().into_bytes(), place).await;
        let listener = listener("", Around { via: Some(via), ..Around::default() }).await;
        let mut stream = tunnel(&listener, "git.example:22").await;
        let mut said = String::new();
        within(stream.read_to_string(&mut said)).await.expect("text");
        assert_eq!(said, banner, "cut at {place}");
    }
}

#[tokio::test]
async fn behind_another_proxy_that_one_looks_names_up() {
    let backend = Backend::replying(200).await;
    let (address, ca) = encrypted(backend.address, &[EC2]).await;
    let (via, asked) = next_proxy(address).await;
    let text = "[gates.aws]\npreset = \"aws\"\n";
    let listener =
        listener(text, Around { ca: Some(ca.clone()), via: Some(via), judge: None, ..Around::default() }).await;
    let (status, answer) = listener.get(&format!("http://{EC2}/"), "").await;
    assert_eq!(status, 200, "{answer}");
    let config = tls::client(&Roots::Only(Pem::new(ca.into(), "the CA")), None).expect("TLS");
    let stream = tunnel(&listener, &format!("{EC2}:443")).await;
    let name = ServerName::try_from(EC2).expect("a name");
    within(TlsConnector::from(config).connect(name, stream)).await.expect("through both");
    let asked = asked.lock().expect("no panic").clone();
    assert_eq!(asked, [format!("CONNECT {EC2}:443 HTTP/1.1"), format!("CONNECT {EC2}:443 HTTP/1.1")]);
    let tunnels = listener.egress.status().tunnels;
    assert_eq!((tunnels[0].gate.as_str(), tunnels[0].host.as_str()), ("aws", format!("{EC2}:443").as_str()));
    // An address that a client names is judged all the same.
    let answer = listener.exchange("CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

#[tokio::test]
async fn where_others_are_refused_tls_must_be_for_the_tunnel_s_host() {
    let backend = Backend::replying(200).await;
    let (address, ca) = encrypted(backend.address, &["a.example", "b.example"]).await;
    let (via, _) = next_proxy(address).await;
    let text = "others = \"refuse\"\ntunnel = [\"a.example\"]\n";
    let listener = listener(text, Around { via: Some(via), ..Around::default() }).await;
    let config = tls::client(&Roots::Only(Pem::new(ca.into(), "the CA")), None).expect("TLS");
    for (name, expected) in [("a.example", true), ("b.example", false)] {
        let stream = tunnel(&listener, "a.example:443").await;
        let name = ServerName::try_from(name).expect("a name");
        let shaken = within(TlsConnector::from(Arc::clone(&config)).connect(name, stream)).await;
        assert_eq!(shaken.is_ok(), expected);
    }
    let mut stream = tunnel(&listener, "a.example:443").await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n").await.expect("sent");
    let mut rest = Vec::new();
    within(stream.read_to_end(&mut rest)).await.ok();
    assert!(rest.is_empty() && backend.seen().is_empty(), "{}", String::from_utf8_lossy(&rest));
    let refusals = listener.egress.status().refusals;
    assert!(refusals.iter().any(|refusals| refusals.why == "sni" && refusals.count == 2), "{refusals:?}");
}

#[tokio::test]
async fn a_client_that_speaks_tls_or_nothing_is_let_go() {
    let listener = listener("", Around::default()).await;
    for first in [&b"\x16\x03\x01\x02\x00"[..], b"CONN"] {
        let mut stream = listener.connect().await;
        stream.write_all(first).await.expect("sent");
        stream.shutdown().await.expect("ended");
        let mut answer = Vec::new();
        within(stream.read_to_end(&mut answer)).await.ok();
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&answer));
    }
}

#[tokio::test]
async fn the_tunnel_half_closed_longest_makes_room() {
    let listener = listener("max_connections = 2\n", Around::default()).await;
    let [mut one, mut two] = [in_a_tunnel(&listener).await, in_a_tunnel(&listener).await];
    takes_no_more(&listener).await;
    for (client, host) in [&mut two, &mut one] {
        client.shutdown().await.expect("ended");
        assert_eq!(within(host.read(&mut [0])).await.expect("the end"), 0);
    }
    let _three = in_a_tunnel(&listener).await;
    assert_eq!(within(two.0.read(&mut [0])).await.unwrap_or_default(), 0, "the first to end");
    one.1.write_all(b"x").await.expect("sent");
    within(one.0.read_exact(&mut [0])).await.expect("the other is carried on");
}

#[tokio::test]
async fn a_half_closed_upgrade_makes_room() {
    let host = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, ca) = encrypted(host.local_addr().expect("bound"), &[EC2]).await;
    let text = format!("max_connections = 1\n{}", aws(9, address));
    let listener = listener(&text, Around { ca: Some(ca), ..Around::default() }).await;
    let mut client = listener.connect().await;
    let ask = format!("GET http://{EC2}/ HTTP/1.1\r\nHost: {EC2}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    client.write_all(ask.as_bytes()).await.expect("sent");
    let (mut host, _) = within(host.accept()).await.expect("it came");
    assert!(head(&mut host).await.starts_with("GET / HTTP/1.1\r\n"));
    let switched = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    host.write_all(switched).await.expect("sent");
    assert!(head(&mut client).await.starts_with("HTTP/1.1 101 "));
    client.write_all(b"x").await.expect("sent");
    within(host.read_exact(&mut [0])).await.expect("it is carried");
    takes_no_more(&listener).await;
    client.shutdown().await.expect("ended");
    assert_eq!(within(host.read(&mut [0])).await.expect("the end"), 0);
    let _other = in_a_tunnel(&listener).await;
    assert_eq!(within(client.read(&mut [0])).await.unwrap_or_default(), 0, "it gave way");
}

/// Each has a body or a malformed head: the same bytes could be two requests.
#[tokio::test]
async fn a_connect_that_two_readers_could_read_differently_is_refused() {
    let listener = listener("", Around::default()).await;
    let host = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let to = host.local_addr().expect("bound");
    for head in [
        format!("CONNECT {to} HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"),
        format!("CONNECT {to} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("CONNECT {to} HTTP/1.1\nHost: {to}\n\n"),
        format!("CONNECT {to} HTTP/1.1\r\n Host: {to}\r\n\r\n"),
        format!("CONNECT  {to} HTTP/1.1\r\n\r\n"),
        format!("CONNECT {to}\r\n\r\n"),
        "CONNECT h.\u{e9}xample:443 HTTP/1.1\r\n\r\n".to_owned(),
        "CONNECT h<.example:443 HTTP/1.1\r\n\r\n".to_owned(),
    ] {
        let answer = listener.exchange(&head).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{head:?}: {answer}");
    }
    let dialled = std::future::poll_fn(|cx| std::task::Poll::Ready(host.poll_accept(cx).is_ready())).await;
    assert!(!dialled);
}
