//! The body of a client's request, shared by its call and its connection.
//!
//! A call may get its response before its body is read: from the upstream, by a refusal of the
//! gate, or because of an error. Then the rest of the body is still in the client's connection, and
//! the connection must decide what to do with it. So there are two handles: [`Inbound`] reads the
//! body for the upstream. [`UnreadBody`] tells the connection whether the body has ended, can read
//! its rest after the call, and takes it away from the call at the end of the response.
//!
//! The body also knows whether the client waits for `100 Continue`. hyper's server sends it as soon
//! as such a body is polled.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use http::{Request, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::lock;
use crate::clock::timer;

/// A client's request body, as its call reads it; `None` if there is no body.
#[derive(Debug, Default)]
pub struct Inbound(Option<Arc<Mutex<InboundState>>>);

/// A client's request body, as its connection sees it. Dropping it takes the body away from the
/// call.
#[derive(Debug)]
pub struct UnreadBody(Arc<Mutex<InboundState>>);

/// Why a body could not be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum InboundError {
    /// The client's body broke off.
    #[error(transparent)]
    Client(#[from] hyper::Error),
    /// The body broke off earlier, or the call was answered already.
    #[error("the rest of the request body is not read, because it broke off or the call is answered already")]
    Unread,
}

#[derive(Debug)]
struct InboundState {
    body: Progress,
    /// The number of bytes read so far.
    read: u64,
    /// Set while the client waits for `100 Continue`.
    expects: bool,
    /// The timer of the delay of `100 Continue`.
    held: Option<Pin<Box<Sleep>>>,
    /// The most bytes in all worth reading once the call has its answer.
    longest: Option<u64>,
    /// Set once the call has stopped reading the body.
    is_left: bool,
    reader: Option<Waker>,
    /// Wakes the connection at the end of the body, or once it is longer than [`Self::longest`].
    watcher: Option<Waker>,
}

#[derive(Debug)]
enum Progress {
    Open(Incoming),
    Ended,
    Broken,
    Taken,
}

// === impl Inbound ===

impl Inbound {
    /// Splits a request's body into a handle for the call and one for its connection. The latter is
    /// `None` if there is no body.
    pub fn of(request: Request<Incoming>) -> (Request<Self>, Option<UnreadBody>) {
        if request.body().is_end_stream() {
            return (request.map(|_| Self(None)), None);
        }
        let expects = request.version() == Version::HTTP_11
            && request.headers().get_all(EXPECT).iter().any(|value| value.as_bytes().eq_ignore_ascii_case(CONTINUE));
        let (head, body) = request.into_parts();
        let shared = InboundState::share(body, expects);
        let body = Self(Some(Arc::clone(&shared)));
        (Request::from_parts(head, body), Some(UnreadBody(shared)))
    }

    /// Returns true if the client still waits for `100 Continue`.
    pub fn is_awaited(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| lock(shared).expects)
    }

    /// Delays `100 Continue` for `patience`, or until the returned function is called. `None` if
    /// the client does not wait for it.
    pub(super) fn hold_back(&self, patience: Duration) -> Option<impl Fn() + Send + Sync + use<>> {
        let shared = self.0.as_ref()?;
        let mut state = lock(shared);
        if !state.expects {
            return None;
        }
        state.held = Some(timer(patience));
        let shared = Arc::clone(shared);
        Some(move || lock(&shared).release())
    }
}

/// Wraps a body not shared with a connection.
impl From<Incoming> for Inbound {
    fn from(body: Incoming) -> Self {
        Self((!body.is_end_stream()).then(|| InboundState::share(body, false)))
    }
}

impl Body for Inbound {
    type Data = Bytes;
    type Error = InboundError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, InboundError>>> {
        let Some(shared) = &self.0 else { return Poll::Ready(None) };
        let mut state = lock(shared);
        let polled = if state.poll_held(cx).is_pending() { Poll::Pending } else { state.poll_frame(cx) };
        if polled.is_pending() && !state.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
            state.reader = Some(cx.waker().clone());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|shared| matches!(lock(shared).body, Progress::Ended))
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), |shared| lock(shared).size_hint())
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            let mut state = lock(shared);
            state.is_left = true;
            state.tell_watcher();
        }
    }
}

// === impl UnreadBody ===

impl UnreadBody {
    /// Reads and discards the rest of the body, as far as the call does not read it.
    ///
    /// Ready with true at the end of the body, and with false if the rest is not worth reading: it is
    /// longer than `most`, it broke off, or the client still waits for `100 Continue`.
    pub fn poll_end(&self, cx: &mut Context<'_>, most: u64) -> Poll<bool> {
        let mut state = lock(&self.0);
        let begun = state.read;
        let longest = *state.longest.get_or_insert(begun + most);
        loop {
            let least = state.read + state.size_hint().lower();
            match &state.body {
                Progress::Ended => return Poll::Ready(true),
                Progress::Broken | Progress::Taken => return Poll::Ready(false),
                Progress::Open(_) if state.expects || least > longest => return Poll::Ready(false),
                Progress::Open(_) if !state.is_left => {
                    state.watcher = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Progress::Open(_) => drop(ready!(state.poll_frame(cx))),
            }
        }
    }
}

impl Drop for UnreadBody {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        if matches!(state.body, Progress::Open(_)) {
            state.body = Progress::Taken;
            state.release();
        }
    }
}

// === impl InboundState ===

impl InboundState {
    fn share(body: Incoming, expects: bool) -> Arc<Mutex<Self>> {
        let body = Progress::Open(body);
        let state =
            Self { body, read: 0, expects, held: None, longest: None, is_left: false, reader: None, watcher: None };
        Arc::new(Mutex::new(state))
    }

    /// Ends the delay of `100 Continue`, and wakes the reader of the body.
    fn release(&mut self) {
        self.held = None;
        self.reader.take().into_iter().for_each(Waker::wake);
    }

    /// Waits for the end of the delay of `100 Continue`.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(held) = &mut self.held {
            ready!(held.as_mut().poll(cx));
            self.held = None;
        }
        Poll::Ready(())
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, InboundError>>> {
        let body = match &mut self.body {
            Progress::Open(body) => body,
            Progress::Ended => return Poll::Ready(None),
            // Said to each reader: a body that broke off is never sent as if it were whole.
            Progress::Broken | Progress::Taken => return Poll::Ready(Some(Err(InboundError::Unread))),
        };
        self.expects = false;
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        let is_end = body.is_end_stream();
        match &frame {
            Some(Ok(frame)) => {
                self.read += frame.data_ref().map_or(0, |data| data.len() as u64);
                if is_end {
                    self.body = Progress::Ended;
                }
            }
            Some(Err(_)) => self.body = Progress::Broken,
            None => self.body = Progress::Ended,
        }
        if self.longest.is_some_and(|longest| self.read > longest) || !matches!(self.body, Progress::Open(_)) {
            self.tell_watcher();
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Progress::Open(body) => body.size_hint(),
            Progress::Ended => SizeHint::with_exact(0),
            Progress::Broken | Progress::Taken => SizeHint::default(),
        }
    }

    fn tell_watcher(&mut self) {
        self.watcher.take().into_iter().for_each(Waker::wake);
    }
}

const CONTINUE: &[u8] = b"100-continue";
