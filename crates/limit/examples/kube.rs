//! A kube-rs client that is limited in process, by the same core as tidegate.
//!
//! `cargo run --example kube` speaks to an API made of a function; `-- --cluster` to the cluster of
//! your kubeconfig. Ten reads go at 5 per second after a burst of 3, and an object whose reads fail
//! is read again after 1, 2 and 4 seconds.

#![expect(clippy::disallowed_methods, reason = "a program of its own, with a clock of its own")]

use std::convert::Infallible;
use std::future::{Future, pending, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::{Body, ClientBuilder};
use kube::{Api, Client};
use tidegate_limit::key::{Group, Key, facet};
use tidegate_limit::moment::Moment;
use tidegate_limit::outcome::{Answer, Outcome};
use tidegate_limit::policy::{Backoff, BucketPolicy, ClassPolicy, QueuePolicy, Strategy};
use tidegate_limit::{Arrival, Claim, ClassId, Flow, Limiter, Permit, Policy, Refusal, Ticket, Verdict};
use tokio::sync::Notify;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceBuilder, service_fn};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The driver: it has the clock and does the waiting. Clones share the limits.
#[derive(Clone)]
struct Driver(Arc<Shared>);

struct Shared {
    limiter: Mutex<Limiter>,
    /// Tells waiting calls to look again.
    changed: Notify,
    began: Instant,
    hashes: RandomState,
}

/// A call that waits. It leaves the queue if its future is dropped.
struct Waiting<'a> {
    driver: &'a Driver,
    ticket: Ticket,
}

#[derive(Clone)]
struct LimitLayer(Driver);

struct Limited<S> {
    /// Called only once a call may leave; kube's own services cannot be cloned.
    inner: Arc<tokio::sync::Mutex<S>>,
    driver: Driver,
}

impl Driver {
    fn new(policy: Policy) -> Self {
        let mut limiter = Limiter::new(policy, 1, Moment::ZERO);
        limiter.add_room(Group::Short, 1_000, Moment::ZERO); // connections are the client's affair
        let shared = Shared {
            limiter: Mutex::new(limiter),
            changed: Notify::new(),
            began: Instant::now(),
            hashes: RandomState::new(),
        };
        Self(Arc::new(shared))
    }

    fn lock(&self) -> MutexGuard<'_, Limiter> {
        self.0.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Moment {
        Moment::ZERO + self.0.began.elapsed()
    }

    /// Runs one operation of the limiter, and wakes the calls that may go or are refused by it.
    fn operate<T>(&self, operation: impl FnOnce(&mut Limiter, Moment) -> T) -> T {
        let mut limiter = self.lock();
        let result = operation(&mut limiter, self.now());
        let is_news = std::iter::from_fn(|| limiter.next_event()).count() > 0;
        drop(limiter);
        if is_news {
            self.0.changed.notify_waiters();
        }
        result
    }

    /// Returns the identity under which failures of a request are remembered: its path.
    fn key(&self, request: &http::Request<Body>) -> Key {
        let path = request.uri().path();
        let collection = path.rsplit_once('/').map_or(path, |(collection, _)| collection);
        let is_read = request.method() == http::Method::GET;
        let hash = |text: &str| self.0.hashes.hash_one(text);
        let deletes = request.method() == http::Method::DELETE;
        Key { object: hash(path), collection: hash(collection), facet: facet(u64::from(is_read) << 1, deletes) }
    }

