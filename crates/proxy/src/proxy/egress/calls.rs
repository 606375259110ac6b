//! HTTP requests through the egress listener: each goes through the gate for its host and port.
//!
//! A request to a listed host is sent over TLS, with the client's Host, so that its signature stays
//! valid. Requests to other hosts are sent unencrypted, as the client sent them.

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::Either;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderValue, Method, Request, Response, Uri, Version, header};
use hyper::ext::ReasonPhrase;

use super::directory::{Directory, Fate, Inside};
use super::head;
use super::origins::Way;
use super::reason::{EgressRefusal, Why};
use super::target::{Host, Origin};
use super::{CLEAR, EgressListener, NAME};
use crate::proxy::admission::PendingCall;
use crate::proxy::body::Body;
use crate::proxy::gate::Gate;
use crate::proxy::listener::{self, WireHandle};
use crate::proxy::stack::{self, AnswerResult, PendingAnswer};
use crate::proxy::tunnel::{Tunnel, UpgradeSlot};
use crate::spec;
use crate::upstream::Inbound;

/// How calls reach the egress listener.
#[derive(Debug)]
pub(super) enum Entry {
    /// Through the forward proxy: request targets are URLs. Holds the name in the client's
    /// certificate, if there is one.
    Proxy(Option<Arc<str>>),
    /// Through a tunnel with plain HTTP or decrypted TLS. Holds the client's name, if it is known.
    Tunnel(Inside, Option<Arc<str>>),
    /// Directly, without a proxy, because a hosts file maps the host's name to the listener's
    /// address.
    Name,
}

/// A client's connection while it makes calls.
struct CallConnection {
    handle: WireHandle,
    entry: Entry,
    /// Set once a request other than CONNECT has come to the forward proxy.
    is_plain: AtomicBool,
    /// Set when an HTTP/2 connection must accept no more calls. HTTP/1.1 has a header for that.
    over: Arc<AtomicBool>,
}

