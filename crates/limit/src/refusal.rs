//! The reasons why calls wait or are refused, and the state of a failing key.

use std::time::Duration;

use crate::moment::Moment;

words! {
    /// The reason of a wait or a refusal. No other reasons exist; header, metric, log and status
    /// page use the same word.
    pub enum Reason {
        /// The call's key failed, and its backoff is not over.
        Backoff = "backoff",
        /// The gate's bucket is empty.
        Bucket = "bucket",
        /// The bodies of waiting calls take up all the bytes allowed.
        BytesFull = "bytes_full",
        /// The bucket of the call's class, or of a class around it, is empty.
        ClassBucket = "class_bucket",
        /// The call cannot be sent before its client's own deadline.
        Deadline = "deadline",
        /// Another write of the key is queued or in flight, and writes go one at a time.
        OneAtATime = "one_at_a_time",
        /// The upstream asked for a pause.
        Pause = "pause",
        /// The call's object was called more often than its class allows.
        PerKey = "per_key",
        /// Too many calls wait already.
        QueueFull = "queue_full",
        /// The retry bucket or the gate's bucket is empty, and a retry may not wait long for them.
        RetryBucket = "retry_bucket",
        /// Too many calls are in flight, or no connection can take one more.
        Slot = "slot",
        /// Another call is testing the failing key.
        Trial = "trial",
    }
}

/// A refusal: its reason, and when to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason to refuse the call.
    pub reason: Reason,
    /// The earliest useful time of a retry.
    pub retry_at: Moment,
    /// How long the call had waited.
    pub waited: Duration,
    /// The state of the call's key, if the key is the reason.
    pub key: Option<KeyState>,
}

/// The reason and retry time of a refusal, before the data of the call are added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cause {
    pub(super) reason: Reason,
    pub(super) retry_at: Moment,
    /// True if the refusal is to show the state of the call's key.
    pub(super) of_key: bool,
}

/// The state of a failing key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyState {
    /// The number of failures in a row.
    pub failures: u32,
    /// The HTTP status of the last failure; `None` if the call was sent and no response came.
    pub last_status: Option<u16>,
    /// The moment of the last failure.
    pub last_failure: Moment,
    /// The earliest time for a call to test the key again.
    pub ready_at: Moment,
}

/// A key no longer failing, or forgotten, for the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEnd {
    /// The name of the key.
    pub name: Box<str>,
    /// The number of the key's failures in a row.
    pub failures: u32,
    /// Why the key is not failing any more.
    pub why: Why,
}

/// Why a key is not failing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The key was dropped because too many keys fail.
    Crowded,
    /// The object was removed.
    Gone,
    /// No call of the key has failed for a long time.
    Old,
    /// A call of the key has succeeded.
    Recovered,
}

// === impl Reason ===

impl Reason {
    /// Returns true for the two buckets a retry must take tokens from.
    #[inline]
    pub(super) const fn is_of_retry(self) -> bool {
        matches!(self, Self::Bucket | Self::RetryBucket)
    }

    /// Returns true if the reason is a failing key or an object called too often. Then the call
    /// waits for `backoff.hold` at most, so as not to block the controller's worker.
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

    /// Completes the cause to a refusal, with the time the call has waited and the state of its
    /// key.
    #[inline]
    pub(super) fn refusal(self, waited: Duration, key: Option<KeyState>) -> Refusal {
        let Self { reason, retry_at, of_key } = self;
        Refusal { reason, retry_at, waited, key: key.filter(|_| of_key) }
    }
}
