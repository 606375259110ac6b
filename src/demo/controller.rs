//! A controller as client-go and controller-runtime build it: an informer (list, then watch), a
//! work queue, workers that write.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::BytesMut;
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{
    client::{CallError, Client, Session},
    scene::{GROUP, KINDS, OBJECTS, WORKERS},
    store::{object_name, object_number},
    workqueue::{Item, WorkQueue},
};

/// A reflector's first backoff. In client-go it grows; the demo ends before that matters.
const LIST_AGAIN: Duration = Duration::from_millis(800);

/// The informer's knowledge of an object.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    generation: u64,
    observed: u64,
}

/// One controller of one kind.
#[derive(Debug)]
pub(super) struct Controller {
    kind: usize,
    client: Client,
    pub(super) queue: WorkQueue,
    cache: Mutex<Vec<Known>>,
}

// === impl Controller ===

impl Controller {
    /// Starts the informer and the workers.
    pub(super) fn start(kind: usize, client: Client, tasks: &mut JoinSet<()>) -> Arc<Self> {
        let queue = WorkQueue::new(client.clock);
        let controller = Arc::new(Self { kind, client, queue, cache: Mutex::new(vec![Known::default(); OBJECTS]) });
        tasks.spawn(Arc::clone(&controller).inform());
        for _ in 0..WORKERS {
            tasks.spawn(Arc::clone(&controller).work());
        }
        controller
    }

    /// Runs the informer: it lists, watches from there, and resumes at the last version it saw.
    async fn inform(self: Arc<Self>) {
        loop {
            let mut session = Session::new(self.client.clone());
            if let Ok(list) = session.call(Method::GET, &self.path(), &Value::Null).await {
                list["items"].as_array().into_iter().flatten().for_each(|object| self.learn(object));
                self.watch(number(&list["metadata"]["resourceVersion"])).await;
            }
            self.client.clock.sleep(LIST_AGAIN).await;
        }
    }

    /// Watches until the list is too old or an error says to list again.
    async fn watch(&self, mut version: u64) {
        loop {
            let path = format!("{}?watch=1&resourceVersion={version}", self.path());
            match Session::new(self.client.clone()).stream(&path).await {
                Ok(mut changes) => {
                    let mut text = BytesMut::new();
                    while let Some(Ok(frame)) = changes.frame().await {
                        text.extend_from_slice(frame.data_ref().map_or(&[], |data| &data[..]));
                        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                            let event: Value = serde_json::from_slice(&text.split_to(end + 1)).unwrap_or(Value::Null);
                            self.learn(&event["object"]);
                            version = version.max(number(&event["object"]["metadata"]["resourceVersion"]));
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
        let generation = object["metadata"]["generation"].as_u64().unwrap_or(0);
        let observed = object["status"]["observedGeneration"].as_u64().unwrap_or(0);
        let mut cache = self.cache();
        cache[item].generation = cache[item].generation.max(generation);
        cache[item].observed = cache[item].observed.max(observed);
        drop(cache);
        self.queue.add(item);
    }

    async fn work(self: Arc<Self>) {
        let mut session = Session::new(self.client.clone());
        loop {
            let item = self.queue.take().await;
            let done = self.reconcile(&mut session, item).await;
            self.queue.done(item, done.is_ok());
        }
    }

    /// Applies the wanted state, then reports it in the status. If there is nothing to do, no call
    /// is made.
    async fn reconcile(&self, session: &mut Session, item: Item) -> Result<(), CallError> {
        let known = self.cache()[item];
        if known.observed >= known.generation {
            return Ok(());
        }
        let path = format!("{}/{}", self.path(), object_name(self.kind, item));
        let applied = json!({ "demo.example.com/applied": known.generation.to_string() });
        let patch = json!({ "metadata": { "annotations": applied } });
        let object = session.call(Method::PATCH, &path, &patch).await?;
        let version = &object["metadata"]["resourceVersion"];
        let status = json!({
            "metadata": { "resourceVersion": version }, "status": { "observedGeneration": known.generation },
        });
        session.call(Method::PUT, &format!("{path}/status"), &status).await?;
        // The watch shows the controller's own write a little later; until then the work would be
        // done again.
        let mut cache = self.cache();
        cache[item].observed = cache[item].observed.max(known.generation);
        Ok(())
    }

    fn cache(&self) -> MutexGuard<'_, Vec<Known>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self) -> String {
        format!("/apis/{GROUP}/v1/namespaces/demo/{}", KINDS[self.kind].resource)
    }
}

/// Parses a resource version.
fn number(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}
