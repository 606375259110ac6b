//! The clients: readers, writers and listers over HTTP/1.1 and HTTP/2, watchers, a leader for each
//! gate, and clients that hang up.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tidegate::clock::Clock;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::dice::Dice;
use crate::process::Process;

/// The number of each kind for each gate.
const ORDINARY: usize = 16;
const WATCHING: usize = 6;

/// Few enough that objects fail again and again.
const OBJECTS: u64 = 40;

pub(crate) struct Clients {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

/// The properties of one client.
struct Client {
    port: u16,
    trust: Option<Arc<ClientConfig>>,
    http2: bool,
    dice: Dice,
    clock: Clock,
    stop: watch::Receiver<bool>,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Clients {
    pub(crate) fn start(process: &Process, dice: &Dice) -> Self {
        let (mut tasks, stop) = (JoinSet::new(), watch::Sender::new(false));
        for (port, trust) in [(process.ports[0], None), (process.ports[1], Some(&process.trust))] {
            for number in 0..ORDINARY + WATCHING + 1 {
                let client = Client {
                    port,
                    trust: trust.cloned(),
                    http2: number % 2 == 0,
                    dice: dice.child(),
                    clock: Clock::start(),
                    stop: stop.subscribe(),
                };
                tasks.spawn(async move {
                    match number {
                        0 => client.lead().await,
                        number if number <= WATCHING => client.watch().await,
                        _ => client.work().await,
                    }
                });
            }
        }
        Self { tasks, stop }
    }

    /// Lets all clients finish their calls and leave.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("a client does not panic");
        }
    }
}

impl Client {
    fn is_over(&self) -> bool {
        *self.stop.borrow()
    }

    async fn rest(&self, most: u64) {
        self.clock.sleep(Duration::from_millis(1 + self.dice.below(most))).await;
    }

    async fn connect(&self) -> Option<Sender> {
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.ok()?;
        socket.set_nodelay(true).ok()?;
        let Some(trust) = &self.trust else { return self.raise(socket).await };
        let mut config = (**trust).clone();
        config.alpn_protocols = vec![if self.http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, socket).await.ok()?;
        self.raise(stream).await
    }

    async fn raise<S>(&self, stream: S) -> Option<Sender>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = TokioIo::new(stream);
        if self.http2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.ok()?;
            tokio::spawn(connection);
            return Some(Sender::Http2(sender));
        }
        let (sender, connection) = http1::handshake(io).await.ok()?;
        tokio::spawn(connection);
        Some(Sender::Http1(sender))
    }

    /// Makes one call to its end; `None` if the connection is of no more use.
    async fn call(&self, sender: &mut Sender, method: Method, target: &str, body: usize) -> Option<u16> {
        let uri = format!("http://localhost{target}");
        let request = Request::builder().method(method).uri(if self.http2 { &uri } else { target });
        let request = if self.http2 { request } else { request.header("host", "localhost") };
        let request = request.body(Full::from(vec![b'x'; body])).expect("valid");
        let answer = match sender {
            Sender::Http1(sender) => {
                sender.ready().await.ok()?;
                sender.send_request(request).await.ok()?
            }
            Sender::Http2(sender) => {
                sender.ready().await.ok()?;
                sender.send_request(request).await.ok()?
            }
        };
        let status = answer.status().as_u16();
        answer.into_body().collect().await.ok()?;
        Some(status)
    }

    /// Reads, writes and lists; one time in ten it leaves before the answer.
    async fn work(&self) {
        let mut open = None;
        while !self.is_over() {
            if open.is_none() {
                open = self.connect().await;
            }
            let Some(sender) = &mut open else {
                self.rest(50).await;
                continue;
            };
            let object = format!("/api/v1/namespaces/n/configmaps/c{}", self.dice.below(OBJECTS));
            let list = "/api/v1/namespaces/n/configmaps".to_owned();
            let (method, target, body) = match self.dice.below(10) {
                0 => (Method::GET, list, 0),
                1..=4 => (Method::PUT, object, usize::try_from(self.dice.below(200_000)).expect("small")),
                _ => (Method::GET, object, 0),
            };
            let patience = self.dice.one_in(10).then(|| Duration::from_millis(self.dice.below(400)));
            let call = self.call(sender, method, &target, body);
            let came = match patience {
                None => call.await,
                Some(patience) => tokio::select! {
                    came = call => came,
                    () = self.clock.sleep(patience) => None,
                },
            };
            // A client whose call was refused does not come back at once; and now and then one
            // starts over.
            match came {
                None => open = None,
                Some(200) if self.dice.one_in(50) => open = None,
                Some(200) => self.rest(20).await,
                Some(_) => self.rest(100).await,
            }
        }
    }

    /// Renews its lease.
    async fn lead(&self) {
        let mut open = None;
        while !self.is_over() {
            if open.is_none() {
                open = self.connect().await;
            }
            let Some(sender) = &mut open else { continue };
            let target = "/apis/coordination.k8s.io/v1/namespaces/n/leases/leader";
            if self.call(sender, Method::PUT, target, 200).await.is_none() {
                open = None;
            }
            self.clock.sleep(Duration::from_millis(50)).await;
        }
    }

    /// Watches until the watch ends, or until it has had enough events.
    async fn watch(&self) {
        while !self.is_over() {
            let Some(mut sender) = self.connect().await else {
                self.rest(50).await;
                continue;
            };
            let mut stop = self.stop.clone();
            let target = "/api/v1/namespaces/n/configmaps?watch=true";
            tokio::select! {
                _ = self.call(&mut sender, Method::GET, target, 0) => self.rest(200).await,
                () = self.rest(5000) => {}
                () = async { drop(stop.wait_for(|stop| *stop).await) } => {}
            }
        }
    }
}
