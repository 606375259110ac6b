//! Turns every way of not getting the upstream's answer into one of the gate's own.
//!
//! Outside *admission*, so that a refusal is an answer like any other; above here the error type is `Infallible`. On Kubernetes gates an
//! answer is a `metav1.Status`, on others `application/problem+json`; whoever reads it learns gate, class, reason and wait.

mod responder;
mod text;

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

pub(crate) use self::responder::Responder;
use super::{
    body::Body,
    failure::Failed,
    observe::{Account, Visit},
};

/// Answers for a service that may fail.
#[derive(Clone, Debug)]
pub(crate) struct RespondLayer {
    pub(crate) responder: Arc<Responder>,
}

/// A service whose failures are answered.
#[derive(Clone, Debug)]
pub(crate) struct Respond<S> {
    inner: S,
    responder: Arc<Responder>,
}

pin_project! {
    /// The inner answer, or ours.
    pub(crate) struct Responded<F> {
        #[pin]
        future: F,
        responder: Arc<Responder>,
    }
}

impl<S> Layer<S> for RespondLayer {
    type Service = Respond<S>;

    fn layer(&self, inner: S) -> Respond<S> {
        Respond { inner, responder: Arc::clone(&self.responder) }
    }
}

impl<S, B> Service<Visit<B>> for Respond<S>
where
    S: Service<Visit<B>, Response = (Response<Body>, Account), Error = Box<Failed>>,
{
    type Response = (Response<Body>, Account);
    type Error = Infallible;
    type Future = Responded<S::Future>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(())) // the layers below wait in their futures, never in readiness
    }

    fn call(&mut self, visit: Visit<B>) -> Self::Future {
        Responded { future: self.inner.call(visit), responder: Arc::clone(&self.responder) }
    }
}

impl<F> Future for Responded<F>
where
    F: Future<Output = Result<(Response<Body>, Account), Box<Failed>>>,
{
    type Output = Result<(Response<Body>, Account), Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (mut response, account) = match ready!(this.future.poll(cx)) {
            Ok(answered) => answered,
            Err(failed) => {
                let response = this.responder.answer(&failed);
                (response, failed.account)
            }
        };
        if let Some((reason, held)) = account.held() {
            text::add_timing(response.headers_mut(), reason, held);
        }
        Poll::Ready(Ok((response, account)))
    }
}
