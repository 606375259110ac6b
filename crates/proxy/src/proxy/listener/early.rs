//! An answer that is there before its request's body was read, over HTTP/1.1. Its client gets it
//! (P10).
//!
//! A connection that is closed with bytes unread is reset, and the reset takes the answer along
//! that the client has not read yet; left open, the rest of the body would stand in the way of the
//! next call. So this does what Go's net/http server does (kube-apiserver's): the answer waits
//! until the body has come to its end, if that is near, and the connection lives on. If it is not,
//! the answer says `Connection: close`, and the connection lingers after it
//! ([`linger`](mod@super::linger)).

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderValue, Response, header};
use tokio::time::Sleep;

use crate::clock::timer;
use crate::proxy::stack::Sent;
use crate::upstream::{Remainder, UnreadBody};

/// An answer that waits for the end of its request's body.
pub(super) struct Early {
    response: Option<Response<Sent>>,
    patience: Pin<Box<Sleep>>,
    /// The body may end with this byte at the latest.
    most: u64,
}

/// Answers a call, at once or, through `early`, once its request's body has ended or has not.
pub(super) fn answer(
    response: Response<Sent>,
    unread: &UnreadBody,
    early: &mut Option<Box<Early>>,
    cx: &mut Context<'_>,
) -> Poll<Response<Sent>> {
    match unread.remainder(MOST) {
        Remainder::None => Poll::Ready(response),
        Remainder::TooMuch => Poll::Ready(closing(response)),
        Remainder::Some(most) => {
            let waits = Early { response: Some(response), patience: timer(PATIENCE), most };
            early.insert(Box::new(waits)).poll(unread, cx)
        }
    }
}

impl Early {
    /// The answer, once it is known whether the connection can serve another call.
    pub(super) fn poll(&mut self, unread: &UnreadBody, cx: &mut Context<'_>) -> Poll<Response<Sent>> {
        let ended = match unread.poll_end(cx, self.most) {
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

fn closing(mut response: Response<Sent>) -> Response<Sent> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The bytes of a body that are read and discarded at most, so that its connection can serve
/// another call: `maxPostHandlerReadBytes` of Go's net/http server.
const MOST: u64 = 256 << 10;
/// The time that an answer waits for the body to end: whatever is on its way is here long before.
/// As long as Go's `rstAvoidanceDelay`.
const PATIENCE: Duration = Duration::from_millis(500);
