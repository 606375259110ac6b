//! Early answers over HTTP/1.1: a client gets an answer given before its request body was read
//! (P10).
//!
//! A connection that is closed with bytes unread is reset, and the client loses the answer if it
//! has not read it yet. If the connection stays open, the next call can begin only after the rest
//! of the body. So this does what Go's net/http server (kube-apiserver's) does. If the end of the
//! body is near, the answer waits for it, and the connection is used again. Otherwise the answer
//! says `Connection: close`, and the connection lingers after it ([`linger`](mod@super::linger)).

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderValue, Response, header};
use tokio::time::Sleep;

use crate::clock::timer;
use crate::proxy::stack::BoxBody;
use crate::upstream::UnreadBody;

/// An answer waiting for the end of its request's body.
pub(super) struct EarlyAnswer {
    response: Option<Response<BoxBody>>,
    patience: Pin<Box<Sleep>>,
}

/// Answers a call at once, or puts the answer into `early` until the body has ended.
pub(super) fn answer(
    response: Response<BoxBody>,
    unread: &UnreadBody,
    early: &mut Option<Box<EarlyAnswer>>,
    cx: &mut Context<'_>,
) -> Poll<Response<BoxBody>> {
    match unread.poll_end(cx, MOST) {
        Poll::Ready(true) => Poll::Ready(response),
        Poll::Ready(false) => Poll::Ready(closing(response)),
        Poll::Pending => {
            let waits = EarlyAnswer { response: Some(response), patience: timer(PATIENCE) };
            early.insert(Box::new(waits)).poll(unread, cx)
        }
    }
}

impl EarlyAnswer {
    /// Returns the answer once it is known whether the connection can serve another call.
    pub(super) fn poll(&mut self, unread: &UnreadBody, cx: &mut Context<'_>) -> Poll<Response<BoxBody>> {
        let ended = match unread.poll_end(cx, MOST) {
            Poll::Ready(ended) => ended,
            Poll::Pending if self.patience.as_mut().poll(cx).is_ready() => false,
            Poll::Pending => return Poll::Pending,
        };
        match self.response.take() {
            Some(response) => Poll::Ready(if ended { response } else { closing(response) }),
            None => Poll::Pending, // it was ready before
        }
    }
}

fn closing(mut response: Response<BoxBody>) -> Response<BoxBody> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The most bytes of a body to read and discard, so that its connection can serve another call:
/// `maxPostHandlerReadBytes` of Go's net/http server.
const MOST: u64 = 256 << 10;
/// The longest wait for the end of the body: Go's `rstAvoidanceDelay`. Whatever is on its way is
/// here long before.
const PATIENCE: Duration = Duration::from_millis(500);
