//! A Kubernetes controller as client-go and controller-runtime build it: a rate-limited work queue,
//! workers that reconcile one object at a time, and leader election.
//!
//! Everything here is a value that takes `now`: `simulate` drives it in virtual time, and `demo` by
//! the clock.

mod lease;
mod workqueue;

pub use self::lease::LeaseHolder;
pub use self::workqueue::{Item, RateLimiter, WorkQueue};
use crate::moment::Moment;

/// The number of times that client-go itself makes a call again because its answer has a
/// Retry-After (`maxRetries`).
pub const MAX_RETRIES: u32 = 10;

/// The result of a reconcile, as a reconciler returns it to controller-runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconciled {
    /// No error: earlier failures of the object are forgotten.
    Done,
    /// An error: the object comes back after its backoff.
    Failed,
    /// `RequeueAfter`: the object comes back at this moment.
    RequeueAt(Moment),
}

/// A work queue and its workers.
#[derive(Debug)]
pub struct Controller {
    /// Its workqueue.
    pub queue: WorkQueue,
    idle_workers: usize,
}

// === impl Controller ===

impl Controller {
    /// Creates a controller of `objects` objects that reconciles at most `workers` at a time.
    pub fn new(limiter: RateLimiter, objects: usize, workers: usize) -> Self {
        Self { queue: WorkQueue::new(limiter, objects), idle_workers: workers }
    }

    /// Gives the next object to an idle worker; without one, returns the moment at which an object
    /// comes back. The worker owes a [`Self::finish`].
    pub fn start(&mut self, now: Moment) -> Result<Item, Option<Moment>> {
        if self.idle_workers == 0 {
            return Err(None);
        }
        let object = self.queue.get(now)?;
        self.idle_workers -= 1;
        Ok(object)
    }

    /// Ends a reconcile. Returns the moment at which the object comes back by itself.
    pub fn finish(&mut self, object: Item, result: Reconciled, now: Moment) -> Option<Moment> {
        let due = match result {
            Reconciled::Done => {
                self.queue.forget(object);
                None
            }
            Reconciled::Failed => Some(self.queue.add_rate_limited(object, now)),
            Reconciled::RequeueAt(at) => Some(self.queue.add_at(object, at, now)),
        };
        self.queue.done(object, now);
        self.idle_workers += 1;
        due
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn no_more_objects_are_reconciled_at_a_time_than_there_are_workers() {
        let mut controller = Controller::new(RateLimiter::DEFAULT, 3, 2);
        let now = Moment::ZERO;
        (0..3).for_each(|object| controller.queue.add(object, now));
        assert_eq!([controller.start(now), controller.start(now), controller.start(now)], [Ok(0), Ok(1), Err(None)]);
        let due = controller.finish(0, Reconciled::Failed, now);
        assert_eq!(due, Some(now + Duration::from_millis(5)));
        assert_eq!(controller.start(now), Ok(2));
        assert_eq!(controller.finish(1, Reconciled::RequeueAt(Moment::MAX), now), Some(Moment::MAX));
        assert_eq!(controller.start(now), Err(due), "the earlier of two");
        assert_eq!(controller.queue.waiting(), (0, 2));
        assert_eq!(controller.start(Moment::from_millis(5)), Ok(0));
    }
}
