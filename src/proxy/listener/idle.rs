//! The resting of idle connections, an optimisation: between calls hyper is told that the
//! connection has ended, and a new hyper begins with the next byte. The client sees nothing of it.
//!
//! hyper keeps its buffers, and the room for a call's future, for as long as it has the connection:
//! an idle connection held 14.0 KiB and holds 4.6 KiB since it rests (measured when this was
//! built). And since hyper often begins, it can begin as one that is ready only for usual heads
//! ([`Ready`]): a call took 60,200 instructions and takes 57,500 (measured likewise).
//!
//! No other part needs it. To take it out, let [`Idle::poll_pause`] never become ready and
//! [`Idle::ready`] always be [`Ready::All`]; the scanner, which security depends on, stays as it
//! is.

use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;

use super::read_ahead::ReadAhead;
use crate::clock::timer;
use crate::proxy::guard::scan::{Head, Rest, Scanner};

/// The use that hyper makes of a connection, as far as it decides on a rest.
#[derive(Default)]
pub(super) struct Idle {
    /// The heads for which the present hyper is ready.
    pub(super) ready: Ready,
    /// The upstream's protocol has no upper case in names.
    lower_case: Arc<AtomicBool>,
    pause: Pause,
    /// The next head waits for a hyper that is ready for it.
    pub(super) turning: bool,
    /// hyper was told that the connection ended.
    pub(super) resting: bool,
    /// hyper has a call whose answer it has not been given to its end.
    pub(super) busy: bool,
    /// hyper has been given something that it has not written, or not flushed.
    pub(super) unflushed: bool,
    /// The number of requests of which the present hyper has read a byte.
    pub(super) requests: usize,
    /// The number of calls that it has made of them.
    pub(super) calls: usize,
}

/// The heads for which hyper is ready. To keep names as they were written, and to have room for
/// more than its usual number of lines, costs memory and time with each head, so that hyper is
/// asked for either only once a head has come that needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ready {
    /// All heads, of any number of lines.
    #[default]
    All,
    /// Heads that come at once and have at most [`MANY_LINES`].
    Many,
    /// Heads that come at once and have few lines.
    Few,
    /// Likewise, and their names come out in lower case, so they must be in lower case if that
    /// shows.
    Usual,
}

/// The time for which nothing has come between calls, as far as it is known. It is not measured for
/// each call: a busy connection is looked at ten times a second.
#[derive(Default)]
enum Pause {
    /// Nothing is known.
    #[default]
    Unknown,
    /// The timer runs; `stirred` if something has come since it began.
    Timed { timer: Pin<Box<Sleep>>, stirred: bool },
    /// It was long enough, except for a call under way. hyper does not read again by itself once
    /// that is over.
    Over,
}

// === impl Idle ===

impl Idle {
    pub(super) fn new(lower_case: Arc<AtomicBool>) -> Self {
        Self { lower_case, ..Self::default() }
    }

    /// Begins with a new hyper, which is ready for the bytes that came `first`.
    pub(super) fn begin(&mut self, first: &[u8]) {
        self.resting = false;
        (self.requests, self.calls) = (0, 0);
        self.ready = match (take(&mut self.turning), Ready::for_first(first, self.shows_case())) {
            (true, Ready::Usual) => Ready::All, // it was declined, whatever has changed since
            (_, ready) => ready,
        };
    }

    /// True if the case of names reaches the upstream.
    pub(super) fn shows_case(&self) -> bool {
        !self.lower_case.load(Ordering::Relaxed)
    }

    /// Notes that something has come.
    pub(super) fn stir(&mut self) {
        match &mut self.pause {
            Pause::Timed { stirred, .. } => *stirred = true,
            pause => *pause = Pause::Unknown,
        }
    }

    /// Lets hyper go as soon as it has nothing else to do, if the next head waits for another
    /// hyper.
    pub(super) fn poll_turn(&mut self, input: &mut ReadAhead, cx: &Context<'_>) -> Poll<()> {
        if self.turning && !self.is_occupied() {
            self.resting = true;
            return Poll::Ready(());
        }
        input.park(cx)
    }

