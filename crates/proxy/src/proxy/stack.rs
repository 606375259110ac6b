//! The request path, from a connection to the upstream, in one place.
//!
//! Read it from top to bottom as a call goes down; answers come back up the same way.

use std::any::Any;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::Either;
use http::request::Parts;
use http::{Request, Response};
use tower::{Service, ServiceBuilder};
use tower_http::catch_panic::{CatchPanic, CatchPanicLayer, ResponseForPanic};

use super::admission::{self, PendingCall};
use super::body::Body;
use super::failure::CallFailure;
use super::observe::CallContext;
use super::parts::GateParts;
use super::peer::Peer;
use super::respond::{self, Responder};
use super::{forward, guard};
use crate::clients::ClientRefusal;
use crate::upstream::Inbound;

/// The response body given to hyper: boxed once per response by `catch-panic`, never per frame.
pub(crate) type BoxBody = tower_http::body::UnsyncBoxBody<bytes::Bytes, tower_http::BoxError>;

/// The service answering a connection's calls. It has one type for all listeners: hyper's code
/// for a connection is large, and exists once.
pub(crate) type Path = CatchPanic<Answerer, PanicAnswer>;

/// The first step of the path: it depends on the kind of listener.
#[derive(Clone, derive_more::Debug)]
#[debug("Answerer")]
pub(crate) struct Answerer(Arc<dyn Fn(Request<Inbound>) -> PendingAnswer + Send + Sync>);

/// An answer, or the future of one.
pub(crate) type PendingAnswer = Either<Ready<AnswerResult>, Pin<Box<dyn Future<Output = AnswerResult> + Send>>>;

/// Answers calls for several gates that share a listener.
pub(crate) trait Router: Send + Sync {
    /// Answers a call that the guard of the listener's `own` gate let pass.
    fn answer(self: Arc<Self>, own: &Arc<GateParts>, call: PendingCall) -> PendingAnswer;
}

pub(crate) type AnswerResult = Result<Response<Body>, Infallible>;

/// Returns the service for the calls of one connection. If there is a `router`, it chooses the gate
/// of each.
pub(crate) fn stack(gate: &Arc<GateParts>, router: Option<&Arc<dyn Router>>, peer: Peer) -> Path {
    let responder = Arc::clone(&gate.responder);
    let gate = Arc::clone(gate);
    let router = router.cloned();
    path(responder, move |request| match guard::turn_away(&gate, &request, peer.local) {
        // Before anything is counted or read: malformed requests cost nothing and teach nothing.
        Some(response) => Either::Left(ready(Ok(response))),
        None => {
            // Made before the future, which would hold the request beside it.
            let call = PendingCall::new(request, peer.name.as_ref());
            match &router {
                Some(router) => Arc::clone(router).answer(&gate, call),
                None => Either::Right(answer(Arc::clone(&gate), call, None)),
            }
        }
    })
}

/// Builds the service of a connection: it answers requests with `enter`, and a panic with a 500.
pub(crate) fn path(
    responder: Arc<Responder>,
    enter: impl Fn(Request<Inbound>) -> PendingAnswer + Send + Sync + 'static,
) -> Path {
    ServiceBuilder::new()
        // Outermost, so that a fault anywhere below is one 500 and not the end of a connection that
        // carries other calls.
        .layer(CatchPanicLayer::custom(PanicAnswer(responder)))
        .service(Answerer(Arc::new(enter)))
}

/// Authenticates the client of a call, if the gate requires it.
pub(crate) async fn identify(gate: &GateParts, call: &mut PendingCall) -> Result<(), ClientRefusal> {
    match &gate.clients {
        Some(clients) => Box::pin(call.identify(clients)).await,
        None => Ok(()),
    }
}

