//! A controller over HTTP: workers that reconcile changed objects, and the lease of the elected
//! leader.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, StatusCode};
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::scene::{KINDS, OBJECTS, ObjectId, RENEW_DEADLINE, RENEW_EVERY, WORKERS};
use super::server::Api;
use crate::clock::Clock;
use crate::controller::{Controller, Item, LeaseHolder, MAX_RETRIES, RateLimiter, ReconcileResult};
use crate::lock;
use crate::own_client::OwnClient;

/// The demo's controller for one kind of object.
#[derive(Debug)]
pub(super) struct HttpController {
    kind: usize,
    client: OwnClient,
    clock: Clock,
    state: Mutex<WorkerState>,
    /// Notified when the queue may have an object for a worker.
    changed: Notify,
}

/// The state that the workers share.
#[derive(Debug)]
struct WorkerState {
    controller: Controller,
    /// The known generations of each object.
    cache: Vec<Generations>,
}

/// An object's latest known generation, and the last one that its status reports.
#[derive(Clone, Copy, Debug, Default)]
struct Generations {
    generation: u64,
    observed: u64,
}

// === impl HttpController ===

impl HttpController {
    /// Starts the workers. The renewals of the lease begin after `offset`, because real controllers
    /// do not start at the same moment.
    pub(super) fn start(
        kind: usize,
        client: OwnClient,
        api: &Arc<Api>,
        offset: Duration,
        clock: Clock,
        tasks: &mut JoinSet<()>,
    ) -> Arc<Self> {
        let controller = Controller::new(RateLimiter::DEFAULT, OBJECTS, WORKERS);
        let state = Mutex::new(WorkerState { controller, cache: vec![Generations::default(); OBJECTS] });
        let controller = Arc::new(Self { kind, client, clock, state, changed: Notify::new() });
        tasks.spawn(Arc::clone(&controller).lead(Arc::clone(api), offset));
        for _ in 0..WORKERS {
            tasks.spawn(Arc::clone(&controller).work());
        }
        controller
    }

    /// Records a change of an object in the cache, and queues the object, as an informer does.
    pub(super) fn learn(&self, item: Item, generation: u64) {
        let mut state = lock(&self.state);
        state.cache[item].generation = generation;
        state.controller.queue.add(item, self.clock.now());
        drop(state);
        self.changed.notify_one();
    }

    async fn work(self: Arc<Self>) {
        loop {
            let item = self.next().await;
            let reconciled = if self.reconcile(item).await { ReconcileResult::Done } else { ReconcileResult::Failed };
            lock(&self.state).controller.finish(item, reconciled, self.clock.now());
            self.changed.notify_one();
        }
    }

    /// Waits for the next object to work on.
    async fn next(&self) -> Item {
        loop {
            let next = lock(&self.state).controller.start(self.clock.now());
            match next {
                Ok(item) => return item,
                Err(None) => self.changed.notified().await,
                Err(Some(due)) => tokio::select! {
                    () = self.changed.notified() => {}
                    () = self.clock.sleep_until(due) => {}
                },
            }
        }
    }

    /// Reconciles an object with two calls, if its last change is not done yet: one applies the
    /// wanted state, the other reports it in the status. Returns false if a call failed.
    async fn reconcile(&self, item: Item) -> bool {
        let known = lock(&self.state).cache[item];
        if known.observed >= known.generation {
            return true;
        }
        let path = ObjectId { kind: self.kind, number: item }.path();
        let applied =
            json!({ "metadata": { "annotations": { "demo.example.com/applied": known.generation.to_string() } } });
        let status = json!({ "status": { "observedGeneration": known.generation } });
        let is_done = self.call(Method::PATCH, &path, applied.to_string()).await
            && self.call(Method::PUT, &format!("{path}/status"), status.to_string()).await;
        if is_done {
            lock(&self.state).cache[item].observed = known.generation;
        }
        is_done
    }

    /// Renews the lease again and again, and records each attempt. As in client-go, an attempt is
    /// an update; if that fails, a read and a second update.
    async fn lead(self: Arc<Self>, api: Arc<Api>, offset: Duration) {
        let mut holder = LeaseHolder::new(RENEW_EVERY, RENEW_DEADLINE);
        let lease = KINDS[self.kind].resource;
        let seconds = holder.timeout().as_secs();
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/demo/leases/{lease}?timeout={seconds}s");
        let update = || self.call(Method::PUT, &path, "{}".to_owned());
        self.clock.sleep(offset).await;
        loop {
            holder.begin(self.clock.now());
            let renewed = tokio::select! {
                renewed = async { update().await || self.call(Method::GET, &path, String::new()).await && update().await } => renewed,
                () = self.clock.sleep(holder.timeout()) => false,
            };
            let attempt = holder.end(renewed, self.clock.now());
            api.world().record.renewals.push(attempt.late);
            self.clock.sleep_until(attempt.next).await;
        }
    }

    /// Makes one call as client-go does. If the response has a Retry-After, the call is repeated
    /// after that time, up to ten times; no other failure is retried. Returns true on success.
    async fn call(&self, method: Method, path: &str, body: String) -> bool {
        let body = Bytes::from(body);
        for retries in 0..=MAX_RETRIES {
            let request = Request::builder()
                .method(&method)
                .uri(path)
                .header(USER_AGENT, KINDS[self.kind].resource)
                .header(CONTENT_TYPE, "application/merge-patch+json")
                .body(body.clone());
            let Ok(request) = request else { return false };
            let Ok(response) = self.client.send(request, true, LONGEST).await else { return false };
            let status = response.status();
            let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            let may_retry = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
            match retry_after {
                Some(seconds) if may_retry && retries < MAX_RETRIES => {
                    self.clock.sleep(Duration::from_secs(seconds)).await;
                }
                _ => return status.is_success(),
            }
        }
        false
    }
}

/// The longest response to read; they have a few hundred bytes.
const LONGEST: usize = 64 * 1024;
