//! The request path, listener to upstream, in one place.
//!
//! Read it top to bottom as a call goes down; answers come back up the same way.

use std::{any::Any, convert::Infallible, net::IpAddr, sync::Arc};

use http::{Request, Response};
use tower::{Service, ServiceBuilder};
use tower_http::catch_panic::{CatchPanicLayer, ResponseForPanic};

use super::{
    admission::{AdmissionLayer, Door},
    body::Body,
    forward::Forward,
    gate_config::CurrentConfig,
    guard::GuardLayer,
    observe::{ObserveLayer, Observer},
    respond::{RespondLayer, Responder},
};
use crate::upstream::Inbound;

/// What the layers of one gate share.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: Arc<CurrentConfig>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) responder: Arc<Responder>,
    pub(crate) door: Arc<Door>,
}

/// The body that reaches hyper: boxed once per response by `catch-panic`, never per frame.
pub(crate) type Sent = tower_http::body::UnsyncBoxBody<bytes::Bytes, tower_http::BoxError>;

/// The layers for one connection, whose client reached this machine at `local`.
pub(crate) fn stack(
    parts: &Parts,
    local: Option<IpAddr>,
) -> impl Service<Request<Inbound>, Response = Response<Sent>, Error = Infallible, Future: Send> + Clone + Send + use<>
{
    let responder = &parts.responder;
    ServiceBuilder::new()
        // Outermost, so that a fault anywhere below is one 500 and not the end of a connection that carries other calls.
        .layer(CatchPanicLayer::custom(Broken(Arc::clone(responder))))
        // Before anything is counted or read: what no client of ours sends costs nothing and teaches nobody anything.
        .layer(GuardLayer { config: Arc::clone(&parts.config), responder: Arc::clone(responder), local })
        // Outside `respond`, so that refusals are counted like answers.
        .layer(ObserveLayer { observer: Arc::clone(&parts.observer) })
        // Outside `admission`, so that every way of not being let through is an answer. Above here nothing fails.
        .layer(RespondLayer { responder: Arc::clone(responder) })
        // Everything that is waited for is waited for here; what comes out has a permit and a stream.
        .layer(AdmissionLayer { door: Arc::clone(&parts.door) })
        // Sends, learns the outcome at the head; the slot rides on in the body.
        .service(Forward)
}

/// Answers for a call that panicked.
#[derive(Clone)]
struct Broken(Arc<Responder>);

impl ResponseForPanic for Broken {
    type ResponseBody = Body;

    fn response_for_panic(&mut self, fault: Box<dyn Any + Send>) -> Response<Body> {
        let fault =
            fault.downcast_ref::<String>().map(String::as_str).or_else(|| fault.downcast_ref::<&str>().copied());
        tracing::error!(gate = self.0.gate(), fault, "a fault of the gate's own");
        self.0.broken()
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;
    use crate::{classify::Kind, clock::Clock};

    #[tokio::test]
    async fn a_fault_is_one_500_that_says_whose_it_is() {
        let responder = Responder::new("kubernetes".into(), Kind::Kubernetes, Clock::start());
        let faulty = tower::service_fn(async |_: Request<()>| -> Result<Response<Body>, Infallible> {
            panic!("a secret of the process")
        });
        let mut stack =
            ServiceBuilder::new().layer(CatchPanicLayer::custom(Broken(Arc::new(responder)))).service(faulty);
        let response: Response<Sent> = stack.call(Request::new(())).await.expect("never fails");
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = http_body_util::BodyExt::collect(response.into_body()).await.expect("whole").to_bytes();
        let text = String::from_utf8_lossy(&body);
        assert!(text.contains("a fault of the gate") && !text.contains("secret"), "{text}");
    }
}
