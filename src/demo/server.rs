//! The embedded API server: HTTP/1.1 on loopback, with list, watch, get, patch, status updates and
//! leases, a capacity, and an admission webhook that goes down for a while.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Collected, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::capacity::Capacity;
use super::lock;
use super::record::{Arrived, Converged, Seen};
use super::scene::{CAPACITY, KINDS, Kind, SERVICE_TIME, Scene};
use super::store::{Denied, Store};
use crate::clock::Clock;
use crate::moment::Moment;
use crate::places::{self, Door, Place};

/// The API, shared by its connections and by the observers inside the process.
#[derive(Debug)]
pub(super) struct Api {
    scene: Scene,
    clock: Clock,
    pub(super) store: Mutex<Store>,
    capacity: Mutex<Capacity>,
    pub(super) seen: Mutex<Seen>,
}

/// The target of a request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Target {
    /// The path of the collection.
    collection: String,
    /// The path of the object, if there is one.
    object: Option<String>,
    is_status: bool,
    /// The kind, if it is one of the demo's.
    kind: Option<Kind>,
    /// The version after which a watch begins.
    watch: Option<u64>,
}

/// A response whose body comes at once, or as a stream of changes.
type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

// === impl Api ===

impl Api {
    /// Creates an API whose run begins when `clock` began.
    pub(super) fn new(scene: Scene, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            scene,
            clock,
            store: Mutex::new(Store::new()),
            capacity: Mutex::new(Capacity::new(CAPACITY)),
            seen: Mutex::default(),
        })
    }

    /// Listens on a free port of loopback, and serves until the set is dropped.
    ///
    /// # Errors
    /// No port is available.
    pub(super) async fn serve(self: &Arc<Self>, tasks: &mut JoinSet<()>) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let api = Arc::clone(self);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            let door = Door::new("demo", places::few(MOST_CONNECTIONS), api.clock);
            loop {
                let stream = door.accept(async || Ok(listener.accept().await?.0)).await;
                let (api, place) = (Arc::clone(&api), door.place().await);
                connections.spawn(async move {
                    tokio::select! {
                        () = api.connection(stream, &place) => {}
                        () = place.over() => {}
                    }
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(address)
    }

    async fn connection(&self, stream: TcpStream, place: &Place) {
        let service = service_fn(|request| {
            place.touch();
            async move { Ok::<_, Infallible>(self.answer(request).await) }
        });
        // Without it, every small answer waits for a delayed acknowledgement; a connection without
        // it still works.
        drop(stream.set_nodelay(true));
        // An error here means that the client went away.
        drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let at = self.clock.now();
        let target = Target::of(request.uri());
        let served = lock(&self.capacity).serves(at);
        let answer = if served {
            self.serve_call(request, &target).await
        } else {
            failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "etcdserver: too many requests")
        };
        let status = answer.status().as_u16();
        lock(&self.seen).arrived.push(Arrived { at, is_watch: target.watch.is_some(), status });
        answer
    }

    async fn serve_call(&self, request: Request<Incoming>, target: &Target) -> Answer {
        let method = request.method().clone();
        let body = Limited::new(request.into_body(), 64 * 1024).collect().await;
        let Ok(body) = body.map(Collected::to_bytes) else {
            return failure(StatusCode::BAD_REQUEST, "BadRequest", "the body did not arrive");
        };
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if let Some(version) = target.watch {
            let mut changes = lock(&self.store).watch(&target.collection, version);
            let frames = stream::poll_fn(move |cx| changes.poll_recv(cx)).map(|change| Ok(Frame::data(change)));
            return Response::new(StreamBody::new(frames).boxed_unsync());
        }
        self.clock.sleep(SERVICE_TIME).await;
        let now = self.clock.now();
        let guarded = target.kind.is_some_and(|kind| kind.guarded);
        if method == Method::PATCH && guarded && self.scene.trouble().contains(&now) {
            let text = "failed calling webhook \"guard.demo.example.com\": connection refused";
            return failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", text);
        }
        match self.perform(&method, target, body, now) {
            Ok(value) => Response::new(Full::new(Bytes::from(value.to_string())).boxed_unsync()),
            Err(Denied::Conflict) => failure(StatusCode::CONFLICT, "Conflict", "the object has been modified"),
            Err(Denied::Invalid) => failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", "a field is missing"),
            Err(Denied::NotFound) => failure(StatusCode::NOT_FOUND, "NotFound", "not found"),
        }
    }

    fn perform(&self, method: &Method, target: &Target, body: Value, now: Moment) -> Result<Value, Denied> {
        let mut store = lock(&self.store);
        match (method, &target.object) {
            (&Method::GET, None) => Ok(store.list(&target.collection)),
            (&Method::POST, None) => store.create(&target.collection, body),
            (&Method::GET, Some(path)) => store.get(path),
            (&Method::PATCH, Some(path)) => store.patch(path, &body),
            (&Method::PUT, Some(path)) if !target.is_status => store.update(path, body),
            (&Method::PUT, Some(path)) => {
                let (value, took) = store.update_status(path, &body, now)?;
                let guarded = target.kind.is_some_and(|kind| kind.guarded);
                lock(&self.seen).converged.extend(took.map(|took| Converged { at: now, took, guarded }));
                Ok(value)
            }
            _ => Err(Denied::NotFound),
        }
    }
}

