//! The upstream's name: a hosts file that points it at the gate, and name servers that change, fail
//! and know several addresses.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::proxy::Listen;
use tidegate::upstream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

use crate::pool::support::Server;
use crate::support::{Proxy, ProxyBuilder, within};

/// A name server's answer about a name.
#[derive(Clone)]
pub(crate) enum Says {
    /// These addresses, for this many seconds.
    Here(Vec<Ipv4Addr>, u32),
    /// There is no such name.
    NoSuchName,
    /// The server cannot tell.
    Failure,
    /// No answer at all.
    Nothing,
}

/// A name server on loopback.
pub(crate) struct NameServer {
    pub(crate) address: SocketAddr,
    says: Arc<Mutex<HashMap<&'static str, Says>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl NameServer {
    pub(crate) async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let address = socket.local_addr().expect("bound");
        let (says, asked): (Arc<Mutex<HashMap<_, _>>>, Arc<Mutex<Vec<_>>>) = <_>::default();
        let (known, log) = (Arc::clone(&says), Arc::clone(&asked));
        tokio::spawn(async move {
            let mut query = [0; 1500];
            while let Ok((bytes, client)) = socket.recv_from(&mut query).await {
                let (name, end) = name(&query[..bytes]);
                let is_a = query[end..end + 2] == [0, 1];
                if is_a {
                    log.lock().expect("no panic").push(name.clone());
                }
                let says = known.lock().expect("no panic").get(name.as_str()).cloned().unwrap_or(Says::NoSuchName);
                if let Some(answer) = answer(&query[..end + 4], is_a, &says) {
                    socket.send_to(&answer, client).await.expect("it is open");
                }
            }
        });
        Self { address, says, asked }
    }

    pub(crate) fn now_says(&self, name: &'static str, says: Says) {
        self.says.lock().expect("no panic").insert(name, says);
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no panic").clone()
    }
}

/// The name that a query asks for, in lower case, and the position after it.
fn name(query: &[u8]) -> (String, usize) {
    let (mut labels, mut at) = (Vec::new(), 12);
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..end]).to_lowercase());
        at = end;
    }
    (labels.join("."), at + 1)
}

/// An answer to a query that was cut after its question.
fn answer(query: &[u8], is_a: bool, says: &Says) -> Option<Vec<u8>> {
    let (code, addresses, ttl) = match says {
        Says::Here(addresses, ttl) if is_a => (0, addresses.as_slice(), *ttl),
        Says::Here(..) => (0, [].as_slice(), 0),
        Says::NoSuchName => (3, [].as_slice(), 0),
        Says::Failure => (2, [].as_slice(), 0),
        Says::Nothing => return None,
    };
    let count = u8::try_from(addresses.len()).expect("few");
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0]);
    answer.extend(&query[12..]);
    for address in addresses {
        answer.extend([0xc0, 12, 0, 1, 0, 1]);
        answer.extend(ttl.to_be_bytes());
        answer.extend([0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}

const FAR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const FARTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);

/// An API on each of these addresses, all on one port. Each names its address and closes after each
/// answer.
async fn apis(addresses: &[Ipv4Addr]) -> (u16, Vec<Server>) {
    let (mut port, mut servers) = (0, Vec::new());
    for address in addresses {
        let listener = TcpListener::bind((*address, port)).await.expect("the port is free on all of loopback");
        port = listener.local_addr().expect("bound").port();
        let answer = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\n{address}");
        servers.push(Server::on(listener, move |mut socket| {
            let answer = answer.clone();
            async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    if socket.read_buf(&mut head).await.is_ok_and(|bytes| bytes == 0) {
                        return;
                    }
                }
                let host = String::from_utf8_lossy(&head).contains("Host: api.test\r\n");
                assert!(host, "{}", String::from_utf8_lossy(&head));
                socket.write_all(answer.as_bytes()).await.expect("writes");
            }
        }));
    }
    (port, servers)
}

/// A gate to `name`, which a hosts file points at the gate itself, with a name server.
fn gate(folder: &tempfile::TempDir, server: &NameServer, name: &str, port: u16, more: &str) -> ProxyBuilder {
    let file = |name: &str, text: &str| -> PathBuf {
        std::fs::write(folder.path().join(name), text).expect("it can be written");
        folder.path().join(name)
    };
    let dns = upstream::Dns {
        hosts: file("hosts", &format!("127.0.0.1 localhost\n127.0.0.1\tother.test {name} # for those who sign\n")),
        resolv_conf: file("resolv.conf", &format!("nameserver 127.0.0.1\n{more}\n")),
        port: server.address.port(),
        judge: None,
    };
    let authority = format!("{name}:{port}").parse().expect("an authority");
    Proxy::before(server.address).with(|options| {
        options.gate.listen = vec![Listen::Tcp(([127, 0, 0, 1], port).into())];
        options.gate.access.allowed_hosts = vec!["api.test".into()];
        options.upstream.target.authority = authority;
        options.upstream.host = upstream::Host::Preserve;
        options.upstream.dns = dns;
    })
}

