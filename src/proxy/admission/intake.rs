//! A request body, read as far as its call's wait makes sense.

use std::{
    future::poll_fn,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body as _;
use hyper::body::Incoming;

use crate::upstream::Outgoing;

/// A request body on its way in.
#[derive(Debug)]
pub(super) struct Intake {
    body: Incoming,
    read: Vec<Bytes>,
    len: usize,
    trailers: Option<HeaderMap>,
    done: bool,
}

// === impl Intake ===

impl Intake {
    pub(super) fn new(body: Incoming) -> Self {
        let done = body.is_end_stream();
        Self { body, read: Vec::new(), len: 0, trailers: None, done }
    }

    /// Bytes read so far.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether the body is read to its end.
    pub(super) fn is_whole(&self) -> bool {
        self.done
    }

    /// Everything read so far, in one piece.
    pub(super) fn start(&mut self) -> &[u8] {
        if self.read.len() > 1 {
            let joined = self.read.concat();
            self.read = vec![joined.into()];
        }
        self.read.first().map_or(&[], |start| start)
    }

    /// Reads one frame more and says how many bytes it had; pending for good once there is no more, or enough.
    pub(super) fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, hyper::Error>> {
        if self.done || self.len >= ENOUGH {
            return Poll::Pending;
        }
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
            self.done = true;
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
        self.done = self.body.is_end_stream();
        Poll::Ready(Ok(bytes))
    }

    /// Reads the rest, as far as one would be kept, and keeps nothing.
    pub(super) async fn discard(mut self) {
        self.read.clear();
        while !self.done && self.len < ENOUGH {
            let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await else {
                return;
            };
            self.len += frame.data_ref().map_or(0, Bytes::len);
            self.done = self.body.is_end_stream();
        }
    }

    /// What is sent: what was read, then the rest as it comes.
    pub(super) fn into_outgoing(mut self) -> Outgoing {
        if self.done && self.read.is_empty() && self.trailers.is_none() {
            return Outgoing::empty();
        }
        let rest = (!self.done).then_some(self.body);
        Outgoing::new(mem::take(&mut self.read), rest, self.trailers)
    }
}

/// kube-apiserver's own limit for a body. A client that leaves with more than this unsent is found when its turn comes.
pub(crate) const ENOUGH: usize = 3 * 1024 * 1024;
