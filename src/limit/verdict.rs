//! What goes into the limiter and what comes out of it.

use std::{fmt, time::Duration};

use crate::{
    api::{Group, Key},
    moment::Moment,
};

/// A class by its place in `Policy::classes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u16);

/// Whom fairness is between, inside a class.
#[derive(Clone, Copy)]
pub struct Flow<'a> {
    /// Its identity.
    pub id: u64,
    /// Its readable name, written down only when a call of it has to wait.
    pub name: &'a dyn fmt::Display,
}

/// A call at the door, as far as the limiter needs to know it.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Its class.
    pub class: ClassId,
    /// Its flow.
    pub flow: Flow<'a>,
    /// What failure is remembered for; `None` when nothing is (a `create` whose name is not known, strategy off).
    pub key: Option<Key>,
    /// Whose call it is, as a salted hash; read only where a bucket, a slot or a pause is split by credential.
    pub credential: u64,
    /// It changes something: where the gate says so, one such call of a key goes at a time.
    pub write: bool,
    /// The connections it will use.
    pub group: Group,
    /// It holds no slot, and spends a token only where its class meters opening or it lists first.
    pub long_running: bool,
    /// A long-running call that begins with all there is: opening it costs the tokens of a list.
    pub lists_first: bool,
    /// It is never refused at the door (exec, attach, port-forward: their clients fall back instead of retrying).
    pub patient: bool,
    /// The client's own deadline, counted from now.
    pub timeout: Option<Duration>,
}

/// Why a call waits or is refused: the closed list, the same word in header, metric, log and status page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Its key failed, and the delay is not over.
    Backoff,
    /// The gate's bucket is empty.
    Bucket,
    /// The bodies of waiting calls fill the room.
    BytesFull,
    /// The class's bucket (or that of the class it is within) is empty.
    ClassBucket,
    /// It cannot make its client's own deadline.
    Deadline,
    /// Another write of the key is out.
    OneAtATime,
    /// The upstream said wait.
    Pause,
    /// Too many calls wait already.
    QueueFull,
    /// There is no token for a retry: the retry bucket is empty, or the gate's is, for which a retry does not wait.
    RetryBucket,
    /// No place among the calls in flight, or no room on a connection.
    Slot,
    /// Another call of its failing key is finding out.
    Trial,
}

/// Why not, and when to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// The earliest moment at which coming back can make sense.
    pub retry_at: Moment,
    /// How long the call had waited.
    pub waited: Duration,
    /// What is known of its key, when the key is the reason.
    pub key: Option<KeyState>,
}

/// What is known of a failing key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyState {
    /// Consecutive failures.
    pub failures: u32,
    /// The last failure's status; `None` when the call was sent and then lost.
    pub last_status: Option<u16>,
    /// When it failed last.
    pub last_failure: Moment,
    /// The next trial may leave then.
    pub ready_at: Moment,
}

/// A key does not fail any more: what an edge that logs is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its name.
    pub name: Box<str>,
    /// Why.
    pub why: Why,
}

/// Why a key does not fail any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// More keys fail than may be remembered.
    Crowded,
    /// Its object is gone.
    Gone,
    /// It has not failed for so long that it is forgotten.
    Old,
    /// A call of it succeeded.
    Recovered,
}

// === impl Flow ===

impl fmt::Debug for Flow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

// === impl Reason ===

impl Reason {
    /// Every reason, for tables.
    pub const ALL: [Self; 11] = [
        Self::Backoff,
        Self::Bucket,
        Self::BytesFull,
        Self::ClassBucket,
        Self::Deadline,
        Self::OneAtATime,
        Self::Pause,
        Self::QueueFull,
        Self::RetryBucket,
        Self::Slot,
        Self::Trial,
    ];

    /// Its word in headers, metrics, logs and the status page.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Backoff => "backoff",
            Self::Bucket => "bucket",
            Self::BytesFull => "bytes_full",
            Self::ClassBucket => "class_bucket",
            Self::Deadline => "deadline",
            Self::OneAtATime => "one_at_a_time",
            Self::Pause => "pause",
            Self::QueueFull => "queue_full",
            Self::RetryBucket => "retry_bucket",
            Self::Slot => "slot",
            Self::Trial => "trial",
        }
    }

    /// Whether it is one of the two tokens that a retry takes of the gate.
    #[inline]
    pub(super) const fn is_of_retry(self) -> bool {
        matches!(self, Self::Bucket | Self::RetryBucket)
    }

    /// Whether it concerns a failing key: then the gate holds the call for `backoff.hold` at most, so as not to pin the controller's worker.
    #[must_use]
    pub const fn concerns_key(self) -> bool {
        matches!(self, Self::Backoff | Self::OneAtATime | Self::RetryBucket | Self::Trial)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
