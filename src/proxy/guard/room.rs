//! Room for the large heads of a gate's HTTP/1 clients, and for answers that they do not read.
//!
//! kube-apiserver takes heads of 1 MiB, so the gate must; but a thousand clients with one each would be a gigabyte, and hyper keeps a buffer
//! that has grown for as long as its connection. So what a head has beyond the usual is charged to one account for all, given back when the
//! connection ends; and a connection that had a large head ends with its answer.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// What all HTTP/1 clients of a gate together have in large heads, and what hyper has of their answers that is not written.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeadRoom {
    heads: Arc<AtomicUsize>,
    answers: Arc<AtomicUsize>,
}

/// One connection's part of it, given back when dropped.
#[derive(Debug)]
pub(crate) struct HeadShare {
    room: HeadRoom,
    /// Of the head that is coming in.
    head: usize,
    /// The longest that any head had beyond the usual.
    taken: usize,
    /// Of its answers, what hyper was given since it had written all of it.
    unwritten: usize,
}

// === impl HeadShare ===

impl HeadShare {
    pub(crate) fn of(room: HeadRoom) -> Self {
        Self { room, head: 0, taken: 0, unwritten: 0 }
    }

    /// So many bytes more came of a head that has not ended. False if there is no room for them.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        self.head += bytes;
        let more = self.head.saturating_sub(USUAL).saturating_sub(self.taken);
        if more == 0 {
            return true;
        }
        let before = self.room.heads.fetch_add(more, Ordering::Relaxed);
        self.taken += more;
        before + more <= ROOM
    }

    /// The head has ended.
    pub(crate) fn end(&mut self) {
        self.head = 0;
    }

    /// So many bytes more of an answer were given to hyper.
    pub(crate) fn give(&mut self, bytes: usize) {
        self.unwritten += bytes;
        self.room.answers.fetch_add(bytes, Ordering::Relaxed);
    }

    /// hyper has written all that it was given.
    pub(crate) fn written(&mut self) {
        self.room.answers.fetch_sub(self.unwritten, Ordering::Relaxed);
        self.unwritten = 0;
    }

    /// Whether hyper is to write before it is given more: it has a good deal, or something while all together have much. One who
    /// has nothing always gets more, so that no one waits for those who do not read.
    pub(crate) fn is_full(&self) -> bool {
        self.unwritten >= UNWRITTEN || (self.unwritten > 0 && self.room.answers.load(Ordering::Relaxed) >= ANSWERS)
    }

    /// Whether a head was larger than usual.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken > 0
    }
}

impl Drop for HeadShare {
    fn drop(&mut self) {
        if self.taken > 0 {
            self.room.heads.fetch_sub(self.taken, Ordering::Relaxed);
        }
        self.written();
    }
}

/// A head that is nobody's concern: a token of some kilobytes, and a few hundred groups to impersonate.
const USUAL: usize = 64 << 10;
/// For all large heads of a gate: thirty of the longest at once.
const ROOM: usize = 32 << 20;
/// Given to hyper of an answer before it must have written it: four of the largest pieces in which answers come.
const UNWRITTEN: usize = 64 << 10;
/// For the answers of all clients: past this each has one piece.
const ANSWERS: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_heads_take_no_room_and_large_ones_what_they_have_more() {
        let room = HeadRoom::default();
        let mut share = HeadShare::of(room.clone());
        for _ in 0..1000 {
            assert!(share.grow(USUAL / 2) && share.grow(USUAL / 2) && !share.is_taken());
            share.end();
        }
        assert!(share.grow(USUAL + 10) && share.grow(5) && share.is_taken());
        assert_eq!(room.heads.load(Ordering::Relaxed), 15);
        share.end();
        assert!(share.grow(USUAL + 15)); // the buffer is there already
        assert_eq!(room.heads.load(Ordering::Relaxed), 15);
        drop(share);
        assert_eq!(room.heads.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn past_what_all_may_have_unwritten_each_has_one_piece_and_who_has_none_gets_one() {
        let room = HeadRoom::default();
        let mut clients: Vec<_> = (0..1000).map(|_| HeadShare::of(room.clone())).collect();
        for _ in 0..100 {
            for client in &mut clients {
                if !client.is_full() {
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
            if !clients[0].is_full() {
                clients[0].give(16 << 10);
            }
        }
        assert_eq!(clients[0].unwritten, UNWRITTEN);
        drop(clients);
        assert_eq!(room.answers.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_comes_when_the_room_is_full_is_turned_away_and_room_comes_back() {
        let room = HeadRoom::default();
        let mut first = HeadShare::of(room.clone());
        assert!(first.grow(USUAL + ROOM));
        let mut second = HeadShare::of(room.clone());
        assert!(second.grow(USUAL));
        assert!(!second.grow(1));
        drop((first, second));
        assert!(HeadShare::of(room).grow(USUAL + ROOM));
    }
}
