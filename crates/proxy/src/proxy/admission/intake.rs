//! A request body, read as far as makes sense while its call waits, and what a call holds
//! meanwhile.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http_body::Body as _;

use crate::upstream::{Inbound, InboundError, OutgoingBody};

/// A request body on its way in.
#[derive(Debug)]
pub(super) struct Intake {
    /// Its rest.
    pub(super) rest: Inbound,
    pub(super) read: Pieces,
    /// The number of bytes read so far.
    pub(super) len: usize,
    trailers: Option<HeaderMap>,
    /// True if the body is read to its end.
    pub(super) is_whole: bool,
    /// True if there was none from the beginning. An empty one in chunks is one.
    is_none: bool,
}

/// The part of a body that was read, in few pieces: a handle on each byte of one that comes byte by
/// byte would cost forty times the body.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    whole: Vec<Bytes>,
    /// The bytes behind them that are not a piece yet.
    small: BytesMut,
}

// === impl Intake ===

impl Intake {
    pub(super) fn new(body: Inbound) -> Self {
        let is_none = body.is_end_stream();
        Self { rest: body, read: Pieces::default(), len: 0, trailers: None, is_whole: is_none, is_none }
    }

    /// Reads one frame more and returns its number of bytes. Pending without end once there is no
    /// more, or enough.
    pub(super) fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, InboundError>> {
        if self.is_whole || self.len >= ENOUGH {
            return Poll::Pending;
        }
        let Some(frame) = ready!(Pin::new(&mut self.rest).poll_frame(cx)) else {
            self.is_whole = true;
            return Poll::Ready(Ok(0));
        };
        let bytes = match frame?.into_data() {
            Ok(data) => {
                let bytes = data.len();
                self.len += bytes;
                self.read.push(data);
                bytes
            }
            Err(frame) => {
                self.trailers = frame.into_trailers().ok();
                0
            }
        };
        self.is_whole = self.rest.is_end_stream();
        Poll::Ready(Ok(bytes))
    }

    /// Returns the body to send: what was read, then the rest as it comes.
    pub(super) fn into_outgoing(mut self) -> OutgoingBody {
        if self.is_none {
            return OutgoingBody::default();
        }
        let read = mem::take(&mut self.read).into_whole();
        let rest = (!self.is_whole).then_some(self.rest);
        OutgoingBody::new(read, rest, self.trailers)
    }
}

// === impl Pieces ===

impl Pieces {
    /// Keeps the first piece and large ones as they are, small ones together.
    fn push(&mut self, piece: Bytes) {
        if piece.len() >= SMALL || self.whole.is_empty() {
            self.gather();
            self.whole.push(piece);
            return;
        }
        self.small.extend_from_slice(&piece);
        if self.small.len() >= GATHERED {
            self.gather();
        }
    }

    fn gather(&mut self) {
        if !self.small.is_empty() {
            self.whole.push(self.small.split().freeze());
        }
    }

    /// Returns the first `most` bytes as one piece. The pieces that they are made of are joined,
    /// and nothing else is copied.
    pub(super) fn beginning(&mut self, most: usize) -> &[u8] {
        self.gather();
        let mut pieces = 0;
        let mut length = 0;
        for piece in &self.whole {
            if length >= most {
                break;
            }
            (pieces, length) = (pieces + 1, length + piece.len());
        }
        if pieces > 1 {
            let mut joined = BytesMut::with_capacity(length);
            self.whole.drain(..pieces).for_each(|piece| joined.extend_from_slice(&piece));
            self.whole.insert(0, joined.freeze());
        }
        self.whole.first().map_or(&[], |start| start.get(..most).unwrap_or(start))
    }

    fn into_whole(mut self) -> Vec<Bytes> {
        self.gather();
        self.whole
    }
}

/// Returns what the head of a call holds beyond that of a usual one: kube-apiserver takes heads of
/// 1 MiB, and so does the gate.
pub(super) fn large_head(parts: &Parts) -> usize {
    let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
    let fields: usize = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    (target + fields).saturating_sub(USUAL_HEAD)
}

/// Returns the length that a body is announced to have.
pub(super) fn declared(parts: &Parts) -> usize {
    let length = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse().ok()).unwrap_or_default()
}

/// hyper reads a head into a buffer of this size, and a usual one fits.
const USUAL_HEAD: usize = 8 * 1024;
/// A piece below this is copied: it would hold on to the whole buffer that it came in.
const SMALL: usize = 1024;
/// Small pieces become one when they are this long.
const GATHERED: usize = 16 * 1024;
/// kube-apiserver's own limit for a body. A client that leaves with more than this unsent is found
/// when its turn comes.
pub(super) const ENOUGH: usize = 3 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_comes_byte_by_byte_is_held_in_few_pieces() {
        let body: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        let mut pieces = Pieces::default();
        for byte in &body {
            pieces.push(Bytes::copy_from_slice(&[*byte]));
        }
        pieces.push(body.clone().into());
        let whole = pieces.into_whole();
        assert!(whole.len() < 10, "{} pieces", whole.len());
        assert_eq!(whole.concat(), [&body[..], &body].concat());
    }

    #[test]
    fn the_beginning_is_one_piece_and_what_is_behind_it_stays_as_it_came() {
        let mut pieces = Pieces::default();
        assert_eq!(pieces.beginning(10), b"");
        for piece in [&b"fi"[..], b"r", b"st"] {
            pieces.push(Bytes::from_static(piece));
        }
        assert_eq!(pieces.beginning(4), b"firs");
        assert_eq!(pieces.beginning(9), b"first");
        let large = Bytes::from(vec![7; SMALL]);
        pieces.push(large.clone());
        pieces.push(large.clone());
        assert_eq!(pieces.beginning(5), b"first");
        assert_eq!(pieces.beginning(7), b"first\x07\x07");
        let whole = pieces.into_whole();
        assert_eq!((whole.len(), whole[1].as_ptr()), (2, large.as_ptr()));
        assert_eq!(whole.concat().len(), 5 + 2 * SMALL);
    }

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

    #[test]
    fn what_came_in_one_piece_or_in_large_ones_is_not_copied() {
        let large = Bytes::from(vec![7; SMALL]);
        let mut pieces = Pieces::default();
        for piece in [Bytes::from_static(b"first"), large.clone()] {
            pieces.push(piece);
        }
        assert_eq!(pieces.into_whole()[1].as_ptr(), large.as_ptr());
    }
}
