//! Plain HTTP through the egress listener: each call goes through the gate of its origin.
//!
//! A call for a listed host leaves over TLS, with the Host that the client sent, so that its
//! signature holds. Calls for others leave in clear, as they came.

use std::convert::Infallible;
use std::sync::Arc;

use http::uri::Scheme;
use http::{HeaderValue, Request, Response, Uri, header};

use super::directory::Fate;
use super::head;
use super::origins::Way;
use super::reason::Refused;
use super::target::{Host, Origin};
use super::{CLEAR, Egress, NAME};
use crate::proxy::admission::PendingCall;
use crate::proxy::body::Body;
use crate::proxy::gate::Gate;
use crate::proxy::listener::{self, WireHandle};
use crate::proxy::stack;
use crate::upstream::Inbound;

impl Egress {
    /// Serves the calls of a connection. Those that came through a tunnel are for `inside`.
    pub(super) async fn serve_calls(self: &Arc<Self>, handle: &WireHandle, inside: Option<Origin>) {
        let egress = Arc::clone(self);
        let inside = inside.map(Arc::new);
        let stack = stack::of_proxy(Arc::clone(&self.responder), move |request| {
            let (egress, inside) = (Arc::clone(&egress), inside.clone());
            // Boxed: hyper keeps room for it as long as the connection is busy.
            Box::pin(async move { Ok::<_, Infallible>(egress.answer(request, inside.as_deref()).await) })
        });
        listener::serve_calls(handle, stack, &self.closing, NAME).await;
    }

    async fn answer(&self, mut request: Request<Inbound>, inside: Option<&Origin>) -> Response<Body> {
        let gate = match self.route(&request, inside) {
            Ok(gate) => gate,
            Err(refused) => {
                self.tally.refused(&refused);
                return refused.response();
            }
        };
        own_form(&mut request);
        // The gate is held until the head has come; its connections show the rest.
        let Ok(response) = stack::answer(Arc::clone(gate.own()), PendingCall::new(request)).await;
        response
    }

    /// Finds the gate for a call.
    fn route<B>(&self, request: &Request<B>, inside: Option<&Origin>) -> Result<Arc<Gate>, Refused> {
        let origin = head::plain(request, inside)?;
        if inside.is_none() {
            self.authorize(&head::shown(request.headers()))?;
        }
        let directory = self.directory();
        let (most, ports) = (directory.egress.max_origins, &directory.egress.ports);
        match directory.call(&origin)? {
            Fate::Gate(section, _) => {
                let port = ports.first().copied().unwrap_or(443);
                let connect_to = directory.hosts(section).and_then(|hosts| hosts.connect_to.get(&origin.name()));
                let connect_to = connect_to.map(String::as_str);
                self.origins.gate(Way { section, origin: origin.at(port), scheme: Scheme::HTTPS, connect_to }, most)
            }
            Fate::Passed(_) => {
                if let Host::Address(address) = origin.host {
                    (self.judge)(address).map_err(|why| Refused::address(&address.to_string(), why))?;
                }
                let section = &CLEAR.into();
                self.origins.gate(Way { section, origin, scheme: Scheme::HTTP, connect_to: None }, most)
            }
        }
    }
}

/// Gives a request the form that servers get: a path, and the Host that the client sent.
fn own_form<B>(request: &mut Request<B>) {
    let path = request.uri().path_and_query().cloned();
    let named = request.uri().authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(named) = named {
        request.headers_mut().entry(header::HOST).or_insert(named);
    }
    *request.uri_mut() = path.map_or_else(|| Uri::from_static("/"), Uri::from);
}
