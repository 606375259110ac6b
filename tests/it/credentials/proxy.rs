//! Upstreams behind a proxy: HTTP CONNECT, the same over TLS, and SOCKS5.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::FutureExt as _;
use tidegate::api::Group;
use tidegate::credentials::{Environment, ResolvedUpstream, Source, UpstreamTls, resolve};
use tidegate::tls;
use tidegate::upstream::DialFailure;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::pool::support::{Caller, Server, answer, options, soon, text};

/// An upstream with a name that only the proxy knows, and a record of what the proxy was asked for.
struct Stage {
    server: Server,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Stage {
    async fn new() -> Self {
        let server = Server::http2(10, |_, _| async { answer("ok") }.boxed()).await;
        Self { server, asked: Arc::default() }
    }

    /// A kubeconfig's context with this proxy in between.
    fn resolved(&self, proxy: &str, more_ca: &str) -> ResolvedUpstream {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config");
        let ca = format!("{}{more_ca}", self.server.ca.as_deref().expect("it speaks TLS"));
        let text = format!(
            "current-context: c\nclusters:\n- name: k\n  cluster: {{server: 'https://nowhere.invalid:6443', proxy-url: '{proxy}', \
             tls-server-name: kubernetes, certificate-authority-data: {}}}\n\
             contexts:\n- name: c\n  context: {{cluster: k, user: ''}}\n",
            STANDARD.encode(ca)
        );
        std::fs::write(&path, text).expect("written");
        let around = Environment {
            variables: vec![("KUBECONFIG".to_owned(), path.display().to_string())],
            service_account: "/nowhere".into(),
        };
        resolve(&Source::Kubeconfig(None), &UpstreamTls::default(), &around).expect("resolved")
    }

    fn caller(&self, resolved: &ResolvedUpstream) -> Caller {
        let mut options = options(self.server.address, None);
        options.target = resolved.target.clone();
        options.tls = resolved.tls(true).expect("TLS");
        Caller::start(options)
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no panic").clone()
    }
}

/// Answers one CONNECT and passes on the bytes that follow.
async fn connect<S: AsyncRead + AsyncWrite + Unpin>(mut client: S, to: SocketAddr, asked: &Mutex<Vec<String>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.expect("a head"));
    }
    let head = String::from_utf8(head).expect("text");
    let allowed = !head.contains(&STANDARD.encode("me:wrong"));
    asked.lock().expect("no panic").push(head);
    if !allowed {
        client.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await.expect("writes");
        return;
    }
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.expect("writes");
    hand_on(client, to).await;
}

async fn hand_on<S: AsyncRead + AsyncWrite + Unpin>(mut client: S, to: SocketAddr) {
    let mut server = TcpStream::connect(to).await.expect("it listens");
    // however it ends, the test does not look here
    drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
}

/// SOCKS5 with user and password, as RFC 1928 and 1929 specify.
async fn socks(mut client: TcpStream, to: SocketAddr, asked: &Mutex<Vec<String>>) {
    let mut take = async |count: usize| {
        let mut bytes = vec![0; count];
        client.read_exact(&mut bytes).await.expect("more");
        bytes
    };
    let methods = take(2).await;
    take(methods[1].into()).await;
    client.write_all(&[5, 2]).await.expect("writes");
    let mut take = async |count: usize| {
        let mut bytes = vec![0; count];
        client.read_exact(&mut bytes).await.expect("more");
        bytes
    };
    let user = take(2).await;
    let user = take(user[1].into()).await;
    let password = take(1).await;
    let password = take(password[0].into()).await;
    client.write_all(&[1, 0]).await.expect("writes");
    let mut head = [0; 5];
    client.read_exact(&mut head).await.expect("more");
    assert_eq!(head[..4], [5, 1, 0, 3], "by name");
    let mut name = vec![0; usize::from(head[4]) + 2];
    client.read_exact(&mut name).await.expect("more");
    let shown = [&user, &password, &name[..name.len() - 2]].map(|part| String::from_utf8_lossy(part).into_owned());
    asked.lock().expect("no panic").push(shown.join(" "));
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.expect("writes");
    hand_on(client, to).await;
}

#[tokio::test]
async fn by_connect_and_the_proxy_looks_the_name_up() {
    let stage = Stage::new().await;
    let (to, asked) = (stage.server.address, Arc::clone(&stage.asked));
    let proxy = Server::plain(move |socket| {
        let asked = Arc::clone(&asked);
        async move { connect(socket, to, &asked).await }
    })
    .await;
    let caller = stage.caller(&stage.resolved(&format!("http://me:s%65cret@{}", proxy.address), ""));
    assert_eq!(text(caller.get(Group::Short, "/x").await.expect("an answer")).await, "ok");
    let asked = stage.asked();
    assert_eq!(asked.len(), 1);
    assert!(asked[0].starts_with("CONNECT nowhere.invalid:6443 HTTP/1.1\r\n"), "{asked:?}");
    assert!(asked[0].contains(&format!("Basic {}", STANDARD.encode("me:secret"))), "{asked:?}");

    let caller = stage.caller(&stage.resolved(&format!("http://me:wrong@{}", proxy.address), ""));
    let error = soon(caller.lease(Group::Short)).await.expect_err("not let through");
    assert!(matches!(error.what, DialFailure::Proxy(_)), "{error}");
    assert!(error.to_string().contains("proxy-url") && !error.to_string().contains("wrong"), "{error}");
}

#[tokio::test]
async fn by_connect_over_tls() {
    let stage = Stage::new().await;
    let (to, asked) = (stage.server.address, Arc::clone(&stage.asked));
    let listener = tls::self_signed(&[], &[], None).expect("made");
    let acceptor = TlsAcceptor::from(listener.config());
    let proxy = Server::plain(move |socket| {
        let (asked, acceptor) = (Arc::clone(&asked), acceptor.clone());
        async move {
            if let Ok(client) = acceptor.accept(socket).await {
                connect(client, to, &asked).await;
            }
        }
    })
    .await;
    let url = format!("https://localhost:{}", proxy.address.port());
    let caller = stage.caller(&stage.resolved(&url, &listener.ca()));
    assert_eq!(text(caller.get(Group::Short, "/x").await.expect("an answer")).await, "ok");
    assert_eq!(stage.asked().len(), 1);
    let caller = stage.caller(&stage.resolved(&url, ""));
    let error = soon(caller.lease(Group::Short)).await.expect_err("the proxy is not trusted");
    assert!(matches!(error.what, DialFailure::Proxy(_)), "{error}");
}

#[tokio::test]
async fn by_socks5() {
    let stage = Stage::new().await;
    let (to, asked) = (stage.server.address, Arc::clone(&stage.asked));
    let proxy = Server::plain(move |socket| {
        let asked = Arc::clone(&asked);
        async move { socks(socket, to, &asked).await }
    })
    .await;
    let caller = stage.caller(&stage.resolved(&format!("socks5://me:secret@{}", proxy.address), ""));
    assert_eq!(text(caller.get(Group::Short, "/x").await.expect("an answer")).await, "ok");
    assert_eq!(stage.asked(), ["me secret nowhere.invalid"]);
}

#[tokio::test]
async fn a_proxy_that_is_not_there_is_named_as_such() {
    let stage = Stage::new().await;
    let nobody = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port").local_addr().expect("bound");
    let caller = stage.caller(&stage.resolved(&format!("http://{nobody}"), ""));
    let error = soon(caller.lease(Group::Short)).await.expect_err("nobody is there");
    assert!(
        error.to_string().contains("the proxy on the way does not let calls through: connection refused"),
        "{error}"
    );
}
