//! Reads a request's body to its end before the request is answered.
//!
//! An HTTP/1.1 server that closes a connection with bytes unread resets it, and the client may lose
//! an answer that it has not read yet. So the small servers (status, webhook) read even a body that
//! they do not want, or that is too long, to its end, and discard it. A gate cannot wait for bodies
//! of any length: its listener lingers instead.

use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt as _;

/// Reads a body of at most `longest` bytes. Returns `None` if it is longer, breaks off or takes too
/// long, or if `may_keep` returns false for its number of bytes so far.
pub async fn whole<B: Body<Data = Bytes>>(
    body: B,
    mut longest: usize,
    may_keep: impl Fn(usize) -> bool,
) -> Option<Bytes> {
    let reading = async {
        let mut body = pin!(body);
        let mut kept = BytesMut::new();
        let mut length = 0_usize;
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.ok()?.into_data() else { continue };
            length = length.saturating_add(data.len());
            if length <= longest {
                kept.extend_from_slice(&data);
                if !may_keep(length) {
                    (longest, kept) = (0, BytesMut::new());
                }
            } else if length - longest > DISCARDED {
                return None;
            } else {
                kept = BytesMut::new();
            }
        }
        (length <= longest).then(|| kept.freeze())
    };
    tokio::time::timeout(PATIENCE, reading).await.ok().flatten()
}

/// The most bytes to read and discard of a body after it has proved too long. No client of these
/// servers sends as much by mistake.
const DISCARDED: usize = 32 << 20;
/// The longest time to wait for a whole body: as long as the API server waits for a webhook by
/// default (`timeoutSeconds`).
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use futures_util::stream::{Stream, iter, pending};
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;

    use super::*;

    fn parts(parts: Vec<Result<Bytes, &'static str>>) -> impl Body<Data = Bytes, Error = &'static str> {
        StreamBody::new(iter(parts.into_iter().map(|part| part.map(Frame::data))))
    }

    #[tokio::test]
    async fn a_body_is_whole_or_nothing() {
        let abc = || vec![Ok(Bytes::from_static(b"a")), Ok(Bytes::from_static(b"bc"))];
        assert_eq!(whole(parts(abc()), 3, |_| true).await.as_deref(), Some(&b"abc"[..]));
        assert_eq!(whole(parts(abc()), 2, |_| true).await, None);
        assert_eq!(whole(parts(vec![Ok(Bytes::from_static(b"a")), Err("it broke off")]), 3, |_| true).await, None);
        assert_eq!(whole(parts(abc()), 3, |bytes| bytes < 3).await, None);
        assert_eq!(whole(Full::new(Bytes::new()), 0, |_| true).await.as_deref(), Some(&b""[..]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_end_is_given_up() {
        fn never() -> impl Stream<Item = Result<Frame<Bytes>, &'static str>> {
            pending()
        }
        assert_eq!(whole(StreamBody::new(never()), 3, |_| true).await, None);
        let piece = || Ok(Bytes::from(vec![b' '; 1 << 20]));
        assert_eq!(whole(parts((0..40).map(|_| piece()).collect()), 3, |_| true).await, None);
    }
}
