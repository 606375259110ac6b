//! The guard: turns away what no client of this gate rightly sends, before anything else sees it.
//!
//! It has two halves. [`scan`] stands below hyper, on the bytes ([`buffers`] bounds what large
//! heads hold); [`request`] stands above it, on what hyper made of them.

pub(crate) mod buffers;
pub(crate) mod request;
pub(crate) mod scan;

use std::future::{Ready, ready};
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::Either;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, Version};
use tower::{Layer, Service};

use super::body::Body;
use super::gate_config::CurrentConfig;
use super::respond::Responder;
use crate::telemetry::table;

/// Puts the request half before a service.
#[derive(Clone, Debug)]
pub(crate) struct GuardLayer {
    /// A connection outlives a reload, so the names are looked up again for each request.
    pub(crate) config: Arc<CurrentConfig>,
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
    type Future = Either<S::Future, Ready<Result<Response<Body>, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let GuardLayer { config, responder, local } = &self.layer;
        let Err(violation) = request::check(&request, &config.get().hosts, *local) else {
            return Either::Left(self.inner.call(request));
        };
        table::GUARDED.counter(&[responder.gate(), violation.word()]).increment(1);
        tracing::debug!(gate = responder.gate(), %violation, "a request was turned away");
        let mut response = responder.turned_away(violation.status(), &violation, request.method());
        if request.version() < Version::HTTP_2 {
            // The sender took the gate for something else, and so what follows on this connection.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Either::Right(ready(Ok(response)))
    }
}
