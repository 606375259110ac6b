//! A limit on the bytes a server may send.
//!
//! A store's replies are shorter than the requests. But a server of another kind may send without
//! end, and its bytes are kept until they form a whole reply. So a connection may receive at most
//! [`MOST`] bytes more than it has sent, and fails with the next byte.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream failing when it has received too many bytes.
#[derive(Debug)]
pub(super) struct ReceiveLimit<S> {
    stream: S,
    /// How many more bytes may be received.
    left: usize,
}

// === impl ReceiveLimit ===

impl<S> ReceiveLimit<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, left: MOST }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReceiveLimit<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let received = buffer.filled().len() - before;
        let left = self.left.checked_sub(received);
        self.left = left.unwrap_or(0);
        let too_much = || io::Error::new(io::ErrorKind::InvalidData, "the server sends more than a store would");
        Poll::Ready(left.map(drop).ok_or_else(too_much))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReceiveLimit<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.left = self.left.saturating_add(sent).min(MOST);
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// How many more bytes may be received than were sent. `doctor` reads as many of a bucket of ten
/// thousand gates.
const MOST: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn so_much_comes_and_what_was_asked_for() {
        let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
        let mut ours = ReceiveLimit::new(ours);
        let server = tokio::spawn(async move {
            let mut question = [0; 1000];
            for _ in 0..3 {
                theirs.read_exact(&mut question).await.expect("a question");
                theirs.write_all(&[b'x'; 900]).await.expect("it is read");
            }
            let mut sent = 0;
            while theirs.write_all(&[b'x'; 1000]).await.is_ok() {
                sent += 1000;
            }
            sent
        });
        for _ in 0..3 {
            ours.write_all(&[b'?'; 1000]).await.expect("it is taken");
            ours.read_exact(&mut [0; 900]).await.expect("an answer");
        }
        let mut all = 0;
        let error = loop {
            match ours.read(&mut [0; 4096]).await {
                Ok(read) => all += read,
                Err(error) => break error,
            }
        };
        assert!(all <= MOST && all > MOST - 8192, "{all}");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop(ours);
        assert!(server.await.expect("it ends") < 2 * MOST);
    }
}
