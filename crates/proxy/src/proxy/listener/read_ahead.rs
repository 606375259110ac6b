//! Reading ahead of hyper, to notice a client's hang-up while its call waits (P6).
//!
//! hyper (1.12) stops reading an HTTP/1 connection while a call with unread body or pipelined bytes
//! is being answered, and so does not notice that the client has hung up (measured).
//! [`ReadAhead::poll_gone`] reads on into a small buffer, and hyper gets these bytes first when it
//! reads again. The buffers of all clients share one bound. When it is reached, nothing more is
//! read: the bytes stay in the kernel, which still reports a hang-up.

use std::io;
use std::mem::{MaybeUninit, replace, take};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf, Take};

use super::stream::{HangUp, Stream};
use crate::proxy::share::Share;

/// The reading half of a connection.
pub(super) struct ReadAhead {
    /// The connection, limited to [`READ`] bytes for each read.
    stream: Take<Box<dyn Stream>>,
    /// Bytes read and not given to hyper yet.
    bytes: BytesMut,
    /// The bytes of this connection's buffer beyond one [`STEP`], counted against the common bound.
    share: Share,
    /// Set at the end of the input. Holds the error, if there was one, until hyper has seen it.
    end: Option<io::Result<()>>,
    /// The kernel's report of a hang-up, for a client that has sent more than may be read ahead.
    pub(super) hang_up: Option<HangUp>,
    /// Wakes hyper waiting to read.
    reader: Option<Waker>,
}

// === impl ReadAhead ===

impl ReadAhead {
    pub(super) fn new(stream: Box<dyn Stream>, share: Share) -> Self {
        Self { stream: stream.take(0), bytes: BytesMut::new(), share, end: None, hang_up: None, reader: None }
    }

    /// Returns the connection, for writing.
    pub(super) fn stream(&mut self) -> Pin<&mut Box<dyn Stream>> {
        Pin::new(self.stream.get_mut())
    }

    /// Returns the bytes read ahead.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns true if the input has ended: the buffer has all that will come.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Copies bytes read ahead to `buf`, or reads if there are none. [`Self::consume`] must follow.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.bytes.is_empty() {
            let some = self.bytes.len().min(buf.remaining()).min(READ);
            buf.put_slice(self.bytes.get(..some).unwrap_or_default());
            return Poll::Ready(Ok(()));
        }
        if let Some(end) = &mut self.end {
            return Poll::Ready(replace(end, Ok(())));
        }
        let before = buf.filled().len();
        let read = ready!(self.poll_stream(cx, buf));
        if read.is_err() || (buf.filled().len() == before && buf.remaining() > 0) {
            self.end = Some(Ok(()));
        }
        Poll::Ready(read)
    }

    /// Removes the first `taken` of the bytes in `read`, which [`Self::poll_read`] has just copied;
    /// the others will be read again. `is_ahead` says that they came from the buffer and not from
    /// the socket.
    pub(super) fn consume(&mut self, is_ahead: bool, read: &[u8], taken: usize) {
        if !is_ahead {
            self.bytes.extend_from_slice(read.get(taken..).unwrap_or_default());
            return;
        }
        self.bytes.advance(taken);
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new(); // the usual connection holds no buffer of ours
        }
        self.count();
    }

    /// Reads once into the buffer, and wakes hyper if it waits for bytes.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut step = [const { MaybeUninit::uninit() }; STEP]; // on the stack: a silent client holds no buffer
        let mut read = ReadBuf::uninit(&mut step);
        match ready!(self.poll_stream(cx, &mut read)) {
            Ok(()) if !read.filled().is_empty() => {
                self.bytes.extend_from_slice(read.filled());
                self.count();
            }
            ended => self.end = Some(ended),
        }
        self.wake_reader();
        Poll::Ready(())
    }

    /// Becomes ready when the client has closed, half-closed or reset the connection. Reads ahead
    /// to notice it; if no more may be read ahead, it asks the kernel. Only the connection's own
    /// task may poll this, because there is one waker for reading.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.end.is_none() {
            if !self.may_read_ahead() {
                if self.hang_up.is_none() {
                    self.hang_up = self.stream.get_ref().hang_up();
                }
                return self.hang_up.as_mut().map_or(Poll::Pending, |hang_up| hang_up.as_mut().poll(cx));
            }
            ready!(self.poll_fill(cx));
        }
        Poll::Ready(())
    }

    /// Returns true if more may be read ahead: one step always, and more as long as the bounds
    /// allow it.
    fn may_read_ahead(&self) -> bool {
        self.bytes.len() < STEP || (self.bytes.len() < AHEAD && self.share.total() < ALL_AHEAD)
    }

    fn count(&mut self) {
        self.share.set(self.bytes.len().saturating_sub(STEP));
    }

    /// Reads and discards bytes. Returns true if there were any.
    pub(super) fn poll_discard(&mut self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<bool> {
        take(&mut self.bytes);
        self.count();
        let mut read = ReadBuf::new(room);
        let polled = ready!(self.poll_stream(cx, &mut read));
        Poll::Ready(polled.is_ok() && !read.filled().is_empty())
    }

    /// Returns pending, and has hyper woken once there is something to read.
    pub(super) fn park<T>(&mut self, cx: &Context<'_>) -> Poll<T> {
        if !self.reader.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.reader = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Wakes hyper if it waits to read.
    pub(super) fn wake_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn poll_stream(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream.set_limit(READ as u64);
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

/// The most bytes of one read. hyper doubles its buffer whenever a read fills it, up to the
/// megabyte of the longest head: so a body stays at 32 KiB.
const READ: usize = 16 * 1024;
/// The most bytes read ahead for one client: enough for whatever it pipelines, little beside the
/// 3 MiB of a waiting body.
pub(super) const AHEAD: usize = 64 * 1024;
/// The most bytes read ahead for all clients.
const ALL_AHEAD: usize = 8 << 20;
/// The most bytes read ahead at once: the head of a request fits.
pub(super) const STEP: usize = 4096;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[test]
    fn a_client_that_sends_nothing_holds_no_buffer() {
        let (_client, server) = tokio::io::duplex(16);
        let mut input = ReadAhead::new(Box::new(server), Share::of(&Arc::default()));
        assert!(input.poll_gone(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(input.bytes.capacity(), 0);
    }

    #[test]
    fn clients_that_send_more_than_is_read_share_the_room_and_give_it_back() {
        let room = Arc::default();
        let mut clients = Vec::new();
        let mut ahead = || {
            let (mut client, server) = tokio::io::duplex(2 * AHEAD);
            let mut input = ReadAhead::new(Box::new(server), Share::of(&room));
            client.write_all(&[0; 2 * AHEAD]).now_or_never().expect("room").expect("open");
            assert!(input.poll_gone(&mut Context::from_waker(Waker::noop())).is_pending());
            clients.push(client);
            input
        };
        let mut all: Vec<_> = (0..300).map(|_| ahead()).collect();
        assert_eq!((all[0].bytes.len(), all[299].bytes.len()), (AHEAD, STEP));
        let held: usize = all.iter().map(|input| input.bytes.len()).sum();
        assert!(held <= (8 << 20) + 301 * STEP, "{held}");

        all[0].consume(true, &[0; AHEAD], AHEAD);
        assert_eq!(ahead().bytes.len(), AHEAD);
        all.clear();
        assert!((0..100).map(|_| ahead()).collect::<Vec<_>>().iter().all(|input| input.bytes.len() == AHEAD));
    }
}
