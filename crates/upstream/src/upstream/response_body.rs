//! The response body. It keeps its stream in use until it ends.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::pool::{Exclusive, StreamUnit};

/// A response body.
///
/// It returns its stream to the pool at its end, at an error, or when dropped. After an error it
/// never ends cleanly, so that clients notice a truncated response.
#[derive(Debug)]
pub struct ResponseBody {
    body: Incoming,
    stream: Hold,
}

/// Why a response body is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum ResponseBodyError {
    /// The connection or the stream was lost.
    #[error("the connection to the upstream broke in the middle of its response")]
    Lost(#[from] hyper::Error),
    /// The upstream reset the stream with `NO_ERROR` before its end; hyper takes that for the end.
    #[error("the upstream reset its response before the end")]
    Truncated,
}

/// The stream or connection of a response.
#[derive(Debug)]
pub(super) enum Hold {
    Nothing,
    Connection(Exclusive),
    Stream(#[expect(dead_code, reason = "held for its drop")] Arc<StreamUnit>),
}

impl ResponseBody {
    pub(super) fn new(body: Incoming, stream: Hold) -> Self {
        let mut streaming = Self { body, stream };
        streaming.release_if_over();
        streaming
    }

    /// Returns the stream to the pool after a proper end.
    fn ended(&mut self) {
        if let Hold::Connection(mut exclusive) = std::mem::replace(&mut self.stream, Hold::Nothing) {
            exclusive.ended();
        }
    }

    /// Returns the stream to the pool if the body is known to have ended.
    fn release_if_over(&mut self) {
        if self.body.is_end_stream() {
            self.ended();
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = ResponseBodyError;

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
                cut.then_some(Err(ResponseBodyError::Truncated))
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

impl Drop for ResponseBody {
    fn drop(&mut self) {
        // read to its end without having been asked for the end: a response of known length, or
        // none at all
        self.release_if_over();
    }
}
