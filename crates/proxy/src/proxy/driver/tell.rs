//! Reports to the connection pool how many calls wait for a connection.
//!
//! Each report is a total, so the last one must be the current one. The first task that sees a
//! change reports it outside the limiter's lock. If the number changes meanwhile, other tasks leave
//! the report to that task, which checks again before it stops. So the pool never keeps an old zero
//! while a call waits.

use std::sync::{Mutex, OnceLock};

use super::interleave;
use crate::api::Group;
use crate::limit::Limiter;
use crate::lock;

/// Reports to the connection pool how many calls wait for a connection.
#[derive(Default)]
pub(super) struct Teller {
    /// Called with a group of calls, and how many of these need a connection and nothing else to be
    /// sent.
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
    /// Returns true if the number of calls waiting for a connection has changed since the last
    /// report. Call it under the limiter's lock.
    pub(super) fn has_news(&self, limiter: &Limiter) -> bool {
        lock(&self.told).levels != levels(limiter)
    }

    /// Reports the number to the pool until it no longer changes. `look` locks the limiter, so its
    /// lock must be free.
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
