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
use super::tunnel::UpgradeSlot;
use crate::upstream::{Streaming, StreamingError};

pin_project! {
    /// A response body.
    #[project = BodyProjected]
    pub(crate) enum Body {
        /// The gate's own answer.
        Own { #[pin] body: Full<Bytes> },
        /// The upstream's answer.
        Upstream { #[pin] body: Peeked<Streaming>, held: Held, ends_quietly: bool, capture: Option<Box<Capture>> },
        /// The upstream's answer to an identical call.
        Shared { whole: Arc<Whole>, next: usize },
        /// No body: bytes of another protocol follow, through the tunnel that holds what the call
        /// holds.
        Switched { slot: UpgradeSlot },
    }
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
        Self::Upstream { body, held: (slot, None), ends_quietly, capture: None }
    }

    /// Keeps the body as it flows, for the identical calls that wait for it.
    pub(crate) fn keep(&mut self, captured: Capture) {
        if let Self::Upstream { body, capture, .. } = self {
            match body.is_end_stream() {
                true => captured.finish(),
                false => *capture = Some(Box::new(captured)),
            }
        }
    }

    /// Makes the call count as in flight until this body has ended.
    pub(crate) fn hold(&mut self, in_flight: Option<InFlight>) {
        match self {
            Self::Own { .. } | Self::Shared { .. } => {}
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
            BodyProjected::Upstream { mut body, held, ends_quietly, capture } => {
                let polled = body.as_mut().poll_frame(cx);
                if let (Poll::Ready(polled), Some(_)) = (&polled, &capture) {
                    note(capture, polled.as_ref(), body.is_end_stream());
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
            Self::Upstream { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Switched { .. } => SizeHint::with_exact(0),
            Self::Own { body } => body.size_hint(),
            // None: with a size, hyper would declare a length where the upstream declared none.
            Self::Shared { .. } => SizeHint::default(),
            Self::Upstream { body, .. } => body.size_hint(),
        }
    }
}

/// Notes what came of a body that is kept. hyper does not ask on once a body of known length has
/// ended, nor after trailers.
fn note(capture: &mut Option<Box<Capture>>, came: Option<&Result<Frame<Bytes>, StreamingError>>, is_end: bool) {
    let Some(mut captured) = capture.take() else { return };
    match came {
        Some(Ok(frame)) if !captured.keep(frame) => {}
        Some(Ok(frame)) if !is_end && !frame.is_trailers() => *capture = Some(captured),
        Some(Ok(_)) | None => captured.finish(),
        Some(Err(_)) => {}
    }
}
