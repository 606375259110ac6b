//! The leader's answer, kept as it flows to the leader's own client.

use bytes::Bytes;
use http::{HeaderMap, Response, response::Parts};
use http_body::Frame;

use super::{Coalescer, Leader, shareable::is_shareable};
use crate::classify::Kind;

/// A complete answer, for as many as want it.
#[derive(Debug)]
pub(crate) struct Whole {
    head: Parts,
    data: Vec<Bytes>,
    trailers: Option<HeaderMap>,
    charge: Charge,
}

/// An answer in the making. Dropped: there is none to share.
#[derive(Debug)]
pub(crate) struct Capture {
    leader: Leader,
    whole: Whole,
    bytes: usize,
}

/// Bytes that are counted while they are kept.
#[derive(Debug)]
struct Charge {
    coalescer: Coalescer,
    bytes: usize,
}

// === impl Capture ===

impl Capture {
    /// The head of the leader's answer came. `None` where it says that it is for one client only: there will be nothing to share.
    pub(crate) fn begin<B>(leader: Leader, response: &Response<B>, kind: Kind) -> Option<Self> {
        if !is_shareable(response.headers(), kind) {
            return None;
        }
        let mut head = Response::new(()).into_parts().0;
        head.status = response.status();
        head.headers = response.headers().clone();
        head.extensions = response.extensions().clone();
        let charge = Charge { coalescer: leader.coalescer.clone(), bytes: 0 };
        Some(Self { leader, whole: Whole { head, data: Vec::new(), trailers: None, charge }, bytes: 0 })
    }

    /// A frame of it. Says whether there is room for it; if not there will be nothing to share.
    pub(crate) fn keep(&mut self, frame: &Frame<Bytes>) -> bool {
        if let Some(data) = frame.data_ref() {
            self.bytes += data.len();
            if self.bytes > LONGEST || !self.whole.charge.add(data.len()) {
                return false;
            }
            self.whole.data.push(data.clone());
        } else if let Some(trailers) = frame.trailers_ref() {
            self.whole.trailers = Some(trailers.clone());
        }
        true
    }

    /// The answer is complete.
    pub(crate) fn finish(self) {
        self.leader.answer(self.whole);
    }
}

// === impl Whole ===

impl Whole {
    /// The head, for one more client.
    pub(crate) fn head(&self) -> Parts {
        self.head.clone()
    }

    /// Whether there is no n-th frame.
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

// === impl Charge ===

impl Charge {
    fn add(&mut self, bytes: usize) -> bool {
        let fits = self.coalescer.charge(bytes);
        if fits {
            self.bytes += bytes;
        }
        fits
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.coalescer.give_back(self.bytes);
    }
}

/// A longer answer is not shared.
const LONGEST: usize = 1024 * 1024;
