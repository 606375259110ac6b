//! An upstream, a gate and a client in one process, for tests over loopback.

use std::future::Future;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate::api::{Failures, PausePolicy, Scope, Signal};
use tidegate::classify::{ApiKind, FairBy, Rule, RuleMatch, Rules, Traits};
use tidegate::clock::Clock;
use tidegate::credentials::Injector;
use tidegate::limit::policy::{Backoff, BucketPolicy, ClassPolicy, InFlight, Lane, QueuePolicy, Strategy};
use tidegate::limit::quota::QuotaKind;
use tidegate::limit::{ClassId, Policy};
use tidegate::proxy::{BindError, Gate, Listen, Options, RetryAfter};
use tidegate::{spec, telemetry, upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub(crate) type AnyBody = UnsyncBoxBody<Bytes, std::io::Error>;
type Answering = Pin<Box<dyn Future<Output = Response<AnyBody>> + Send>>;

/// A request that reached the upstream.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) at: Duration,
}

/// An upstream that speaks HTTP/1.1 and remembers its requests.
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Backend {
    /// Answers every call with the result of `answer`, which gets the call with its body read.
    pub(crate) async fn start<F, A>(answer: F) -> Self
    where
        F: Fn(Seen) -> A + Send + Sync + 'static,
        A: Future<Output = Response<AnyBody>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let clock = Clock::start();
        let answer: Arc<dyn Fn(Seen) -> Answering + Send + Sync> = Arc::new(move |seen| Box::pin(answer(seen)));
        let kept = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).expect("a socket");
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&kept));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
                    async move {
                        let (parts, body) = request.into_parts();
                        let body = body.collect().await?;
                        let trailers = body.trailers().cloned();
                        let call = Seen {
                            target: parts.uri.to_string(),
                            headers: parts.headers,
                            body: body.to_bytes(),
                            trailers,
                            at: clock.now().since_start(),
                        };
                        seen.lock().expect("no panic").push(call.clone());
                        Ok::<_, hyper::Error>(answer(call).await)
                    }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self { address, seen }
    }

    /// Answers every call with this status and "ok".
    pub(crate) async fn replying(status: u16) -> Self {
        Self::start(move |_| async move { reply(status, "ok") }).await
    }

    /// Answers every call with 200 once the semaphore has a permit for it.
    pub(crate) async fn holding() -> (Self, Arc<Semaphore>) {
        let answers = Arc::new(Semaphore::new(0));
        let gate = Arc::clone(&answers);
        let backend = Self::start(move |_| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.expect("open").forget();
                reply(200, "ok")
            }
        });
        (backend.await, answers)
    }

    /// The targets that arrived, in order.
    pub(crate) fn targets(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.target).collect()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no panic").clone()
    }
}

/// The refusal by kube-apiserver's priority and fairness, as it comes.
pub(crate) fn too_busy(retry_after: u64) -> String {
    format!(
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: {retry_after}\r\n\
         X-Content-Type-Options: nosniff\r\nX-Kubernetes-Pf-Flowschema-Uid: f\r\nX-Kubernetes-Pf-Prioritylevel-Uid: p\r\n\
         Content-Length: 43\r\n\r\nToo many requests, please try again later.\n"
    )
}

/// An answer with a short body.
pub(crate) fn reply(status: u16, body: &'static str) -> Response<AnyBody> {
    let body = Full::from(body).map_err(|never| match never {}).boxed_unsync();
    Response::builder().status(status).body(body).expect("valid")
}

/// An upstream that reads one request as bytes and answers with bytes.
pub(crate) async fn raw_backend(answer: &'static [u8]) -> (SocketAddr, tokio::task::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accepts");
        let mut request = Vec::new();
        while !is_whole(&request) {
            assert!(stream.read_buf(&mut request).await.expect("reads") > 0, "{}", String::from_utf8_lossy(&request));
        }
        stream.write_all(answer).await.expect("writes");
        stream.shutdown().await.expect("closes");
        request
    });
    (address, task)
}

