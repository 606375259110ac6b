//! What hyper writes to the client.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::AsyncWrite;

use super::{Wire, lock};

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = lock(&self.shared);
        state.unflushed = true;
        Pin::new(state.stream.get_mut()).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = lock(&self.shared);
        let flushed = Pin::new(state.stream.get_mut()).poll_flush(cx);
        if flushed.is_ready() && state.unflushed {
            state.unflushed = false;
            state.released();
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = lock(&self.shared);
        if state.resting {
            return Poll::Ready(Ok(()));
        }
        state.said_goodbye = true;
        Pin::new(state.stream.get_mut()).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = lock(&self.shared);
        state.unflushed = true;
        Pin::new(state.stream.get_mut()).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        lock(&self.shared).stream.get_ref().is_write_vectored()
    }
}
