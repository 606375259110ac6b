//! A controller over HTTP: workers that reconcile changed objects, and the lease of the elected
//! leader.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, StatusCode};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::scene::{KINDS, OBJECTS, ObjectId, RENEW_DEADLINE, RENEW_EVERY, WORKERS};
use super::server::Api;
use crate::controller::{Controller, Item, LeaseHolder, MAX_RETRIES, RateLimiter, ReconcileResult};
use crate::lock;
use crate::moment::Moment;
use crate::own_client::OwnClient;

/// The demo's controller for one kind of object.
#[derive(Debug)]
pub(super) struct HttpController {
    kind: usize,
    client: OwnClient,
    api: Arc<Api>,
    controller: Mutex<Controller>,
    /// Notified when the queue may have an object for a worker.
    changed: Notify,
}

// === impl HttpController ===

impl HttpController {
    /// Starts the workers. The renewals of the lease begin after `offset`, because real controllers
    /// do not start at the same moment.
    pub(super) fn start(
        kind: usize,
        client: OwnClient,
        api: Arc<Api>,
        offset: Duration,
        tasks: &mut JoinSet<()>,
    ) -> Arc<Self> {
        let controller = Mutex::new(Controller::new(RateLimiter::DEFAULT, OBJECTS, WORKERS));
        let controller = Arc::new(Self { kind, client, api, controller, changed: Notify::new() });
        tasks.spawn(Arc::clone(&controller).lead(offset));
        for _ in 0..WORKERS {
            tasks.spawn(Arc::clone(&controller).work());
        }
        controller
    }

    /// Changes an object, and queues it, as an informer does.
    pub(super) fn change(&self, item: Item, now: Moment) {
        self.api.world().change(ObjectId { kind: self.kind, number: item }, now);
        lock(&self.controller).queue.add(item, now);
        self.changed.notify_one();
    }

    async fn work(self: Arc<Self>) {
        loop {
            let item = self.next().await;
            let reconciled = if self.reconcile(item).await { ReconcileResult::Done } else { ReconcileResult::Failed };
            lock(&self.controller).finish(item, reconciled, self.api.clock.now());
            self.changed.notify_one();
        }
    }

    /// Waits for the next object to work on.
    async fn next(&self) -> Item {
        loop {
            let next = lock(&self.controller).start(self.api.clock.now());
            match next {
                Ok(item) => return item,
                Err(None) => self.changed.notified().await,
                Err(Some(due)) => tokio::select! {
                    () = self.changed.notified() => {}
                    () = self.api.clock.sleep_until(due) => {}
                },
            }
        }
    }

    /// Reconciles an object with two calls, if its last change is not done yet: one applies the
    /// wanted state, the other reports it in the status. Returns false if a call failed.
    async fn reconcile(&self, item: Item) -> bool {
        let object = ObjectId { kind: self.kind, number: item };
        let Some(generation) = self.api.world().wanted(object) else { return true };
        let path = object.path();
        let is_done = self.call(Method::PATCH, &path).await && self.call(Method::PUT, &format!("{path}/status")).await;
        if is_done {
            let now = self.api.clock.now();
            let mut world = self.api.world();
            let took = world.report(object, generation, now);
            if !KINDS[self.kind].guarded && self.api.scene.trouble().contains(&now) {
                took.into_iter().for_each(|took| world.record.healthy.add(took));
            }
        }
        is_done
    }

    /// Renews the lease again and again, and records each attempt. As in client-go, an attempt is
    /// an update; if that fails, a read and a second update.
    async fn lead(self: Arc<Self>, offset: Duration) {
        let clock = self.api.clock;
        let mut holder = LeaseHolder::new(RENEW_EVERY, RENEW_DEADLINE);
        let lease = KINDS[self.kind].resource;
        let seconds = holder.timeout().as_secs();
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/demo/leases/{lease}?timeout={seconds}s");
        let update = || self.call(Method::PUT, &path);
        clock.sleep(offset).await;
        loop {
            holder.begin(clock.now());
            let renewed = tokio::select! {
                renewed = async { update().await || self.call(Method::GET, &path).await && update().await } => renewed,
                () = clock.sleep(holder.timeout()) => false,
            };
            let attempt = holder.end(renewed, clock.now());
            self.api.world().record.renewed(attempt.late);
            clock.sleep_until(attempt.next).await;
        }
    }

    /// Makes one call as client-go does. If the response has a Retry-After, the call is repeated
    /// after that time, up to ten times; no other failure is retried. Returns true on success.
    async fn call(&self, method: Method, path: &str) -> bool {
        for retries in 0..=MAX_RETRIES {
            let request = Request::builder()
                .method(&method)
                .uri(path)
                .header(USER_AGENT, KINDS[self.kind].resource)
                .header(CONTENT_TYPE, "application/merge-patch+json")
                .body(Bytes::new());
            let Ok(request) = request else { return false };
            let Ok(response) = self.client.send(request, true, LONGEST).await else { return false };
            let status = response.status();
            let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            let may_retry = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
            match retry_after {
                Some(seconds) if may_retry && retries < MAX_RETRIES => {
                    self.api.clock.sleep(Duration::from_secs(seconds)).await;
                }
                _ => return status.is_success(),
            }
        }
        false
    }
}

/// The longest response to read; they have a few hundred bytes.
const LONGEST: usize = 64 * 1024;
