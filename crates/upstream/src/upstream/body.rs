//! The request body. Its beginning is kept in memory, so that it can be sent again.
//!
//! Up to 1 MiB is kept until the response head arrives (16 MiB for all bodies of an upstream
//! together); a longer body cannot be sent again. All attempts share the client's body behind a
//! lock. hyper may hold on to a failed attempt's body for a while, so only the newest attempt can
//! read it.
//!
//! The body is framed as by the client: with a declared length, or chunked.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::inbound::{Inbound, InboundError};
use super::lock;

/// A request body: first the part read while the call waited, then the rest from the client. The
/// default is no body.
#[derive(Debug, Default)]
pub struct OutgoingBody {
    /// The state of the body; `None` without a body.
    shared: Option<Arc<Mutex<OutgoingState>>>,
}

/// The beginning of a sent body, for finding the object's name or comparing bodies after a failure.
#[derive(Debug)]
pub struct BodyPrefix(Option<Arc<Mutex<OutgoingState>>>);

/// The body for one attempt to send a request, on a stream `S`.
#[derive(Debug)]
pub(super) struct AttemptBody<S> {
    shared: Option<Arc<Mutex<OutgoingState>>>,
    /// The number of this attempt.
    attempt: u32,
    /// The index of the next kept frame to send.
    at: usize,
    /// Set once this attempt has sent its last frame.
    ended: bool,
    /// The stream; it counts as in use until the body is dropped.
    _stream: Option<Arc<S>>,
}

/// Why a body could not be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum OutgoingBodyError {
    /// The client's body broke off.
    #[error("the client's request body ended too early")]
    Client(#[source] Arc<InboundError>),
    /// The request is being sent again on another connection, which reads the body now.
    #[error("this attempt is over: the request is being sent again on another connection")]
    Superseded,
}

/// The memory for the kept bodies of an upstream; a permit is a byte.
pub(super) type Budget = Arc<Semaphore>;

#[derive(Debug, Default)]
struct OutgoingState {
    /// The number of the newest attempt; older ones cannot read the body.
    attempt: u32,
    /// Set once hyper has polled the newest attempt's body.
    asked: bool,
    /// All bytes read so far, or only the beginning of them if `partial`.
    kept: Vec<Bytes>,
    kept_bytes: usize,
    /// Set if some bytes read were not kept, so that the request cannot be sent again.
    partial: bool,
    budget: Option<Budget>,
    /// The part of the budget used by `kept`.
    charge: Option<OwnedSemaphorePermit>,
    /// Set once the response head has arrived: nothing more is kept.
    answered: bool,
    /// Set if a [`BodyPrefix`] exists: then the beginning is kept even if the request cannot be
    /// sent again.
    named: bool,
    rest: Option<Inbound>,
    trailers: Option<HeaderMap>,
    /// Set if the client declared a length.
    declared: bool,
    broken: Option<Arc<InboundError>>,
}

// === impl OutgoingBody ===

impl OutgoingBody {
    /// Creates a body from the part already `read`, followed by the `rest` from the client.
    ///
    /// If the client has sent everything, there may be `trailers` instead of a `rest`.
    pub fn new(read: Vec<Bytes>, rest: Option<Inbound>, trailers: Option<HeaderMap>) -> Self {
        let kept_bytes = read.iter().map(Bytes::len).sum();
        let state = OutgoingState { kept: read, kept_bytes, rest, trailers, ..OutgoingState::default() };
        Self { shared: Some(Arc::new(Mutex::new(state))) }
    }

    /// Returns a handle on the beginning of the body. It must be taken before the body is sent, and
    /// is read when the response head has arrived.
    pub fn kept(&self) -> BodyPrefix {
        if let Some(mut state) = self.state() {
            state.named = true;
        }
        BodyPrefix(self.shared.clone())
    }

    /// Prepares the body for sending.
    ///
    /// Its kept part is charged to `budget`, as far as possible. `is_declared` returns whether the
    /// client declared a length; it is called only if there is a body.
    pub(super) fn begin(&self, budget: &Budget, is_declared: impl FnOnce() -> bool) {
        let Some(mut state) = self.state() else { return };
        state.declared = is_declared();
        state.budget = Some(Arc::clone(budget));
        // bytes read while waiting are in memory anyway and must be sent: only their stay is
        // charged
        let bytes = state.kept_bytes;
        state.charge(bytes);
    }

    /// Returns the body for a new attempt, on this stream. Earlier attempts can no longer read it.
    pub(super) fn attempt<S>(&self, stream: Option<Arc<S>>) -> AttemptBody<S> {
        let attempt = self.state().map_or(0, |mut state| {
            state.attempt += 1;
            state.asked = false;
            state.attempt
        });
        AttemptBody { shared: self.shared.clone(), attempt, at: 0, ended: false, _stream: stream }
    }

