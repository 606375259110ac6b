//! A lease of a stream from its pool.

use std::sync::Arc;

use hyper::client::conn::{http1, http2};

use super::Pool;
use crate::api::Group;
use crate::upstream::body::AttemptBody;
use crate::upstream::http1::Traffic;
use crate::upstream::stream_accounts::ConnectionId;

/// A lease of one stream on an open connection. Dropping it returns the stream to the pool.
#[derive(derive_more::Debug)]
#[debug("StreamLease({:?})", pool.group)]
#[must_use = "a lease is a stream: send on it, or drop it"]
pub struct StreamLease {
    pub(in crate::upstream) pool: Arc<Pool>,
    pub(in crate::upstream) stream: Stream,
}

/// A stream for sending one request.
pub(in crate::upstream) enum Stream {
    Http1(Exclusive),
    Http2 { unit: Arc<StreamUnit>, sender: http2::SendRequest<SentBody> },
}

/// A request body, as sent on a connection.
pub(in crate::upstream) type SentBody = AttemptBody<StreamUnit>;

/// An HTTP/2 stream in use. Request and response body share it; when both are dropped, it is free
/// again.
#[derive(derive_more::Debug)]
#[debug("{id:?}")]
pub(in crate::upstream) struct StreamUnit {
    pub(super) pool: Arc<Pool>,
    pub(super) id: ConnectionId,
}

/// An HTTP/1.1 connection, exclusively used by one call. If dropped during the call, the connection
/// is closed, because HTTP/1.1 has no other way to cancel a call.
#[derive(derive_more::Debug)]
#[debug("{id:?}")]
pub(in crate::upstream) struct Exclusive {
    pub(super) pool: Arc<Pool>,
    pub(super) id: ConnectionId,
    /// Sends requests; `None` once it was returned to the pool.
    pub(in crate::upstream) sender: Option<http1::SendRequest<SentBody>>,
    pub(in crate::upstream) traffic: Arc<Traffic>,
    /// True if the connection has already served another call.
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
    /// Returns the connection to the pool after a complete response, for the next call.
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