impl EgressListener {
    /// Serves the requests of a connection, and the tunnel that one of them may open: boxed, because
    /// requests in a tunnel are served by this as well.
    pub(super) fn serve_calls<'a>(
        self: &Arc<Self>,
        handle: &'a WireHandle,
        entry: Entry,
        http2: bool,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        let connection =
            CallConnection { handle: handle.clone(), entry, is_plain: AtomicBool::new(false), over: Arc::default() };
        let connection = Arc::new(connection);
        let egress = Arc::clone(self);
        let served = Arc::clone(&connection);
        let path = stack::path(Arc::clone(&self.responder), move |request| match &served.entry {
            Entry::Proxy(named) => {
                let named = named.clone();
                let egress = Arc::clone(&egress);
                let served = Arc::clone(&served);
                // Who calls may have to be asked first.
                Either::Right(Box::pin(async move { egress.answer_proxied(request, named.as_ref(), &served).await }))
            }
            Entry::Tunnel(_, client) => egress.answer(request, client.as_ref(), &served),
            Entry::Name => egress.answer(request, None, &served),
        });
        let egress = Arc::clone(self);
        Box::pin(async move {
            let closing = &egress.clients.tasks.closing;
            if http2 {
                listener::serve_calls_of_http2(handle, path, closing, &connection.over, NAME).await;
            } else {
                listener::serve_calls(handle, path, closing, NAME).await;
            }
        })
    }

    /// Answers a request to the forward proxy: a call, or a CONNECT.
    async fn answer_proxied(
        self: &Arc<Self>,
        request: Request<Inbound>,
        named: Option<&Arc<str>>,
        connection: &CallConnection,
    ) -> AnswerResult {
        let is_connect = *request.method() == Method::CONNECT;
        if !is_connect && !connection.is_plain.swap(true, Relaxed) {
            self.tally.became("plain");
        }
        let admitted = async {
            let origin = head::plain(&request, None)?;
            let client = self.access.admit(named, &head::shown(request.headers())).await?;
            Ok::<_, EgressRefusal>((origin, client))
        };
        let opened = match admitted.await {
            Ok((_, client)) if !is_connect => return self.answer(request, client.as_ref(), connection).await,
            Ok((origin, client)) => self.open_tunnel(&connection.handle, origin, &request, client).await,
            Err(refused) => Err(refused),
        };
        match opened {
            Ok(tunnel) => {
                if let Some(slot) = request.extensions().get::<UpgradeSlot>() {
                    slot.fill(Tunnel::Opened(tunnel));
                }
                Ok(established())
            }
            Err(refused) => {
                if is_connect {
                    self.tally.became("refused");
                }
                self.refuse(&refused).await
            }
        }
    }

    /// Answers a request of an authenticated client.
    fn answer(
        &self,
        mut request: Request<Inbound>,
        client: Option<&Arc<str>>,
        connection: &CallConnection,
    ) -> PendingAnswer {
        let gate = match self.route(&request, &connection.entry) {
            Ok(gate) => gate,
            Err(refused) => {
                // The client would go on with a connection for a host that is no longer read. The
                // goodbye comes after the answer: hyper's client can lose an answer after it.
                let refusal = self.refuse(&refused);
                let over = Arc::clone(&connection.over);
                return Either::Right(Box::pin(async move {
                    over.store(true, Relaxed);
                    refusal.await
                }));
            }
        };
        own_form(&mut request);
        let answered = stack::answer(Arc::clone(gate.own()), PendingCall::new(request, client), None);
        Either::Right(Box::pin(async move {
            let response = answered.await;
            drop(gate); // held until the head has come; its connections show the rest
            response
        }))
    }

    fn refuse(&self, refused: &EgressRefusal) -> PendingAnswer {
        self.tally.refused(refused);
        Either::Left(ready(Ok(refused.response())))
    }

    /// Returns the gate for a call, or the refusal if the call may not pass.
    fn route<B>(&self, request: &Request<B>, entry: &Entry) -> Result<Arc<Gate>, EgressRefusal> {
        let directory = self.directory.get();
        let origin = match entry {
            Entry::Proxy(_) => head::plain(request, None)?,
            Entry::Tunnel(inside, _) => {
                head::plain(request, Some(inside))?;
                return self.gate(&directory, directory.inside(inside)?, &inside.origin);
            }
            Entry::Name => {
                let origin = head::named(request)?;
                return match directory.call(&origin)? {
                    Fate::Gate(section, _) => self.gate(&directory, section, &origin),
                    _ => Err(EgressRefusal::new(Why::NotListed, format!("no gate lists the host {}", origin.host))),
                };
            }
        };
        match directory.call(&origin)? {
            Fate::Gate(section, _) | Fate::Intercepted(section, _) => self.gate(&directory, section, &origin),
            Fate::Passed(_) => {
                if let Host::Address(address) = origin.host {
                    (self.dial.judge)(address).map_err(|why| EgressRefusal::address(&address.to_string(), why))?;
                }
                let section = &CLEAR.into();
                let way = Way { section, origin, scheme: Scheme::HTTP, connect_to: None };
                self.origins.meet(&way, directory.egress.max_origins)
            }
        }
    }

    /// Returns the gate for a host and port, made from the configured gate `section`. Port 80
    /// stands for the first TLS port of the settings, because such calls are sent over TLS.
    pub(super) fn gate(
        &self,
        directory: &Directory,
        section: &Arc<str>,
        origin: &Origin,
    ) -> Result<Arc<Gate>, EgressRefusal> {
        let spec::Egress { ports, max_origins, .. } = &directory.egress;
        let port = if origin.port == 80 { ports.first().copied().unwrap_or(443) } else { origin.port };
        let connect_to = directory.hosts(section).and_then(|hosts| hosts.connect_to.get(&origin.name()));
        let connect_to = connect_to.map(String::as_str);
        let way = Way { section, origin: origin.at(port), scheme: Scheme::HTTPS, connect_to };
        self.origins.meet(&way, *max_origins)
    }
}

/// Rewrites a proxy request for the server: the target becomes a path, and the URL's host becomes
/// the Host header if there is none.
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

/// Returns the answer that the tunnel is open.
fn established() -> Response<Body> {
    let mut response = Response::new(Body::own(""));
    response.extensions_mut().insert(ReasonPhrase::from_static(b"Connection established"));
    response
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
