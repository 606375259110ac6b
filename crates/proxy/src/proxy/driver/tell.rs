//! Tells the pool how many calls wait for room, in order.
//!
//! The numbers are levels, so the last one told must be the last one true. The task that finds news
//! tells it outside the limiter's lock; meanwhile other tasks leave it to that one, and it looks
//! again before it stops. So no stale zero can hide a call that waits.

use std::sync::{Mutex, OnceLock, PoisonError};

use super::interleave;
use crate::api::Group;
use crate::limit::Limiter;

/// Tells the pool, and knows what it was told last.
#[derive(Default)]
pub(super) struct Teller {
    /// The way to tell the pool that so many calls of a group wait for room and nothing else.
    pub(super) pool: OnceLock<Box<dyn Fn(Group, usize) + Send + Sync>>,
    told: Mutex<Levels>,
}

#[derive(Default)]
struct Levels {
    levels: [usize; 3],
    telling: bool,
}

const GROUPS: [Group; 3] = [Group::Exempt, Group::Short, Group::LongRunning];

// === impl Teller ===

impl Teller {
    /// True if the pool knows less than it should. Under the limiter's lock.
    pub(super) fn has_news(&self, limiter: &Limiter) -> bool {
        self.lock().levels != levels(limiter)
    }

    /// Tells the pool until it knows everything. No lock may be held; `look` takes the limiter's.
    pub(super) fn tell(&self, look: impl Fn(&dyn Fn(&Limiter) -> Option<[usize; 3]>) -> Option<[usize; 3]>) {
        let Some(want) = self.pool.get() else { return };
        let begin = |limiter: &Limiter| {
            let mut told = self.lock();
            let now = levels(limiter);
            if told.telling || told.levels == now {
                return None;
            }
            told.telling = true;
            Some(std::mem::replace(&mut told.levels, now))
        };
        while let Some(before) = look(&begin) {
            interleave::point();
            let now = self.lock().levels;
            let changed = GROUPS.into_iter().zip(before).zip(now).filter(|((_, before), now)| before != now);
            for ((group, _), level) in changed {
                want(group, level);
            }
            interleave::point();
            self.lock().telling = false;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Levels> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn levels(limiter: &Limiter) -> [usize; 3] {
    GROUPS.map(|group| limiter.wants_room(group))
}
