//! The request body that is sent, and as much of it as may have to be sent again.
//!
//! The first 1 MiB is kept (16 MiB for all bodies of an upstream together) until the response head; past either there is no replay. The
//! client's own body stays behind a lock that attempts share, because hyper may hold on to a failed attempt's body for a while: only the
//! newest attempt can read. The kind of framing is the client's: a declared length stays declared, a chunked body stays chunked.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::{
    inbound::{Continue, Inbound, InboundError},
    pool::{connection::Traffic, stream_lease::StreamUnit},
};

/// A request body on its way up: what was read while the call waited, then the rest as the client sends it.
#[derive(Debug)]
pub struct Outgoing {
    /// `None` for no body at all, which costs nothing.
    shared: Option<Arc<Shared>>,
    /// Which attempt this is.
    attempt: u32,
    /// Frames of the kept beginning that this attempt has sent.
    at: usize,
    /// This attempt has sent its last frame.
    ended: bool,
    /// The stream it is sent on, which is not free before the body is done with.
    _unit: Option<Arc<StreamUnit>>,
    /// The HTTP/1.1 connection it is sent on, which is given the trailers.
    connection: Option<Arc<Traffic>>,
}

/// The beginning of a body that was sent, for names and digests after a failure.
#[derive(Debug)]
pub struct Kept {
    shared: Option<Arc<Shared>>,
}

/// The body could not be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum OutgoingError {
    /// The client broke off.
    #[error("the client's body broke off")]
    Client(#[source] Arc<InboundError>),
    /// The request is being sent again elsewhere.
    #[error("the request is being sent again on another connection")]
    Superseded,
}

/// Bytes that all bodies of an upstream together may keep for replay.
#[derive(Clone, Debug)]
pub(super) struct Budget(Arc<AtomicUsize>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The newest attempt.
    attempt: u32,
    /// That attempt has been asked for a frame.
    asked: bool,
    /// What has been read, from the start, while `whole`.
    kept: Vec<Bytes>,
    kept_bytes: usize,
    /// Whether `kept` is everything that has been read; without it there is no replay.
    whole: bool,
    /// What of `kept` is charged to the budget.
    charged: usize,
    budget: Option<Budget>,
    /// Whether what is read is still kept at all.
    keeping: bool,
    /// Whether somebody holds a [`Kept`], so that the beginning stays even where there is no room
    /// for a replay.
    named: bool,
    rest: Option<Inbound>,
    trailers: Option<HeaderMap>,
    /// The client declared a length.
    declared: bool,
    broken: Option<Arc<InboundError>>,
}

// === impl Outgoing ===

impl Outgoing {
    /// No body at all.
    #[must_use]
    pub fn empty() -> Self {
        Self { shared: None, attempt: 0, at: 0, ended: false, _unit: None, connection: None }
    }

    /// A body: what was `read` already, then the `rest` if the client is not done, or the `trailers` that ended what was read.
    #[must_use]
    pub fn new(read: Vec<Bytes>, rest: Option<Inbound>, trailers: Option<HeaderMap>) -> Self {
        let state = State {
            attempt: 0,
            asked: false,
            kept_bytes: read.iter().map(Bytes::len).sum(),
            kept: read,
            whole: true,
            charged: 0,
            budget: None,
            keeping: true,
            named: false,
            rest,
            trailers,
            declared: false,
            broken: None,
        };
        Self { shared: Some(Arc::new(Shared { state: Mutex::new(state) })), ..Self::empty() }
    }

    /// A handle on the beginning of the body, to be taken before the body is sent and read at the response head.
    #[must_use]
    pub fn kept(&self) -> Kept {
        if let Some(mut state) = self.state() {
            state.named = true;
        }
        Kept { shared: self.shared.clone() }
    }

    /// Whether there is no body at all.
    pub(super) fn is_empty(&self) -> bool {
        self.shared.is_none()
    }

    /// Charges what is kept to `budget` and says whether the client declared a length.
    pub(super) fn begin(&self, budget: &Budget, declared: bool) {
        let Some(mut state) = self.state() else { return };
        state.declared = declared;
        state.budget = Some(budget.clone());
        let bytes = state.kept_bytes;
        // what was read while waiting is in memory anyway and must be sent: only its stay is charged
        state.charge(bytes);
    }

