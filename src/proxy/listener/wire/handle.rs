//! A connection as those have it who are not hyper: the task that serves it, and the call that is
//! under way on it.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex, atomic::AtomicBool},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use tokio::io::AsyncWrite as _;

use super::{Shared, lock};
use crate::{
    proxy::{
        guard::{
            buffers::{AnswerShare, Buffers},
            scan::Fault,
        },
        listener::{idle::Idle, read_ahead::ReadAhead, stream::Stream},
    },
    upstream::Trailing,
};

/// The same connection, whether hyper has it or not.
#[derive(Clone)]
pub(crate) struct WireHandle {
    pub(super) shared: Arc<Mutex<Shared>>,
}

/// The same connection as the call sees it that is under way there; it does not rest before this is
/// dropped.
pub(crate) struct ActiveCall {
    shared: Arc<Mutex<Shared>>,
}

// === impl WireHandle ===

impl WireHandle {
    /// Takes a connection. `lower_case` says that the upstream does not see how the client writes the
    /// names of fields.
    pub(crate) fn new(stream: Box<dyn Stream>, buffers: Arc<Buffers>, lower_case: Arc<AtomicBool>) -> Self {
        let shared = Shared {
            input: ReadAhead::new(stream),
            idle: Idle::new(lower_case),
            answers: AnswerShare::of(buffers),
            giver: None,
            trailing: None,
            fault: None,
            large_head: false,
            switched: None,
            goodbye: None,
        };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    /// True if the client begins with HTTP/2's preface. This is decided at the first byte that tells,
    /// and nothing is lost of what was read.
    pub(crate) async fn speaks_http2(&self) -> bool {
        poll_fn(|cx| {
            let input = &mut lock(&self.shared).input;
            loop {
                if input.bytes().starts_with(PREFACE) {
                    return Poll::Ready(true);
                }
                if !PREFACE.starts_with(input.bytes()) || input.has_ended() {
                    return Poll::Ready(false);
                }
                ready!(input.poll_fill(cx));
            }
        })
        .await
    }

    /// Notes that a call begins.
    pub(crate) fn begin(&self) -> ActiveCall {
        lock(&self.shared).idle.busy = true;
        ActiveCall { shared: Arc::clone(&self.shared) }
    }

    /// True if hyper was let go for a rest, and not because the connection is over.
    pub(crate) fn rests(&self) -> bool {
        lock(&self.shared).idle.resting
    }

    /// Waits until there is something for a new hyper to read; false if nothing will come.
    pub(crate) async fn has_more(&self) -> bool {
        poll_fn(|cx| {
            let input = &mut lock(&self.shared).input;
            while input.bytes().is_empty() && !input.has_ended() {
                ready!(input.poll_fill(cx));
            }
            Poll::Ready(!input.bytes().is_empty())
        })
        .await
    }

    /// Ends the connection as hyper would: over TLS the client is told.
    pub(crate) async fn close(&self) {
        if let Err(error) = poll_fn(|cx| lock(&self.shared).input.stream().poll_shutdown(cx)).await {
            tracing::debug!(%error, "a client had left before its connection was closed");
        }
    }

    /// True if hyper has said goodbye to a client that may still be sending: it is between two
    /// requests neither by its bytes nor by ours.
    pub(crate) fn has_unread(&self) -> bool {
        let Shared { input, goodbye, fault, .. } = &*lock(&self.shared);
        let left = goodbye.map(|is_amid| is_amid || fault.is_some() || !input.bytes().is_empty());
        left.unwrap_or_default() && !input.has_ended()
    }

    /// Reads into `room` bytes that are discarded; true if there were any.
    pub(crate) async fn discard(&self, room: &mut [u8]) -> bool {
        poll_fn(|cx| lock(&self.shared).input.poll_discard(cx, room)).await
    }

    /// The fault of what came in.
    pub(crate) fn fault(&self) -> Option<Fault> {
        lock(&self.shared).fault
    }
}

// === impl ActiveCall ===

impl ActiveCall {
    /// Becomes ready when the client has hung up.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        lock(&self.shared).input.poll_gone(cx)
    }

    /// Notes the answer to a call that asked for another protocol: what was held back behind it is
    /// that protocol, or the next request.
    pub(crate) fn resolve(&self, switched: bool) {
        let mut shared = lock(&self.shared);
        shared.switched = Some(switched);
        shared.input.wake_reader();
    }

    /// True if a large head came on the connection: it should end with the answer, and hyper's buffer
    /// with it.
    pub(crate) fn had_large_head(&self) -> bool {
        lock(&self.shared).large_head
    }

    /// Becomes ready when hyper may be given more of an answer; before that it must write what it has,
    /// as fast as the client reads.
    pub(crate) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        let mut shared = lock(&self.shared);
        if !shared.answers.is_full() {
            return Poll::Ready(());
        }
        shared.giver = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Counts bytes more that hyper is given.
    pub(crate) fn give(&self, bytes: usize) {
        lock(&self.shared).answers.give(bytes);
    }

    /// Has these trailers written at the end of the body, which is to end in the bytes that are
    /// returned; only in a body that is sent in chunks. None if there is nothing to write.
    pub(crate) fn trail(&self, trailers: &HeaderMap) -> Option<Bytes> {
        let (mark, trailing) = Trailing::new(trailers)?;
        lock(&self.shared).trailing = Some(trailing);
        Some(mark)
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        let Shared { input, idle, .. } = &mut *lock(&self.shared);
        idle.busy = false;
        input.ignore_hang_up();
        idle.release(input);
    }
}

/// The first bytes of an HTTP/2 client.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
