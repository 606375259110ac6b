//! The guard: turns away what no client of this gate rightly sends, before anything else sees it.
//!
//! Two halves. [`scan`] stands below hyper, on the bytes ([`buffers`] bounds what large heads hold); [`request`] stands above it, on what hyper made of them.

pub(crate) mod buffers;
pub(crate) mod request;
pub(crate) mod scan;

use std::{
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderValue, Request, Response, Version, header::CONNECTION};
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::{body::Body, respond::Responder, terms::Current};
use crate::telemetry::table;

/// Puts the request half before a service.
#[derive(Clone, Debug)]
pub(crate) struct GuardLayer {
    /// A connection outlives a reload, so the names are looked up anew for each request.
    pub(crate) terms: Arc<Current>,
    pub(crate) responder: Arc<Responder>,
    /// The address that the client connected to; none on a Unix socket.
    pub(crate) local: Option<IpAddr>,
}

/// A service behind the request half.
#[derive(Clone, Debug)]
pub(crate) struct Guard<S> {
    inner: S,
    layer: GuardLayer,
}

pin_project! {
    /// The inner service's answer, or the guard's own.
    #[project = GuardedProjected]
    pub(crate) enum Guarded<F> {
        /// Let in.
        Inner { #[pin] future: F },
        /// Turned away.
        Away { response: Option<Response<Body>> },
    }
}

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Guard<S> {
        Guard { inner, layer: self.clone() }
    }
}

impl<S, B> Service<Request<B>> for Guard<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Guarded<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match request::check(&request, &self.layer.terms.get().hosts, self.layer.local) {
            Ok(()) => Guarded::Inner { future: self.inner.call(request) },
            Err(violation) => {
                table::GUARDED.counter(&[self.layer.responder.gate(), violation.word()]).increment(1);
                tracing::debug!(gate = self.layer.responder.gate(), %violation, "a request was turned away");
                let mut response = self.layer.responder.turned_away(violation, request.method());
                if request.version() < Version::HTTP_2 {
                    // What follows on this connection was sent by somebody who took the gate for something else.
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Guarded::Away { response: Some(response) }
            }
        }
    }
}

#[expect(
    clippy::expect_used,
    reason = "who polls a future after its end has broken its contract; tower's own futures panic too"
)]
impl<F, E> Future for Guarded<F>
where
    F: Future<Output = Result<Response<Body>, E>>,
{
    type Output = Result<Response<Body>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            GuardedProjected::Inner { future } => future.poll(cx),
            GuardedProjected::Away { response } => {
                Poll::Ready(Ok(response.take().expect("a future is not polled after it was ready")))
            }
        }
    }
}
