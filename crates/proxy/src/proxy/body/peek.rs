//! Reads the beginning of a response body, and passes it on as it came.
//!
//! The frames read, and an end or an error, are passed on in the same order. The declared length of
//! the body stays the same, and so does its framing downstream.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::api::signals::PEEK;
use crate::clock::Clock;

/// A body with a beginning that can be read before it is passed on.
#[derive(Debug)]
pub(crate) struct PeekBody<B: HttpBody> {
    /// Frames read and not passed on yet; `None` marks the end.
    read: VecDeque<Option<Result<Frame<Bytes>, B::Error>>>,
    /// The declared length of the body, less what was passed on.
    hint: SizeHint,
    /// Set once there was a pause before an error is passed on. In the pause hyper sends the
    /// earlier bytes: when a body breaks, hyper drops what it has not flushed, even the head.
    has_paused: bool,
    rest: B,
}

// === impl PeekBody ===

impl<B: HttpBody<Data = Bytes, Error: Unpin> + Unpin> PeekBody<B> {
    /// Wraps an unread body.
    pub(crate) fn unread(body: B) -> Self {
        Self { read: VecDeque::new(), hint: SizeHint::default(), has_paused: false, rest: body }
    }

    /// Reads until there are [`PEEK`] bytes, the body ends, or its time is over.
    pub(crate) async fn peek(&mut self, clock: Clock) {
        self.hint = self.rest.size_hint();
        let reading = poll_fn(|cx| {
            while !self.is_enough() {
                match Pin::new(&mut self.rest).poll_frame(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(frame) => self.read.push_back(frame),
                }
            }
            Poll::Ready(())
        });
        tokio::select! {
            () = reading => {}
            () = clock.sleep(PATIENCE) => {}
        }
    }

    /// Returns the beginning of the body, as far as it was read.
    pub(crate) fn beginning(&self) -> Vec<u8> {
        self.data().flatten().take(PEEK).copied().collect()
    }

    fn data(&self) -> impl Iterator<Item = &Bytes> {
        self.read.iter().filter_map(|read| read.as_ref()?.as_ref().ok()?.data_ref())
    }

    fn is_enough(&self) -> bool {
        let bytes: usize = self.data().map(Bytes::len).sum();
        bytes >= PEEK || self.read.len() >= FRAMES || self.rest.is_end_stream() || self.is_over()
    }

    /// Returns pending once, to let hyper write what it has.
    fn pause<T>(&mut self, cx: &Context<'_>) -> Poll<T> {
        self.has_paused = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Returns true after an end, an error or trailers.
    fn is_over(&self) -> bool {
        match self.read.back() {
            None => false,
            Some(Some(Ok(frame))) => frame.is_trailers(),
            Some(None | Some(Err(_))) => true,
        }
    }
}

impl<B: HttpBody<Data = Bytes, Error: Unpin> + Unpin> HttpBody for PeekBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        if matches!(this.read.front(), Some(Some(Err(_)))) && !this.has_paused {
            return this.pause(cx);
        }
        let Some(read) = this.read.pop_front() else {
            return match Pin::new(&mut this.rest).poll_frame(cx) {
                Poll::Ready(error @ Some(Err(_))) if !this.has_paused => {
                    this.read.push_back(error);
                    this.pause(cx)
                }
                polled => polled,
            };
        };
        if let (Some(Ok(frame)), Some(exact)) = (&read, this.hint.exact()) {
            let length = frame.data_ref().map_or(0, Bytes::len);
            this.hint.set_exact(exact.saturating_sub(u64::try_from(length).unwrap_or(u64::MAX)));
        }
        Poll::Ready(read)
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.read.is_empty() {
            return self.rest.size_hint();
        }
        // Neither more nor less than was known of it: a chunked body that has come whole stays one
        // without a length.
        self.hint.exact().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// The most frames to read: they may be empty.
const FRAMES: usize = 64;
/// The longest wait for the beginning of a body before the head is passed on. Providers send both
/// at once; a body that never comes must not delay its head.
const PATIENCE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use http::HeaderMap;
    use http_body_util::combinators::UnsyncBoxBody;
    use http_body_util::{BodyExt, Empty, Full, StreamBody};

    use super::*;

    type Frames = Vec<Result<Frame<Bytes>, std::io::Error>>;