    /// Returns when the call may leave.
    async fn admit(&self, key: Key) -> Result<Permit, Refusal> {
        let verdict = {
            let flow = Flow { id: 0, name: &"configmaps" }; // the unit of fairness: here there is one
            let arrival = Arrival { key: Some(key), ..Arrival::new(ClassId(0), flow) };
            self.operate(|limiter, now| limiter.arrive(&arrival, now))
        };
        let ticket = match verdict {
            Verdict::Admit(permit) => return Ok(permit),
            Verdict::Refuse(refusal) => return Err(refusal),
            Verdict::Wait(ticket) => ticket,
        };
        let waiting = Waiting { driver: self, ticket };
        loop {
            let changed = self.0.changed.notified();
            let wakeup = self.operate(|limiter, now| {
                limiter.advance(now);
                limiter.next_wakeup()
            });
            match self.operate(|limiter, now| limiter.claim(waiting.ticket, now)) {
                Claim::Permit(permit) => return Ok(permit),
                Claim::Refused(refusal) => return Err(refusal),
                Claim::Waiting | Claim::Unconnected => {}
            }
            let timer = async {
                match wakeup {
                    Some(at) => tokio::time::sleep_until(self.0.began + at.since_start()).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = changed => {}
                () = timer => {}
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.driver.operate(|limiter, now| limiter.leave(self.ticket, now));
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner: Arc::new(tokio::sync::Mutex::new(inner)), driver: self.0.clone() }
    }
}

impl<S, B> Service<http::Request<Body>> for Limited<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>> + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Send,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let inner = Arc::clone(&self.inner);
        let driver = self.driver.clone();
        Box::pin(async move {
            let key = driver.key(&request);
            let name = request.uri().path().to_owned();
            let permit = driver.admit(key).await.map_err(|refusal| format!("limited: {:?}", refusal.reason))?;
            let (admitted, receipt, slot) = permit.admit(request);
            let response = async {
                let mut inner = inner.lock().await;
                poll_fn(|cx| inner.poll_ready(cx)).await?;
                let answered = inner.call(admitted.into_inner());
                drop(inner);
                answered.await
            };
            let response = response.await;
            let status = response.as_ref().ok().map(|response| response.status().as_u16());
            let outcome = match status {
                Some(200..=299) => Outcome::Success,
                Some(429 | 500..) | None => Outcome::Failure,
                Some(_) => Outcome::Neutral,
            };
            driver.operate(|limiter, now| {
                limiter.finish(receipt, Answer::new(outcome, status), None, &|| name.clone(), now);
                limiter.release(slot, now); // with a limit on calls in flight: at the end of the body
            });
            response.map_err(Into::into)
        })
    }
}

/// An API of ConfigMaps, of which `broken` cannot be read.
async fn api(request: http::Request<Body>) -> Result<http::Response<Body>, Infallible> {
    let name = request.uri().path().rsplit('/').next().unwrap_or_default();
    let (status, text) = match name {
        "broken" => (500, r#"{"kind":"Status","status":"Failure","reason":"InternalError","code":500}"#.to_owned()),
        name => (200, format!(r#"{{"kind":"ConfigMap","metadata":{{"name":"{name}"}}}}"#)),
    };
    let mut response = http::Response::new(Body::from(text.into_bytes()));
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    Ok(response)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let strategy = Strategy::Exponential { base: Duration::from_secs(1), max: Duration::from_secs(60), jitter: 0.0 };
    let hold = Duration::from_secs(60);
    let backoff = Backoff { strategy, hold, forget_after: Duration::from_secs(600) };
    let policy = Policy {
        bucket: NonZeroU32::new(3).map(|burst| BucketPolicy::new(5.0, burst)),
        queue: QueuePolicy { max_wait: Duration::from_secs(30), max_waiting: 100, ..QueuePolicy::default() },
        classes: vec![ClassPolicy { name: "default".into(), backoff, ..ClassPolicy::default() }],
        ..Policy::default()
    };
    let layer = LimitLayer(Driver::new(policy));
    let client = if std::env::args().any(|argument| argument == "--cluster") {
        rustls::crypto::ring::default_provider().install_default().map_err(|_| "TLS was set up before")?;
        ClientBuilder::try_from(kube::Config::infer().await?)?.with_layer(&layer).build()
    } else {
        Client::new(ServiceBuilder::new().layer(layer).service(service_fn(api)), "default")
    };
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let began = Instant::now();
    let reads = (0..10).map(|number| {
        let maps = maps.clone();
        async move {
            let is_there = maps.get(&format!("app-{number}")).await.is_ok();
            println!(
                "{:>5} ms  app-{number}: {}",
                began.elapsed().as_millis(),
                if is_there { "read" } else { "failed" }
            );
        }
    });
    futures_util::future::join_all(reads).await;
    for _ in 0..4 {
        let failed = maps.get("broken").await.is_err();
        println!("{:>5} ms  broken: {}", began.elapsed().as_millis(), if failed { "failed" } else { "read" });
    }
    Ok(())
}
