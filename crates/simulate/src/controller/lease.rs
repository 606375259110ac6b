//! The holder of a lease, as in client-go's leader election. It renews the lease, and loses the
//! leadership if it cannot renew in time.

use std::time::Duration;

use crate::moment::Moment;

/// A leader and its lease.
#[derive(Debug)]
pub struct LeaseHolder {
    every: Duration,
    deadline: Duration,
    renewed: Moment,
    began: Moment,
    attempt: u64,
}

/// The result of an attempt to renew a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The time since the last successful renewal, at the end of this attempt.
    pub age: Duration,
    /// True if the deadline had passed, so that the leadership was lost.
    pub lost: bool,
    /// True if the attempt failed, or ended after the next one was due.
    pub late: bool,
    /// When the next attempt is due.
    pub next: Moment,
}

// === impl LeaseHolder ===

impl LeaseHolder {
    /// Creates a holder. It renews at the interval `every`, and gives up leading after `deadline`
    /// without success.
    pub fn new(every: Duration, deadline: Duration) -> Self {
        Self { every, deadline, renewed: Moment::ZERO, began: Moment::ZERO, attempt: 0 }
    }

    /// Returns the timeout of each call: half of the deadline.
    pub fn timeout(&self) -> Duration {
        self.deadline / 2
    }

    /// Begins an attempt to renew. Returns the attempt's number.
    pub fn begin(&mut self, now: Moment) -> u64 {
        self.began = now;
        self.attempt += 1;
        self.attempt
    }

    /// Returns true if this attempt has not ended yet.
    pub fn is_under_way(&self, attempt: u64) -> bool {
        self.attempt == attempt
    }

    /// Ends the current attempt; `renewed` is true if it succeeded.
    pub fn end(&mut self, renewed: bool, now: Moment) -> Attempt {
        self.attempt += 1;
        let age = now - self.renewed;
        if renewed {
            self.renewed = now;
        }
        let late = !renewed || now - self.began > self.every;
        Attempt { age, lost: renewed && age > self.deadline, late, next: now + self.every }
    }

    /// Returns the time since the last renewal, and true if the deadline has passed.
    pub fn age(&self, now: Moment) -> (Duration, bool) {
        let age = now - self.renewed;
        (age, age > self.deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_was_not_renewed_in_time_was_lost() {
        let mut holder = LeaseHolder::new(Duration::from_secs(2), Duration::from_secs(10));
        let at = |seconds: u64| Moment::from_millis(seconds * 1000);
        let attempt = holder.begin(at(1));
        let ended = holder.end(true, at(1));
        assert!(!holder.is_under_way(attempt));
        assert_eq!((ended.late, ended.lost, ended.next), (false, false, at(3)));
        holder.begin(at(3));
        assert!(holder.end(false, at(8)).late);
        assert_eq!(holder.age(at(12)), (Duration::from_secs(11), true));
        holder.begin(at(12));
        let ended = holder.end(true, at(12));
        assert_eq!((ended.age, ended.late, ended.lost), (Duration::from_secs(11), false, true));
    }
}