    /// A body of these frames; `endless` without an end.
    fn body(frames: Frames, endless: bool) -> UnsyncBoxBody<Bytes, std::io::Error> {
        let frames = futures_util::stream::iter(frames);
        match endless {
            false => StreamBody::new(frames).boxed_unsync(),
            true => {
                use futures_util::StreamExt;
                StreamBody::new(frames.chain(futures_util::stream::pending())).boxed_unsync()
            }
        }
    }

    fn data(bytes: &'static [u8]) -> Result<Frame<Bytes>, std::io::Error> {
        Ok(Frame::data(Bytes::from_static(bytes)))
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_looked_at_is_handed_on_with_trailers_and_end() {
        let trailers = HeaderMap::from_iter([(http::header::ETAG, "x".parse().unwrap())]);
        let frames = vec![data(b"one"), data(b""), data(b"two"), Ok(Frame::trailers(trailers.clone()))];
        let mut peeked = PeekBody::unread(body(frames, false));
        peeked.peek(Clock::start()).await;
        assert_eq!(peeked.beginning(), b"onetwo");
        assert!(!peeked.is_end_stream());
        let whole = peeked.collect().await.unwrap();
        assert_eq!(whole.trailers(), Some(&trailers));
        assert_eq!(whole.to_bytes(), "onetwo");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_comes_is_not_waited_for() {
        let clock = Clock::start();
        let mut peeked = PeekBody::unread(body(vec![data(b"beg")], true));
        peeked.peek(clock).await;
        assert!(clock.now().since_start() < Duration::from_millis(110));
        assert_eq!(peeked.beginning(), b"beg");
        assert_eq!(peeked.frame().await.unwrap().unwrap().into_data().unwrap(), "beg");
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_is_read_than_is_looked_at() {
        let frames = (0..100).map(|_| data(&[b'x'; 1000])).collect();
        let mut peeked = PeekBody::unread(body(frames, false));
        peeked.peek(Clock::start()).await;
        assert_eq!((peeked.read.len(), peeked.beginning().len()), (5, PEEK));
        assert_eq!(peeked.collect().await.unwrap().to_bytes().len(), 100_000);
    }

    #[tokio::test(start_paused = true)]
    async fn frames_of_nothing_are_not_read_for_ever() {
        let mut peeked = PeekBody::unread(body((0..1000).map(|_| data(b"")).collect(), false));
        peeked.peek(Clock::start()).await;
        assert_eq!(peeked.read.len(), FRAMES);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_comes_where_it_came() {
        let broken = || Err(std::io::Error::other("cut"));
        let mut peeked = PeekBody::unread(body(vec![data(b"half"), broken()], false));
        peeked.peek(Clock::start()).await;
        assert_eq!(peeked.beginning(), b"half");
        assert!(peeked.frame().await.unwrap().is_ok());
        assert!(peeked.frame().await.unwrap().is_err());
    }

    #[test]
    fn what_comes_before_an_error_has_time_to_leave_though_nothing_was_looked_at() {
        let broken = || Err(std::io::Error::other("cut"));
        let mut peeked = PeekBody::unread(body(vec![data(b"half"), broken(), broken()], false));
        let mut poll = || Pin::new(&mut peeked).poll_frame(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(poll(), Poll::Ready(Some(Ok(_)))));
        assert!(poll().is_pending());
        assert!(matches!(poll(), Poll::Ready(Some(Err(_)))));
        assert!(matches!(poll(), Poll::Ready(Some(Err(_)))), "one pause is enough");
        assert!(matches!(poll(), Poll::Ready(None)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_body_says_of_its_length_stays_what_it_was() {
        let mut known = PeekBody::unread(Full::new(Bytes::from_static(b"12345")));
        known.peek(Clock::start()).await;
        assert_eq!(known.size_hint().exact(), Some(5));
        assert!(!known.is_end_stream());
        assert_eq!(known.frame().await.unwrap().unwrap().into_data().unwrap(), "12345");
        assert!(known.is_end_stream());

        let mut unknown = PeekBody::unread(body(vec![data(b"12345")], false));
        unknown.peek(Clock::start()).await;
        assert_eq!(unknown.size_hint().exact(), None, "it has come whole, and must still be sent in chunks");
        assert!(!unknown.is_end_stream());

        let mut nothing = PeekBody::unread(body(Vec::new(), false));
        nothing.peek(Clock::start()).await;
        assert!(!nothing.is_end_stream(), "an empty body in chunks is no body of length 0");
        assert!(nothing.frame().await.is_none());

        let mut empty = PeekBody::unread(Empty::<Bytes>::new());
        empty.peek(Clock::start()).await;
        assert!(empty.is_end_stream());
    }
}
