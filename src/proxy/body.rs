//! The response body that the client gets: the gate's own answer, or the upstream's as it flows.
//!
//! An enum and not a box: frames pass through without a call through a table of their own. What the call still holds (its slot, its place
//! in the in-flight gauge) rides in the body and goes back when the body ends, breaks or is dropped.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::Full;
use pin_project_lite::pin_project;

use super::{driver::HeldSlot, observe::InFlight, tunnel::Desk};
use crate::upstream::{Streaming, StreamingError};

pin_project! {
    /// A response body.
    #[derive(Debug)]
    #[project = BodyProjected]
    pub(crate) enum Body {
        /// The gate's own answer.
        Own { #[pin] body: Full<Bytes> },
        /// The upstream's.
        Upstream { #[pin] body: Streaming, held: Held, ends_quietly: bool },
        /// None: bytes of another protocol follow, through the tunnel that holds what the call holds.
        Switched { desk: Desk },
    }
}

/// What a call holds until its response body has ended: only ever dropped.
pub(crate) type Held = (Option<HeldSlot>, Option<InFlight>);

// === impl Body ===

impl Body {
    pub(crate) fn own(text: impl Into<Bytes>) -> Self {
        Self::Own { body: Full::new(text.into()) }
    }

    /// The upstream's body. One that `ends_quietly` when the upstream is lost is a watch over HTTP/2: client-go takes a reset stream for a
    /// failed watch and lists everything again, where it resumes after an end, as it does when a direct connection is lost. Each event is
    /// framed, so that half an event still shows. Over HTTP/1.1 the connection is cut, which client-go takes for an end.
    pub(crate) fn upstream(body: Streaming, slot: HeldSlot, ends_quietly: bool) -> Self {
        Self::Upstream { body, held: (Some(slot), None), ends_quietly }
    }

    /// Has the call count as in flight until this body has ended.
    pub(crate) fn hold(&mut self, in_flight: Option<InFlight>) {
        match self {
            Self::Own { .. } => {}
            Self::Upstream { held, .. } => held.1 = in_flight,
            Self::Switched { desk } => desk.hold(in_flight),
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
            BodyProjected::Upstream { body, held, ends_quietly } => {
                let polled = body.poll_frame(cx);
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
            Self::Upstream { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Switched { .. } => SizeHint::with_exact(0),
            Self::Own { body } => body.size_hint(),
            Self::Upstream { body, .. } => body.size_hint(),
        }
    }
}
