//! Response bodies for the client: the gate's own answer, or the upstream's as it flows.
//!
//! An enum and not a box: frames pass through without dynamic dispatch. The body holds the call's
//! slot and its count in the in-flight gauge until it ends, breaks or is dropped.

mod peek;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::Full;
use pin_project_lite::pin_project;

pub(crate) use self::peek::PeekBody;
use super::driver::HeldSlot;
use super::observe::{CallHold, InFlight, WriteAnswer};
use super::revalidate::AnswerRecorder;
use super::tally::FailingAnswer;
use super::tunnel::UpgradeSlot;
use crate::upstream::{ResponseBody, ResponseBodyError};

pin_project! {
    /// A response body.
    #[project = BodyProjected]
    pub(crate) enum Body {
        /// The gate's own answer.
        Own { #[pin] body: Full<Bytes> },
        /// The upstream's answer.
        Upstream { #[pin] body: PeekBody<ResponseBody>, held: CallHold, ends_quietly: bool, keeping: Option<BodyCopy> },
        /// A body stored from an earlier response, which the upstream has confirmed to be
        /// unchanged.
        Kept { data: Option<Bytes> },
        /// No body: the connection becomes the tunnel in this slot.
        Switched { slot: UpgradeSlot },
    }
}

/// A copy made of a response body while it flows to the client.
pub(crate) enum BodyCopy {
    /// A copy to answer later requests with, if the upstream confirms that it has not changed.
    Kept(Box<AnswerRecorder>),
    /// The beginning of an error response, for the status page: it shows why the call's key is
    /// failing.
    Failing(Box<FailingAnswer>),
    /// The beginning of the answer to a write, to see whether it changed the object.
    Written(Box<WriteAnswer>),
}

// === impl Body ===

impl Body {
    pub(crate) fn own(text: impl Into<Bytes>) -> Self {
        Self::Own { body: Full::new(text.into()) }
    }

    /// Wraps the upstream's body. With `ends_quietly` (for a watch over HTTP/2), the body ends
    /// without an error when the connection to the upstream is lost: client-go resumes a watch that
    /// ends, but after a reset stream it lists everything again. Each event is framed, so the
    /// client notices half an event. Over HTTP/1.1 the connection is cut, and client-go resumes
    /// too.
    pub(crate) fn upstream(body: PeekBody<ResponseBody>, slot: Option<HeldSlot>, ends_quietly: bool) -> Self {
        Self::Upstream { body, held: (slot, None), ends_quietly, keeping: None }
    }

    /// Wraps a body stored from an earlier response.
    pub(crate) fn kept(data: Bytes) -> Self {
        Self::Kept { data: Some(data).filter(|data| !data.is_empty()) }
    }

    /// Adds the upstream's body to `copy` as it flows to the client.
    pub(crate) fn keep(&mut self, copy: BodyCopy) {
        match self {
            Self::Upstream { body, keeping, .. } if !body.is_end_stream() => *keeping = Some(copy),
            _ => copy.finish(),
        }
    }

    /// Makes the call count as in flight until this body has ended.
    pub(crate) fn hold(&mut self, in_flight: Option<InFlight>) {
        match self {
            Self::Own { .. } | Self::Kept { .. } => {}
            Self::Upstream { held, .. } => held.1 = in_flight,
            Self::Switched { slot } => slot.hold(in_flight),
        }
    }
}
impl HttpBody for Body {
    type Data = Bytes;
    type Error = ResponseBodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        match self.project() {
            BodyProjected::Switched { .. } => Poll::Ready(None),
            BodyProjected::Own { body } => body.poll_frame(cx).map_err(|never| match never {}),
            BodyProjected::Kept { data } => {
                let piece = data.as_mut().map(|data| data.split_to(data.len().min(PIECE)));
                data.take_if(|data| data.is_empty());
                Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
            }
            BodyProjected::Upstream { mut body, held, ends_quietly, keeping } => {
                let polled = body.as_mut().poll_frame(cx);
                if let (Poll::Ready(polled), Some(_)) = (&polled, &keeping) {
                    note(keeping, polled.as_ref(), body.is_end_stream());
                }
                if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
                    *held = (None, None); // hyper may keep an ended body until the connection's next request
                }
                match polled {
                    Poll::Ready(Some(Err(_))) if *ends_quietly => Poll::Ready(None),
                    polled => polled,
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Switched { .. } => true,
            Self::Own { body } => body.is_end_stream(),
            Self::Kept { data } => data.is_none(),
            Self::Upstream { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Switched { .. } => SizeHint::with_exact(0),
            Self::Own { body } => body.size_hint(),
            // None: with a size, hyper would declare a length where the upstream declared none.
            Self::Kept { .. } => SizeHint::default(),
            Self::Upstream { body, .. } => body.size_hint(),
        }
    }
}

/// The most bytes of a stored body to give hyper at once, so that the unread bytes of all clients
/// stay bounded.
const PIECE: usize = 16 << 10;

// === impl BodyCopy ===

impl BodyCopy {
    /// Adds a frame to the copy. Returns false if it does not fit, or if enough was copied.
    fn keep(&mut self, frame: &Frame<Bytes>) -> bool {
        match self {
            Self::Kept(keeping) => keeping.keep(frame),
            Self::Failing(answer) => answer.keep(frame),
            Self::Written(answer) => answer.keep(frame),
        }
    }

    /// Stores the copy, because the body is complete.
    fn finish(self) {
        match self {
            Self::Kept(keeping) => keeping.finish(),
            Self::Failing(_) | Self::Written(_) => {} // their drop notes them, as that of one that broke
        }
    }
}

/// Adds a received frame to the copy. hyper stops polling once a body of known length has ended,
/// and after trailers, so `is_end` completes the copy. If a frame does not fit, the copy is
/// dropped.
fn note(keeping: &mut Option<BodyCopy>, came: Option<&Result<Frame<Bytes>, ResponseBodyError>>, is_end: bool) {
    let Some(mut copy) = keeping.take() else { return };
    match came {
        Some(Ok(frame)) if !copy.keep(frame) => {}
        Some(Ok(frame)) if !is_end && !frame.is_trailers() => *keeping = Some(copy),
        Some(Ok(_)) | None => copy.finish(),
        Some(Err(_)) => {}
    }
}
