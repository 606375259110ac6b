//! One client's connection, from its first byte to its last.

use std::future::poll_fn;
use std::iter::successors;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1::{self, UpgradeableConnection};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use pin_project_lite::pin_project;
use tower::Service;
use tower_http::BoxError;

use super::Server;
use super::early::{self, Early};
use super::idle::{MANY_LINES, Ready};
use super::linger::linger;
use super::long_answer;
use super::parting::Parting;
use super::stream::Stream;
use super::wire::{ActiveCall, Gone, Wire, WireHandle};
use crate::places::{Busy, Place};
use crate::proxy::guard::scan::{Fault, HEAD_BYTES, MOST_LINES};
use crate::proxy::peer::Peer;
use crate::proxy::stack::{self, Path, Sent};
use crate::proxy::tunnel::UpgradeSlot;
use crate::telemetry::table;
use crate::upstream::{Corked, Inbound, Uncorked, Unread};

/// The request path as hyper calls it.
#[derive(Clone)]
struct Calls {
    path: Path,
    /// The connection over HTTP/1, whose calls are to be watched; HTTP/2 tells by itself.
    handle: Option<WireHandle>,
    /// The place where a call leaves the tunnel that the connection is to become; HTTP/2 becomes
    /// none.
    upgrade_slot: Option<UpgradeSlot>,
    place: Option<Arc<Place>>,
}

pin_project! {
    /// A call, for as long as its client is there. By its drop everything below learns that the
    /// client has left.
    struct WhileThere {
        #[pin]
        call: <Path as Service<Request<Inbound>>>::Future,
        client: Option<ActiveCall>,
        // The request's body, if there is one.
        unread: Option<Unread>,
        // The answer, while it waits for that body.
        early: Option<Box<Early>>,
        // It asks for another protocol.
        switches: bool,
        // The client's.
        version: Version,
        is_head: bool,
        busy: Option<Busy>,
    }
}

/// A response body, for as long as its client is there: a silent watch has nothing to write that
/// would find out.
struct BodyWhileThere {
    body: Sent,
    client: Option<ActiveCall>,
    /// The rest of the request's body, which no one wants once the answer has ended.
    unread: Option<Unread>,
    /// Over HTTP/1 it is sent in chunks, and trailers may follow.
    chunked: bool,
    /// A part of it was given to hyper.
    begun: bool,
    _busy: Option<Busy>,
}

impl hyper::service::Service<Request<Incoming>> for Calls {
    type Response = Response<BodyWhileThere>;
    type Error = Gone;
    type Future = WhileThere;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let switches = request.headers().contains_key(header::UPGRADE);
        if let Some(upgrade_slot) = self.upgrade_slot.as_ref().filter(|_| switches) {
            request.extensions_mut().insert(upgrade_slot.clone());
        }
        let (version, is_head) = (request.version(), request.method() == Method::HEAD);
        let (request, unread) = Inbound::of(request);
        let client = self.handle.as_ref().map(WireHandle::begin);
        let busy = self.place.as_ref().map(Place::busy);
        let call = self.path.clone().call(request);
        WhileThere { call, client, unread, early: None, switches, version, is_head, busy }
    }
}

