//! The embedded API server: HTTP/1.1 on loopback, with a limited capacity, and an admission webhook
//! that fails for a while.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::scene::{KINDS, SERVICE_TIME, Scene};
use super::world::World;
use crate::clock::Clock;
use crate::lock;
use crate::places::{self, Door, Place};

/// The embedded API server, shared by its connections and the measurements.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) scene: Scene,
    pub(super) clock: Clock,
    world: Mutex<World>,
}

// === impl Api ===

impl Api {
    /// Creates an API; its run begins with `clock`.
    pub(super) fn new(scene: Scene, clock: Clock) -> Arc<Self> {
        Arc::new(Self { scene, clock, world: Mutex::new(World::new()) })
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    /// Listens on a free port of loopback, and serves until the tasks in `tasks` are dropped.
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
                let api = Arc::clone(&api);
                let place = door.place().await;
                connections.spawn(async move { place.serve(api.connection(stream, &place)).await });
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
        // Otherwise small answers wait for delayed acknowledgements. An error is harmless.
        drop(stream.set_nodelay(true));
        // An error here means that the client went away.
        drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let at = self.clock.now();
        self.world().record.called(at);
        let serves = self.world().capacity.serves(at);
        let fault = if serves { self.serve_one(&request).await } else { Some("etcdserver: too many requests") };
        let Some(fault) = fault else { return Response::new(Full::new(Bytes::from_static(b"{}"))) };
        self.world().record.calls.failed(at);
        failure(fault)
    }

    /// Serves a request. Returns the reason if the webhook refuses it.
    async fn serve_one(&self, request: &Request<Incoming>) -> Option<&'static str> {
        self.clock.sleep(SERVICE_TIME).await;
        let path = request.uri().path();
        let is_checked =
            request.method() == Method::PATCH && KINDS.iter().any(|kind| kind.guarded && path.contains(kind.resource));
        let is_refused = is_checked && self.scene.trouble().contains(&self.clock.now());
        is_refused.then_some("failed calling webhook \"guard.demo.example.com\": connection refused")
    }
}

/// Builds a `metav1.Status` error as kube-apiserver does.
fn failure(message: &str) -> Response<Full<Bytes>> {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": "InternalError", "message": message, "code": 500,
    });
    let mut answer = Response::new(Full::new(Bytes::from(body.to_string())));
    *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// The most connections; the demo's clients have some dozens.
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
}
