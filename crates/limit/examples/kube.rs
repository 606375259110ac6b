//! A kube-rs client with limits in process, by the same core as tidegate.
//!
//! `cargo run --example kube` calls an API made of a function; with `-- --cluster` it calls the
//! cluster of your kubeconfig. Ten reads go at 5 per second after a burst of 3. An object whose
//! reads fail is read again after 1, 2 and 4 seconds.

#![expect(clippy::disallowed_methods, reason = "a program of its own, with a clock of its own")]

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::{Body, ClientBuilder};
use kube::{Api, Client};
use tidegate_limit::key::{Group, Key, facet};
use tidegate_limit::moment::Moment;
use tidegate_limit::outcome::{Answer, Outcome};
use tidegate_limit::policy::{Backoff, BucketPolicy, ClassPolicy, QueuePolicy, Strategy};
use tidegate_limit::{Arrival, Claim, ClassId, Flow, Limiter, Permit, Policy, Refusal, Ticket, Verdict};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tower::layer::layer_fn;
use tower::{Layer, Service, ServiceExt, service_fn};

type KubeRequest = Request<Body>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The driver of a limiter: it has the clock and does the waiting.
struct Driver {
    limiter: Mutex<Limiter>,
    /// Wakes waiting calls to claim their verdicts.
    changed: Notify,
    began: Instant,
    hashes: RandomState,
}

/// A call that waits. It leaves the queue if its future is dropped.
struct WaitingCall<'a> {
    driver: &'a Driver,
    ticket: Ticket,
}

impl Driver {
    fn new(policy: Policy) -> Self {
        let mut limiter = Limiter::new(policy, 1, Moment::ZERO);
        limiter.add_room(Group::Short, 1_000, Moment::ZERO); // the client manages its connections
        Self { limiter: Mutex::new(limiter), changed: Notify::new(), began: Instant::now(), hashes: RandomState::new() }
    }

    /// Runs one operation of the limiter, and wakes the calls that it admits or refuses.
    fn operate<T>(&self, operation: impl FnOnce(&mut Limiter, Moment) -> T) -> T {
        let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        let result = operation(&mut limiter, Moment::ZERO + self.began.elapsed());
        if std::iter::from_fn(|| limiter.next_event()).count() > 0 {
            self.changed.notify_waiters();
        }
        result
    }

    /// Returns the identity under which failures of a request are remembered: method and path.
    fn key(&self, request: &KubeRequest) -> Key {
        let path = request.uri().path();
        let collection = path.rsplit_once('/').map_or(path, |(collection, _)| collection);
        let hash = |text: &str| self.hashes.hash_one(text);
        let facet = facet(hash(request.method().as_str()), request.method() == Method::DELETE);
        Key { object: hash(path), collection: hash(collection), facet }
    }

    /// Waits until the call may leave.
    async fn admit(&self, key: Key) -> Result<Permit, Refusal> {
        let verdict = {
            let flow = Flow { id: 0, name: &"configmaps" }; // flows take turns; here there is one
            let arrival = Arrival { key: Some(key), ..Arrival::new(ClassId(0), flow) };
            self.operate(|limiter, now| limiter.arrive(&arrival, now))
        };
        let ticket = match verdict {
            Verdict::Admit(permit) => return Ok(permit),
            Verdict::Refuse(refusal) => return Err(refusal),
            Verdict::Wait(ticket) => ticket,
        };
        let call = WaitingCall { driver: self, ticket };
        loop {
            let changed = self.changed.notified();
            let wakeup = self.operate(|limiter, now| {
                limiter.advance(now);
                limiter.next_wakeup()
            });
            match self.operate(|limiter, now| limiter.claim(call.ticket, now)) {
                Claim::Permit(permit) => return Ok(permit),
                Claim::Refused(refusal) => return Err(refusal),
                Claim::Waiting | Claim::Unconnected => {}
            }
            let wakeup = wakeup.map_or(Duration::from_secs(3600), Moment::since_start);
            _ = timeout_at(self.began + wakeup, changed).await;
        }
    }

    /// Sends a request as soon as it may leave, and reports its outcome.
    async fn send<S, B>(&self, service: &tokio::sync::Mutex<S>, request: KubeRequest) -> Result<Response<B>, BoxError>
    where
        S: Service<KubeRequest, Response = Response<B>, Error: Into<BoxError>>,
    {
        let key = self.key(&request);
        let name = request.uri().path().to_owned();
        let permit = self.admit(key).await.map_err(|refusal| format!("limited: {}", refusal.reason))?;
        let (admitted, receipt, slot) = permit.admit(request);
        let response = async {
            let response = service.lock().await.ready().await?.call(admitted.into_inner());
            response.await
        };
        let response = response.await;
        let status = response.as_ref().ok().map(|response| response.status().as_u16());
        let outcome = match status {
            Some(200..=299) => Outcome::Success,
            Some(429 | 500..) | None => Outcome::Failure,
            Some(_) => Outcome::Neutral,
        };
        self.operate(|limiter, now| {
            limiter.finish(receipt, Answer::new(outcome, status), None, &|| name.clone(), now);
            limiter.release(slot, now); // with a limit on calls in flight: at the end of the body
        });
        response.map_err(Into::into)
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.driver.operate(|limiter, now| limiter.leave(self.ticket, now));
    }
}

/// Returns a layer whose services share the limits of one driver.
fn limit<S, B>(
    driver: Arc<Driver>,
) -> impl Layer<S, Service: Service<KubeRequest, Response = Response<B>, Error = BoxError, Future: Send> + Send>
where
    S: Service<KubeRequest, Response = Response<B>, Error: Into<BoxError> + Send, Future: Send> + Send + 'static,
    B: Send + 'static,
{
    layer_fn(move |service| {
        // kube's own services cannot be cloned.
        let service = Arc::new(tokio::sync::Mutex::new(service));
        let driver = Arc::clone(&driver);
        service_fn(move |request| {
            let driver = Arc::clone(&driver);
            let service = Arc::clone(&service);
            async move { driver.send(&service, request).await }
        })
    })
}

/// An API of ConfigMaps, of which `broken` cannot be read.
async fn api(request: KubeRequest) -> Result<Response<Body>, Infallible> {
    let name = request.uri().path().rsplit('/').next().unwrap_or_default();
    let (status, text) = match name {
        "broken" => (500, r#"{"kind":"Status","status":"Failure","reason":"InternalError","code":500}"#.to_owned()),
        name => (200, format!(r#"{{"kind":"ConfigMap","metadata":{{"name":"{name}"}}}}"#)),
    };
    let mut response = Response::new(Body::from(text.into_bytes()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
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
    let driver = Arc::new(Driver::new(policy));
    let client = if std::env::args().any(|argument| argument == "--cluster") {
        rustls::crypto::ring::default_provider().install_default().map_err(|_| "TLS was set up before")?;
        ClientBuilder::try_from(kube::Config::infer().await?)?.with_layer(&limit(driver)).build()
    } else {
        Client::new(limit(driver).layer(service_fn(api)), "default")
    };
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let began = Instant::now();
    let reads = (0..10).map(|number| {
        let maps = maps.clone();
        async move {
            let is_there = maps.get(&format!("app-{number}")).await.is_ok();
            let result = if is_there { "read" } else { "failed" };
            println!("{:>5} ms  app-{number}: {result}", began.elapsed().as_millis());
        }
    });
    futures_util::future::join_all(reads).await;
    for _ in 0..4 {
        let failed = maps.get("broken").await.is_err();
        println!("{:>5} ms  broken: {}", began.elapsed().as_millis(), if failed { "failed" } else { "read" });
    }
    Ok(())
}