impl Future for WhileThere {
    type Output = Result<Response<BodyWhileThere>, Gone>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // The client first: a call must not leave in the very poll that finds its client gone.
        if this.client.as_ref().is_some_and(|client| client.poll_gone(cx).is_ready()) {
            return Poll::Ready(Err(Gone));
        }
        if this.busy.as_ref().is_some_and(|busy| busy.place().is_lost()) {
            return Poll::Ready(Err(Gone)); // for another connection, before the call began
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
        let (client, unread) = (this.client.take(), this.unread.take());
        let has_switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let is_old = *this.version == Version::HTTP_10;
        let is_open = *this.version < Version::HTTP_2 && !*this.is_head && is_open(&response);
        if let Some(client) = &client {
            // Only the end of the connection tells an old client where such a body ends.
            if (client.answer() || is_old && is_open) && !has_switched {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            if *this.switches {
                client.resolve(has_switched);
            }
        }
        if is_old && response.headers().contains_key(header::CONNECTION) {
            *response.version_mut() = Version::HTTP_10; // or hyper would promise to keep the connection as well
        }
        let chunked = is_open && !is_old;
        let _busy = this.busy.take();
        Poll::Ready(Ok(response.map(|body| BodyWhileThere { body, client, unread, chunked, begun: false, _busy })))
    }
}

impl Body for BodyWhileThere {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { body, client, unread, chunked, begun, _busy: _ } = self.get_mut();
        let Some(client) = client else { return Pin::new(body).poll_frame(cx) };
        let is_full = *begun && client.poll_room(cx).is_pending();
        match if is_full { Poll::Pending } else { Pin::new(&mut *body).poll_frame(cx) } {
            Poll::Pending if client.poll_gone(cx).is_ready() => Poll::Ready(Some(Err(Gone.into()))),
            Poll::Pending if *chunked && unread.is_none() && client.may_outlast() => {
                client.outlast(mem::take(body));
                Poll::Ready(None)
            }
            // hyper writes few trailers over HTTP/1: the wire does.
            Poll::Ready(Some(Ok(frame))) if frame.is_trailers() => {
                let trailers = frame.trailers_ref().filter(|_| *chunked);
                let mark = trailers.and_then(|trailers| client.trail(trailers));
                Poll::Ready(mark.map(|mark| Ok(Frame::data(mark))))
            }
            polled => {
                if let Poll::Ready(Some(Ok(frame))) = &polled {
                    *begun = true;
                    client.give(frame.data_ref().map_or(0, Bytes::len));
                }
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// True if hyper sends a body of this answer without a length.
fn is_open(response: &Response<Sent>) -> bool {
    let is_bodiless = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&response.status());
    let has_length = response.body().size_hint().exact().is_some(); // of a body that declares it, without a search for it
    !is_bodiless && !has_length && !response.headers().contains_key(header::CONTENT_LENGTH)
}

// === impl Server ===

impl Server {
    /// Serves a connection to its end. `http2` if ALPN agreed on it; otherwise the preface decides.
    pub(in crate::proxy) async fn serve(&self, stream: Box<dyn Stream>, peer: Peer, http2: bool) {
        let mut handle = WireHandle::new(stream, Arc::clone(&self.section.buffers), self.parts.upstream.lower_case());
        handle.place = peer.place.clone();
        let speaks_http2 = http2
            || tokio::select! {
                first = tokio::time::timeout(FIRST_BYTES, handle.speaks_http2()) => match first {
                    Ok(speaks) => speaks,
                    Err(_) => return,
                },
                () = self.closing.told() => return, // it has not said a word yet
            };
        let path = stack::stack(&self.parts, peer);
        if speaks_http2 {
            serve_calls_of_http2(&handle, path, (&self.closing, &AtomicBool::new(false)), &self.section.name).await;
        } else {
            serve_calls(&handle, path, &self.closing, &self.section.name).await;
        }
    }
}

/// Serves the calls of a connection that speaks HTTP/2, to its end. After a call that has set
/// `over` it takes no more.
pub(in crate::proxy) async fn serve_calls_of_http2(
    handle: &WireHandle,
    path: Path,
    (closing, over): (&Parting, &AtomicBool),
    gate: &str,
) {
    let calls = Calls { path, handle: None, upgrade_slot: None, place: handle.place.clone() };
    let mut told = pin!(closing.told());
    // Looked at with each answer that is sent, which is when a call can have set it.
    let closing = poll_fn(|cx| if over.load(Relaxed) { Poll::Ready(()) } else { told.as_mut().poll(cx) });
    // Boxed, like all that is large and not what an idle connection of HTTP/1.1 is waiting in.
    if let Err(error) = Box::pin(serve_http2(handle, calls, closing)).await {
        tracing::debug!(gate, error = error_chain(&error), "a client's connection broke");
    }
}

/// Serves the calls of a connection that speaks HTTP/1, to its end.
pub(in crate::proxy) async fn serve_calls(handle: &WireHandle, path: Path, closing: &Parting, gate: &str) {
    let upgrade_slot = UpgradeSlot::default();
    let place = handle.place.clone();
    let calls = Calls { path, handle: Some(handle.clone()), upgrade_slot: Some(upgrade_slot.clone()), place };
    let served = serve_http1(handle, calls, closing).await;
    // A head that is too large was counted when its request was turned away.
    if let Some(fault) = handle.fault().filter(|fault| *fault != Fault::TooLarge) {
        table::GUARDED.counter(&[gate, fault.word()]).increment(1);
        tracing::debug!(gate, %fault, "a connection was turned away");
    }
    if let Err(error) = served {
        tracing::debug!(gate, error = error_chain(&*error), "a client's connection broke");
    }
    // Here and not in a task of its own, so that a tunnel counts as a client: the drain waits for
    // it, and ends it.
    if let Some(tunnel) = upgrade_slot.take() {
        let _busy = handle.place.as_ref().map(Place::busy);
        Box::pin(tunnel.carry(gate)).await;
    }
}

/// Serves HTTP/1. A new hyper begins as often as the connection ends a rest or a long answer, or
/// has a head for which the present one is not ready.
async fn serve_http1(handle: &WireHandle, calls: Calls, closing: &Parting) -> Result<(), BoxError> {
    while has_next(handle, closing).await {
        let served = Box::pin(serve_awake(handle, &calls, closing)).await;
        if handle.has_unread() {
            Box::pin(linger(handle)).await;
        }
        let outlasting = handle.take_outlasting();
        served?;
        if let Some(rest) = outlasting {
            let _busy = handle.place.as_ref().map(Place::busy);
            long_answer::write(handle, rest).await?;
            if !handle.rests() {
                handle.close().await; // hyper would have
            }
        }
        if !handle.rests() {
            break;
        }
    }
    Ok(())
}

/// Waits with an idle connection for its next call; if none comes, closes it.
async fn has_next(handle: &WireHandle, closing: &Parting) -> bool {
    let has_next = tokio::select! {
        has_more = tokio::time::timeout(IDLE, handle.has_more()) => has_more.unwrap_or_default(),
        () = closing.told() => false,
    };
    if !has_next {
        handle.close().await;
    }
    has_next
}

async fn serve_awake(handle: &WireHandle, calls: &Calls, closing: &Parting) -> hyper::Result<()> {
    let connection = pin!(begin_http1(handle, calls.clone()));
    until_closing(connection, closing.told(), |connection| connection.graceful_shutdown()).await
}

async fn serve_http2(handle: &WireHandle, calls: Calls, closing: impl Future<Output = ()>) -> hyper::Result<()> {
    let (stream, cork) = Corked::new(Wire::unscanned(handle));
    let connection = pin!(Uncorked::new(
        http2::Builder::new(BoxingExecutor)
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADER_LIST)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .auto_date_header(false)
            .max_send_buf_size(SEND_BUFFER)
            .serve_connection(TokioIo::new(stream), calls),
        cork
    ));
    until_closing(connection, closing, |connection| connection.connection().graceful_shutdown()).await
}

/// Spawns the calls of an HTTP/2 connection. Each is boxed first: it would be moved several times
/// until it runs, and once more when it ends.
#[derive(Clone, Copy)]
struct BoxingExecutor;

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for BoxingExecutor {
    fn execute(&self, future: F) {
        tokio::spawn(Box::pin(future));
    }
}

/// Serves a connection to its end, and has it say goodbye when the gate closes.
async fn until_closing<C>(
    mut connection: Pin<&mut C>,
    closing: impl Future<Output = ()>,
    say_goodbye: fn(Pin<&mut C>),
) -> hyper::Result<()>
where
    C: Future<Output = hyper::Result<()>>,
{
    tokio::select! {
        biased; // no dice for each poll
        served = connection.as_mut() => served,
        () = closing => {
            say_goodbye(connection.as_mut());
            connection.await
        }
    }
}

/// Begins a hyper for HTTP/1. Not part of the future that serves it, which would keep the builder.
fn begin_http1(handle: &WireHandle, calls: Calls) -> UpgradeableConnection<TokioIo<Wire>, Calls> {
    let (mut builder, wire) = (http1::Builder::new(), Wire::scanned(handle));
    let ready = wire.ready();
    builder.preserve_header_case(ready != Ready::Usual);
    match ready {
        Ready::All => drop(builder.max_headers(MOST_LINES + 1)), // with what ends a head that is cut
        Ready::Many => drop(builder.max_headers(MANY_LINES + 1)),
        Ready::Few | Ready::Usual => {}
    }
    builder
        .header_read_timeout(None) // the wire has its own, and one for each head costs
        .max_buf_size(HEAD_BYTES)
        .auto_date_header(false)
        .half_close(false)
        .serve_connection(TokioIo::new(wire), calls)
        .with_upgrades()
}

/// An error with its causes: hyper's errors say little without them.
fn error_chain(error: &dyn std::error::Error) -> String {
    let chain = successors(Some(error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The time for the first bytes: kube-apiserver waits 32 s for a head.
const FIRST_BYTES: Duration = Duration::from_secs(30);
/// The time between calls. Clients keep connections for 90 s and must be first to close.
const IDLE: Duration = Duration::from_secs(120);
const HEADER_LIST: u32 = 1 << 20;
/// The streams offered: past these Go's client opens another connection; others queue.
const STREAMS: u32 = 1000;
/// The bytes held for a stream whose client does not read though its window is large; each would
/// hold hyper's own 400 KiB.
const SEND_BUFFER: usize = 64 << 10;
/// A stream's window bounds the bytes that one stalled upload holds; the connection's must hold
/// many.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// As client-go pings its server.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use futures_util::future::Either;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::clock::Clock;
    use crate::proxy::body::Body as AnswerBody;
    use crate::proxy::conservation;

    #[tokio::test(start_paused = true)]
    async fn hyper_is_let_go_after_a_call_however_long_that_took() {
        let clock = Clock::start();
        let server = conservation::idle_gate(clock);
        for millis in [0, 10, 99, 100, 101, 250, 10_000] {
            let path = stack::path(Arc::clone(&server.parts.responder), move |_| {
                Either::Right(Box::pin(async move {
                    clock.sleep(Duration::from_millis(millis)).await;
                    Ok(Response::new(AnswerBody::own("done")))
                }))
            });
            let (mut client, end) = duplex(1 << 10);
            let handle = WireHandle::new(Box::new(end), Arc::default(), Arc::default());
            let calls = Calls { path, handle: Some(handle.clone()), upgrade_slot: None, place: None };
            client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("room");
            let begun = clock.now();
            serve_awake(&handle, &calls, &server.closing).await.expect("no fault");
            let took = clock.now().since(begun);
            assert!(handle.rests(), "{millis}");
            let served = Duration::from_millis(millis);
            assert!(took >= served && took <= served + Duration::from_millis(250), "{millis}: {took:?}");
            let mut answer = vec![0; 1 << 10];
            let read = client.read(&mut answer).await.expect("an answer");
            assert!(answer[..read].ends_with(b"done"), "{millis}");
        }
    }
}
