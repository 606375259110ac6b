//! Tells the connection pool how many calls wait for a connection.
//!
//! The numbers are totals, so the pool's last one must be the current one. The task that finds a
//! change tells the pool outside the limiter's lock; meanwhile other tasks leave it to that task,
//! and it looks again before it stops. So no stale zero can hide a waiting call.

use std::sync::{Mutex, OnceLock};

use super::interleave;
use crate::api::Group;
use crate::limit::Limiter;
use crate::lock;

/// Tells the connection pool how many calls wait for a connection.
#[derive(Default)]
pub(super) struct Teller {
    /// Called with a group and the number of its calls waiting for a connection and nothing else.
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
    /// Returns true if the number has changed since the pool was told. Call it under the limiter's
    /// lock.
    pub(super) fn has_news(&self, limiter: &Limiter) -> bool {
        lock(&self.told).levels != levels(limiter)
    }

    /// Tells the pool until the number no longer changes. No lock may be held; `look` takes the
    /// limiter's.
    pub(super) fn tell(&self, look: impl Fn(&dyn Fn(&Limiter) -> Option<[usize; 3]>) -> Option<[usize; 3]>) {
        let Some(want) = self.pool.get() else { return };
        let begin = |limiter: &Limiter| {
            let mut told = lock(&self.told);
            let now = levels(limiter);
            if told.telling || told.levels == now {
                return None;
            }
            told.telling = true;
            Some(std::mem::replace(&mut told.levels, now))
        };
        while let Some(before) = look(&begin) {
            interleave::point();
            let now = lock(&self.told).levels;
            let changed = GROUPS.into_iter().zip(before).zip(now).filter(|((_, before), now)| before != now);
            for ((group, _), level) in changed {
                want(group, level);
            }
            interleave::point();
            lock(&self.told).telling = false;
        }
    }
}

fn levels(limiter: &Limiter) -> [usize; 3] {
    GROUPS.map(|group| limiter.wants_room(group))
}