    /// Returns true if all bytes read so far are kept, so that the request can be sent again.
    pub(super) fn can_replay(&self) -> bool {
        self.state().is_none_or(|state| !state.partial && state.broken.is_none())
    }

    /// Returns true if there is a body, and the newest attempt has not read from it. Then the
    /// upstream cannot have received all of it.
    pub(super) fn is_unasked(&self) -> bool {
        self.state().is_some_and(|state| !state.asked)
    }

    /// Returns the error of the client's own body, if it broke off.
    pub(super) fn broken(&self) -> Option<Arc<InboundError>> {
        self.state().and_then(|state| state.broken.clone())
    }

    /// Delays `100 Continue` to a waiting client, for `patience` or until the returned function is
    /// called.
    pub(super) fn hold_back(&self, patience: Duration) -> Option<impl Fn() + Send + Sync + use<>> {
        self.state()?.rest.as_ref()?.hold_back(patience)
    }

    /// Records the arrival of the response head. Nothing more is kept, and the request is not sent
    /// again.
    pub(super) fn answered(&self) {
        let Some(mut state) = self.state() else { return };
        state.answered = true;
        state.charge = None;
    }

    fn state(&self) -> Option<MutexGuard<'_, OutgoingState>> {
        self.shared.as_deref().map(lock)
    }
}

// === impl AttemptBody ===

impl<S> AttemptBody<S> {
    /// Returns true if there is no body.
    pub(super) fn is_absent(&self) -> bool {
        self.shared.is_none()
    }
}

impl<S> Body for AttemptBody<S> {
    type Data = Bytes;
    type Error = OutgoingBodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        let Some(shared) = this.shared.as_ref().filter(|_| !this.ended) else { return Poll::Ready(None) };
        let mut state = lock(shared);
        if state.attempt != this.attempt {
            return Poll::Ready(Some(Err(OutgoingBodyError::Superseded)));
        }
        state.asked = true;
        if let Some(chunk) = state.kept.get(this.at) {
            this.at += 1;
            return Poll::Ready(Some(Ok(Frame::data(chunk.clone()))));
        }
        let next = ready!(state.poll_rest(cx));
        this.at = state.kept.len();
        this.ended = next.as_ref().is_none_or(|frame| frame.as_ref().map_or(true, Frame::is_trailers));
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        let Some(state) = self.shared.as_deref().filter(|_| !self.ended).map(lock) else { return true };
        // a chunked body is not over before it was asked for: `0\r\n\r\n` is not the same as
        // nothing
        let over = state.rest.as_ref().is_none_or(Body::is_end_stream) && state.trailers.is_none();
        over && self.at >= state.kept.len() && (state.declared || self.at > 0)
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.shared.as_deref().map(lock);
        let Some(state) = state.filter(|state| state.declared) else { return SizeHint::default() };
        let unsent: usize = state.kept.iter().skip(self.at).map(Bytes::len).sum();
        let rest = state.rest.as_ref().map_or(Some(0), |rest| rest.size_hint().exact());
        rest.map_or_else(SizeHint::default, |rest| SizeHint::with_exact(rest + unsent as u64))
    }
}

// === impl OutgoingState ===

impl OutgoingState {
    /// Reads the next frame from the client.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, OutgoingBodyError>>> {
        if let Some(error) = &self.broken {
            return Poll::Ready(Some(Err(OutgoingBodyError::Client(Arc::clone(error)))));
        }
        let Some(rest) = &mut self.rest else {
            return Poll::Ready(self.trailers.clone().map(|trailers| Ok(Frame::trailers(trailers))));
        };
        let next = ready!(Pin::new(rest).poll_frame(cx));
        if !matches!(next, Some(Ok(_))) {
            self.rest = None;
        }
        Poll::Ready(next.map(|read| match read {
            Ok(frame) => {
                self.keep(&frame);
                Ok(frame)
            }
            Err(error) => Err(OutgoingBodyError::Client(Arc::clone(self.broken.insert(Arc::new(error))))),
        }))
    }

    /// Keeps a frame if there is room for it.
    ///
    /// Otherwise the request cannot be sent again. If a [`BodyPrefix`] exists, the beginning of the
    /// body is kept until the response head.
    fn keep(&mut self, frame: &Frame<Bytes>) {
        if let Some(trailers) = frame.trailers_ref() {
            self.trailers = Some(trailers.clone());
            self.rest = None;
        }
        let Some(data) = frame.data_ref().filter(|data| !data.is_empty()) else { return };
        let bytes = data.len();
        let has_room = self.kept_bytes + bytes <= KEPT_FOR_REPLAY && self.kept.len() < PIECES_FOR_REPLAY;
        if !self.partial && !self.answered && has_room && self.charge(bytes) {
            self.kept.push(data.clone());
            self.kept_bytes += bytes;
            return;
        }
        let most = if self.named { KEPT_FOR_NAMES } else { 0 };
        if !self.partial {
            self.partial = true;
            self.kept = beginning(&self.kept, most);
            self.kept_bytes = self.kept.iter().map(Bytes::len).sum();
            self.charge = None;
        }
        let room = most.saturating_sub(self.kept_bytes).min(bytes);
        if !self.answered && room > 0 && self.kept.len() < PIECES_FOR_REPLAY {
            self.kept.push(data.slice(..room));
            self.kept_bytes += room;
        }
    }

    /// Takes bytes from the budget. Returns false if it has not enough.
    fn charge(&mut self, bytes: usize) -> bool {
        let (Some(budget), Ok(bytes)) = (&self.budget, u32::try_from(bytes)) else { return false };
        let Ok(permit) = Arc::clone(budget).try_acquire_many_owned(bytes) else { return false };
        match &mut self.charge {
            Some(charge) => charge.merge(permit),
            none => *none = Some(permit),
        }
        true
    }
}

