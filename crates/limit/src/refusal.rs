//! Reasons of waits and refusals, and the state of a failing key.

use std::time::Duration;

use crate::moment::Moment;

words! {
    /// The reason of a wait or a refusal. The list is closed; header, metric, log and status page
    /// use the same word.
    pub enum Reason {
        /// Its key failed, and the delay is not over.
        Backoff = "backoff",
        /// The gate's bucket is empty.
        Bucket = "bucket",
        /// The bodies of waiting calls take up all the bytes allowed.
        BytesFull = "bytes_full",
        /// The bucket of its class, or of an outer class, is empty.
        ClassBucket = "class_bucket",
        /// It cannot leave before its client's own deadline.
        Deadline = "deadline",
        /// Another write of the key is out.
        OneAtATime = "one_at_a_time",
        /// The upstream asked for a pause.
        Pause = "pause",
        /// Its object was called more often than its class allows.
        PerKey = "per_key",
        /// Too many calls wait already.
        QueueFull = "queue_full",
        /// The retry bucket is empty, or the gate's bucket: a retry waits for neither.
        RetryBucket = "retry_bucket",
        /// No free slot, or no room on a connection.
        Slot = "slot",
        /// Another call of its failing key is the trial.
        Trial = "trial",
    }
}

/// A refusal: the reason, and when to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub reason: Reason,
    /// The earliest useful time of a retry.
    pub retry_at: Moment,
    /// The time the call had waited.
    pub waited: Duration,
    /// The state of its key, if the key is the reason.
    pub key: Option<KeyState>,
}

/// The cause of a refusal, without the facts of the call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cause {
    pub(super) reason: Reason,
    pub(super) retry_at: Moment,
    /// True if the refusal shows the state of the call's key.
    pub(super) of_key: bool,
}

/// The state of a failing key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyState {
    /// The number of consecutive failures.
    pub failures: u32,
    /// The status of the last failure; `None` if the call was lost after it was sent.
    pub last_status: Option<u16>,
    /// The moment of the last failure.
    pub last_failure: Moment,
    /// The earliest time of the next trial.
    pub ready_at: Moment,
}

/// The end of a key's failures, for the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEnd {
    /// The name of the key.
    pub name: Box<str>,
    /// Its failures in a row.
    pub failures: u32,
    /// The reason of the end.
    pub why: Why,
}

/// The reason for the end of a key's failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Too many keys fail.
    Crowded,
    /// Its object is gone.
    Gone,
    /// It has not failed for a long time.
    Old,
    /// A call of it succeeded.
    Recovered,
}

// === impl Reason ===

impl Reason {
    /// True for the gate's two tokens for a retry.
    #[inline]
    pub(super) const fn is_of_retry(self) -> bool {
        matches!(self, Self::Bucket | Self::RetryBucket)
    }

    /// True if it concerns a failing key or a hot object. Then the gate holds the call for
    /// `backoff.hold` at most, so as not to pin the controller's worker.
    pub const fn concerns_key(self) -> bool {
        matches!(self, Self::Backoff | Self::OneAtATime | Self::PerKey | Self::RetryBucket | Self::Trial)
    }
}

// === impl Cause ===

impl Cause {
    #[inline]
    pub(super) fn new(reason: Reason, retry_at: Moment) -> Self {
        Self { reason, retry_at, of_key: reason.concerns_key() }
    }

    /// Makes the refusal of a call from the time it has waited and the state of its key.
    #[inline]
    pub(super) fn refusal(self, waited: Duration, key: Option<KeyState>) -> Refusal {
        let Self { reason, retry_at, of_key } = self;
        Refusal { reason, retry_at, waited, key: key.filter(|_| of_key) }
    }
}