    /// The body for one attempt; earlier attempts can read no more.
    pub(super) fn attempt(&self, unit: Option<Arc<StreamUnit>>) -> Self {
        let attempt = self.state().map_or(0, |mut state| {
            state.attempt += 1;
            state.asked = false;
            state.attempt
        });
        Self { shared: self.shared.clone(), attempt, at: 0, ended: false, _unit: unit, connection: None }
    }

    /// The same body, to be sent on this HTTP/1.1 connection.
    pub(super) fn on(self, connection: &Arc<Traffic>) -> Self {
        Self { connection: Some(Arc::clone(connection)), ..self }
    }

    /// Whether everything that was read so far could be sent again.
    pub(super) fn can_replay(&self) -> bool {
        self.state().is_none_or(|state| state.whole && state.broken.is_none())
    }

    /// Whether there is a body, and the newest attempt was never asked for any of it: then it cannot be whole upstream.
    pub(super) fn is_unasked(&self) -> bool {
        self.state().is_some_and(|state| !state.asked)
    }

    /// How the client's own body broke off, if it did.
    pub(super) fn broken(&self) -> Option<Arc<InboundError>> {
        self.state().and_then(|state| state.broken.clone())
    }

    /// Does not ask a client that waits for `100 Continue` for the body before `patience` is over, or the upstream asks.
    pub(super) fn hold_back(&self, patience: Duration) -> Option<Continue> {
        self.state()?.rest.as_ref()?.hold_back(patience)
    }

    /// The response head is there: no replay from here on, and nothing more is kept than names and digests need.
    pub(super) fn settle(&self) {
        let Some(mut state) = self.state() else { return };
        state.stop_keeping();
    }

    fn state(&self) -> Option<MutexGuard<'_, State>> {
        self.shared.as_ref().map(|shared| shared.lock())
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = OutgoingError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        let Some(shared) = this.shared.as_ref().filter(|_| !this.ended) else { return Poll::Ready(None) };
        let mut state = shared.lock();
        if state.attempt != this.attempt {
            return Poll::Ready(Some(Err(OutgoingError::Superseded)));
        }
        state.asked = true;
        if let Some(chunk) = state.kept.get(this.at) {
            this.at += 1;
            return Poll::Ready(Some(Ok(Frame::data(chunk.clone()))));
        }
        let next = ready!(state.poll_rest(cx));
        this.at = state.kept.len();
        this.ended = next.as_ref().is_none_or(|frame| frame.as_ref().map_or(true, Frame::is_trailers));
        match (&this.connection, &next) {
            // hyper writes few trailers over HTTP/1: the connection does.
            (Some(connection), Some(Ok(frame))) if frame.is_trailers() => {
                let trailers = frame.trailers_ref().filter(|_| !state.declared);
                let mark = trailers.and_then(|trailers| connection.trail(trailers));
                Poll::Ready(mark.map(|mark| Ok(Frame::data(mark))))
            }
            _ => Poll::Ready(next),
        }
    }

    fn is_end_stream(&self) -> bool {
        let Some(state) = self.state().filter(|_| !self.ended) else { return true };
        // a chunked body is not over before it was asked for: `0\r\n\r\n` is not the same as nothing
        let over = state.rest.as_ref().is_none_or(Body::is_end_stream) && state.trailers.is_none();
        over && self.at >= state.kept.len() && (state.declared || self.at > 0)
    }

    fn size_hint(&self) -> SizeHint {
        let Some(state) = self.state().filter(|state| state.declared) else { return SizeHint::default() };
        let unsent: usize = state.kept.iter().skip(self.at).map(Bytes::len).sum();
        let rest = state.rest.as_ref().map_or(Some(0), |rest| rest.size_hint().exact());
        rest.map_or_else(SizeHint::default, |rest| SizeHint::with_exact(rest + unsent as u64))
    }
}

