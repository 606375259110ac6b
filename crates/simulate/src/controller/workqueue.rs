//! client-go's rate-limited work queue. An object is in it only once, however often it is added,
//! and is never given to two workers at a time.

use std::collections::VecDeque;
use std::time::Duration;

use crate::agenda::Agenda;
use crate::moment::Moment;

/// The index of an object among the controller's objects.
pub type Item = usize;

/// The delays after failures, as in client-go's `ItemExponentialFailureRateLimiter`.
///
/// After the first failure of an object the delay is `base`, then twice that, and so on up to
/// `max`.
#[derive(Clone, Copy, Debug)]
pub struct RateLimiter {
    /// The delay after the first failure.
    pub base: Duration,
    /// The longest delay.
    pub max: Duration,
    /// The bucket for the retries of all objects together, if there is one.
    pub overall: Option<Overall>,
}

/// client-go's `BucketRateLimiter`: each retry in a queue takes a token, and waits for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overall {
    /// The tokens added per second.
    pub rate: f64,
    /// The largest number of tokens.
    pub burst: u32,
}

// === impl RateLimiter ===

impl RateLimiter {
    /// The default limiter of controller-runtime since v0.23. It is the per-item part of
    /// client-go's `DefaultTypedControllerRateLimiter`.
    pub const DEFAULT: Self = Self { base: Duration::from_millis(5), max: Duration::from_secs(1000), overall: None };

    fn delay(self, failures_before: u32) -> Duration {
        let factor = 2_u32.checked_pow(failures_before);
        factor.and_then(|factor| self.base.checked_mul(factor)).map_or(self.max, |delay| delay.min(self.max))
    }
}

/// A rate-limited work queue.
#[derive(Debug)]
pub struct WorkQueue {
    limiter: RateLimiter,
    items: Vec<ItemState>,
    /// The state of the overall bucket, as a time: without further retries, it is full again then.
    next_token: Moment,
    ready: VecDeque<Item>,
    /// The objects with delays, by the time they are due. If an earlier delay replaces one, the old
    /// entry stays until its time, and is then ignored.
    later: Agenda<Item>,
}

/// The state of an object in the queue.
#[derive(Clone, Copy, Debug, Default)]
struct ItemState {
    /// True if the object is queued, or was added again while a worker processes it.
    dirty: bool,
    /// True while a worker has the object.
    processing: bool,
    failures: u32,
    /// The end of the object's delay; `None` without a delay.
    due: Option<Moment>,
}

// === impl WorkQueue ===

impl WorkQueue {
    /// Creates a queue for `items` objects.
    pub fn new(limiter: RateLimiter, items: usize) -> Self {
        let items = vec![ItemState::default(); items];
        Self { limiter, items, next_token: Moment::ZERO, ready: VecDeque::new(), later: Agenda::default() }
    }

    /// Adds room for more objects, and returns the index of the first of them.
    pub fn grow(&mut self, items: usize) -> Item {
        let first = self.items.len();
        self.items.resize(first + items, ItemState::default());
        first
    }

    /// Adds an object to the queue now.
    pub fn add(&mut self, item: Item, now: Moment) {
        self.add_due(now);
        self.mark_dirty(item);
    }

    /// Adds an object to the queue at the time `at`. Returns when it is due.
    ///
    /// If it already has a delay, the earlier time counts.
    pub fn add_at(&mut self, item: Item, at: Moment, now: Moment) -> Moment {
        if at <= now {
            self.add(item, now);
            return at;
        }
        let due = &mut self.items[item].due;
        if let Some(earlier) = due.filter(|earlier| *earlier <= at) {
            return earlier;
        }
        *due = Some(at);
        self.later.add(at, item);
        at
    }

    /// Adds an object to the queue after the backoff for its failures. Returns when it is due.
    pub fn add_rate_limited(&mut self, item: Item, now: Moment) -> Moment {
        let failures = &mut self.items[item].failures;
        let at = now + self.limiter.delay(*failures);
        *failures = failures.saturating_add(1);
        let at = self.limiter.overall.map_or(at, |overall| at.max(self.take_token(overall, now)));
        self.add_at(item, at, now)
    }

    /// Takes the next token of the overall bucket. Returns when the token is there.
    fn take_token(&mut self, overall: Overall, now: Moment) -> Moment {
        let period = Duration::from_secs_f64(1.0 / overall.rate);
        let full = period * overall.burst;
        self.next_token = self.next_token.max(now) + period;
        self.next_token.back(full).max(now)
    }

    /// Resets the number of an object's failures.
    pub fn forget(&mut self, item: Item) {
        self.items[item].failures = 0;
    }

    /// Returns true if the object is queued, or was added again while a worker processes it.
    pub fn is_dirty(&mut self, item: Item, now: Moment) -> bool {
        self.add_due(now);
        self.items[item].dirty
    }

