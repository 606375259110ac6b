//! Plain HTTP through the egress listener: each call goes through the gate of its origin.
//!
//! A call for a listed host leaves over TLS, with the Host that the client sent, so that its
//! signature holds. Calls for others leave in clear, as they came.

use std::future::ready;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::future::Either;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderValue, Request, Uri, Version, header};

use super::directory::{Directory, Fate, Inside};
use super::head;
use super::origins::{Met, Way};
use super::reason::{Refused, Why};
use super::target::{Host, Origin};
use super::{CLEAR, Egress, NAME};
use crate::proxy::admission::PendingCall;
use crate::proxy::gate::Gate;
use crate::proxy::listener::{self, WireHandle};
use crate::proxy::stack::{self, Answering};
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

/// A connection whose calls are served.
struct Connection {
    entry: Entry,
    /// True if it is to take no more calls. HTTP/1.1 has a field for that.
    over: Arc<AtomicBool>,
    last: Last,
}

/// The rules under which the last call of a tunnel was let in, and its gate. All calls of a tunnel
/// are for one origin, so that under the same rules they go through the same gate, as long as it is
/// there. Neither is kept by it.
#[derive(Default)]
struct Last(Mutex<(Weak<Directory>, Weak<Met>)>);

impl Egress {
    /// Serves the calls of a connection.
    pub(super) async fn serve_calls(self: &Arc<Self>, handle: &WireHandle, entry: Entry, http2: bool) {
        let connection = Arc::new(Connection { entry, over: Arc::default(), last: Last::default() });
        let egress = Arc::clone(self);
        let served = Arc::clone(&connection);
        let path = stack::path(Arc::clone(&self.responder), move |request| match &served.entry {
            Entry::Proxy(named) => {
                let named = named.clone();
                let egress = Arc::clone(&egress);
                let served = Arc::clone(&served);
                // Who calls may have to be asked first.
                Either::Right(Box::pin(async move {
                    match egress.client(&request, named.as_ref()).await {
                        Ok(client) => egress.answer(request, client.as_ref(), &served).await,
                        Err(refused) => egress.refuse(&refused).await,
                    }
                }))
            }
            Entry::Tunnel(_, client) => egress.answer(request, client.as_ref(), &served),
            Entry::Name => egress.answer(request, None, &served),
        });
        if http2 {
            listener::serve_calls_of_http2(handle, path, (&self.closing, &connection.over), NAME).await;
        } else {
            listener::serve_calls(handle, path, &self.closing, NAME).await;
        }
    }

    /// Answers a call of a client that is let in.
    fn answer(&self, mut request: Request<Inbound>, client: Option<&Arc<str>>, connection: &Connection) -> Answering {
        let gate = match self.route(&request, &connection.entry, &connection.last) {
            Ok(gate) => gate,
            Err(refused) => {
                // A client would go on with a connection for a host that is no longer read. It is
                // told so behind the answer: hyper's client can lose one that comes behind the
                // goodbye.
                let refusal = self.refuse(&refused);
                let over = Arc::clone(&connection.over);
                return Either::Right(Box::pin(async move {
                    over.store(true, Relaxed);
                    refusal.await
                }));
            }
        };
        own_form(&mut request);
        let answered = stack::answer(Arc::clone(gate.own()), PendingCall::new(request, client));
        Either::Right(Box::pin(async move {
            let response = answered.await;
            drop(gate); // held until the head has come; its connections show the rest
            response
        }))
    }

    fn refuse(&self, refused: &Refused) -> Answering {
        self.tally.refused(refused);
        Either::Left(ready(Ok(refused.response())))
    }

    /// Checks that a client may use the proxy, and returns its name where clients are known.
    /// `named` is that of its certificate.
    async fn client(&self, request: &Request<Inbound>, named: Option<&Arc<str>>) -> Result<Option<Arc<str>>, Refused> {
        head::plain(request, None)?;
        self.access.admit(named, &head::shown(request.headers())).await
    }

    /// Finds the gate for a call.
    fn route<B>(&self, request: &Request<B>, entry: &Entry, last: &Last) -> Result<Arc<Gate>, Refused> {
        let directory = self.directory();
        let origin = match entry {
            Entry::Proxy(_) => head::plain(request, None)?,
            Entry::Tunnel(inside, _) => {
                head::plain(request, Some(inside))?;
                if let Some(gate) = last.met(&directory).and_then(|met| self.origins.again(&met)) {
                    return Ok(gate);
                }
                let (gate, met) = self.meet(&directory, directory.inside(inside)?, &inside.origin)?;
                last.remember(&directory, met);
                return Ok(gate);
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
        self.meet(directory, section, origin).map(|met| met.0)
    }

    /// The same, with what a connection may remember.
    fn meet(
        &self,
        directory: &Directory,
        section: &Arc<str>,
        origin: &Origin,
    ) -> Result<(Arc<Gate>, Weak<Met>), Refused> {
        let spec::Egress { ports, max_origins, .. } = &directory.egress;
        let port = if origin.port == 80 { ports.first().copied().unwrap_or(443) } else { origin.port };
        let connect_to = directory.hosts(section).and_then(|hosts| hosts.connect_to.get(&origin.name()));
        let connect_to = connect_to.map(String::as_str);
        self.origins.meet(Way { section, origin: origin.at(port), scheme: Scheme::HTTPS, connect_to }, *max_origins)
    }
}

// === impl Last ===

impl Last {
    /// Returns the gate of the last call, if that was under these rules.
    fn met(&self, directory: &Arc<Directory>) -> Option<Weak<Met>> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The rules that are remembered are still somewhere in memory: no others can be there.
        std::ptr::eq(last.0.as_ptr(), Arc::as_ptr(directory)).then(|| Weak::clone(&last.1))
    }

    fn remember(&self, directory: &Arc<Directory>, met: Weak<Met>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (Arc::downgrade(directory), met);
    }
}

/// Gives a request the form that servers get: a path, and the Host that the client sent.
fn own_form<B>(request: &mut Request<B>) {
    let path = match request.uri().path_and_query() {
        // An absolute target may have a query and no path (RFC 9112, 3.2.2), the `:path` of HTTP/2
        // may not.
        Some(query) if query.as_str().starts_with('?') && request.version() != Version::HTTP_2 => {
            PathAndQuery::try_from(format!("/{}", query.as_str())).ok()
        }
        path => path.cloned(),
    };
    let named = request.uri().authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(named) = named {
        request.headers_mut().entry(header::HOST).or_insert(named);
    }
    *request.uri_mut() = path.map_or_else(|| Uri::from_static("/"), Uri::from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_gets_a_path_whatever_the_target_of_the_proxy_has() {
        for (target, expected) in
            [("http://a.test", "/"), ("http://a.test/b?c=d", "/b?c=d"), ("http://a.test?c=d", "/?c=d")]
        {
            let mut request = Request::get(target).body(()).unwrap();
            own_form(&mut request);
            assert_eq!(request.uri().path_and_query().unwrap().as_str(), expected);
            assert_eq!((request.uri().authority(), request.headers()[header::HOST].as_bytes()), (None, &b"a.test"[..]));
        }
    }
}
