//! A common limit on the memory for the request bodies of all reviews.
//!
//! When the limit is reached, the review with the largest body is given up. A usual pod takes some
//! kilobytes, so a huge or endless body cannot displace it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::lock;
use tokio_util::sync::CancellationToken;

/// The memory that all reviews share.
#[derive(Debug)]
pub(super) struct Budget {
    most: usize,
    shares: Mutex<Shares>,
}

/// The memory taken by each review under way.
#[derive(Debug, Default)]
struct Shares {
    next: u64,
    taken: BTreeMap<u64, (usize, CancellationToken)>,
}

/// The memory taken by one review.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    number: u64,
    is_lost: CancellationToken,
}

// === impl Budget ===

impl Budget {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, shares: Mutex::default() })
    }

    pub(super) fn share(self: &Arc<Self>) -> Share {
        let is_lost = CancellationToken::new();
        let mut shares = lock(&self.shares);
        let number = shares.next;
        shares.next += 1;
        shares.taken.insert(number, (0, is_lost.clone()));
        drop(shares);
        Share { budget: Arc::clone(self), number, is_lost }
    }
}

// === impl Share ===

impl Share {
    /// Sets the memory that this review takes. If all together take too much, the largest ones lose
    /// their memory. Returns false if this review is one of them.
    pub(super) fn set(&self, bytes: usize) -> bool {
        let mut shares = lock(&self.budget.shares);
        match shares.taken.get_mut(&self.number) {
            Some((size, _)) => *size = bytes,
            None => return false,
        }
        while shares.taken.values().map(|(size, _)| size).sum::<usize>() > self.budget.most {
            let largest = shares.taken.iter().max_by_key(|(_, (size, _))| size).map(|(number, _)| *number);
            let Some((_, is_lost)) = largest.and_then(|largest| shares.taken.remove(&largest)) else { break };
            is_lost.cancel();
        }
        shares.taken.contains_key(&self.number)
    }

    /// Waits until this review loses its memory to others.
    pub(super) async fn lost(&self) {
        self.is_lost.cancelled().await;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        lock(&self.budget.shares).taken.remove(&self.number);
    }
}

/// Returns the memory needed to review a body: some copies of its text, and every value of its
/// JSON. Even an empty JSON object takes a kilobyte.
pub(super) fn cost(body: &[u8]) -> usize {
    let mut objects = 0;
    let mut values = 0;
    let mut in_text = false;
    let mut is_escaped = false;
    for byte in body {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'{' => objects += 1,
            b',' | b'[' | b':' => values += 1,
            _ => {}
        }
    }
    TEXT * body.len() + OBJECT * objects + VALUE * values
}

/// The number of copies of the text in memory: as received, and in the parsed JSON.
const TEXT: usize = 2;
/// The memory of a JSON object: a map of `serde_json` makes room for eleven entries at once.
const OBJECT: usize = 1024;
const VALUE: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_body_makes_room() {
        let budget = Budget::new(100);
        let [small, large, newest] = [(); 3].map(|()| budget.share());
        assert!(small.set(10) && large.set(80) && newest.set(10));
        assert!(newest.set(11) && large.is_lost.is_cancelled() && !large.set(1));
        assert!(!newest.set(91), "now it is the largest itself");
        assert!(newest.is_lost.is_cancelled() && small.set(100));
        drop(small);
        assert!(budget.share().set(100), "what is over takes nothing");
    }

    #[test]
    fn small_objects_cost_more_than_their_text() {
        assert_eq!(cost(br#"{"a":[1,"{,:\"[{"]}"#), TEXT * 19 + OBJECT + VALUE * 3);
        let objects = [b"[".to_vec(), b"{},".repeat(7 << 18), b"0]".to_vec()].concat();
        assert!(cost(&objects) > 1 << 30);
        assert!(cost(&vec![b' '; 3 << 20]) < 10 << 20, "as large as an object may be");
    }
}
