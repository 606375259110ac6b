//! The bound on the bytes that large heads of HTTP/1 clients, answers that they do not read, and
//! what is read ahead of their calls may hold (P9).
//!
//! kube-apiserver takes heads of 1 MiB, so the gate must; but a thousand clients with one each
//! would be a gigabyte, and hyper keeps a buffer that has grown for as long as it has the
//! connection. So the bytes of a head beyond the usual are charged to one account for all clients,
//! and given back when hyper is done with the connection; and a connection that had a large head
//! ends with its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

/// The bytes that all HTTP/1 clients of a section together have in large heads, those that hyper
/// has of their answers and has not written, and those that were read ahead of hyper.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    heads: AtomicUsize,
    answers: AtomicUsize,
    ahead: AtomicUsize,
}

/// One connection's part of the heads, given back when dropped.
pub(crate) struct HeadShare {
    all: Arc<Buffers>,
    /// The bytes of the head that is coming in.
    head: usize,
    /// The most that any head had beyond the usual.
    taken: usize,
}

/// One connection's part of the answers, given back when dropped.
pub(crate) struct AnswerShare {
    pub(crate) all: Arc<Buffers>,
    /// The bytes that hyper was given since it last had written everything.
    unwritten: usize,
    /// A body that waits until hyper may be given more.
    giver: Option<Waker>,
}

/// One connection's part of what is read ahead, given back when dropped.
pub(crate) struct AheadShare {
    all: Arc<Buffers>,
    taken: usize,
}

// === impl HeadShare ===

impl HeadShare {
    pub(crate) fn of(all: Arc<Buffers>) -> Self {
        Self { all, head: 0, taken: 0 }
    }

    /// Counts bytes more of a head that has not ended, and the most lines that any head had. False
    /// if there is no room for them.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize, most_lines: usize) -> bool {
        self.head += bytes;
        let large = self.head.saturating_sub(USUAL) + most_lines.saturating_sub(USUAL_LINES) * LINE;
        let more = large.saturating_sub(self.taken);
        if more == 0 {
            return true;
        }
        let before = self.all.heads.fetch_add(more, Ordering::Relaxed);
        self.taken += more;
        before + more <= HEADS
    }

    /// Notes that the head has ended.
    pub(crate) fn end(&mut self) {
        self.head = 0;
    }

    /// True if a head was larger than usual.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken > 0
    }
}

impl Drop for HeadShare {
    fn drop(&mut self) {
        if self.taken > 0 {
            self.all.heads.fetch_sub(self.taken, Ordering::Relaxed);
        }
    }
}

// === impl AnswerShare ===

impl AnswerShare {
    pub(crate) fn of(all: Arc<Buffers>) -> Self {
        Self { all, unwritten: 0, giver: None }
    }

    /// Counts bytes more of an answer that were given to hyper.
    pub(crate) fn give(&mut self, bytes: usize) {
        self.unwritten += bytes;
        self.all.answers.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that hyper has written all that it was given.
    pub(crate) fn written(&mut self) {
        if self.unwritten == 0 {
            return;
        }
        self.all.answers.fetch_sub(self.unwritten, Ordering::Relaxed);
        self.unwritten = 0;
        if let Some(giver) = self.giver.take() {
            giver.wake();
        }
    }

    /// Becomes ready when hyper may be given more. It must write before that if it has a good deal,
    /// or something while all together have much. A connection that has nothing always gets more,
    /// so that none waits for clients that do not read.
    pub(crate) fn poll_room(&mut self, cx: &Context<'_>) -> Poll<()> {
        let all = self.all.answers.load(Ordering::Relaxed);
        if self.unwritten < UNWRITTEN && (self.unwritten == 0 || all < ANSWERS) {
            return Poll::Ready(());
        }
        self.giver = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for AnswerShare {
    fn drop(&mut self) {
        self.written();
    }
}

// === impl AheadShare ===

impl AheadShare {
    pub(crate) fn of(all: Arc<Buffers>) -> Self {
        Self { all, taken: 0 }
    }

    /// True if there is room to read more ahead.
    pub(crate) fn has_room(&self) -> bool {
        self.all.ahead.load(Ordering::Relaxed) < AHEAD
    }

    /// Counts the bytes that the connection has ahead now.
    pub(crate) fn set(&mut self, bytes: usize) {
        if bytes > self.taken {
            self.all.ahead.fetch_add(bytes - self.taken, Ordering::Relaxed);
        } else if bytes < self.taken {
            self.all.ahead.fetch_sub(self.taken - bytes, Ordering::Relaxed);
        }
        self.taken = bytes;
    }
}

impl Drop for AheadShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// The bytes of a head that need not be counted: a token of some kilobytes, and a few hundred
/// groups to impersonate.
const USUAL: usize = 64 << 10;
/// The lines of a head that need not be counted, and the bytes that each further one costs once it
/// is read: a header map has more than a hundred bytes for a line, another has its name as it was
/// written, and each try upstream has a copy.
const USUAL_LINES: usize = 512;
const LINE: usize = 512;
/// The bound on all large heads: thirty of the longest at once.
const HEADS: usize = 32 << 20;
/// The bytes of an answer that hyper is given before it must have written them: four of the largest
/// pieces in which answers come.
const UNWRITTEN: usize = 64 << 10;
/// The bound on the answers of all clients: past this each has one piece.
const ANSWERS: usize = 8 << 20;
/// The bound on what is read ahead of all clients.
const AHEAD: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn has_room(share: &mut AnswerShare) -> bool {
        share.poll_room(&Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn usual_heads_take_no_room_and_large_ones_what_they_have_more() {
        let room = Arc::<Buffers>::default();
        let mut share = HeadShare::of(room.clone());
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
        let room = Arc::<Buffers>::default();
        let mut share = HeadShare::of(room.clone());
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
        let room = Arc::<Buffers>::default();
        let mut clients: Vec<_> = (0..1000).map(|_| AnswerShare::of(room.clone())).collect();
        for _ in 0..100 {
            for client in &mut clients {
                if has_room(client) {
                    client.give(16 << 10);
                }
            }
        }
        let all = room.answers.load(Ordering::Relaxed);
        assert!(all <= 1000 * (16 << 10), "{all}");
        assert!(clients.iter().all(|client| client.unwritten > 0));
        clients.truncate(10);
        clients[0].written();
        for _ in 0..10 {
            if has_room(&mut clients[0]) {
                clients[0].give(16 << 10);
            }
        }
        assert_eq!(clients[0].unwritten, UNWRITTEN);
        drop(clients);
        assert_eq!(room.answers.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_comes_when_the_room_is_full_is_turned_away_and_room_comes_back() {
        let room = Arc::<Buffers>::default();
        let mut first = HeadShare::of(room.clone());
        assert!(first.grow(USUAL + HEADS, 0));
        let mut second = HeadShare::of(room.clone());
        assert!(second.grow(USUAL, 0));
        assert!(!second.grow(1, 0));
        drop((first, second));
        assert!(HeadShare::of(room).grow(USUAL + HEADS, 0));
    }
}
