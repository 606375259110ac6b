//! The levels of buckets, kept over a restart.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Buckets, Owner};
use crate::Per;
use crate::moment::Moment;
use crate::resources::{Bucket, BucketId, Start};

/// The tokens of one owner's buckets, below zero where some are reserved.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Levels {
    /// The tokens of the only bucket, or of the common one of all flows or credentials without
    /// their own.
    pub whole: f64,
    /// The tokens of the buckets by flow or credential that are not full.
    pub parts: Vec<(u64, f64)>,
    /// The number of gates sharing the bucket, the highest over the bucket's parts; zero if unknown
    /// or not shared.
    pub members: u32,
}

/// The time between the end of one limiter and the start of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The least time between the writing of the state and the restart.
    pub length: Duration,
    /// How long after the state was written calls may have been sent unrecorded; `None` if the gate
    /// wrote it when it stopped.
    pub unseen: Option<Duration>,
}

// === impl Gap ===

impl Gap {
    /// Returns the tokens of a bucket after the gap, if it had `level` before.
    fn level(self, level: f64, rate: f64) -> f64 {
        let level = rate.mul_add(self.length.as_secs_f64(), level);
        self.sure_tokens(rate).map_or(level, |tokens| level.min(tokens))
    }

    /// Returns the tokens certain to have come since the last perhaps unrecorded call; `None` if
    /// all calls are recorded.
    fn sure_tokens(self, rate: f64) -> Option<f64> {
        self.unseen.map(|unseen| rate * self.length.saturating_sub(unseen).as_secs_f64())
    }
}

// === impl Buckets ===

impl Buckets {
    /// Returns the levels of an owner's buckets, with at most `most` flows or credentials.
    pub(crate) fn levels(&self, owner: Owner, most: usize, now: Moment) -> Option<Levels> {
        let family = self.families.get(owner)?;
        let bucket = |id: BucketId| self.get(id).map(|cell| &cell.bucket);
        let whole = match family.split.rest.and_then(bucket) {
            Some(bucket) => bucket.level(now),
            None => Bucket::new(family.policy, family.start).level(now),
        };
        let parts = family.split.parts().filter_map(|(who, id)| Some((who, bucket((*id)?)?)));
        let short = parts.map(|(who, bucket)| (who, bucket.level(now), f64::from(bucket.policy.burst.get())));
        let short = short.filter(|(_, level, burst)| level < burst).map(|(who, level, _)| (who, level));
        let members = family.ids().filter_map(|id| Some(self.get(id)?.member.as_ref()?.members())).max();
        Some(Levels { whole, parts: short.take(most).collect(), members: members.unwrap_or(0) })
    }

    /// Sets the levels of an owner's buckets after a restart. Buckets without a level of their own
    /// start as the common one.
    pub(crate) fn restore(&mut self, owner: Owner, levels: &Levels, gap: Gap, now: Moment) {
        let Some(family) = self.families.get_mut(owner) else { return };
        let rate = family.policy.rate;
        let burst = family.policy.burst.get();
        let is_split = family.policy.per != Per::Gate;
        if let Some(tokens) = gap.sure_tokens(rate).filter(|_| is_split) {
            #[expect(clippy::cast_possible_truncation, reason = "`as` saturates")]
            let tokens = tokens as u32;
            family.start = Start::Level(tokens.min(burst), now);
        }
        let whole = Some((None, levels.whole)).filter(|(_, level)| !is_split || *level < f64::from(burst));
        let parts = levels.parts.iter().map(|(who, level)| (Some(*who), *level)).filter(|_| is_split);
        for (who, level) in whole.into_iter().chain(parts) {
            let id = self.open(owner, who, now);
            let Some(cell) = id.and_then(|id| self.get_mut(id)) else { continue };
            cell.bucket.set_level(gap.level(level, rate), now);
            if let Some(member) = &mut cell.member {
                member.reckon_with(NonZeroU32::new(levels.members));
            }
        }
    }
}
