//! The bytes held for waiting calls, bounded over several limiters together.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// The bytes held for the waiting calls of one limiter. Dropping it subtracts them from the sum.
#[derive(Debug, Default)]
pub(crate) struct WaitingBytes {
    pub(crate) own: usize,
    /// The sum over all limiters with the same bound.
    sum: Arc<AtomicUsize>,
}

// === impl WaitingBytes ===

impl WaitingBytes {
    pub(crate) fn sharing(sum: Arc<AtomicUsize>) -> Self {
        Self { own: 0, sum }
    }

    /// Counts more bytes, unless the sum would be above `max`. Returns true if they were counted.
    #[must_use]
    pub(crate) fn try_add(&mut self, bytes: usize, max: usize) -> bool {
        let fits = |sum: usize| sum.checked_add(bytes).filter(|sum| *sum <= max);
        let is_counted = self.sum.fetch_update(Relaxed, Relaxed, fits).is_ok();
        self.own += if is_counted { bytes } else { 0 };
        is_counted
    }

    pub(crate) fn add(&mut self, bytes: usize) {
        if bytes > 0 {
            self.own += bytes;
            self.sum.fetch_add(bytes, Relaxed);
        }
    }

    pub(crate) fn subtract(&mut self, bytes: usize) {
        if bytes > 0 {
            self.own -= bytes;
            self.sum.fetch_sub(bytes, Relaxed);
        }
    }
}

impl Drop for WaitingBytes {
    fn drop(&mut self) {
        self.subtract(self.own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limiter_that_goes_takes_its_bytes_out_of_the_sum() {
        let sum = Arc::<AtomicUsize>::default();
        let [mut one, mut other] = [(); 2].map(|()| WaitingBytes::sharing(Arc::clone(&sum)));
        assert!(one.try_add(60, 100) && !other.try_add(41, 100) && other.try_add(40, 100));
        one.subtract(10);
        assert_eq!((one.own, other.own, sum.load(Relaxed)), (50, 40, 90));
        drop(one);
        assert!(other.try_add(60, 100));
        drop(other);
        assert_eq!(sum.load(Relaxed), 0);
    }
}
