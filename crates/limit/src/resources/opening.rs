//! Opens a retry bucket while what it lets through succeeds.
//!
//! Each retry asks a question: has the upstream healed? At a fixed rate it is asked as often after
//! the answer as before it, and what is refused meanwhile comes back late: a controller's queue
//! doubles the delay of an object at each refusal, so that an object which is refused just after
//! the upstream has healed stays away for as long as the outage has lasted. So the answer counts
//! here, as in the retry quotas of the AWS SDKs and of gRPC (proposal A6): a success gives its
//! token back, and more with it. Tokens then come with answers, by the upstream's own clock, as in
//! TCP's slow start: there is no time constant to set, and after two or three rounds of answers
//! only the gate's bucket limits retries. While all of them fail, the bucket is a plain one with a
//! low rate.
//!
//! The two errors that it can make are not equally bad. A retry that fails costs the upstream one
//! call, and each key has a backoff of its own besides. A needless refusal costs an object minutes.
//! So a bucket that is open bears many failures in a row before it closes: it serves objects that
//! have healed among others that never will. In a relapse those few are all it spends.
//!
//! While few tokens come, they go round. A controller's queue tries its objects in the same order
//! again and again, so that the tokens would go to the same ones, whose backoff would grow past the
//! end of the outage.

use crate::KeyState;

/// The answers to the latest retries, as far as they matter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Valve {
    is_open: bool,
    /// The number of failures since a success, or since the bucket rested.
    failures: u32,
    /// Of the keys that were refused since the last answer the one that failed least often.
    passed_over: Option<KeyState>,
}

// === impl Valve ===

impl Valve {
    /// True if retries succeed: then they may wait for their tokens as healthy calls do.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// True if a key gives way to the one that was refused: if that has failed at least two times
    /// less often, and its last failure is longer ago. One of the two is not enough. Fewer failures
    /// alone would let keys that have just begun to fail take every token from one that has failed
    /// for long. And a difference of one says nothing yet: some key has to be tried first.
    pub(crate) fn gives_way(&self, key: &KeyState) -> bool {
        let has_waited =
            |other: &KeyState| other.failures < key.failures.saturating_sub(1) && other.last_failure < key.last_failure;
        !self.is_open && self.passed_over.as_ref().is_some_and(has_waited)
    }

    /// Records that a key was refused.
    pub(crate) fn pass_over(&mut self, key: KeyState) {
        let tried = |key: &KeyState| (key.failures, key.last_failure);
        if self.passed_over.as_ref().is_none_or(|least| tried(&key) < tried(least)) {
            self.passed_over = Some(key);
        }
    }

    /// Records the success of a retry. Returns the number of tokens that it gives.
    pub(crate) fn succeeded(&mut self) -> u32 {
        *self = Self { is_open: true, ..Self::default() };
        GIVEN
    }

    /// Records the failure of a retry; the bucket has so many whole tokens, of `burst`. Returns how
    /// many stay.
    pub(crate) fn failed(&mut self, tokens: u32, burst: u32) -> u32 {
        let most = if self.is_open { BORNE_WHEN_OPEN } else { BORNE };
        // It had time to fill, so that these are the first retries for a while. A small bucket was
        // full: the retry itself took a token of it.
        if !self.is_open && tokens >= most.min(burst.saturating_sub(1)) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1).min(most);
        self.is_open &= self.failures < most;
        self.passed_over = None;
        tokens.min(most - self.failures)
    }
}

/// The tokens that a success gives: as many calls as TCP sends before it knows anything (RFC 6928).
const GIVEN: u32 = 10;
/// The failures in a row after which a bucket that was open closes: one success in twenty is
/// enough to go on.
const BORNE_WHEN_OPEN: u32 = 20;
/// The failures in a row after which a bucket that rested is known to be of no use: so that one
/// object with a fault of its own does not speak for all others.
const BORNE: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens that stay of these after each of so many failures.
    fn kept(opening: &mut Valve, mut tokens: u32, failures: usize) -> Vec<u32> {
        let mut all = Vec::new();
        for _ in 0..failures {
            tokens = opening.failed(tokens, 100);
            all.push(tokens);
        }
        all
    }

    #[test]
    fn a_bucket_that_rested_bears_a_few_failures_and_has_no_tokens_then() {
        let mut opening = Valve::default();
        assert_eq!(kept(&mut opening, 100, 6), [4, 3, 2, 1, 0, 0]);
        assert_eq!(opening.failed(4, 100), 0, "it has not rested since");
        assert_eq!(opening.failed(5, 100), 4);
        assert!(!opening.is_open());
    }

    #[test]
    fn one_success_opens_it_and_twenty_failures_in_a_row_close_it() {
        let mut opening = Valve::default();
        assert_eq!((opening.succeeded(), opening.is_open()), (GIVEN, true));
        assert_eq!(kept(&mut opening, 100, 19).last(), Some(&1));
        assert!(opening.is_open());
        assert_eq!((opening.failed(1, 100), opening.is_open()), (0, false));
        opening.succeeded();
        assert_eq!(kept(&mut opening, 100, 19).last(), Some(&1), "a success makes up for all of them");
        assert!(opening.is_open());
    }
}
