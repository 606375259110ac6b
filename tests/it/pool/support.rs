//! The basis of the pool's tests: a stand-in for limiter and driver that counts room, and servers
//! over loopback.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate::api::Group;
use tidegate::clock::Clock;
use tidegate::credentials::{Injector, Target};
use tidegate::limit::{Admitted, Arrival, ClassId, Flow, Limiter, Verdict, policy};
use tidegate::moment::Moment;
use tidegate::tls::{self, Pem, Roots};
use tidegate::upstream::{
    DialError, Dns, Host, Options, OutgoingBody, ResponseBody, Rooms, SendError, StreamLease, Upstream,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// No test measures this time; it only keeps a hang from lasting forever.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("it hangs")
}

/// Waits until `so` holds.
pub(crate) async fn until(mut so: impl FnMut() -> bool) {
    soon(async {
        while !so() {
            tokio::time::timeout(Duration::from_millis(2), std::future::pending::<()>()).await.ok();
        }
    })
    .await;
}

// === the stand-in for limiter and driver ===

/// Counts room as the limiter does.
#[derive(Default)]
pub(crate) struct Ledger {
    groups: Mutex<HashMap<Group, Count>>,
    changed: Notify,
}

#[derive(Default)]
struct Count {
    room: i64,
    waiting: usize,
    failures: usize,
}

impl Ledger {
    fn with<R>(&self, group: Group, change: impl FnOnce(&mut Count) -> R) -> R {
        change(self.groups.lock().expect("not poisoned").entry(group).or_default())
    }

    pub(crate) fn room(&self, group: Group) -> i64 {
        self.with(group, |count| count.room)
    }
}

impl Rooms for Ledger {
    fn add_room(&self, group: Group, change: i64) {
        self.with(group, |count| count.room += change);
        self.changed.notify_waiters();
    }

    fn unreachable(&self, group: Group) {
        self.with(group, |count| count.failures += 1);
        self.changed.notify_waiters();
    }
}

/// A pool with its stand-in.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) upstream: Upstream,
    pub(crate) ledger: Arc<Ledger>,
}

impl Caller {
    pub(crate) fn to(server: &Server) -> Self {
        Self::with(server, |_| {})
    }

    pub(crate) fn with(server: &Server, change: impl FnOnce(&mut Options)) -> Self {
        let mut options = options(server.address, server.ca.as_deref());
        change(&mut options);
        Self::start(options)
    }

    pub(crate) fn start(options: Options) -> Self {
        let ledger = Arc::new(Ledger::default());
        let upstream = Upstream::start(options, Clock::start(), Arc::clone(&ledger) as Arc<dyn Rooms>);
        Self { upstream, ledger }
    }

    /// Takes a stream with a grant. Reports the number of waiting calls to the pool as the driver
    /// does: before any caller acts on a grant.
    pub(crate) async fn lease(&self, group: Group) -> Result<StreamLease, Arc<DialError>> {
        if let Some(error) = self.upstream.down(group) {
            return Err(error);
        }
        let mut failures = self.ledger.with(group, |count| count.failures);
        let mut waits = false;
        loop {
            let mut changed = pin!(self.ledger.changed.notified());
            changed.as_mut().enable();
            let (granted, failed, waiting) = self.ledger.with(group, |count| {
                let granted = count.room > 0;
                let failed = !granted && count.failures > failures;
                failures = count.failures;
                count.room -= i64::from(granted);
                count.waiting = count.waiting + usize::from(!granted && !failed) - usize::from(waits);
                (granted, failed, count.waiting)
            });
            waits = !granted && !failed;
            self.upstream.want(group, waiting);
            if granted {
                if let Some(lease) = self.upstream.checkout(group) {
                    return Ok(lease);
                }
            } else if failed {
                // Unless the upstream has been reached again since.
                if let Some(error) = self.upstream.down(group) {
                    return Err(error);
                }
            } else {
                changed.await;
            }
        }
    }

    pub(crate) async fn send(
        &self,
        group: Group,
        request: Request<OutgoingBody>,
    ) -> Result<Response<ResponseBody>, SendError> {
        let lease = soon(self.lease(group)).await.expect("the server can be reached");
        soon(self.upstream.send(lease, admitted(request))).await
    }

    pub(crate) async fn get(&self, group: Group, path: &str) -> Result<Response<ResponseBody>, SendError> {
        self.send(group, get(path)).await
    }
}

pub(crate) fn get(path: &str) -> Request<OutgoingBody> {
    Request::get(path).body(OutgoingBody::default()).expect("valid")
}

/// A PUT with a declared length, as client-go sends it.
pub(crate) fn put(path: &str, body: &'static str) -> Request<OutgoingBody> {
    let outgoing = OutgoingBody::new(vec![Bytes::from_static(body.as_bytes())], None, None);
    Request::put(path).header("content-length", body.len()).body(outgoing).expect("valid")
}

pub(crate) async fn text(response: Response<ResponseBody>) -> String {
    let body = soon(response.into_body().collect()).await.expect("the whole body").to_bytes();
    String::from_utf8(body.to_vec()).expect("text")
}

