//! Opens a retry bucket while retries succeed.
//!
//! Each retry asks whether the upstream has healed. At a fixed rate it is asked as often after the
//! answer as before, and refused retries come back late: a controller's queue doubles the delay of
//! an object at each refusal, so that an object which is refused just after the upstream has healed
//! stays away for as long as the outage has lasted. So answers count here, as in the retry quotas of
//! the AWS SDKs and of gRPC (proposal A6): a success gives its token back, and more with it. Tokens
//! then come with answers, by the upstream's own clock, as in TCP's slow start. There is no time
//! constant to set, and after two or three rounds of answers only the gate's bucket limits retries.
//! While all of them fail, the bucket is a plain one with a low rate.
//!
//! The two possible errors are not equally bad. A retry that fails costs the upstream one call, and
//! each key has a backoff of its own besides. A needless refusal costs an object minutes. So an open
//! bucket bears many failures in a row before it closes: it serves objects that have healed among
//! others that never will. A relapse spends only those few.
//!
//! While few tokens come, they go round. A controller's queue tries its objects in the same order
//! again and again. Without that, the same objects would get all tokens, and their backoff would
//! grow past the end of the outage.

use std::time::Duration;

use crate::KeyState;
use crate::moment::Moment;

/// Lets more retries through while they succeed, and fewer when they fail.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Valve {
    is_open: bool,
    /// The failures in a row since a success, or since the bucket was full.
    failures: u32,
    /// The key with a refused retry since the last answer; of several, the one with the fewest
    /// failures.
    passed_over: Option<KeyState>,
    /// The number of refused retries since the last failure, or since refusals last brought a
    /// token.
    refused: u32,
    /// The moment when refusals last brought a token.
    given_at: Moment,
}

// === impl Valve ===

impl Valve {
    /// Returns true if retries succeed. Then they may wait for their tokens as healthy calls do.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns true if a key must leave the last token to the refused key. That one has at least
    /// two failures less, and its last failure is longer ago. One of the two is not enough. With
    /// fewer failures alone, keys that have just begun to fail would take every token from one that
    /// has failed for long. And a difference of one tells nothing yet: some key has to be tried
    /// first.
    pub(crate) fn gives_way(&self, key: &KeyState) -> bool {
        let has_waited =
            |other: &KeyState| other.failures < key.failures.saturating_sub(1) && other.last_failure < key.last_failure;
        !self.is_open && self.passed_over.as_ref().is_some_and(has_waited)
    }

    /// Records the refusal of a key's retry for want of a token. Returns true if the bucket gets a
    /// token for it: each twentieth retry goes.
    pub(crate) fn pass_over(&mut self, key: KeyState, now: Moment) -> bool {
        let tried = |key: &KeyState| (key.failures, key.last_failure);
        if self.passed_over.as_ref().is_none_or(|least| tried(&key) < tried(least)) {
            self.passed_over = Some(key);
        }
        self.refused = self.refused.saturating_add(1);
        let gives = !self.is_open && self.refused >= REFUSED && now - self.given_at >= BETWEEN_GIFTS;
        if gives {
            self.refused = 0;
            self.given_at = now;
        }
        gives
    }

    /// Records the success of a retry. Returns the number of tokens to add for it.
    pub(crate) fn succeeded(&mut self) -> u32 {
        *self = Self { is_open: true, ..Self::default() };
        GIVEN
    }

    /// Records the failure of a retry, for a bucket with `tokens`. Returns how many of them are
    /// left.
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
        self.refused = 0;
        tokens.min(most - self.failures)
    }
}

/// The tokens added for a success: as many segments as TCP sends before it knows anything (RFC
/// 6928).
const GIVEN: u32 = 10;
/// The number of refused retries before one goes. Many keys are tried so often that the bucket's own
/// rate would find out late that they have healed.
const REFUSED: u32 = 19;
/// The least time between two such tokens: ten a second are enough to find it out.
const BETWEEN_GIFTS: Duration = Duration::from_millis(100);
/// The most failed retries in a row of a bucket with free passage before it has no token for them:
/// one success in twenty is enough to go on.
const BORNE_WHEN_OPEN: u32 = 20;
/// How many failures in a row a rested bucket bears before it has no token, so that one object with
/// a fault of its own does not speak for all others.
const BORNE: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens left after each of so many failures.
    fn kept(valve: &mut Valve, mut tokens: u32, failures: usize) -> Vec<u32> {
        let mut all = Vec::new();
        for _ in 0..failures {
            tokens = valve.failed(tokens, 100);
            all.push(tokens);
        }
        all
    }

    #[test]
    fn a_bucket_that_rested_bears_a_few_failures_and_has_no_tokens_then() {
        let mut valve = Valve::default();
        assert_eq!(kept(&mut valve, 100, 6), [4, 3, 2, 1, 0, 0]);
        assert_eq!(valve.failed(4, 100), 0, "it has not rested since");
        assert_eq!(valve.failed(5, 100), 4);
        assert!(!valve.is_open());
    }

    #[test]
    fn one_success_opens_it_and_twenty_failures_in_a_row_close_it() {
        let mut valve = Valve::default();
        assert_eq!((valve.succeeded(), valve.is_open()), (GIVEN, true));
        assert_eq!(kept(&mut valve, 100, 19).last(), Some(&1));
        assert!(valve.is_open());
        assert_eq!((valve.failed(1, 100), valve.is_open()), (0, false));
        valve.succeeded();
        assert_eq!(kept(&mut valve, 100, 19).last(), Some(&1), "a success makes up for all of them");
        assert!(valve.is_open());
    }
}
