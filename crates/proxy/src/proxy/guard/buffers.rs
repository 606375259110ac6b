//! Memory bounds for all HTTP/1 clients together (P9): large heads, answers not read yet, and bytes
//! read ahead.
//!
//! kube-apiserver takes heads of 1 MiB, so the gate must; but a thousand clients with one each
//! would take a gigabyte, and hyper keeps a grown buffer as long as the connection lives. So the
//! bytes of a large head beyond the usual size are counted until the connection ends, and the
//! connection ends after the answer to the call.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll, Waker};

use crate::proxy::share::Share;

/// Counts of the bytes held in memory for all HTTP/1 clients of a gate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) heads: Arc<AtomicUsize>,
    /// Bytes of answers given to hyper and not written yet.
    pub(crate) answers: Arc<AtomicUsize>,
    /// Bytes read before hyper asked for them.
    pub(crate) ahead: Arc<AtomicUsize>,
}

/// One connection's part of the bytes of large heads.
pub(crate) struct HeadShare {
    /// The bytes counted: those of its largest head beyond the usual size.
    share: Share,
    /// The bytes of the head coming in now.
    head: usize,
}

/// One connection's part of the unwritten answers: the bytes given to hyper since hyper last wrote
/// everything to the socket.
pub(crate) struct AnswerShare {
    share: Share,
    /// Wakes the response body that waits until it may give hyper more.
    giver: Option<Waker>,
}

// === impl HeadShare ===

impl HeadShare {
    pub(crate) fn of(heads: &Arc<AtomicUsize>) -> Self {
        Self { share: Share::of(heads), head: 0 }
    }

    /// Counts `bytes` more of an incomplete head. `most_lines` is the number of header lines of the
    /// longest head so far. Returns false if the memory for large heads is used up.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize, most_lines: usize) -> bool {
        self.head += bytes;
        let large = self.head.saturating_sub(USUAL) + most_lines.saturating_sub(USUAL_LINES) * LINE;
        large <= self.share.bytes() || self.share.set(large) <= HEADS
    }

    /// Records that the head is complete.
    pub(crate) fn end(&mut self) {
        self.head = 0;
    }

    /// Returns true if a head of this connection was larger than usual.
    pub(crate) fn is_taken(&self) -> bool {
        self.share.bytes() > 0
    }
}

// === impl AnswerShare ===

impl AnswerShare {
    pub(crate) fn of(answers: &Arc<AtomicUsize>) -> Self {
        Self { share: Share::of(answers), giver: None }
    }

    /// Counts `bytes` more as given to hyper.
    pub(crate) fn give(&mut self, bytes: usize) {
        self.share.set(self.share.bytes() + bytes);
    }

    /// Records that hyper has written everything.
    pub(crate) fn written(&mut self) {
        if self.share.bytes() > 0 {
            self.share.set(0);
            self.giver.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Becomes ready when hyper may be given more of this connection's answer. A connection with
    /// nothing unwritten always gets more, so that clients that do not read cannot block it.
    /// Otherwise it must wait if it has much unwritten, or if all connections together have.
    pub(crate) fn poll_room(&mut self, cx: &Context<'_>) -> Poll<()> {
        let unwritten = self.share.bytes();
        if unwritten < UNWRITTEN && (unwritten == 0 || self.share.total() < ANSWERS) {
            return Poll::Ready(());
        }
        self.giver = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// The size of a usual head, which is not counted: a token of some kilobytes, and a few hundred
/// groups to impersonate.
const USUAL: usize = 64 << 10;
/// The number of lines of a usual head; they are not counted.
const USUAL_LINES: usize = 512;
/// The bytes counted for each further line: its place in the header map, its name as it was
/// written, and a copy for each attempt upstream.
const LINE: usize = 512;
/// The most bytes of all large heads: thirty of the longest at once.
const HEADS: usize = 32 << 20;
/// The most unwritten bytes of an answer in hyper: four of the largest pieces of answers.
const UNWRITTEN: usize = 64 << 10;
/// The most unwritten bytes of all clients' answers: past this each has one piece.
const ANSWERS: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    fn has_room(share: &mut AnswerShare) -> bool {
        share.poll_room(&Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn usual_heads_take_no_room_and_large_ones_what_they_have_more() {
        let room = Buffers::default();
        let mut share = HeadShare::of(&room.heads);
        for _ in 0..1000 {
            assert!(share.grow(USUAL / 2, 0) && share.grow(USUAL / 2, 0) && !share.is_taken());
            share.end();
        }
        assert!(share.grow(USUAL + 10, 0) && share.grow(5, 0) && share.is_taken());
        assert_eq!(room.heads.load(Ordering::Relaxed), 15);
        share.end();
        assert!(share.grow(USUAL + 15, 0)); // the buffer is there already
        assert_eq!(room.heads.load(Ordering::Relaxed), 15);
        drop(share);
        assert_eq!(room.heads.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn lines_past_the_usual_take_room_until_the_connection_ends() {
        let room = Buffers::default();
        let mut share = HeadShare::of(&room.heads);
        assert!(share.grow(20_000, USUAL_LINES) && !share.is_taken());
        assert!(share.grow(0, USUAL_LINES + 2) && share.is_taken());
        share.end();
        assert_eq!(room.heads.load(Ordering::Relaxed), 2 * LINE);
        assert!(!share.grow(0, USUAL_LINES + HEADS / LINE + 1));
        drop(share);
        assert_eq!(room.heads.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn past_what_all_may_have_unwritten_each_has_one_piece_and_who_has_none_gets_one() {
        let room = Buffers::default();
        let mut clients: Vec<_> = (0..1000).map(|_| AnswerShare::of(&room.answers)).collect();
        for _ in 0..100 {
            for client in &mut clients {
                if has_room(client) {
                    client.give(16 << 10);
                }
            }
        }
        let all = room.answers.load(Ordering::Relaxed);
        assert!(all <= 1000 * (16 << 10), "{all}");
        assert!(clients.iter().all(|client| client.share.bytes() > 0));
        clients.truncate(10);
        clients[0].written();
        for _ in 0..10 {
            if has_room(&mut clients[0]) {
                clients[0].give(16 << 10);
            }
        }
        assert_eq!(clients[0].share.bytes(), UNWRITTEN);
        drop(clients);
        assert_eq!(room.answers.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_comes_when_the_room_is_full_is_turned_away_and_room_comes_back() {
        let room = Buffers::default();
        let mut first = HeadShare::of(&room.heads);
        assert!(first.grow(USUAL + HEADS, 0));
        let mut second = HeadShare::of(&room.heads);
        assert!(second.grow(USUAL, 0));
        assert!(!second.grow(1, 0));
        drop((first, second));
        assert!(HeadShare::of(&room.heads).grow(USUAL + HEADS, 0));
    }
}
