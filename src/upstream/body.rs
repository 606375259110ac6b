//! The request body that is sent, and as much of it as may have to be sent again.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// A request body on its way up: what was read while the call waited, then the rest as the client sends it.
#[derive(Debug)]
pub struct Outgoing {}

/// The beginning of a body that was sent, for names and digests after a failure.
#[derive(Debug)]
pub struct Kept {}

/// The body could not be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum OutgoingError {
    /// The client broke off.
    #[error("the client's body broke off")]
    Client(#[from] hyper::Error),
    /// The request is being sent again elsewhere.
    #[error("the request is being sent again on another connection")]
    Superseded,
}

impl Outgoing {
    /// No body at all.
    #[must_use]
    pub fn empty() -> Self {
        todo!()
    }

    /// A body: what was `read` already, then the `rest` if the client is not done, or the `trailers` that ended what was read.
    #[must_use]
    pub fn new(_read: Vec<Bytes>, _rest: Option<Incoming>, _trailers: Option<HeaderMap>) -> Self {
        todo!()
    }

    /// A handle on the beginning of the body, to be taken before the body is sent.
    #[must_use]
    pub fn kept(&self) -> Kept {
        todo!()
    }
}

impl Kept {
    /// The first 64 KiB at most of what has been read so far.
    #[must_use]
    pub fn bytes(&self) -> Vec<Bytes> {
        todo!()
    }

    /// Whether [`bytes`](Self::bytes) is the whole body.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        todo!()
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = OutgoingError;

    fn poll_frame(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        todo!()
    }

    fn is_end_stream(&self) -> bool {
        todo!()
    }

    fn size_hint(&self) -> SizeHint {
        todo!()
    }
}
