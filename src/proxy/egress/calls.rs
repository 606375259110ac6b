//! Plain HTTP through the egress listener: each call goes through the gate of its origin.
//!
//! A call for a listed host leaves over TLS, with the Host that the client sent, so that its
//! signature holds. Calls for others leave in clear, as they came.

use std::convert::Infallible;
use std::sync::Arc;

use http::uri::Scheme;
use http::{HeaderValue, Request, Response, Uri, header};
use tokio_util::sync::CancellationToken;

use super::directory::{Directory, Fate, Inside};
use super::head;
use super::origins::Way;
use super::reason::{Refused, Why};
use super::target::{Host, Origin};
use super::{CLEAR, Egress, NAME};
use crate::proxy::admission::PendingCall;
use crate::proxy::body::Body;
use crate::proxy::gate::Gate;
use crate::proxy::listener::{self, WireHandle};
use crate::proxy::stack;
use crate::spec;
use crate::upstream::Inbound;

/// The way by which calls have come.
#[derive(Debug)]
pub(super) enum Entry {
    /// Their targets are URLs. The client's certificate may have a name.
    Proxy(Option<Arc<str>>),
    /// Through a tunnel that is read, of a client that may be known.
    Tunnel(Inside, Option<Arc<str>>),
    /// A hosts file led the names of their hosts here.
    Name,
}

impl Egress {
    /// Serves the calls of a connection.
    pub(super) async fn serve_calls(self: &Arc<Self>, handle: &WireHandle, entry: Entry, http2: bool) {
        let (egress, entry) = (Arc::clone(self), Arc::new(entry));
        // HTTP/1.1 has a field for the end of a connection.
        let over = http2.then(CancellationToken::new);
        let ends = over.clone();
        let stack = stack::of_proxy(Arc::clone(&self.responder), move |request| {
            let (egress, entry, ends) = (Arc::clone(&egress), Arc::clone(&entry), ends.clone());
            // Boxed: hyper keeps room for it as long as the connection is busy.
            Box::pin(async move { Ok::<_, Infallible>(egress.answer(request, &entry, ends.as_ref()).await) })
        });
        if let Some(over) = over {
            let closing = async {
                tokio::select! {
                    () = self.closing.told() => {}
                    () = over.cancelled() => {}
                }
            };
            listener::serve_calls_of_http2(handle, stack, closing, NAME).await;
        } else {
            listener::serve_calls(handle, stack, &self.closing, NAME).await;
        }
    }

    async fn answer(
        &self,
        mut request: Request<Inbound>,
        entry: &Entry,
        ends: Option<&CancellationToken>,
    ) -> Response<Body> {
        let client = match self.client(&request, entry).await {
            Ok(client) => client,
            Err(refused) => {
                self.tally.refused(&refused);
                return refused.response();
            }
        };
        let gate = match self.route(&request, entry) {
            Ok(gate) => gate,
            Err(refused) => {
                self.tally.refused(&refused);
                // A client would go on with a connection for a host that is no longer read.
                ends.into_iter().for_each(CancellationToken::cancel);
                return refused.response();
            }
        };
        own_form(&mut request);
        // The gate is held until the head has come; its connections show the rest.
        let Ok(response) =
            stack::answer(Arc::clone(gate.own()), PendingCall::new(request).named(client.as_ref())).await;
        response
    }

    /// Checks that the client may use the proxy, and returns its name where clients are known.
    async fn client<B>(&self, request: &Request<B>, entry: &Entry) -> Result<Option<Arc<str>>, Refused> {
        match entry {
            Entry::Proxy(named) => {
                head::plain(request, None)?;
                self.access.admit(named.as_ref(), &head::shown(request.headers())).await
            }
            Entry::Tunnel(_, client) => Ok(client.clone()),
            Entry::Name => Ok(None),
        }
    }

    /// Finds the gate for a call.
    fn route<B>(&self, request: &Request<B>, entry: &Entry) -> Result<Arc<Gate>, Refused> {
        let directory = self.directory();
        let origin = match entry {
            Entry::Proxy(_) => head::plain(request, None)?,
            Entry::Tunnel(inside, _) => {
                let origin = head::plain(request, Some(inside))?;
                return self.gate(&directory, directory.inside(inside)?, &origin);
            }
            Entry::Name => {
                let origin = head::named(request)?;
                return match directory.call(&origin)? {
                    Fate::Gate(section, _) => self.gate(&directory, section, &origin),
                    _ => Err(Refused::new(Why::NotListed, format!("{} is not listed by a gate", origin.host))),
                };
            }
        };
        match directory.call(&origin)? {
            Fate::Gate(section, _) | Fate::Intercepted(section, _) => self.gate(&directory, section, &origin),
            Fate::Passed(_) => {
                if let Host::Address(address) = origin.host {
                    (self.judge)(address).map_err(|why| Refused::address(&address.to_string(), why))?;
                }
                let section = &CLEAR.into();
                let way = Way { section, origin, scheme: Scheme::HTTP, connect_to: None };
                self.origins.gate(way, directory.egress.max_origins)
            }
        }
    }

    /// Returns the gate of a listed origin. What comes to the port of plain HTTP leaves to the
    /// first of those at which TLS is expected.
    pub(super) fn gate(
        &self,
        directory: &Directory,
        section: &Arc<str>,
        origin: &Origin,
    ) -> Result<Arc<Gate>, Refused> {
        let spec::Egress { ports, max_origins, .. } = &directory.egress;
        let port = if origin.port == 80 { ports.first().copied().unwrap_or(443) } else { origin.port };
        let connect_to = directory.hosts(section).and_then(|hosts| hosts.connect_to.get(&origin.name()));
        let connect_to = connect_to.map(String::as_str);
        self.origins.gate(Way { section, origin: origin.at(port), scheme: Scheme::HTTPS, connect_to }, *max_origins)
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
