//! A controller over HTTP: an informer (list, then watch) feeds the work queue, and workers write.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::client::{CallError, Client};
use super::lock;
use super::scene::{OBJECTS, WORKERS};
use super::store::{self, collection, generation, object_name, object_number};
use crate::controller::{Controller, Item, RateLimiter, Reconciled};

/// A reflector's first backoff. In client-go it grows; the demo ends before that matters.
const LIST_AGAIN: Duration = Duration::from_millis(800);

/// The informer's knowledge of an object.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    generation: u64,
    observed: u64,
}

/// The controller of one kind.
#[derive(Debug)]
pub(super) struct HttpController {
    kind: usize,
    client: Client,
    state: Mutex<State>,
    /// Wakes a worker that waits for an object.
    changed: Notify,
}

/// The state that informer and workers share.
#[derive(Debug)]
struct State {
    controller: Controller,
    cache: Vec<Known>,
}

// === impl HttpController ===

impl HttpController {
    /// Starts the informer and the workers.
    pub(super) fn start(kind: usize, client: Client, tasks: &mut JoinSet<()>) -> Arc<Self> {
        let controller = Controller::new(RateLimiter::DEFAULT, OBJECTS, WORKERS);
        let state = Mutex::new(State { controller, cache: vec![Known::default(); OBJECTS] });
        let controller = Arc::new(Self { kind, client, state, changed: Notify::new() });
        tasks.spawn(Arc::clone(&controller).inform());
        for _ in 0..WORKERS {
            tasks.spawn(Arc::clone(&controller).work());
        }
        controller
    }

    /// Returns the number of objects that wait for a worker, and of those that wait out a delay.
    pub(super) fn waiting(&self) -> (usize, usize) {
        lock(&self.state).controller.queue.waiting()
    }

    /// Runs the informer: it lists, watches from there, and resumes at the last version it saw.
    async fn inform(self: Arc<Self>) {
        loop {
            if let Ok(list) = self.client.call(Method::GET, &collection(self.kind), &Value::Null).await {
                list["items"].as_array().into_iter().flatten().for_each(|object| self.learn(object));
                self.watch(store::version(&list)).await;
            }
            self.client.clock.sleep(LIST_AGAIN).await;
        }
    }

    /// Watches until the list is too old or an error says to list again.
    async fn watch(&self, mut version: u64) {
        loop {
            let path = format!("{}?watch=1&resourceVersion={version}", collection(self.kind));
            match self.client.stream(&path).await {
                Ok(mut changes) => {
                    let mut text = BytesMut::new();
                    while let Some(Ok(frame)) = changes.frame().await {
                        text.extend_from_slice(frame.data_ref().map_or(&[], |data| &data[..]));
                        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                            let event: Value = serde_json::from_slice(&text.split_to(end + 1)).unwrap_or(Value::Null);
                            self.learn(&event["object"]);
                            version = version.max(store::version(&event["object"]));
                        }
                    }
                }
                // A reflector resumes after "too many requests" and lists again after anything
                // else.
                Err(CallError::Status(StatusCode::TOO_MANY_REQUESTS)) => self.client.clock.sleep(LIST_AGAIN).await,
                Err(_) => return,
            }
        }
    }

    /// Takes an object from the API into the cache, and into the queue whatever its backoff.
    fn learn(&self, object: &Value) {
        let Some(item) = object["metadata"]["name"].as_str().and_then(object_number) else { return };
        let mut state = lock(&self.state);
        let known = &mut state.cache[item];
        known.generation = known.generation.max(generation(object));
        known.observed = known.observed.max(object["status"]["observedGeneration"].as_u64().unwrap_or(0));
        state.controller.queue.add(item, self.client.clock.now());
        drop(state);
        self.changed.notify_one();
    }

    async fn work(self: Arc<Self>) {
        loop {
            let item = self.next().await;
            let reconciled = self.reconcile(item).await.map_or(Reconciled::Failed, |()| Reconciled::Done);
            lock(&self.state).controller.finish(item, reconciled, self.client.clock.now());
            self.changed.notify_one();
        }
    }

    /// Waits for the next object to work on.
    async fn next(&self) -> Item {
        loop {
            let next = lock(&self.state).controller.start(self.client.clock.now());
            match next {
                Ok(item) => return item,
                Err(None) => self.changed.notified().await,
                Err(Some(due)) => tokio::select! {
                    () = self.changed.notified() => {}
                    () = self.client.clock.sleep_until(due) => {}
                },
            }
        }
    }

    /// Applies the wanted state, then reports it in the status. If there is nothing to do, no call
    /// is made.
    async fn reconcile(&self, item: Item) -> Result<(), CallError> {
        let known = lock(&self.state).cache[item];
        if known.observed >= known.generation {
            return Ok(());
        }
        let path = format!("{}/{}", collection(self.kind), object_name(self.kind, item));
        let applied = json!({ "demo.example.com/applied": known.generation.to_string() });
        let patch = json!({ "metadata": { "annotations": applied } });
        let object = self.client.call(Method::PATCH, &path, &patch).await?;
        let version = &object["metadata"]["resourceVersion"];
        let status = json!({
            "metadata": { "resourceVersion": version }, "status": { "observedGeneration": known.generation },
        });
        self.client.call(Method::PUT, &format!("{path}/status"), &status).await?;
        // The watch shows the controller's own write a little later; until then the work would be
        // done again.
        let observed = &mut lock(&self.state).cache[item].observed;
        *observed = known.generation.max(*observed);
        Ok(())
    }
}
