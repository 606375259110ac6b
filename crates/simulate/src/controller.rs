//! A Kubernetes controller as client-go and controller-runtime build it: a rate-limited work queue,
//! workers that reconcile one object at a time, and leader election.
//!
//! Time is always an argument, `now`: `simulate` uses virtual time, and `demo` the clock.

mod lease;
mod workqueue;

pub use self::lease::LeaseHolder;
pub use self::workqueue::{Item, Overall, RateLimiter, WorkQueue};
use crate::moment::Moment;

/// The most times client-go repeats a call because of a Retry-After (`maxRetries`).
pub const MAX_RETRIES: u32 = 10;

/// The result of a reconcile, as a reconciler returns it to controller-runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileResult {
    /// Success: earlier failures of the object are forgotten.
    Done,
    /// An error: the object is queued again after its backoff.
    Failed,
    /// `RequeueAfter`: the object is queued again at this moment.
    RequeueAt(Moment),
}

/// A work queue and its workers.
#[derive(Debug)]
pub struct Controller {
    /// The queue of objects to reconcile.
    pub queue: WorkQueue,
    idle_workers: usize,
}

// === impl Controller ===

impl Controller {
    /// Creates a controller with `objects` objects and `workers` workers.
    pub fn new(limiter: RateLimiter, objects: usize, workers: usize) -> Self {
        Self { queue: WorkQueue::new(limiter, objects), idle_workers: workers }
    }

    /// Returns the next object for an idle worker. When the worker is done, it must call
    /// [`Self::finish`].
    ///
    /// # Errors
    /// No object is due, or no worker is idle. The moment is that of the next object, if there is
    /// one.
    pub fn start(&mut self, now: Moment) -> Result<Item, Option<Moment>> {
        if self.idle_workers == 0 {
            return Err(None);
        }
        let object = self.queue.get(now)?;
        self.idle_workers -= 1;
        Ok(object)
    }

    /// Ends the reconcile of an object. Returns when the object is due again, if it is.
    pub fn finish(&mut self, object: Item, result: ReconcileResult, now: Moment) -> Option<Moment> {
        let due = match result {
            ReconcileResult::Done => {
                self.queue.forget(object);
                None
            }
            ReconcileResult::Failed => Some(self.queue.add_rate_limited(object, now)),
            ReconcileResult::RequeueAt(at) => Some(self.queue.add_at(object, at, now)),
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
        let due = controller.finish(0, ReconcileResult::Failed, now);
        assert_eq!(due, Some(now + Duration::from_millis(5)));
        assert_eq!(controller.start(now), Ok(2));
        assert_eq!(controller.finish(1, ReconcileResult::RequeueAt(Moment::MAX), now), Some(Moment::MAX));
        assert_eq!(controller.start(now), Err(due), "the earlier of two");
        assert_eq!(controller.queue.delayed(), 2);
        assert_eq!(controller.start(Moment::from_millis(5)), Ok(0));
    }
}