/// Makes a call as a client that the hosts file led here, and returns the address of the API that
/// answered.
async fn who(proxy: &Proxy) -> String {
    let answer = proxy.exchange("GET /x HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n").await;
    answer.rsplit("\r\n\r\n").next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_name_that_the_hosts_file_gives_to_the_gate_is_asked_of_the_name_servers() {
    let (folder, names) = (tempfile::tempdir().expect("a folder"), NameServer::start().await);
    names.now_says("api.test", Says::Here(vec![FAR], 3600));
    let (port, _servers) = apis(&[FAR]).await;
    let proxy = gate(&folder, &names, "api.test", port, "").start().await;
    assert_eq!(who(&proxy).await, "127.0.0.2");
    assert_eq!(who(&proxy).await, "127.0.0.2");
    assert!(names.asked().iter().all(|name| name == "api.test"), "{:?}", names.asked());
}

#[tokio::test]
async fn the_search_list_and_ndots_are_honoured() {
    let (folder, names) = (tempfile::tempdir().expect("a folder"), NameServer::start().await);
    names.now_says("api.svc.corp.test", Says::Here(vec![FAR], 3600));
    let (port, _servers) = apis(&[FAR]).await;
    let proxy = gate(&folder, &names, "api.svc", port, "search x.test corp.test\noptions ndots:5").start().await;
    assert_eq!(who(&proxy).await, "127.0.0.2");
    assert_eq!(names.asked(), ["api.svc.x.test", "api.svc.corp.test"]);
}

#[tokio::test]
async fn of_several_addresses_one_that_answers_is_enough() {
    let (folder, names) = (tempfile::tempdir().expect("a folder"), NameServer::start().await);
    let nobody = Ipv4Addr::new(127, 0, 0, 3);
    let (port, _servers) = apis(&[FAR]).await;
    // One address belongs to a machine that drops what it gets, because its queue is full. It must
    // not take the whole time of the dial.
    let silent = Ipv4Addr::new(127, 0, 0, 5);
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((silent, port)).into()).expect("free");
    socket.listen(0).expect("listens");
    let _queued = std::net::TcpStream::connect((silent, port)).expect("the one that fits");
    names.now_says("api.test", Says::Here(vec![silent, nobody, FAR], 0));
    let proxy = gate(&folder, &names, "api.test", port, "").start().await;
    assert_eq!(who(&proxy).await, "127.0.0.2");
}

#[tokio::test]
async fn a_change_is_noticed_and_an_outage_of_the_name_servers_is_not() {
    let (folder, names) = (tempfile::tempdir().expect("a folder"), NameServer::start().await);
    let (port, _servers) = apis(&[FAR, FARTHER]).await;
    let proxy = gate(&folder, &names, "api.test", port, "options attempts:1 timeout:1")
        .with(|options| options.upstream.connect_timeout = Duration::from_secs(2))
        .start()
        .await;
    names.now_says("api.test", Says::Here(vec![FAR], 0));
    assert_eq!(who(&proxy).await, "127.0.0.2");
    names.now_says("api.test", Says::Here(vec![FARTHER], 0));
    assert_eq!(who(&proxy).await, "127.0.0.4");
    for outage in [Says::Failure, Says::Nothing] {
        names.now_says("api.test", outage);
        assert_eq!(who(&proxy).await, "127.0.0.4", "the last good answer");
    }
    names.now_says("api.test", Says::NoSuchName);
    let answer = who(&proxy).await;
    assert!(
        answer.contains("cannot connect to api.test") && answer.contains("no name server knows this host name"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_gate_never_calls_itself() {
    let (folder, names) = (tempfile::tempdir().expect("a folder"), NameServer::start().await);
    names.now_says("api.test", Says::Here(vec![Ipv4Addr::LOCALHOST], 0));
    let (port, _servers) = apis(&[FAR]).await;
    let proxy = gate(&folder, &names, "api.test", port, "").start().await;
    assert!(who(&proxy).await.contains("this address is the gate itself"));
    drop(proxy);

    let port = crate::ports::free_port();
    let own = SocketAddr::from(([127, 0, 0, 1], port));
    let proxy = Proxy::before(own).with(|options| options.gate.listen = vec![Listen::Tcp(own)]).start().await;
    let (code, answer) = within(proxy.get("/x")).await;
    assert_eq!(code, 502);
    assert!(answer.contains("this address is the gate itself"), "{answer}");
}
