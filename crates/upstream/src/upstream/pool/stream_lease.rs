//! The right to use a stream, given back to its pool when dropped.

use std::sync::Arc;

use hyper::client::conn::{http1, http2};

use super::Pool;
use crate::api::Group;
use crate::upstream::body::AttemptBody;
use crate::upstream::http1::Traffic;
use crate::upstream::stream_accounts::ConnectionId;

/// The right to use one stream of an open connection, given back when dropped.
#[derive(derive_more::Debug)]
#[debug("StreamLease({:?})", pool.group)]
#[must_use = "a lease is a stream: send on it, or drop it"]
pub struct StreamLease {
    pub(in crate::upstream) pool: Arc<Pool>,
    pub(in crate::upstream) stream: Stream,
}

/// A stream to send a request on.
pub(in crate::upstream) enum Stream {
    Http1(Exclusive),
    Http2 { unit: Arc<StreamUnit>, sender: http2::SendRequest<SentBody> },
}

/// A request body as connections send it.
pub(in crate::upstream) type SentBody = AttemptBody<StreamUnit>;

/// An HTTP/2 stream in use, shared by its request and response bodies: it is free when both are
/// dropped.
#[derive(derive_more::Debug)]
#[debug("{id:?}")]
pub(in crate::upstream) struct StreamUnit {
    pub(super) pool: Arc<Pool>,
    pub(super) id: ConnectionId,
}

/// An HTTP/1.1 connection while it serves one call. If dropped during the call, the connection is
/// closed: HTTP/1.1 has no other way to cancel a call.
#[derive(derive_more::Debug)]
#[debug("{id:?}")]
pub(in crate::upstream) struct Exclusive {
    pub(super) pool: Arc<Pool>,
    pub(super) id: ConnectionId,
    /// Sends requests; `None` once it was given back.
    pub(in crate::upstream) sender: Option<http1::SendRequest<SentBody>>,
    pub(in crate::upstream) traffic: Arc<Traffic>,
    /// True if the connection has served a call before.
    pub(in crate::upstream) reused: bool,
    /// Set while a request is under way on the connection.
    pub(in crate::upstream) busy: bool,
}

// === impl StreamLease ===

impl StreamLease {
    /// Returns the connection group of the stream.
    pub fn group(&self) -> Group {
        self.pool.group
    }
}

// === impl StreamUnit ===

impl Drop for StreamUnit {
    fn drop(&mut self) {
        self.pool.stream_ended(self.id);
    }
}

// === impl Exclusive ===

impl Exclusive {
    /// Gives the connection back after a complete response. It may serve the next call, if it stays
    /// open.
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
