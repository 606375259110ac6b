//! The response body: hyper's own, and the stream that it came on.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::pool::{Exclusive, StreamUnit};

/// A response body as it comes. Gives its stream back at the end, at an error, or when dropped; an
/// error stays an error, so that a truncated response is never ended cleanly.
#[derive(Debug)]
pub struct Streaming {
    body: Incoming,
    stream: Hold,
}

/// A response that did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum StreamingError {
    /// The connection or the stream was lost.
    #[error("the upstream broke off its response")]
    Lost(#[from] hyper::Error),
    /// The upstream reset the stream with `NO_ERROR` before its end, which hyper takes for an end.
    #[error("the upstream gave up its response before its end")]
    Truncated,
}

/// The stream or connection that the response keeps busy.
#[derive(Debug)]
pub(super) enum Hold {
    Nothing,
    Connection(Exclusive),
    Stream(#[expect(dead_code, reason = "held for its drop")] Arc<StreamUnit>),
}

impl Streaming {
    pub(super) fn new(body: Incoming, stream: Hold) -> Self {
        let mut streaming = Self { body, stream };
        streaming.release_if_over();
        streaming
    }

    /// Gives the stream back after a proper end.
    fn ended(&mut self) {
        if let Hold::Connection(mut exclusive) = std::mem::replace(&mut self.stream, Hold::Nothing) {
            exclusive.ended();
        }
    }

    /// Gives the stream back if the end is known before it is asked for.
    fn release_if_over(&mut self) {
        if self.body.is_end_stream() {
            self.ended();
        }
    }
}

impl Body for Streaming {
    type Data = Bytes;
    type Error = StreamingError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        Poll::Ready(match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
            Some(Ok(frame)) => {
                this.release_if_over();
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                this.stream = Hold::Nothing;
                Some(Err(error.into()))
            }
            None => {
                let cut = matches!(this.stream, Hold::Stream(_)) && !this.body.is_end_stream();
                this.ended();
                cut.then_some(Err(StreamingError::Truncated))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        // read to its end without having been asked for the end: a response of known length, or
        // none at all
        self.release_if_over();
    }
}