// === impl Shared and State ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The next frame that nobody has read yet, or what ended the body.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, OutgoingError>>> {
        if let Some(error) = &self.broken {
            return Poll::Ready(Some(Err(OutgoingError::Client(Arc::clone(error)))));
        }
        let Some(rest) = &mut self.rest else {
            return Poll::Ready(self.trailers.clone().map(|trailers| Ok(Frame::trailers(trailers))));
        };
        match ready!(Pin::new(rest).poll_frame(cx)) {
            Some(Ok(frame)) => {
                self.keep(&frame);
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                let error = Arc::new(error);
                self.broken = Some(Arc::clone(&error));
                self.rest = None;
                Poll::Ready(Some(Err(OutgoingError::Client(error))))
            }
            None => {
                self.rest = None;
                Poll::Ready(None)
            }
        }
    }

    /// Keeps a frame for replay if there is room for it; else there will be no replay, and of what
    /// was kept for one only the beginning stays, until the response head, if a name is wanted of
    /// it.
    fn keep(&mut self, frame: &Frame<Bytes>) {
        if let Some(trailers) = frame.trailers_ref() {
            self.trailers = Some(trailers.clone());
            self.rest = None;
        }
        let Some(data) = frame.data_ref().filter(|data| !data.is_empty()) else { return };
        let bytes = data.len();
        let has_room = self.kept_bytes + bytes <= KEPT_FOR_REPLAY && self.kept.len() < PIECES_FOR_REPLAY;
        let fits = self.whole && self.keeping && has_room;
        if fits && self.charge(bytes) {
            self.kept.push(data.clone());
            self.kept_bytes += bytes;
            return;
        }
        let most = if self.named { KEPT_FOR_NAMES } else { 0 };
        if self.whole {
            self.whole = false;
            self.kept = beginning(&self.kept, most);
            self.kept_bytes = self.kept.iter().map(Bytes::len).sum();
            self.give_back();
        }
        let room = most.saturating_sub(self.kept_bytes).min(bytes);
        if self.keeping && room > 0 && self.kept.len() < PIECES_FOR_REPLAY {
            self.kept.push(data.slice(..room));
            self.kept_bytes += room;
        }
    }

    fn charge(&mut self, bytes: usize) -> bool {
        let charged = self.budget.as_ref().is_some_and(|budget| budget.take(bytes));
        if charged {
            self.charged += bytes;
        }
        charged
    }

    /// Lets go of what only a replay would need. What the attempt under way has still to send stays, and the beginning for [`Kept`].
    fn stop_keeping(&mut self) {
        self.keeping = false;
        self.give_back();
    }

    fn give_back(&mut self) {
        if let Some(budget) = self.budget.take() {
            budget.give(std::mem::take(&mut self.charged));
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.stop_keeping();
    }
}

// === impl Kept ===

impl Kept {
    /// The first 64 KiB at most of what has been read so far.
    #[must_use]
    pub fn bytes(&self) -> Vec<Bytes> {
        self.shared.as_ref().map_or_else(Vec::new, |shared| beginning(&shared.lock().kept, KEPT_FOR_NAMES))
    }

    /// Whether [`bytes`](Self::bytes) is the whole body.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.shared.as_ref().is_none_or(|shared| {
            let state = shared.lock();
            state.whole && state.kept_bytes <= KEPT_FOR_NAMES && state.rest.as_ref().is_none_or(Body::is_end_stream)
        })
    }
}

// === impl Budget ===

impl Budget {
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    fn take(&self, bytes: usize) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    fn give(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The first `most` bytes of some chunks.
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

/// Of one body: kube-apiserver takes 3 MiB, and nearly all objects are far smaller than this.
const KEPT_FOR_REPLAY: usize = 1 << 20;
/// In so many pieces: 64 frames of 16 KiB are the usual 1 MiB; a million of one byte would cost forty times as much.
const PIECES_FOR_REPLAY: usize = 1024;
/// Of all bodies together.
pub(super) const KEPT_TOGETHER: usize = 16 << 20;
/// Names and digests look no further.
const KEPT_FOR_NAMES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(budget: usize, named: bool, frames: &[usize]) -> (Vec<Bytes>, bool) {
        let outgoing = Outgoing::new(Vec::new(), None, None);
        outgoing.begin(&Budget::new(budget), true);
        let kept = Kept { shared: outgoing.shared.clone() };
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
        let outgoing = Outgoing::new(vec![Bytes::from_static(b"begin")], None, None);
        outgoing.begin(&Budget::new(1 << 20), true);
        let kept = outgoing.kept();
        outgoing.settle();
        outgoing.state().expect("a body").keep(&Frame::data(Bytes::from_static(b"ning")));
        assert_eq!(kept.bytes(), ["begin"]);
        assert!(!kept.is_whole() && !outgoing.can_replay());
    }
}