/// True if bytes hold a whole request: a head, and the body that it announces.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    if head.contains("transfer-encoding: chunked") {
        return body.ends_with("\r\n\r\n");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.parse().expect("a number"))
}

/// A gate in front of an upstream.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) name: Arc<str>,
    pub(crate) gate: Gate,
    pub(crate) stop: CancellationToken,
}

/// A gate before it is started.
pub(crate) struct ProxyBuilder {
    options: Options,
}

static GATES: AtomicU64 = AtomicU64::new(0);

impl Proxy {
    /// A gate without limits and with two classes: leases are exempt, and the rest is `default`.
    pub(crate) fn before(upstream: SocketAddr) -> ProxyBuilder {
        let name: Arc<str> = format!("gate{}", GATES.fetch_add(1, Ordering::Relaxed)).into();
        ProxyBuilder { options: options(name, upstream) }
    }

    /// Sends bytes on a new connection, and returns everything that comes until the gate closes it.
    pub(crate) async fn exchange(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.expect("writes");
        let mut answer = Vec::new();
        within(stream.read_to_end(&mut answer)).await.expect("reads");
        String::from_utf8(answer).expect("text")
    }

    /// Sends a GET on a new connection; returns status line and headers, and body.
    pub(crate) async fn get(&self, target: &str) -> (u16, String) {
        let answer =
            self.exchange(&format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")).await;
        (status(&answer), answer)
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("the gate listens")
    }

    /// An HTTP/2 connection with prior knowledge.
    pub(crate) async fn connect_http2(&self) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
        let stream = TokioIo::new(self.connect().await);
        let (send, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.expect("speaks h2");
        tokio::spawn(connection);
        send
    }

    /// The value of a metric of this gate, or 0 if there is none. `labels` must all be in the line.
    pub(crate) fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = telemetry::metrics().render();
        let gate = format!("gate=\"{}\"", self.name);
        let line = text.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(&gate));
        let values = line.filter(|line| labels.iter().all(|label| line.contains(label)));
        values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Returns when a metric of this gate has reached a value.
    pub(crate) async fn reaches(&self, name: &str, labels: &[&str], value: f64) {
        within(async {
            while (self.metric(name, labels) - value).abs() > f64::EPSILON {
                Clock::start().sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

impl ProxyBuilder {
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    pub(crate) fn policy(self, change: impl FnOnce(&mut Policy)) -> Self {
        self.with(|options| change(&mut options.gate.policy))
    }

    /// At most this many calls in flight.
    pub(crate) fn in_flight(self, max: u32) -> Self {
        self.policy(|policy| {
            policy.in_flight = Some(InFlight::new(NonZeroU32::new(max).expect("some")));
        })
    }

    /// A manager bucket.
    pub(crate) fn bucket(self, rate: f64, burst: u32) -> Self {
        self.policy(|policy| policy.bucket = Some(bucket(rate, burst)))
    }

    pub(crate) fn max_wait(self, max_wait: Duration) -> Self {
        self.policy(|policy| policy.queue.max_wait = max_wait)
    }

    /// The options that the gate would start with.
    pub(crate) fn options(self) -> Options {
        self.options
    }

    pub(crate) async fn start(self) -> Proxy {
        self.try_start().await.expect("starts")
    }

    pub(crate) async fn try_start(mut self) -> Result<Proxy, BindError> {
        let stop = CancellationToken::new();
        let gate = &mut self.options.gate;
        gate.policy.classes.iter_mut().for_each(|class| class.shadow |= gate.shadow);
        let name = Arc::clone(&self.options.gate.name);
        let gate = Gate::start(self.options, Clock::start(), stop.clone()).await?;
        Ok(Proxy { address: gate.addresses()[0], name, gate, stop })
    }
}

pub(crate) fn bucket(rate: f64, burst: u32) -> BucketPolicy {
    BucketPolicy::new(rate, NonZeroU32::new(burst).expect("some"))
}

/// The status of an answer in bytes.
pub(crate) fn status(answer: &str) -> u16 {
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|answer| answer.get(..3));
    status.and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

/// The value of a header of an answer in bytes.
pub(crate) fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split("\r\n\r\n").next()?;
    let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}: ")))?;
    line.split_once(": ").map(|(_, value)| value)
}

/// Gives up after long enough for any machine.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("in time")
}

fn options(name: Arc<str>, upstream: SocketAddr) -> Options {
    Options {
        gate: gate(name),
        tls: None,
        upstream: upstream::Options {
            target: upstream::Target {
                scheme: Scheme::HTTP,
                authority: upstream.to_string().parse().expect("an authority"),
                base_path: String::new(),
                server_name: None,
                proxy: None,
            },
            tls: None,
            host: upstream::Host::Rewrite,
            rewrite_links: None,
            mount: String::new(),
            injector: Arc::new(Injector::pass_through()),
            own: Vec::new(),
            dns: upstream::Dns::default(),
            connect_timeout: Duration::from_secs(5),
            response_timeout: None,
        },
        clients: None,
        call_log: None,
        stores: tidegate::proxy::Stores::default(),
        drain: Duration::from_secs(25),
    }
}

fn gate(name: Arc<str>) -> spec::Gate {
    let backoff = Backoff {
        strategy: Strategy::Exponential { base: Duration::from_millis(200), max: Duration::from_secs(60), jitter: 0.0 },
        hold: Duration::ZERO,
        forget_after: Duration::from_secs(120),
    };
    let class = |name: &str, lane| ClassPolicy { name: name.into(), lane, backoff, ..ClassPolicy::default() };
    let failures = Failures { statuses: vec![429, 500, 502, 503, 504], transport: true, left: true };
    spec::Gate {
        name,
        listen: vec![Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))],
        rules: Arc::new(rules(ApiKind::Kubernetes)),
        candidate: None,
        figures: None,
        policy: Policy {
            queue: QueuePolicy {
                max_wait: Duration::from_secs(1_000_000_000), // forever
                max_waiting: 10_000,
                max_waiting_bytes: 16 << 20,
                ..QueuePolicy::default()
            },
            classes: vec![class("leases", Lane::Exempt), class("default", Lane::Normal)],
            ..Policy::default()
        },
        answers: spec::AnswerRules {
            failures: vec![failures.clone(), failures],
            throttling: PausePolicy {
                kubernetes: true,
                honour: [Signal::RetryAfter].into_iter().collect(),
                scope: Scope::Key,
                max_pause: Duration::from_secs(900),
                reserve: 0.0,
                quota: QuotaKind::Unknown,
                pace: false,
            },
            revalidation: spec::Revalidation::default(),
        },
        refusals: spec::RefusalRules { retry_after: RetryAfter::Auto, status: 429, ratelimit_on_answers: false },
        shadow: false,
        kind: ApiKind::Kubernetes,
        upstream: spec::Source::InCluster,
        hosts: None,
        identity: spec::GateIdentity {
            credentials: spec::Credentials::PassThrough,
            file: None,
            impersonation: false,
            events: false,
        },
        access: spec::ClientAccess { allowed_hosts: Vec::new(), tls: None, clients: None },
        forwarding: spec::ForwardRules {
            host: spec::Host::Rewrite,
            rewrite_links: false,
            connect_timeout: Duration::from_secs(5),
            response_timeout: None,
            tls: spec::UpstreamTls::default(),
        },
    }
}

/// Leases are exempt, the rest is one class.
pub(crate) fn rules(kind: ApiKind) -> Rules {
    let traits =
        |exempt| Traits { exempt, remembers: !exempt, strictness: 0, cost: tidegate::classify::CostBy::Number(1) };
    let leases = Rule { class: ClassId(0), matching: RuleMatch::Leases };
    Rules::new(kind, FairBy::Resource, vec![traits(true), traits(false)], vec![leases])
}
