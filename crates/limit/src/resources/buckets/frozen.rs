//! The levels of buckets over a restart.

use std::num::NonZeroU32;

use super::{Buckets, Owner};
use crate::Per;
use crate::moment::Moment;
use crate::resources::{Bucket, Start};

/// The tokens of one owner's buckets, below zero where some are reserved.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Levels {
    /// Those of its only bucket, or of the one that all beyond the bound share.
    pub whole: f64,
    /// Those of the buckets by flow or credential that are not full.
    pub parts: Vec<(u64, f64)>,
    /// The members of the shared bucket, the most of its parts; zero if that is not known or it is
    /// not shared.
    pub members: u32,
}

/// The tokens that may be there after a restart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    /// The seconds in which tokens came since the levels were read.
    pub(crate) seconds: f64,
    /// The same since the last call that the levels may lack; `None` if they lack none.
    pub(crate) surely: Option<f64>,
}

// === impl Flow ===

impl Flow {
    /// Returns the level of a bucket that had `level` tokens.
    fn level(self, level: f64, rate: f64) -> f64 {
        let level = rate.mul_add(self.seconds, level);
        self.surely.map_or(level, |seconds| level.min(rate * seconds))
    }
}

// === impl Buckets ===

impl Buckets {
    /// Returns the levels of an owner's buckets; of at most `most` parts.
    pub(crate) fn levels(&self, owner: Owner, most: usize, now: Moment) -> Option<Levels> {
        let family = self.families.get(owner)?;
        let level = |id| self.own(id).map(|bucket| (bucket.level(now), f64::from(bucket.policy.burst.get())));
        let first = || Bucket::new(family.policy, family.start).level(now);
        let parts = family.split.parts().filter_map(|(who, id)| Some((who, level((*id)?)?)));
        let parts = parts.filter(|(_, (level, burst))| level < burst).map(|(who, (level, _))| (who, level));
        let members = family.ids().filter_map(|id| Some(self.shared.get(id)?.member.members())).max();
        Some(Levels {
            whole: family.split.rest.and_then(level).map_or_else(first, |(level, _)| level),
            parts: parts.take(most).collect(),
            members: members.unwrap_or(0),
        })
    }

    /// Sets the levels of an owner's buckets after a restart. Those that were not told apart then
    /// start as the others.
    pub(crate) fn restore(&mut self, owner: Owner, levels: &Levels, flow: Flow, now: Moment) {
        let Some(family) = self.families.get_mut(owner) else { return };
        let rate = family.policy.rate;
        let burst = family.policy.burst.get();
        let per = family.policy.per;
        if let Some(seconds) = flow.surely.filter(|_| per != Per::Gate) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
            let tokens = (rate * seconds) as u32;
            family.start = Start::Level(tokens.min(burst), now);
        }
        let whole =
            [(None, levels.whole)].into_iter().filter(|(_, level)| per == Per::Gate || *level < f64::from(burst));
        let parts = levels.parts.iter().map(|(who, level)| (Some(*who), *level)).filter(|_| per != Per::Gate);
        for (who, level) in whole.chain(parts) {
            let Some(id) = self.open(owner, who, now) else { continue };
            let level = flow.level(level, rate);
            match self.shared.get_mut(id) {
                Some(cell) => {
                    cell.own.set_level(level, now);
                    cell.member.reckon_with(NonZeroU32::new(levels.members));
                }
                None => self.cell(id).into_iter().for_each(|cell| cell.bucket.set_level(level, now)),
            }
        }
    }

    /// Returns the gate's own bucket of this id.
    fn own(&self, id: super::BucketId) -> Option<&Bucket> {
        self.get(id).or_else(|| self.shared.get(id).map(|cell| &cell.own))
    }
}