// === impl BodyPrefix ===

impl BodyPrefix {
    /// Returns at most the first 64 KiB of the body, as far as it has been read.
    pub fn bytes(&self) -> Vec<Bytes> {
        self.0.as_deref().map_or_else(Vec::new, |shared| beginning(&lock(shared).kept, KEPT_FOR_NAMES))
    }

    /// Returns true if [`bytes`](Self::bytes) returns the whole body.
    pub fn is_whole(&self) -> bool {
        self.0.as_deref().map(lock).is_none_or(|state| {
            !state.partial && state.kept_bytes <= KEPT_FOR_NAMES && state.rest.as_ref().is_none_or(Body::is_end_stream)
        })
    }
}

/// Returns the first `most` bytes of some chunks.
fn beginning(chunks: &[Bytes], most: usize) -> Vec<Bytes> {
    let mut left = most;
    let mut found = Vec::new();
    for chunk in chunks {
        let take = chunk.len().min(left);
        if take == 0 {
            break;
        }
        found.push(chunk.slice(..take));
        left -= take;
    }
    found
}

/// The most bytes to keep of one body. kube-apiserver accepts 3 MiB, but nearly all objects are far
/// smaller than this.
const KEPT_FOR_REPLAY: usize = 1 << 20;
/// The most pieces to keep of one body. The usual 1 MiB is 64 frames of 16 KiB, while a million
/// pieces of one byte would need forty times its memory.
const PIECES_FOR_REPLAY: usize = 1024;
/// The most bytes to keep of all bodies of an upstream together.
pub(super) const KEPT_TOGETHER: usize = 16 << 20;
/// The most bytes to keep for finding an object's name or comparing bodies.
const KEPT_FOR_NAMES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(budget: usize, named: bool, frames: &[usize]) -> (Vec<Bytes>, bool) {
        let outgoing = OutgoingBody::new(Vec::new(), None, None);
        outgoing.begin(&Budget::new(Semaphore::new(budget)), || true);
        let kept = BodyPrefix(outgoing.shared.clone());
        if named {
            drop(outgoing.kept());
        }
        for bytes in frames {
            outgoing.state().expect("a body").keep(&Frame::data(vec![b'x'; *bytes].into()));
        }
        (kept.bytes(), outgoing.can_replay())
    }

    #[test]
    fn the_beginning_is_kept_for_its_name_even_where_nothing_is_kept_for_replay() {
        let length = |pieces: &[Bytes]| pieces.iter().map(Bytes::len).sum::<usize>();
        let (kept, replay) = sent(1 << 20, true, &[40_000, 40_000]);
        assert_eq!((length(&kept), replay), (KEPT_FOR_NAMES, true));
        for (budget, frames) in
            [(0, &[100_000][..]), (0, &[40_000, 40_000, 40_000]), (50_000, &[40_000; 3]), (4 << 20, &[400_000; 4])]
        {
            let (kept, replay) = sent(budget, true, frames);
            assert_eq!((length(&kept), replay), (KEPT_FOR_NAMES, false), "{budget} {frames:?}");
            let (kept, replay) = sent(budget, false, frames);
            assert_eq!((length(&kept), replay), (0, false), "nobody asks for a name: {budget} {frames:?}");
        }
        let (kept, _) = sent(0, true, &vec![1; 100_000]);
        assert_eq!(kept.len(), PIECES_FOR_REPLAY, "a body byte by byte");
    }

    #[test]
    fn nothing_more_is_kept_behind_the_response_head() {
        let outgoing = OutgoingBody::new(vec![Bytes::from_static(b"begin")], None, None);
        outgoing.begin(&Budget::new(Semaphore::new(1 << 20)), || true);
        let kept = outgoing.kept();
        outgoing.answered();
        outgoing.state().expect("a body").keep(&Frame::data(Bytes::from_static(b"ning")));
        assert_eq!(kept.bytes(), ["begin"]);
        assert!(!kept.is_whole() && !outgoing.can_replay());
    }
}
