//! Lets more retries through while retries succeed.
//!
//! A retry shows whether the upstream has recovered. At a fixed rate, as few retries would be let
//! through after the recovery as before. But a refused retry comes back late: a controller's queue
//! doubles the delay of an object at each refusal, so that an object refused just after the
//! recovery stays away for as long as the outage has lasted. So answers change the limit, as in the
//! retry quotas of the AWS SDKs and of gRPC (proposal A6): a success gives its token back and adds
//! more. Tokens then come at the pace of the upstream's answers, as in TCP's slow start. No time
//! constant has to be set, and after two or three rounds of answers only the gate's bucket limits
//! retries. While all retries fail, the bucket is a plain one with a low rate.
//!
//! The two possible errors are not equally bad. A failing retry costs the upstream one call, and
//! each key has a backoff of its own besides. A needless refusal costs an object minutes. So a
//! bucket that is open accepts many failures in a row before it closes: it serves the objects that
//! have recovered among objects that never will. A second outage wastes only those few retries.
//!
//! While tokens are scarce, the keys take turns. A controller's queue tries its objects in the same
//! order again and again. Without turns, the same objects would get all tokens, and the backoff of
//! all other objects would grow past the end of the outage.

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
    /// The number of refused retries since the last failed one, or since refusals last added a
    /// token.
    refused: u32,
    /// The moment of the last token added by refusals.
    given_at: Moment,
}

// === impl Valve ===

impl Valve {
    /// Returns true if retries succeed. Then they may wait for their tokens as healthy calls do.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns true if a key must leave the last token to the refused key (`passed_over`). The
    /// refused key has at least two failures less, and its last failure is longer ago. One of the
    /// two is not enough. With fewer failures alone, keys that have just begun to fail would take
    /// every token from one that has failed for long. And a difference of one tells nothing yet:
    /// some key has to be tried first.
    pub(crate) fn gives_way(&self, key: &KeyState) -> bool {
        let has_waited =
            |other: &KeyState| other.failures < key.failures.saturating_sub(1) && other.last_failure < key.last_failure;
        !self.is_open && self.passed_over.as_ref().is_some_and(has_waited)
    }

    /// Records the refusal of a key's retry for lack of a token. Returns true if the bucket gets a
    /// token for it: about every twentieth refused retry adds one.
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

    /// Records the failure of a retry, for a bucket with `tokens`. Returns how many tokens remain.
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

/// The tokens added for a success: as many as the segments of TCP's initial window (RFC 6928).
const GIVEN: u32 = 10;
/// The number of refused retries before one adds a token. With many failing keys, the bucket's own
/// rate alone would discover the recovery too late.
const REFUSED: u32 = 19;
/// The least time between two tokens added by refusals: ten a second are enough to discover a
/// recovery.
const BETWEEN_GIFTS: Duration = Duration::from_millis(100);
/// The number of failed retries in a row to close an open bucket. An open bucket lets more retries
/// through; one success in twenty keeps it open.
const BORNE_WHEN_OPEN: u32 = 20;
/// The number of failed retries in a row to take all tokens from a closed bucket. It is more than
/// one, so that one broken object does not block the retries of all other objects.
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
