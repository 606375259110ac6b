//! Trailers over HTTP/1, whether they were announced or not.
//!
//! hyper (1.12) writes only those that a `Trailer` field named in the head, and in an answer only
//! if the request said `TE: trailers`; it drops all others. Go's client and server send and take
//! them without either. So hyper is given no trailers: the body ends in a mark that cannot be
//! guessed, and where the mark comes out as the last chunk, on its way to the socket, the last
//! chunk with the trailers is written in its place.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName};
use memchr::memmem;
use tokio::io::AsyncWrite;

/// Trailers that wait for the end of their body on a connection.
#[derive(Debug)]
pub struct Trailing {
    /// The mark as a chunk, and the last chunk.
    mark: Vec<u8>,
    /// The bytes to write instead; empty once they were.
    end: Vec<u8>,
    /// Bytes taken from hyper, and not written.
    held: BytesMut,
}

impl Trailing {
    /// Returns the data that is to end the body, and what watches for it; `None` if none of the
    /// fields may stand in a trailer.
    pub fn new(trailers: &HeaderMap) -> Option<(Bytes, Box<Self>)> {
        let end = last_chunk(trailers);
        if end == LAST_CHUNK {
            return None;
        }
        let chance = || RandomState::new().hash_one(());
        let data = format!("{:016x}{:016x}", chance(), chance());
        let mark = format!("{:X}\r\n{data}\r\n0\r\n\r\n", data.len()).into_bytes();
        Some((data.into(), Box::new(Self { mark, end, held: BytesMut::new() })))
    }

    /// Takes what hyper writes, and writes it as far as it cannot be the beginning of the mark.
    pub fn poll_write(
        &mut self,
        mut to: Pin<&mut (impl AsyncWrite + ?Sized)>,
        cx: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_drain(to.as_mut(), cx))?;
        if self.is_over() {
            return to.poll_write_vectored(cx, from);
        }
        let mut taken = 0;
        for slice in from {
            let part = slice.get(..slice.len().min(HELD - taken)).unwrap_or_default();
            self.held.extend_from_slice(part);
            taken += part.len();
        }
        if let Some(at) = memmem::find(&self.held, &self.mark) {
            let behind = self.held.split_off(at).split_off(self.mark.len());
            self.held.extend_from_slice(&self.end);
            self.held.extend_from_slice(&behind);
            self.end.clear();
        }
        Poll::Ready(Ok(taken))
    }

    /// Writes what is held, as far as it cannot be the beginning of the mark.
    pub fn poll_drain(
        &mut self,
        mut to: Pin<&mut (impl AsyncWrite + ?Sized)>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let kept = if self.end.is_empty() { 0 } else { self.mark.len() - 1 };
        while let Some(some) = self.held.get(..self.held.len().saturating_sub(kept)).filter(|some| !some.is_empty()) {
            let written = ready!(to.as_mut().poll_write(cx, some))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.held.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// True if the trailers were written, and all that came with them.
    pub fn is_over(&self) -> bool {
        self.end.is_empty() && self.held.is_empty()
    }
}

/// Returns the last chunk of a body, with those of the fields that may stand in a trailer.
pub fn last_chunk(trailers: &HeaderMap) -> Vec<u8> {
    let mut end = b"0\r\n".to_vec();
    let may_trail = |name: &HeaderName| !NO_TRAILERS.split(' ').any(|never| name == never);
    for (name, value) in trailers.iter().filter(|(name, _)| may_trail(name)) {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            end.extend_from_slice(part);
        }
    }
    end.extend_from_slice(b"\r\n");
    end
}

/// The last chunk without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// Fields that may not trail: they frame a message, route it or authenticate its sender (RFC 9110,
/// 6.5.1).
const NO_TRAILERS: &str = "authorization cache-control content-encoding content-length content-range content-type \
                           host max-forwards set-cookie te trailer transfer-encoding";
/// The most bytes taken at once.
const HELD: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use http::HeaderValue;
    use tokio::io::{AsyncReadExt as _, duplex};

    use super::*;

    fn trailers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[tokio::test]
    async fn the_mark_is_replaced_however_it_is_written_and_nothing_else_is_touched() {
        for size in [1, 2, 7, 42, 43, 44, 100, 1000] {
            let (data, mut trailing) = Trailing::new(&trailers(&[("x-sum", "7"), ("host", "x")])).expect("a trailer");
            let data = String::from_utf8(data.to_vec()).expect("text");
            let before = format!("5\r\n0\r\n\r\n\r\n20\r\n{}\r\n", "0".repeat(32));
            let all = format!("{before}20\r\n{data}\r\n0\r\n\r\nHTTP/1.1 200 OK");
            let (to, mut from) = duplex(1 << 10);
            let mut to = pin!(to);
            for piece in all.as_bytes().chunks(size) {
                let mut at = 0;
                while at < piece.len() {
                    at += poll_fn(|cx| trailing.poll_write(to.as_mut(), cx, &[IoSlice::new(&piece[at..])]))
                        .await
                        .expect("room");
                }
            }
            poll_fn(|cx| trailing.poll_drain(to.as_mut(), cx)).await.expect("room");
            assert!(trailing.is_over());
            let expected = format!("{before}0\r\nx-sum: 7\r\n\r\nHTTP/1.1 200 OK");
            let mut got = vec![0; expected.len()];
            from.read_exact(&mut got).await.expect("all of it");
            assert_eq!(String::from_utf8_lossy(&got), expected);
        }
    }

    #[test]
    fn fields_that_may_not_trail_are_left_out_and_marks_differ() {
        assert!(Trailing::new(&trailers(&[("content-length", "7"), ("authorization", "x")])).is_none());
        let mark = || Trailing::new(&trailers(&[("x", "y")])).expect("a trailer").0;
        assert_ne!(mark(), mark());
    }
}
