//! The names of a head as they were written over HTTP/1.1, in a buffer of their own.
//!
//! hyper notes them in an extension of its own that nobody else can read: as pieces of the buffer
//! that the head was read into. Of an answer that is kept, all of that buffer would stay, many
//! times the names. So hyper writes them out once more, and reads them back from a buffer of their
//! length.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::{CONNECTION, TRANSFER_ENCODING, UPGRADE};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Request};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::ext::ReasonPhrase;
use hyper::rt::ReadBufCursor;

/// An upstream in memory that answers a request's head with the same names.
struct Echo {
    reason: Vec<u8>,
    request: Vec<u8>,
    /// The number of bytes of the answer that were read.
    read: usize,
}

/// Returns what hyper noted of a head with these headers, without the buffers that it lies in;
/// `None` if that cannot be had.
pub(super) fn detached(headers: &HeaderMap, extensions: &Extensions) -> Option<Extensions> {
    if extensions.is_empty() {
        return Some(Extensions::new());
    }
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.extensions_mut() = extensions.clone();
    let names = headers.iter().map(|(name, _)| (name.clone(), HeaderValue::from_static("0")));
    *request.headers_mut() = names.filter(|(name, _)| !OF_THE_WAY.contains(name)).collect();
    // hyper notes a reason only where it is not this one.
    let reason = extensions.get::<ReasonPhrase>().map_or(b"OK".as_slice(), ReasonPhrase::as_bytes).to_vec();
    let length = START + reason.len() + bytes(headers);
    let mut builder = http1::Builder::new();
    builder.preserve_header_case(true).max_headers(headers.len() + 1).read_buf_exact_size(Some(length));
    let echo = Echo { reason, request: Vec::with_capacity(length), read: 0 };
    let cx = &mut Context::from_waker(Waker::noop());
    // Nothing here waits for anything but itself.
    let Poll::Ready(Ok((mut sender, connection))) = pin!(builder.handshake(echo)).poll(cx) else { return None };
    let mut connection = pin!(connection);
    let mut answer = pin!(sender.send_request(request));
    for _ in 0..TURNS {
        if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
            return Some(answer.ok()?.into_parts().0.extensions);
        }
        if connection.as_mut().poll(cx).is_ready() {
            return None;
        }
    }
    None
}

/// Returns the bytes that the names take in their buffer.
pub(super) fn bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, _)| name.as_str().len() + LINE).sum()
}

// === impl Echo ===

impl Echo {
    /// Returns the answer, as soon as the head of the request has come.
    fn answer(&self) -> Option<Vec<u8>> {
        let (_, names) = self.request.split_at_checked(memchr::memchr(b'\n', &self.request)?)?;
        let start = [b"HTTP/1.1 200 ", self.reason.as_slice(), b"\r"].concat();
        self.request.ends_with(b"\r\n\r\n").then(|| [&start, names].concat())
    }
}

impl hyper::rt::Read for Echo {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let Some(answer) = self.answer() else { return Poll::Pending };
        let rest = answer.get(self.read..).unwrap_or_default();
        let piece = rest.get(..buf.remaining()).unwrap_or(rest);
        if piece.is_empty() {
            return Poll::Pending; // as long as nobody asks again
        }
        buf.put_slice(piece);
        self.read += piece.len();
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Echo {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.request.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The headers that would say how the answer comes. None of them is in a head that is kept.
const OF_THE_WAY: [HeaderName; 3] = [CONNECTION, TRANSFER_ENCODING, UPGRADE];
/// The bytes of the first line without its reason, and of the empty line.
const START: usize = 17;
/// The bytes of a header's line besides its name.
const LINE: usize = 5;
/// hyper needs two: to write, and to hand the answer over.
const TURNS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what hyper reads of an answer.
    async fn read(answer: Vec<u8>) -> (HeaderMap, Extensions) {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let mut builder = http1::Builder::new();
        builder.preserve_header_case(true).max_headers(500);
        let (mut sender, connection) =
            builder.handshake::<_, Empty<Bytes>>(hyper_util::rt::TokioIo::new(near)).await.expect("it is in memory");
        tokio::spawn(connection);
        tokio::spawn(async move {
            tokio::io::AsyncWriteExt::write_all(&mut far, &answer).await.expect("there is room");
            std::future::pending::<()>().await;
            drop(far);
        });
        let answer = sender.send_request(Request::new(Empty::new())).await.expect("it is one").into_parts().0;
        (answer.headers, answer.extensions)
    }

    /// Returns the head that hyper's server writes.
    async fn written(headers: &HeaderMap, extensions: &Extensions) -> String {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let (headers, extensions) = (headers.clone(), extensions.clone());
        let service = hyper::service::service_fn(move |_| {
            let mut answer = http::Response::new(Empty::<Bytes>::new());
            (*answer.headers_mut(), *answer.extensions_mut()) = (headers.clone(), extensions.clone());
            async move { Ok::<_, std::convert::Infallible>(answer) }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.preserve_header_case(true).auto_date_header(false);
        tokio::spawn(builder.serve_connection(hyper_util::rt::TokioIo::new(near), service));
        tokio::io::AsyncWriteExt::write_all(&mut far, b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")
            .await
            .expect("room");
        let mut text = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut far, &mut text).await.expect("it is text");
        text
    }

    #[tokio::test]
    async fn names_and_reason_are_written_as_before() {
        let answer =
            b"HTTP/1.1 200 Very Well\r\nETag: \"a\"\r\nx-TWO: 1\r\nX-Two: 2\r\nContent-Type: a/b\r\nSERVER: s\r\n\
            content-LENGTH: 0\r\nVary:\r\n\r\n";
        let (headers, noted) = read(answer.to_vec()).await;
        let before = written(&headers, &noted).await;
        assert!(before.contains("200 Very Well\r\n") && before.contains("x-TWO: 1\r\nX-Two: 2\r\n"), "{before}");
        let copy = detached(&headers, &noted).expect("it can be had");
        assert_eq!(written(&headers, &copy).await, before);
        assert_ne!(written(&headers, &Extensions::new()).await, before);
    }

    #[tokio::test]
    async fn a_head_of_many_names_is_one_too_and_where_nothing_is_noted_nothing_is() {
        let names: String = (0..400).map(|n| format!("X-Name-{n}: {}\r\n", "v".repeat(100))).collect();
        let answer = format!("HTTP/1.1 200 OK\r\n{names}Content-Length: 0\r\n\r\n");
        let (headers, noted) = read(answer.into_bytes()).await;
        let copy = detached(&headers, &noted).expect("it can be had");
        let again = written(&headers, &copy).await;
        assert!(again == written(&headers, &noted).await && again.contains("X-Name-399"), "{again}");
        assert!(detached(&headers, &Extensions::new()).is_some_and(|copy| copy.is_empty()));
    }
}
