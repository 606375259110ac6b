//! The leader's answer, kept as it flows to the leader's own client.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, Response};
use http_body::Frame;

use super::shareable::is_shareable;
use super::{Leader, Shared};
use crate::classify::Kind;

/// A complete answer, for any number of clients.
pub(crate) struct Whole {
    pub(crate) head: Parts,
    data: Vec<Bytes>,
    trailers: Option<HeaderMap>,
    /// The bytes of `data`, counted while they are kept.
    bytes: usize,
    counted_in: Arc<Shared>,
}

/// An answer in the making. If it is dropped there is none to share.
pub(crate) struct Capture {
    leader: Leader,
    whole: Whole,
}

// === impl Capture ===

impl Capture {
    /// Begins with the head of the leader's answer. `None` if the head says that the answer is for
    /// one client only: there will be nothing to share.
    pub(crate) fn begin<B>(leader: Leader, response: &Response<B>, kind: Kind) -> Option<Self> {
        if !is_shareable(response.headers(), kind) {
            return None;
        }
        let mut head = Response::new(()).into_parts().0;
        head.status = response.status();
        head.headers = response.headers().clone();
        head.extensions = response.extensions().clone();
        let counted_in = Arc::clone(&leader.coalescer.shared);
        Some(Self { leader, whole: Whole { head, data: Vec::new(), trailers: None, bytes: 0, counted_in } })
    }

    /// Keeps a frame. False if there is no room for it: there will be nothing to share.
    pub(crate) fn keep(&mut self, frame: &Frame<Bytes>) -> bool {
        if let Some(data) = frame.data_ref() {
            let bytes = self.whole.bytes + data.len();
            if bytes > LONGEST || !self.whole.counted_in.keep(data.len()) {
                return false;
            }
            self.whole.bytes = bytes;
            self.whole.data.push(data.clone());
        } else if let Some(trailers) = frame.trailers_ref() {
            self.whole.trailers = Some(trailers.clone());
        }
        true
    }

    /// Answers the group: the answer is complete.
    pub(crate) fn finish(self) {
        self.leader.answer(self.whole);
    }
}

// === impl Whole ===

impl Whole {
    /// True if there is no n-th frame.
    pub(crate) fn is_end(&self, n: usize) -> bool {
        n >= self.data.len() + usize::from(self.trailers.is_some())
    }

    /// The n-th frame of the body.
    pub(crate) fn frame(&self, n: usize) -> Option<Frame<Bytes>> {
        match self.data.get(n) {
            Some(data) => Some(Frame::data(data.clone())),
            None if n == self.data.len() => self.trailers.clone().map(Frame::trailers),
            None => None,
        }
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.counted_in.kept.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A longer answer is not shared.
const LONGEST: usize = 1024 * 1024;
