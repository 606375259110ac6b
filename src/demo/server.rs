//! The embedded API server: HTTP/1.1 on loopback, with list, watch, get, patch, status updates and
//! leases, a capacity, and an admission webhook that goes down for a while.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Collected, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{
    capacity::Capacity,
    lock,
    record::{Arrived, Seen, What},
    scene::{CAPACITY, GROUP, KINDS, SERVICE_TIME, Scene},
    store::{Denied, Store, object_number},
};
use crate::{clock::Clock, moment::Moment};

/// The API, shared by its connections and by the observers inside the process.
#[derive(Debug)]
pub(super) struct Api {
    scene: Scene,
    clock: Clock,
    store: Mutex<Store>,
    capacity: Mutex<Capacity>,
    seen: Mutex<Seen>,
}

/// The target of a request.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Collection { kind: usize, watch: Option<u64> },
    Object { kind: usize, item: usize, status: bool },
    Lease { name: Option<String> },
    Unknown,
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

    /// Locks the objects.
    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }

    /// Locks the record of the run.
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
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
            loop {
                // A client whose connection could not be accepted tries again.
                if let Ok((stream, _)) = listener.accept().await {
                    connections.spawn(Arc::clone(&api).connection(stream));
                }
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(address)
    }

    async fn connection(self: Arc<Self>, stream: TcpStream) {
        let service = service_fn(move |request| {
            let api = Arc::clone(&self);
            async move { Ok::<_, Infallible>(api.answer(request).await) }
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
        let what = match target {
            Target::Lease { .. } => What::Lease,
            Target::Collection { watch: Some(_), .. } => What::Watch,
            Target::Collection { .. } | Target::Object { .. } | Target::Unknown => What::Call,
        };
        let served = lock(&self.capacity).serves(at);
        let answer = if served {
            self.serve_call(request, target).await
        } else {
            failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "etcdserver: too many requests")
        };
        let status = answer.status().as_u16();
        self.seen().arrived.push(Arrived { at, what, status });
        answer
    }

    async fn serve_call(&self, request: Request<Incoming>, target: Target) -> Answer {
        let method = request.method().clone();
        let body = Limited::new(request.into_body(), 64 * 1024).collect().await;
        let Ok(body) = body.map(Collected::to_bytes) else {
            return failure(StatusCode::BAD_REQUEST, "BadRequest", "the body did not arrive");
        };
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if let Target::Collection { kind, watch: Some(version) } = target {
            let mut changes = self.store().watch(kind, version);
            let frames = stream::poll_fn(move |cx| changes.poll_recv(cx)).map(|change| Ok(Frame::data(change)));
            return Response::new(StreamBody::new(frames).boxed_unsync());
        }
        self.clock.sleep(SERVICE_TIME).await;
        let now = self.clock.now();
        if let Target::Object { kind, status: false, .. } = target
            && method == Method::PATCH
            && KINDS[kind].guarded
            && self.scene.is_trouble(now)
        {
            let text = "failed calling webhook \"guard.demo.example.com\": connection refused";
            return failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", text);
        }
        match self.perform(&method, target, &body, now) {
            Ok(value) => Response::new(Full::new(Bytes::from(value.to_string())).boxed_unsync()),
            Err(Denied::Conflict) => failure(StatusCode::CONFLICT, "Conflict", "the object has been modified"),
            Err(Denied::Invalid) => failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", "a field is missing"),
            Err(Denied::NotFound) => failure(StatusCode::NOT_FOUND, "NotFound", "not found"),
        }
    }

    fn perform(&self, method: &Method, target: Target, body: &Value, now: Moment) -> Result<Value, Denied> {
        let mut store = self.store();
        match (method, target) {
            (&Method::GET, Target::Collection { kind, .. }) => Ok(store.list(kind)),
            (&Method::GET, Target::Object { kind, item, .. }) => store.get(kind, item),
            (&Method::PATCH, Target::Object { kind, item, status: false }) => store.apply(kind, item, body),
            (&Method::PUT, Target::Object { kind, item, status: true }) => {
                let (value, converged) = store.report(kind, item, body, now)?;
                self.seen().converged.extend(converged);
                Ok(value)
            }
            (&Method::GET, Target::Lease { name: Some(name) }) => store.lease(&name),
            (&Method::PUT, Target::Lease { name: Some(name) }) => store.renew(&name, body),
            (&Method::POST, Target::Lease { name: None }) => {
                let name = body["metadata"]["name"].as_str().ok_or(Denied::Invalid)?;
                store.renew(name, body)
            }
            _ => Err(Denied::NotFound),
        }
    }
}

// === impl Target ===

impl Target {
    fn of(uri: &Uri) -> Self {
        let parts: Vec<&str> = uri.path().split('/').skip(1).collect();
        match parts.as_slice() {
            ["apis", "coordination.k8s.io", "v1", "namespaces", _, "leases"] => Self::Lease { name: None },
            ["apis", "coordination.k8s.io", "v1", "namespaces", _, "leases", name] => {
                Self::Lease { name: Some((*name).to_owned()) }
            }
            ["apis", group, "v1", "namespaces", _, resource, rest @ ..] if *group == GROUP => {
                let kind = KINDS.iter().position(|kind| kind.resource == *resource);
                kind.map_or(Self::Unknown, |kind| Self::below(kind, rest, uri.query().unwrap_or("")))
            }
            _ => Self::Unknown,
        }
    }

    fn below(kind: usize, rest: &[&str], query: &str) -> Self {
        let object = |name: &str, status| object_number(name).map(|item| Self::Object { kind, item, status });
        match rest {
            [] => {
                let parameter = |name: &str| {
                    query
                        .split('&')
                        .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name).map(|pair| pair.1))
                };
                let from = parameter("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
                let watch = parameter("watch").is_some_and(|value| value != "0" && value != "false").then_some(from);
                Self::Collection { kind, watch }
            }
            [name] => object(name, false).unwrap_or(Self::Unknown),
            [name, "status"] => object(name, true).unwrap_or(Self::Unknown),
            _ => Self::Unknown,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_kubernetes_writes_them() {
        let of = |path: &'static str| Target::of(&Uri::from_static(path));
        let base = "/apis/demo.example.com/v1/namespaces/demo";
        assert_eq!(
            of("/apis/demo.example.com/v1/namespaces/demo/buckets"),
            Target::Collection { kind: 0, watch: None }
        );
        assert_eq!(
            of("/apis/demo.example.com/v1/namespaces/demo/queues?watch=1&resourceVersion=7"),
            Target::Collection { kind: 3, watch: Some(7) }
        );
        assert_eq!(
            Target::of(&format!("{base}/buckets/bucket-4/status").parse().expect("a path")),
            Target::Object { kind: 0, item: 4, status: true }
        );
        assert_eq!(
            of("/apis/coordination.k8s.io/v1/namespaces/demo/leases/a"),
            Target::Lease { name: Some("a".to_owned()) }
        );
        assert_eq!(of("/apis/demo.example.com/v1/namespaces/demo/buckets/bucket-4000"), Target::Unknown);
        assert_eq!(of("/"), Target::Unknown);
    }
}