/// Answers a call that the guard let pass; `known` is the result of [`identify`] if it was called
/// before. The call's only allocation as a future is this box.
pub(crate) fn answer(
    gate: Arc<GateParts>,
    mut request: PendingCall,
    known: Option<Result<(), ClientRefusal>>,
) -> Pin<Box<dyn Future<Output = AnswerResult> + Send>> {
    Box::pin(async move {
        // The call keeps the configuration that it came under. Its context outlives everything
        // below: if it is dropped before it is closed, the caller left.
        let config = gate.config.get();
        let known = match known {
            Some(known) => known,
            None => identify(&gate, &mut request).await,
        };
        if known.is_ok() && config.options.gate.rules.speaks_a_dialect() {
            // Boxed: its room is not every call's.
            Box::pin(request.read_form(&config, gate.driver.clock())).await;
        }
        let call = request.classify(&config, &gate.hasher);
        let tally = Arc::clone(&gate.tally);
        let clock = gate.driver.clock();
        let mut context = CallContext::open(config, tally, clock, call, &request.parts);
        let admitted = match known {
            // Whatever is waited for is waited for here; then the call has a permit and a stream.
            Ok(()) => admission::admit(&gate, &mut request, &mut context).await,
            Err(denied) => Err(CallFailure::Denied(denied)),
        };
        let answered = match admitted {
            // Sends the call and learns the outcome at the head; the slot stays with the body.
            Ok(admission) => match forward::send(&gate, request, admission, &mut context).await {
                Err(CallFailure::Unproven(request)) => Box::pin(ask_plainly(&gate, *request, &mut context)).await,
                answered => answered,
            },
            Err(failure) => Err(failure),
        };
        // Every way of not getting the upstream's answer becomes an answer of the gate's own.
        let mut response = answered.unwrap_or_else(|failure| {
            context.failed(&failure);
            gate.responder.answer(&failure, &context)
        });
        respond::add_timing(response.headers_mut(), context.held());
        respond::add_quotas(response.headers_mut(), &gate.driver, &context);
        // Last, so that refusals are counted like answers.
        let in_flight = context.close(response.status());
        response.body_mut().hold(in_flight);
        Ok(response)
    })
}

/// Sends a call again without conditions, under all limits, because the upstream's 304 did not
/// confirm the stored answer.
async fn ask_plainly(
    gate: &GateParts,
    request: Parts,
    context: &mut CallContext,
) -> Result<Response<Body>, CallFailure> {
    let mut request = PendingCall::new(Request::from_parts(request, Inbound::default()), context.call.client.as_ref());
    let admission = admission::admit(gate, &mut request, context).await?;
    forward::send(gate, request, admission, context).await
}

impl Service<Request<Inbound>> for Answerer {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = PendingAnswer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Inbound>) -> PendingAnswer {
        (self.0)(request)
    }
}

/// Answers a call whose handling has panicked.
#[derive(Clone, Debug)]
pub(crate) struct PanicAnswer(Arc<Responder>);

impl ResponseForPanic for PanicAnswer {
    type ResponseBody = Body;

    fn response_for_panic(&mut self, fault: Box<dyn Any + Send>) -> Response<Body> {
        let fault =
            fault.downcast_ref::<String>().map(String::as_str).or_else(|| fault.downcast_ref::<&str>().copied());
        tracing::error!(gate = &*self.0.gate, fault, "a panic in the gate itself: the call got 500");
        self.0.broken()
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;
    use crate::classify::ApiKind;
    use crate::clock::Clock;

    #[tokio::test]
    async fn a_fault_is_one_500_that_says_whose_it_is() {
        let responder = Responder::new("kubernetes".into(), ApiKind::Kubernetes, Clock::start());
        let faulty = tower::service_fn(async |_: Request<()>| -> Result<Response<Body>, Infallible> {
            panic!("a secret of the process")
        });
        let mut stack =
            ServiceBuilder::new().layer(CatchPanicLayer::custom(PanicAnswer(Arc::new(responder)))).service(faulty);
        let response: Response<BoxBody> = stack.call(Request::new(())).await.expect("never fails");
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = http_body_util::BodyExt::collect(response.into_body()).await.expect("whole").to_bytes();
        let text = String::from_utf8_lossy(&body);
        assert!(text.contains("a panic in the gate itself") && !text.contains("secret"), "{text}");
    }
}
