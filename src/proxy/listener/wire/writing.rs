//! What hyper writes to the client.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use tokio::io::AsyncWrite;

use super::{ActiveCall, State, Wire, lock};
use crate::upstream::Trailing;

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = lock(&self.shared);
        state.unflushed = true;
        if state.trailing.is_some() {
            return state.poll_write_trailing(cx, &[IoSlice::new(buf)]);
        }
        Pin::new(state.stream.get_mut()).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = lock(&self.shared);
        if state.trailing.is_some() {
            ready!(state.poll_drain(cx))?;
        }
        let flushed = Pin::new(state.stream.get_mut()).poll_flush(cx);
        if flushed.is_ready() && state.unflushed {
            state.unflushed = false;
            state.share.written();
            state.released();
            if let Some(giver) = state.giver.take() {
                giver.wake();
            }
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
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = lock(&self.shared);
        state.unflushed = true;
        if state.trailing.is_some() {
            return state.poll_write_trailing(cx, bufs);
        }
        Pin::new(state.stream.get_mut()).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        lock(&self.shared).stream.get_ref().is_write_vectored()
    }
}

impl State {
    fn poll_write_trailing(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let Self { trailing, stream, .. } = self;
        let Some(some) = trailing else { return Pin::new(stream.get_mut()).poll_write_vectored(cx, bufs) };
        let written = ready!(some.poll_write(Pin::new(stream.get_mut()), cx, bufs))?;
        trailing.take_if(|trailing| trailing.is_over());
        Poll::Ready(Ok(written))
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { trailing, stream, .. } = self;
        if let Some(some) = trailing {
            ready!(some.poll_drain(Pin::new(stream.get_mut()), cx))?;
            trailing.take_if(|trailing| trailing.is_over());
        }
        Poll::Ready(Ok(()))
    }
}

impl ActiveCall {
    /// Ready when hyper may be given more of an answer; before that it must write what it has, as fast as the client reads.
    pub(crate) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.shared);
        if !state.share.is_full() {
            return Poll::Ready(());
        }
        state.giver = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Hyper is given so many bytes more.
    pub(crate) fn give(&self, bytes: usize) {
        lock(&self.shared).share.give(bytes);
    }

    /// Has these trailers written at the end of the body, which is to end in the bytes that are returned; only in a body that
    /// is sent in chunks. None if there is nothing to write.
    pub(crate) fn trail(&self, trailers: &HeaderMap) -> Option<Bytes> {
        let (mark, trailing) = Trailing::new(trailers)?;
        lock(&self.shared).trailing = Some(trailing);
        Some(mark)
    }
}