/// A request that a limiter without limits has let through.
pub(crate) fn admitted<T>(request: T) -> Admitted<T> {
    let class =
        policy::ClassPolicy { name: "exempt".into(), lane: policy::Lane::Exempt, ..policy::ClassPolicy::default() };
    let policy = policy::Policy { classes: vec![class], ..policy::Policy::default() };
    let arrival = Arrival { group: Group::Exempt, ..Arrival::new(ClassId(0), Flow { id: 0, name: &"test" }) };
    match Limiter::new(policy, 0, Moment::ZERO).arrive(&arrival, Moment::ZERO) {
        Verdict::Admit(permit) => permit.admit(request).0,
        other => panic!("not admitted: {other:?}"),
    }
}

pub(crate) fn options(address: SocketAddr, ca: Option<&str>) -> Options {
    let target = Target {
        scheme: if ca.is_some() { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP },
        authority: address.to_string().parse().expect("an authority"),
        base_path: String::new(),
        server_name: None,
        proxy: None,
    };
    Options {
        target,
        tls: ca.map(|ca| Arc::new(tls::Client::new(Roots::Only(Pem::new(ca.into(), "test CA")), None).expect("TLS"))),
        host: Host::Rewrite,
        rewrite_links: None,
        mount: String::new(),
        injector: Arc::new(Injector::pass_through()),
        own: Vec::new(),
        dns: Dns::default(),
        connect_timeout: Duration::from_secs(20),
        response_timeout: None,
    }
}

// === servers ===

async fn loopback() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port")
}

pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

pub(crate) fn answer(body: impl Into<Bytes>) -> Answer {
    Response::new(http_body_util::Full::new(body.into()).map_err(|never: Infallible| match never {}).boxed_unsync())
}

/// A server on a loopback port. Its tasks end with it.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// The PEM to trust, if it speaks TLS.
    pub(crate) ca: Option<String>,
    /// Connections accepted.
    pub(crate) connections: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

/// One accepted connection, for handlers.
#[derive(Clone)]
pub(crate) struct Connection(watch::Sender<bool>);

impl Connection {
    /// Sends a graceful GOAWAY.
    pub(crate) fn go_away(&self) {
        self.0.send_replace(true);
    }
}

impl Server {
    /// Speaks h2 with this many streams on each connection.
    pub(crate) async fn http2<F>(streams: u32, handler: F) -> Self
    where
        F: Fn(Request<Incoming>, Connection) -> BoxFuture<'static, Answer> + Send + Sync + 'static,
    {
        Self::http2_on(loopback().await, streams, handler)
    }

    pub(crate) fn http2_on<F>(listener: TcpListener, streams: u32, handler: F) -> Self
    where
        F: Fn(Request<Incoming>, Connection) -> BoxFuture<'static, Answer> + Send + Sync + 'static,
    {
        let handler = Arc::new(handler);
        Self::tls_on(listener, move |socket| {
            let handler = Arc::clone(&handler);
            async move {
                let (away, mut told) = watch::channel(false);
                let service = service_fn(move |request| {
                    let answer = handler(request, Connection(away.clone()));
                    async { Ok::<_, Infallible>(answer.await) }
                });
                let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                builder.timer(TokioTimer::new()).max_concurrent_streams(streams).max_header_list_size(1 << 20);
                let mut serving = pin!(builder.serve_connection(TokioIo::new(socket), service));
                let told = async move { told.wait_for(|told| *told).await.map(drop) };
                let finished = tokio::select! {
                    done = serving.as_mut() => Some(done.is_ok()),
                    Ok(()) = told => None,
                };
                if finished.is_none() {
                    serving.as_mut().graceful_shutdown();
                    drop(serving.await);
                }
            }
        })
    }

    /// Offers h2 over TLS and leaves the bytes to `script`.
    pub(crate) async fn tls<F, S>(script: F) -> Self
    where
        F: Fn(TlsStream<TcpStream>) -> S + Send + Sync + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        Self::tls_on(loopback().await, script)
    }

    fn tls_on<F, S>(socket: TcpListener, script: F) -> Self
    where
        F: Fn(TlsStream<TcpStream>) -> S + Send + Sync + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        let listener = tls::self_signed(&[], &[], None).expect("a certificate");
        let acceptor = TlsAcceptor::from(listener.config());
        let script = Arc::new(script);
        let mut server = Self::on(socket, move |socket| {
            let (acceptor, script) = (acceptor.clone(), Arc::clone(&script));
            async move {
                if let Ok(stream) = acceptor.accept(socket).await {
                    script(stream).await;
                }
            }
        });
        server.ca = Some(listener.ca().to_string());
        server
    }

    /// Leaves the bytes to `script`.
    pub(crate) async fn plain<F, S>(script: F) -> Self
    where
        F: Fn(TcpStream) -> S + Send + Sync + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        Self::on(loopback().await, script)
    }

    pub(crate) fn on<F, S>(listener: TcpListener, script: F) -> Self
    where
        F: Fn(TcpStream) -> S + Send + Sync + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        let address = listener.local_addr().expect("bound");
        let connections = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::clone(&connections);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut serving = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                accepted.fetch_add(1, SeqCst);
                socket.set_nodelay(true).expect("a socket");
                serving.spawn(script(socket));
            }
        });
        Self { address, ca: None, connections, _tasks: tasks }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }
}
