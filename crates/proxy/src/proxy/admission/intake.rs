//! A request body, read while its call waits, and the memory waiting calls take.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http_body::Body as _;

use crate::upstream::{Inbound, InboundError, OutgoingBody};

/// A request body, as far as it has been read.
#[derive(Debug)]
pub(super) struct Intake {
    pub(super) rest: Inbound,
    /// The bytes read so far.
    pub(super) read: BytesMut,
    trailers: Option<HeaderMap>,
    /// True once the body was read to its end.
    pub(super) is_whole: bool,
    /// True if there is no body. A chunked body without bytes is not meant: it is forwarded as such
    /// a body.
    is_none: bool,
}

// === impl Intake ===

impl Intake {
    pub(super) fn new(body: Inbound) -> Self {
        let is_none = body.is_end_stream();
        Self { rest: body, read: BytesMut::new(), trailers: None, is_whole: is_none, is_none }
    }

    /// Reads one more frame and returns its number of bytes. Stays pending for ever once the body
    /// has ended, or as much of it was read as a waiting call may hold.
    pub(super) fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, InboundError>> {
        if self.is_whole || self.read.len() >= ENOUGH {
            return Poll::Pending;
        }
        let Some(frame) = ready!(Pin::new(&mut self.rest).poll_frame(cx)) else {
            self.is_whole = true;
            return Poll::Ready(Ok(0));
        };
        let bytes = match frame?.into_data() {
            Ok(data) => {
                self.read.extend_from_slice(&data);
                data.len()
            }
            Err(frame) => {
                self.trailers = frame.into_trailers().ok();
                0
            }
        };
        self.is_whole = self.rest.is_end_stream();
        Poll::Ready(Ok(bytes))
    }

    /// Returns the first `most` bytes, or fewer if fewer were read.
    pub(super) fn beginning(&self, most: usize) -> &[u8] {
        self.read.get(..most).unwrap_or(&self.read)
    }

    /// Returns the body to send: the bytes read so far, then the rest as it comes.
    pub(super) fn into_outgoing(self) -> OutgoingBody {
        if self.is_none {
            return OutgoingBody::default();
        }
        let read = if self.read.is_empty() { Vec::new() } else { vec![self.read.freeze()] };
        let rest = (!self.is_whole).then_some(self.rest);
        OutgoingBody::new(read, rest, self.trailers)
    }
}

/// Returns by how many bytes a request head exceeds the usual size: kube-apiserver takes heads of 1
/// MiB, and so does the gate.
pub(super) fn large_head(parts: &Parts) -> usize {
    let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
    let fields: usize = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    (target + fields).saturating_sub(USUAL_HEAD)
}

/// Returns the Content-Length, or 0.
pub(super) fn declared(parts: &Parts) -> usize {
    let length = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse().ok()).unwrap_or_default()
}

/// The usual size of a head: hyper's first buffer.
const USUAL_HEAD: usize = 8 * 1024;
/// The most bytes of a body to read while its call waits: kube-apiserver's own limit for a body.
pub(super) const ENOUGH: usize = 3 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_large_head_counts_and_only_what_is_large_of_it() {
        let head = |length: usize| {
            let request = http::Request::get("/0123456789").header("large", vec![b'x'; length]);
            request.body(()).expect("valid").into_parts().0
        };
        assert_eq!(large_head(&head(USUAL_HEAD - 16)), 0);
        assert_eq!(large_head(&head(USUAL_HEAD - 15)), 1);
        assert_eq!(large_head(&head(1 << 20)), (1 << 20) + 16 - USUAL_HEAD);
    }
}
