//! A call as hyper handles it, for as long as its client is connected.
//!
//! When the client hangs up, hyper drops the call's future or its response body, and everything
//! that belongs to the call with it: a waiting call is never sent (P6), and the upstream stops
//! sending a response that nobody reads.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use tower::Service;
use tower_http::BoxError;

use super::early::{self, EarlyAnswer};
use super::wire::{ActiveCall, ClientGoneError, WireHandle};
use crate::places::{Busy, Place};
use crate::proxy::stack::{BoxBody, Path};
use crate::proxy::tunnel::UpgradeSlot;
use crate::upstream::{Inbound, UnreadBody};

/// The service hyper calls for each request of a connection.
#[derive(Clone)]
pub(super) struct Calls {
    pub(super) path: Path,
    /// The connection, to notice that an HTTP/1 client hangs up; hyper notices this by itself over
    /// HTTP/2.
    pub(super) handle: Option<WireHandle>,
    /// The slot for a tunnel: a call that switches protocols puts it there, for the task of the
    /// connection. Only over HTTP/1.
    pub(super) upgrade_slot: Option<UpgradeSlot>,
    pub(super) place: Option<Arc<Place>>,
}

pin_project! {
    /// The future of a call's response head.
    pub(super) struct ClientCall {
        #[pin]
        call: <Path as Service<Request<Inbound>>>::Future,
        client: Option<ActiveCall>,
        // The request's body, if there is one.
        unread: Option<UnreadBody>,
        // The answer, waiting for that body.
        early: Option<Box<EarlyAnswer>>,
        // The request asks for another protocol, or for a tunnel.
        switches: bool,
        // The version of the request.
        version: Version,
        method: Method,
        busy: Option<Busy>,
    }
}

/// The body of a response. It checks by itself whether the client has hung up: a watch without
/// events writes nothing, so no write would fail.
pub(super) struct ClientBody {
    body: BoxBody,
    client: Option<ActiveCall>,
    /// Set once hyper has some of the body.
    begun: bool,
    /// The rest of the request's body. It is dropped once the response has ended.
    _unread: Option<UnreadBody>,
    _busy: Option<Busy>,
}

// === impl Calls ===

impl hyper::service::Service<Request<Incoming>> for Calls {
    type Response = Response<ClientBody>;
    type Error = ClientGoneError;
    type Future = ClientCall;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let method = request.method().clone();
        let switches = request.headers().contains_key(header::UPGRADE) || method == Method::CONNECT;
        if let Some(upgrade_slot) = self.upgrade_slot.as_ref().filter(|_| switches) {
            request.extensions_mut().insert(upgrade_slot.clone());
        }
        let version = request.version();
        let (request, unread) = Inbound::of(request);
        let client = self.handle.as_ref().map(WireHandle::begin);
        let busy = self.place.as_ref().map(Place::busy);
        let call = self.path.clone().call(request);
        ClientCall { call, client, unread, early: None, switches, version, method, busy }
    }
}

// === impl ClientCall ===

impl Future for ClientCall {
    type Output = Result<Response<ClientBody>, ClientGoneError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // The client first: a call must not leave in the very poll that finds its client gone.
        if this.client.as_ref().is_some_and(|client| client.poll_gone(cx).is_ready()) {
            return Poll::Ready(Err(ClientGoneError));
        }
        if this.busy.as_ref().is_some_and(|busy| busy.place().is_lost()) {
            return Poll::Ready(Err(ClientGoneError)); // for another connection, before the call began
        }
        let mut response = match (&mut *this.early, &*this.unread) {
            (Some(early), Some(unread)) => ready!(early.poll(unread, cx)),
            _ => {
                let Ok(response) = ready!(this.call.poll(cx));
                match this.unread.as_ref().filter(|_| this.client.is_some()) {
                    Some(unread) => ready!(early::answer(response, unread, this.early, cx)),
                    None => response, // HTTP/2 resets the stream after the answer, and loses nothing
                }
            }
        };
        let client = this.client.take();
        let has_switched = response.status() == StatusCode::SWITCHING_PROTOCOLS
            || (*this.method == Method::CONNECT && response.status().is_success());
        let is_old = *this.version == Version::HTTP_10;
        if let Some(client) = &client {
            // Only the end of the connection tells an old client where such a body ends.
            let ends_connection = is_old && *this.method != Method::HEAD && is_open(&response);
            if (client.had_large_head() || ends_connection) && !has_switched {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            if *this.switches && !has_switched {
                client.stay();
            }
        }
        if is_old && response.headers().contains_key(header::CONNECTION) {
            *response.version_mut() = Version::HTTP_10; // or hyper would promise to keep the connection as well
        }
        let _unread = this.unread.take();
        let _busy = this.busy.take();
        Poll::Ready(Ok(response.map(|body| ClientBody { body, client, begun: false, _unread, _busy })))
    }
}

/// Returns true if hyper sends the body of this response without a length.
fn is_open(response: &Response<BoxBody>) -> bool {
    let is_bodiless = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&response.status());
    let has_length = response.body().size_hint().exact().is_some(); // of a body that declares it, without a search for it
    !is_bodiless && !has_length && !response.headers().contains_key(header::CONTENT_LENGTH)
}

// === impl ClientBody ===

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { body, client, begun, .. } = self.get_mut();
        let Some(client) = client else { return Pin::new(body).poll_frame(cx) };
        let is_full = *begun && client.poll_room(cx).is_pending();
        let polled = if is_full { Poll::Pending } else { Pin::new(body).poll_frame(cx) };
        match &polled {
            Poll::Pending if client.poll_gone(cx).is_ready() => return Poll::Ready(Some(Err(ClientGoneError.into()))),
            Poll::Ready(Some(Ok(frame))) => {
                *begun = true;
                client.give(frame.data_ref().map_or(0, Bytes::len));
            }
            Poll::Pending | Poll::Ready(Some(Err(_)) | None) => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
