//! One stream of a live connection, and what gives it back.

use std::{fmt, sync::Arc};

use hyper::client::conn::{http1, http2};

use crate::api::Group;
use crate::upstream::{
    body::Outgoing,
    pool::{Pool, connection::Traffic},
    stream_accounts::ConnectionId,
};

/// One stream of a live connection. Given back when dropped.
#[must_use = "a lease is a stream: send on it, or drop it"]
pub struct StreamLease {
    pub(in crate::upstream) pool: Arc<Pool>,
    pub(in crate::upstream) stream: Stream,
}

/// What a request is sent on.
pub(in crate::upstream) enum Stream {
    Http1(Exclusive),
    Http2 { unit: Arc<StreamUnit>, sender: http2::SendRequest<Outgoing> },
}

/// A counted HTTP/2 stream, shared by the two bodies that go over it: it is free when both are done with.
pub(in crate::upstream) struct StreamUnit {
    pool: Arc<Pool>,
    id: ConnectionId,
}

/// An HTTP/1.1 connection while it serves one call. Dropped in the middle of it, it is closed: that is how HTTP/1.1 says "never mind".
pub(in crate::upstream) struct Exclusive {
    pool: Arc<Pool>,
    id: ConnectionId,
    /// `None` once it was given back.
    pub(in crate::upstream) sender: Option<http1::SendRequest<Outgoing>>,
    pub(in crate::upstream) traffic: Arc<Traffic>,
    /// It has served a call before.
    pub(in crate::upstream) reused: bool,
    /// A request is out on it.
    pub(in crate::upstream) busy: bool,
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
    pub(in crate::upstream) fn new(pool: Arc<Pool>, id: ConnectionId) -> Self {
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
    pub(in crate::upstream) fn new(
        pool: Arc<Pool>,
        id: ConnectionId,
        sender: http1::SendRequest<Outgoing>,
        traffic: Arc<Traffic>,
        reused: bool,
    ) -> Self {
        Self { pool, id, sender: Some(sender), traffic, reused, busy: false }
    }

    /// The response ended as it should: the connection may serve the next call, if it stays open.
    pub(in crate::upstream) fn ended(&mut self) {
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
