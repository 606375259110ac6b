//! A connection as those have it who are not hyper: the task that serves it, and the call that is under way on it.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use super::{AHEAD, READ, State, Wire, lock};
use crate::proxy::guard::scan::{Fault, Scanner};

/// The same connection, whether hyper has it or not.
#[derive(Clone)]
pub(crate) struct WireHandle {
    pub(super) shared: Arc<Mutex<State>>,
}

/// The same connection as a call watches it that is under way there; until it is dropped the connection does not rest.
pub(crate) struct ActiveCall {
    pub(super) shared: Arc<Mutex<State>>,
}

// === impl WireHandle ===

impl WireHandle {
    /// A call begins.
    pub(crate) fn begin(&self) -> ActiveCall {
        lock(&self.shared).busy = true;
        ActiveCall { shared: Arc::clone(&self.shared) }
    }

    /// Whether hyper was let go because there was nothing to do, and not because the connection is over.
    pub(crate) fn rests(&self) -> bool {
        lock(&self.shared).resting
    }

    /// Waits until more comes, for hyper to read; none if nothing will.
    pub(crate) async fn stirs(&self) -> Option<Wire> {
        poll_fn(|cx| {
            let mut state = lock(&self.shared);
            while state.ahead.is_empty() {
                if state.end.is_some() {
                    return Poll::Ready(None);
                }
                ready!(state.poll_read_ahead(cx));
            }
            state.begin();
            Poll::Ready(Some(Wire { shared: Arc::clone(&self.shared) }))
        })
        .await
    }

    /// Ends it as hyper would: with TLS the client is told.
    pub(crate) async fn close(&self) {
        let closed = poll_fn(|cx| Pin::new(lock(&self.shared).stream.get_mut()).poll_shutdown(cx)).await;
        if let Err(error) = closed {
            tracing::debug!(%error, "a client had left before its connection was closed");
        }
    }

    /// Whether hyper has said goodbye to a client that may still be sending: it is between two requests neither by its bytes nor by ours.
    pub(crate) fn has_unread(&self) -> bool {
        let state = lock(&self.shared);
        let is_between = state.heads.as_ref().is_none_or(Scanner::is_between_requests);
        state.said_goodbye && state.end.is_none() && (state.fault.is_some() || !state.ahead.is_empty() || !is_between)
    }

    /// Reads into `room` what nobody wants; whether there was anything.
    pub(crate) async fn discard(&self, room: &mut [u8]) -> bool {
        poll_fn(|cx| {
            let mut state = lock(&self.shared);
            state.ahead = BytesMut::new();
            let mut read = ReadBuf::new(room);
            state.stream.set_limit(READ as u64);
            let polled = ready!(Pin::new(&mut state.stream).poll_read(cx, &mut read));
            Poll::Ready(polled.is_ok() && !read.filled().is_empty())
        })
        .await
    }

    /// What was wrong with what came in.
    pub(crate) fn fault(&self) -> Option<Fault> {
        lock(&self.shared).fault
    }
}

impl fmt::Debug for WireHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WireHandle")
    }
}

// === impl ActiveCall ===

impl ActiveCall {
    /// Ready when the client has closed, half-closed or reset the connection. To be polled by the connection's own task only: there is one
    /// waker for reading. A client with more than [`AHEAD`] bytes unread is asked of the kernel, which knows what has arrived: whatever a
    /// client that closes had still to send must fit into the socket's buffer, while a reset overtakes it.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.shared);
        while state.end.is_none() {
            if state.ahead.len() >= AHEAD {
                return state.poll_hang_up(cx);
            }
            ready!(state.poll_read_ahead(cx));
        }
        Poll::Ready(())
    }

    /// A call that asked for another protocol has its answer: what was held back behind it is that protocol, or the next request.
    pub(crate) fn resolve(&self, switched: bool) {
        let mut state = lock(&self.shared);
        if let Some(heads) = &mut state.heads {
            heads.resolve(switched);
        }
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    /// Whether a large head came on the connection: it should end with the answer, and the buffer with it.
    pub(crate) fn had_large_head(&self) -> bool {
        lock(&self.shared).share.is_taken()
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        let mut state = lock(&self.shared);
        state.busy = false;
        state.hang_up = None;
        state.released();
    }
}

impl State {
    fn poll_hang_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.hang_up.is_none() {
            self.hang_up = self.stream.get_ref().hang_up();
        }
        self.hang_up.as_mut().map_or(Poll::Pending, |hang_up| hang_up.as_mut().poll(cx))
    }
}

impl fmt::Debug for ActiveCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ActiveCall")
    }
}