    /// Lets hyper go when there has been nothing to do for at least [`PAUSE`]. hyper has nothing of
    /// this connection's then: no call, and no bytes that it has not read as a call, since only
    /// whole requests came.
    pub(super) fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_occupied = self.is_occupied();
        loop {
            self.pause = match &mut self.pause {
                Pause::Timed { timer, stirred } => {
                    ready!(timer.as_mut().poll(cx));
                    match (*stirred, is_occupied) {
                        (true, _) => Pause::Unknown,
                        (false, true) => Pause::Over,
                        (false, false) => {
                            (self.pause, self.resting) = (Pause::Unknown, true);
                            return Poll::Ready(());
                        }
                    }
                }
                Pause::Over if is_occupied => return Poll::Pending,
                Pause::Over | Pause::Unknown => Pause::Timed { timer: timer(PAUSE), stirred: false },
            };
        }
    }

    /// Notes that hyper may have nothing more to do. It is woken if it must ask for a rest again,
    /// because an earlier pause was over too early.
    pub(super) fn release(&mut self, input: &mut ReadAhead) {
        if let Pause::Timed { stirred, .. } = &mut self.pause {
            *stirred = true;
        }
        if (self.turning || matches!(self.pause, Pause::Over)) && !self.is_occupied() {
            input.wake_reader();
        }
    }

    /// True if nothing has happened for a while, and hyper has no request besides the one that it
    /// is answering.
    pub(super) fn is_quiet(&self) -> bool {
        matches!(self.pause, Pause::Over) && !self.unflushed && self.requests == self.calls
    }

    /// True if hyper has a call, or something to write.
    const fn is_occupied(&self) -> bool {
        self.busy || self.unflushed
    }
}

// === impl Ready ===

impl Ready {
    /// The least hyper that takes the head at the beginning of `first`.
    fn for_first(first: &[u8], shows_case: bool) -> Self {
        let takes =
            |ready: &Self| Scanner::default().scan(first, |head| ready.takes(head, shows_case)).rest != Rest::Declined;
        [Self::Usual, Self::Few, Self::Many].into_iter().find(takes).unwrap_or(Self::All)
    }

    /// True if hyper can take the head as it is. Trailers come later, and may be many.
    #[inline]
    pub(super) fn takes(self, head: Option<&Head>, shows_case: bool) -> bool {
        self == Self::All
            || head.is_some_and(|head| {
                // One that switches goes by HTTP/1.1, whatever others go by.
                let loses_case = self == Self::Usual && head.capitals && (shows_case || head.switches);
                match self {
                    Self::Many => head.lines <= MANY_LINES,
                    _ => head.lines <= USUAL_LINES && !head.chunked && !loses_case,
                }
            })
    }
}

/// The time with nothing to do after which hyper is let go: long beside the time between the calls
/// of a client that is at work.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// hyper's own limit, where it is told none.
const USUAL_LINES: usize = 100;
/// hyper sets aside 32 bytes twice for each line that it is ready for, with each head.
pub(super) const MANY_LINES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::guard::scan::Scanned;

    #[test]
    fn only_what_hyper_is_not_ready_for_is_declined() {
        let head = |lines: &str| format!("GET / HTTP/1.1\r\n{lines}\r\n");
        let lines = |number: usize| head(&"x: y\r\n".repeat(number));
        for (bytes, shows_case, least) in [
            (head("host: h\r\n"), true, Ready::Usual),
            (head("host: H\r\n"), true, Ready::Usual),
            (head("Host: h\r\n"), true, Ready::Usual),
            (head("X-a: h\r\n"), true, Ready::Few),
            (head("X-a: h\r\n"), false, Ready::Usual),
            (head("host: h\r\nUpgrade: x\r\n"), false, Ready::Few),
            (head("host: h\r\nupgrade: x\r\n"), false, Ready::Usual),
            (lines(USUAL_LINES), true, Ready::Usual),
            (lines(USUAL_LINES + 1), true, Ready::Many),
            (lines(MANY_LINES), false, Ready::Many),
            (lines(MANY_LINES + 1), false, Ready::All),
            ("POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n".to_owned(), false, Ready::Many),
            ("POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n".to_owned(), true, Ready::Usual),
            ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n".to_owned(), true, Ready::Few),
            ("GET / HTTP/1.1\r\nhost: h\r\n".to_owned(), false, Ready::All),
            ("GE".to_owned(), false, Ready::All),
        ] {
            let before = "PUT / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc";
            let mut scanner = Scanner::default();
            let scanned =
                scanner.scan(format!("{before}{bytes}").as_bytes(), |head| Ready::Usual.takes(head, shows_case));
            if least == Ready::Usual {
                let passed = before.len() + bytes.len();
                assert_eq!(scanned, Scanned { passed, rest: Rest::None }, "{bytes:?}");
            } else {
                assert_eq!(scanned, Scanned { passed: before.len(), rest: Rest::Declined }, "{bytes:?}");
                assert!(scanner.is_between_requests());
                let again = scanner.scan(bytes.as_bytes(), |head| least.takes(head, shows_case));
                assert_eq!(again.passed, bytes.len(), "{bytes:?}");
            }
            assert_eq!(Ready::for_first(bytes.as_bytes(), shows_case), least, "{bytes:?}");
        }
    }
}
