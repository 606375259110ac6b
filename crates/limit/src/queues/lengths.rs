//! Queue lengths: counts the turns until a given position in one of many queues is reached.
//!
//! A call with `p` calls before it in its own queue waits until each of the other queues has had
//! `min(length, p)` turns. A sum over 10,000 queues at every arrival would be too slow. So lengths
//! are kept as "how many queues are at least k long", and a Fenwick tree gives the prefix sums in
//! O(log n).

#![expect(clippy::indexing_slicing, reason = "places of a tree whose length bounds every loop over it")]

/// The lengths of many queues, kept for fast prefix sums.
#[derive(Debug, Default)]
pub(crate) struct QueueLengths {
    /// The Fenwick tree over the numbers of queues with at least 1, 2, 3, ... calls. Its length is a
    /// power of two.
    tree: Vec<u64>,
}

// === impl QueueLengths ===

impl QueueLengths {
    /// Records that a queue has grown by one call, to `length`.
    pub(crate) fn grew_to(&mut self, length: usize) {
        while self.tree.len() < length {
            self.widen();
        }
        self.add(length, true);
    }

    /// Records that a queue of `length` has lost a call.
    pub(crate) fn shrank_from(&mut self, length: usize) {
        debug_assert!(length <= self.tree.len(), "no queue was {length} long");
        self.add(length, false);
    }

    /// Returns the sum over all queues of `min(length, places)`.
    pub(crate) fn within(&self, places: usize) -> usize {
        let mut k = places.min(self.tree.len());
        let mut sum = 0_u64;
        while k > 0 {
            sum += self.tree[k - 1];
            k &= k - 1;
        }
        usize::try_from(sum).unwrap_or(usize::MAX)
    }

    fn add(&mut self, length: usize, more: bool) {
        let mut k = length.max(1);
        while k <= self.tree.len() {
            let sum = &mut self.tree[k - 1];
            *sum = if more { *sum + 1 } else { sum.saturating_sub(1) };
            k += k & k.wrapping_neg();
        }
    }

    fn widen(&mut self) {
        let total = self.tree.last().copied().unwrap_or_default();
        let width = (2 * self.tree.len()).max(1);
        self.tree.resize(width, 0);
        self.tree[width - 1] = total;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_the_sum_over_queues() {
        let mut queue_lengths = QueueLengths::default();
        let mut lengths = [0_usize; 7];
        let mut state = 1_u64;
        for _ in 0..5000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let queue = (state >> 33) as usize % lengths.len();
            if state >> 63 == 0 || lengths[queue] == 0 {
                lengths[queue] += 1;
                queue_lengths.grew_to(lengths[queue]);
            } else {
                queue_lengths.shrank_from(lengths[queue]);
                lengths[queue] -= 1;
            }
            for places in [0, 1, 2, 5, 100, 1000] {
                let expected: usize = lengths.iter().map(|length| places.min(*length)).sum();
                assert_eq!(queue_lengths.within(places), expected);
            }
        }
    }
}
