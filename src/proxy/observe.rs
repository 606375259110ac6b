//! Observes every call: how many, how long, what came of it; and writes the log of calls.
//!
//! Outside *respond*, so that refusals are counted like answers. A call's [`Account`] is opened here, filled in by the layers below, and
//! comes back with the response; dropped before that it knows that the caller left.

mod account;
mod as_if;

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower::{Layer, Service};

pub(crate) use self::{
    account::{Account, InFlight, Observer},
    as_if::AsIf,
};
use super::body::Body;

/// A request with its account.
#[derive(Debug)]
pub(crate) struct Visit<B> {
    pub(crate) request: Request<B>,
    pub(crate) account: Account,
}

/// Opens an account for every request.
#[derive(Clone, Debug)]
pub(crate) struct ObserveLayer {
    pub(crate) observer: Arc<Observer>,
}

/// A service whose calls are observed.
#[derive(Clone, Debug)]
pub(crate) struct Observe<S> {
    inner: S,
    observer: Arc<Observer>,
}

pin_project! {
    /// Closes the account when the answer is there.
    pub(crate) struct Observed<F> { #[pin] future: F }
}

impl<S> Layer<S> for ObserveLayer {
    type Service = Observe<S>;

    fn layer(&self, inner: S) -> Observe<S> {
        Observe { inner, observer: Arc::clone(&self.observer) }
    }
}

impl<S, B> Service<Request<B>> for Observe<S>
where
    S: Service<Visit<B>, Response = (Response<Body>, Account), Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Observed<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let account = Account::open(&self.observer);
        Observed { future: self.inner.call(Visit { request, account }) }
    }
}

impl<F> Future for Observed<F>
where
    F: Future<Output = Result<(Response<Body>, Account), Infallible>>,
{
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Ok((mut response, account)) = ready!(self.project().future.poll(cx));
        let in_flight = account.close(response.status());
        response.body_mut().hold(in_flight);
        Poll::Ready(Ok(response))
    }
}