// === impl Target ===

impl Target {
    fn of(uri: &Uri) -> Self {
        let parts: Vec<&str> = uri.path().split('/').skip(1).collect();
        let ["apis", group, version, "namespaces", namespace, resource, rest @ ..] = parts.as_slice() else {
            return Self::default();
        };
        let collection = format!("/apis/{group}/{version}/namespaces/{namespace}/{resource}");
        let parameters = || uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        let parameter = |name| parameters().find(|(key, _)| *key == name).map(|(_, value)| value);
        let after = || parameter("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
        Self {
            object: rest.first().map(|name| format!("{collection}/{name}")),
            collection,
            is_status: rest.get(1) == Some(&"status"),
            kind: KINDS.into_iter().find(|kind| kind.resource == *resource),
            watch: parameter("watch").is_some_and(|value| value != "0" && value != "false").then(after),
        }
    }
}

/// Builds a `metav1.Status` error as kube-apiserver does.
fn failure(status: StatusCode, reason: &str, message: &str) -> Answer {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": reason, "message": message, "code": status.as_u16(),
    });
    let mut answer = Response::new(Full::new(Bytes::from(body.to_string())).boxed_unsync());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// The demo's own clients have some dozens.
const MOST_CONNECTIONS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_says_nothing_is_closed() {
        use tokio::io::AsyncReadExt as _;
        let mut tasks = JoinSet::new();
        let address = Api::new(Scene { length: std::time::Duration::from_secs(10), seed: 1 }, Clock::start())
            .serve(&mut tasks)
            .await
            .expect("a port");
        let mut silent = TcpStream::connect(address).await.expect("it listens");
        assert_eq!(silent.read(&mut [0]).await.expect("closed"), 0);
    }

    #[test]
    fn paths_are_read_as_kubernetes_writes_them() {
        let of = |path: &'static str| Target::of(&Uri::from_static(path));
        let watch = of("/apis/demo.example.com/v1/namespaces/demo/queues?watch=1&resourceVersion=7");
        assert_eq!((watch.watch, watch.object, watch.kind), (Some(7), None, Some(KINDS[3])));
        assert_eq!(watch.collection, "/apis/demo.example.com/v1/namespaces/demo/queues");
        let status = of("/apis/demo.example.com/v1/namespaces/demo/buckets/bucket-4/status");
        assert_eq!((status.is_status, status.watch), (true, None));
        assert_eq!(status.object.as_deref(), Some("/apis/demo.example.com/v1/namespaces/demo/buckets/bucket-4"));
        assert_eq!(of("/"), Target::default());
    }
}
