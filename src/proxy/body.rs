//! The response body that the client gets: the gate's own answer, or the upstream's as it flows.
//!
//! An enum and not a box: frames pass through without dynamic dispatch. What the call still holds
//! (its slot, its place in the in-flight gauge) rides in the body and goes back when the body ends,
//! breaks or is dropped.

mod peek;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::Full;
use pin_project_lite::pin_project;

pub(crate) use self::peek::Peeked;
use super::coalesce::{Capture, Whole};
use super::driver::HeldSlot;
use super::observe::{Held, InFlight};
use super::revalidate::Keeping;
use super::tunnel::UpgradeSlot;
use crate::upstream::{Streaming, StreamingError};

pin_project! {
    /// A response body.
    #[project = BodyProjected]
    pub(crate) enum Body {
        /// The gate's own answer.
        Own { #[pin] body: Full<Bytes> },
        /// The upstream's answer.
        Upstream { #[pin] body: Peeked<Streaming>, held: Held, ends_quietly: bool, copies: Option<Box<Copies>> },
        /// The upstream's answer to an identical call.
        Shared { whole: Arc<Whole>, next: usize },
        /// The body of an answer that was kept, which the upstream has confirmed.
        Kept { data: Option<Bytes> },
        /// No body: bytes of another protocol follow, through the tunnel that is left here.
        Switched { slot: UpgradeSlot },
    }
}

/// The copies that are made of a body as it flows.
#[derive(Default)]
pub(crate) struct Copies {
    /// For the identical calls that wait for it.
    shared: Option<Capture>,
    /// To ask later if it has changed.
    kept: Option<Box<Keeping>>,
}

// === impl Body ===

impl Body {
    pub(crate) fn own(text: impl Into<Bytes>) -> Self {
        Self::Own { body: Full::new(text.into()) }
    }

    /// Wraps the upstream's body. One that `ends_quietly` when the upstream is lost is a watch over
    /// HTTP/2: client-go takes a reset stream for a failed watch and lists everything again,
    /// whereas it resumes after an end, as it does when a direct connection is lost. Each event is
    /// framed, so that half an event still shows. Over HTTP/1.1 the connection is cut, which
    /// client-go takes for an end.
    pub(crate) fn upstream(body: Peeked<Streaming>, slot: Option<HeldSlot>, ends_quietly: bool) -> Self {
        Self::Upstream { body, held: (slot, None), ends_quietly, copies: None }
    }

    /// Wraps a body that was kept. An empty one is none.
    pub(crate) fn kept(data: Bytes) -> Self {
        Self::Kept { data: Some(data).filter(|data| !data.is_empty()) }
    }

    /// Copies the body as it flows, for the identical calls that wait for it and for later.
    pub(crate) fn copy(&mut self, shared: Option<Capture>, kept: Option<Box<Keeping>>) {
        let made = Copies { shared, kept };
        match self {
            Self::Upstream { body, copies, .. } if !body.is_end_stream() => {
                *copies = Some(Box::new(made)).filter(|made| !made.are_none());
            }
            Self::Kept { data } => {
                let mut made = made;
                data.iter().for_each(|data| made.keep(&Frame::data(data.clone())));
                made.finish();
            }
            _ => made.finish(),
        }
    }

    /// Makes the call count as in flight until this body has ended.
    pub(crate) fn hold(&mut self, in_flight: Option<InFlight>) {
        match self {
            Self::Own { .. } | Self::Shared { .. } | Self::Kept { .. } => {}
            Self::Upstream { held, .. } => held.1 = in_flight,
            Self::Switched { slot } => slot.hold(in_flight),
        }
    }
}
impl HttpBody for Body {
    type Data = Bytes;
    type Error = StreamingError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StreamingError>>> {
        match self.project() {
            BodyProjected::Switched { .. } => Poll::Ready(None),
            BodyProjected::Own { body } => body.poll_frame(cx).map_err(|never| match never {}),
            BodyProjected::Shared { whole, next } => {
                let frame = whole.frame(*next);
                *next += 1;
                Poll::Ready(frame.map(Ok))
            }
            BodyProjected::Kept { data } => {
                let piece = data.as_mut().map(|data| data.split_to(data.len().min(PIECE)));
                data.take_if(|data| data.is_empty());
                Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
            }
            BodyProjected::Upstream { mut body, held, ends_quietly, copies } => {
                let polled = body.as_mut().poll_frame(cx);
                if let (Poll::Ready(polled), Some(_)) = (&polled, &copies) {
                    note(copies, polled.as_ref(), body.is_end_stream());
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
            Self::Shared { whole, next } => whole.is_end(*next),
            Self::Kept { data } => data.is_none(),
            Self::Upstream { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Switched { .. } => SizeHint::with_exact(0),
            Self::Own { body } => body.size_hint(),
            // None: with a size, hyper would declare a length where the upstream declared none.
            Self::Shared { .. } | Self::Kept { .. } => SizeHint::default(),
            Self::Upstream { body, .. } => body.size_hint(),
        }
    }
}

/// The bytes of a kept body that hyper is given at once, so that what clients do not read stays
/// bounded in total.
const PIECE: usize = 16 << 10;

// === impl Copies ===

impl Copies {
    fn are_none(&self) -> bool {
        self.shared.is_none() && self.kept.is_none()
    }

    /// Copies a frame. A copy that it does not fit into ends.
    fn keep(&mut self, frame: &Frame<Bytes>) {
        self.shared.take_if(|shared| !shared.keep(frame));
        self.kept.take_if(|kept| !kept.keep(frame));
    }

    /// The body is complete.
    fn finish(self) {
        self.shared.into_iter().for_each(Capture::finish);
        self.kept.into_iter().for_each(|kept| kept.finish());
    }
}

/// Notes what came of a body that is copied. hyper does not ask on once a body of known length has
/// ended, nor after trailers.
fn note(copies: &mut Option<Box<Copies>>, came: Option<&Result<Frame<Bytes>, StreamingError>>, is_end: bool) {
    let Some(mut made) = copies.take() else { return };
    match came {
        Some(Ok(frame)) => {
            made.keep(frame);
            match is_end || frame.is_trailers() {
                true => made.finish(),
                false => *copies = Some(made).filter(|made| !made.are_none()),
            }
        }
        None => made.finish(),
        Some(Err(_)) => {}
    }
}
