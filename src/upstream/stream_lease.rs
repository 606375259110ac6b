//! One stream of a live connection, and what gives it back.

use std::{fmt, sync::Arc};

use hyper::client::conn::{http1, http2};

use super::{body::Outgoing, books::Id, connection::Traffic, pool::Pool};
use crate::api::Group;

/// One stream of a live connection. Given back when dropped.
#[must_use = "a lease is a stream: send on it, or drop it"]
pub struct StreamLease {
    pub(super) pool: Arc<Pool>,
    pub(super) stream: Stream,
}

/// What a request is sent on.
pub(super) enum Stream {
    Http1(Exclusive),
    Http2 { unit: Arc<StreamUnit>, sender: http2::SendRequest<Outgoing> },
}

/// A counted HTTP/2 stream, shared by the two bodies that go over it: it is free when both are done with.
pub(super) struct StreamUnit {
    pool: Arc<Pool>,
    id: Id,
}

/// An HTTP/1.1 connection while it serves one call. Dropped in the middle of it, it is closed: that is how HTTP/1.1 says "never mind".
pub(super) struct Exclusive {
    pool: Arc<Pool>,
    id: Id,
    /// `None` once it was given back.
    pub(super) sender: Option<http1::SendRequest<Outgoing>>,
    pub(super) traffic: Arc<Traffic>,
    /// It has served a call before.
    pub(super) reused: bool,
    /// A request is out on it.
    pub(super) busy: bool,
}

// === impl StreamLease ===

impl StreamLease {
    /// The connections it is of.
    #[must_use]
    pub fn group(&self) -> Group {
        self.pool.group()
    }
}

impl fmt::Debug for StreamLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamLease").field("group", &self.group()).finish_non_exhaustive()
    }
}

// === impl StreamUnit ===

impl StreamUnit {
    pub(super) fn new(pool: Arc<Pool>, id: Id) -> Self {
        Self { pool, id }
    }
}

impl Drop for StreamUnit {
    fn drop(&mut self) {
        self.pool.stream_ended(self.id);
    }
}

impl fmt::Debug for StreamUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.id)
    }
}

// === impl Exclusive ===

impl Exclusive {
    pub(super) fn new(
        pool: Arc<Pool>,
        id: Id,
        sender: http1::SendRequest<Outgoing>,
        traffic: Arc<Traffic>,
        reused: bool,
    ) -> Self {
        Self { pool, id, sender: Some(sender), traffic, reused, busy: false }
    }

    /// The response ended as it should: the connection may serve the next call, if it stays open.
    pub(super) fn ended(&mut self) {
        if let Some(sender) = self.sender.take() {
            self.pool.put_back(self.id, sender);
        }
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        if self.busy && self.sender.is_some() {
            self.pool.discard(self.id);
        } else {
            self.ended();
        }
    }
}

impl fmt::Debug for Exclusive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.id)
    }
}