    /// Returns the next object for a worker. The worker must call [`Self::done`] later.
    ///
    /// # Errors
    /// The queue is empty. The moment is that of the next delayed object, if there is one.
    pub fn get(&mut self, now: Moment) -> Result<Item, Option<Moment>> {
        self.add_due(now);
        let item = self.ready.pop_front().ok_or_else(|| self.later.next())?;
        let state = &mut self.items[item];
        state.dirty = false;
        state.processing = true;
        Ok(item)
    }

    /// Ends the processing of an object. It is queued again if it was added meanwhile.
    pub fn done(&mut self, item: Item, now: Moment) {
        self.add_due(now);
        let state = &mut self.items[item];
        state.processing = false;
        if state.dirty {
            self.ready.push_back(item);
        }
    }

    /// Returns the number of delayed objects.
    #[cfg(test)]
    pub(super) fn delayed(&self) -> usize {
        self.items.iter().filter(|item| item.due.is_some()).count()
    }

    /// Adds the objects at the end of their delays.
    fn add_due(&mut self, now: Moment) {
        while let Some((at, item)) = self.later.take(now) {
            let due = &mut self.items[item].due;
            if *due == Some(at) {
                *due = None;
                self.mark_dirty(item);
            }
        }
    }

    fn mark_dirty(&mut self, item: Item) {
        let state = &mut self.items[item];
        if !std::mem::replace(&mut state.dirty, true) && !state.processing {
            self.ready.push_back(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> WorkQueue {
        WorkQueue::new(RateLimiter::DEFAULT, 8)
    }

    #[test]
    fn delays_double_from_five_milliseconds_to_a_thousand_seconds() {
        let mut queue = queue();
        let mut delays = Vec::new();
        for _ in 0..40 {
            delays.push(queue.add_rate_limited(1, Moment::ZERO).since_start());
            queue.get(Moment::MAX).expect("it is due");
            queue.done(1, Moment::ZERO);
        }
        let millis: Vec<_> = delays.iter().map(Duration::as_millis).collect();
        assert_eq!(millis[..5], [5, 10, 20, 40, 80]);
        assert_eq!(millis[17], 655_360);
        assert_eq!(millis[18..], [1_000_000; 22]);
    }

    #[test]
    fn a_success_forgets() {
        let mut queue = queue();
        queue.add_rate_limited(1, Moment::ZERO);
        assert_eq!(queue.get(Moment::from_millis(5)), Ok(1));
        queue.forget(1);
        queue.add_rate_limited(1, Moment::ZERO);
        assert_eq!(queue.get(Moment::ZERO), Err(Some(Moment::from_millis(5))));
    }

    #[test]
    fn of_two_pending_delays_of_an_object_the_earlier_counts() {
        let at = Moment::from_millis;
        let mut queue = queue();
        assert_eq!(queue.add_at(1, at(100), at(0)), at(100));
        assert_eq!(queue.add_at(1, at(200), at(0)), at(100), "a later one changes nothing");
        assert_eq!(queue.add_at(1, at(50), at(0)), at(50), "an earlier one replaces it");
        assert_eq!((queue.ready.len(), queue.delayed()), (0, 1));
        assert_eq!(queue.get(at(50)), Ok(1));
        queue.done(1, at(50));
        assert_eq!(
            (queue.get(at(1_000)), queue.ready.len(), queue.delayed()),
            (Err(None), 0, 0),
            "it does not come back again"
        );
        // The failure counts, though its delay does not.
        queue.add_at(1, at(1_001), at(1_000));
        assert_eq!(queue.add_rate_limited(1, at(1_000)), at(1_001));
        assert_eq!(queue.get(at(1_001)), Ok(1));
        assert_eq!(queue.add_rate_limited(1, at(1_001)), at(1_011));
        queue.done(1, at(1_001));
        // An object that is added at once comes back all the same.
        queue.add_at(1, at(1_002), at(1_002));
        assert_eq!(queue.get(at(1_002)), Ok(1));
        queue.done(1, at(1_002));
        assert_eq!((queue.get(at(1_011)), queue.ready.len(), queue.delayed()), (Ok(1), 0, 0));
    }

    #[test]
    fn an_object_in_work_is_not_handed_out_twice() {
        let mut queue = queue();
        queue.add(7, Moment::ZERO);
        queue.add(7, Moment::ZERO);
        assert_eq!(queue.get(Moment::ZERO), Ok(7));
        queue.add(7, Moment::ZERO);
        assert_eq!(queue.get(Moment::ZERO), Err(None));
        queue.done(7, Moment::ZERO);
        assert_eq!(queue.get(Moment::ZERO), Ok(7));
        queue.done(7, Moment::ZERO);
        assert_eq!(queue.get(Moment::ZERO), Err(None));
    }
}
