//! The shared buckets of one gate: for each, the gate's own bucket and the member.
//!
//! They stand apart from the other buckets, behind ids that no other bucket has, so that a gate
//! without them pays nothing: an id that leads nowhere among the usual buckets is looked up here.

use std::num::NonZeroU32;
use std::sync::Arc;

use slab::Slab;

use super::member::{Member, News, SharedPause, SharedView};
use super::{Answer, Ask, Asked, Away, Want};
use crate::limit::keys::mix;
use crate::limit::resources::{Bucket, BucketId, Start, Turn};
use crate::limit::{BucketPolicy, SharedPolicy};
use crate::moment::Moment;

/// Every shared bucket of a gate.
#[derive(Debug, Default)]
pub(crate) struct SharedBuckets {
    cells: Slab<Cell>,
    /// Makes the numbers of members.
    seed: u64,
    /// The moment in the timers at which the members are looked at; `Moment::MAX` for none.
    pub(crate) tended: Moment,
}

/// The gate's own bucket, which stays in force, and the gate as a member of the shared one.
#[derive(Debug)]
pub(crate) struct Cell {
    serial: NonZeroU32,
    pub(crate) own: Bucket,
    pub(crate) member: Member,
}

// === impl SharedBuckets ===

impl SharedBuckets {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, tended: Moment::MAX, ..Self::default() }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Makes a bucket, whose id has this serial.
    pub(crate) fn open(
        &mut self,
        (policy, start): (BucketPolicy, Start),
        shared: Arc<SharedPolicy>,
        serial: NonZeroU32,
    ) -> Option<BucketId> {
        let id = mix(self.seed ^ u64::from(serial.get()).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let member = Member::new(policy, shared, id);
        let index = u32::try_from(self.cells.insert(Cell { serial, own: Bucket::new(policy, start), member })).ok()?;
        Some(BucketId { index: index | SHARED, serial })
    }

    pub(crate) fn close(&mut self, id: BucketId) {
        if self.get(id).is_some() {
            self.cells.try_remove(offset(id));
        }
    }

    #[cold]
    pub(crate) fn get(&self, id: BucketId) -> Option<&Cell> {
        self.cells.get(offset(id)).filter(|cell| cell.serial == id.serial && id.index & SHARED != 0)
    }

    #[cold]
    pub(crate) fn get_mut(&mut self, id: BucketId) -> Option<&mut Cell> {
        self.cells.get_mut(offset(id)).filter(|cell| cell.serial == id.serial && id.index & SHARED != 0)
    }

    /// Returns the asks to make now. `want` says which calls wait for a bucket.
    pub(crate) fn asks(&mut self, want: impl Fn(BucketId) -> Option<Want>, now: Moment) -> Vec<Ask> {
        let ask = |(index, cell): (usize, &mut Cell)| {
            let bucket = BucketId { index: u32::try_from(index).ok()? | SHARED, serial: cell.serial };
            cell.member.ask(want(bucket), now, |number| Asked { bucket, number })
        };
        self.cells.iter_mut().filter_map(ask).collect()
    }

    /// Takes in what came of an ask. Returns the pause that another member told.
    pub(crate) fn answered(
        &mut self,
        asked: Asked,
        answer: Result<Answer, Away>,
        sent: Moment,
        now: Moment,
    ) -> Option<SharedPause> {
        self.get_mut(asked.bucket)?.member.answered(asked.number, answer, sent, now)
    }

    /// Returns the last asks of the members that the stores know.
    pub(crate) fn farewells(&mut self, now: Moment) -> Vec<Ask> {
        let ask = |(index, cell): (usize, &mut Cell)| {
            let bucket = BucketId { index: u32::try_from(index).ok()? | SHARED, serial: cell.serial };
            cell.member.farewell(now, |number| Asked { bucket, number })
        };
        self.cells.iter_mut().filter_map(ask).collect()
    }

    /// Tells the other members of a bucket what is new, if they share pauses.
    pub(crate) fn tell(&mut self, id: BucketId, news: News) {
        if let Some(cell) = self.get_mut(id).filter(|cell| cell.member.shared.pauses.is_some()) {
            cell.member.tell(news);
        }
    }

    /// Tells those of every bucket.
    pub(crate) fn tell_all(&mut self, news: News) {
        let sharing = self.cells.iter_mut().map(|(_, cell)| cell).filter(|cell| cell.member.shared.pauses.is_some());
        sharing.for_each(|cell| cell.member.tell(news));
    }

    /// Returns what a status page shows of each.
    pub(crate) fn views(&self, now: Moment) -> Vec<SharedView> {
        self.cells.iter().map(|(_, cell)| cell.member.view(now)).collect()
    }

    /// Returns the moment at which a member has something to do though no call waits.
    pub(crate) fn tend_at(&self, now: Moment) -> Option<Moment> {
        self.cells.iter().filter_map(|(_, cell)| cell.member.tend_at(now)).min()
    }
}

// === impl Cell ===

impl Cell {
    /// Returns the moment at which both have a token.
    pub(crate) fn ready_at(&self, now: Moment) -> Moment {
        self.own.ready_at(now).max(self.member.ready_at(now))
    }

    /// Returns the moment since when both have had the token that is there now.
    pub(crate) fn there_since(&self, now: Moment) -> Moment {
        self.own.ready_at(Moment::ZERO).max(self.member.there_since(now))
    }

    /// Returns the moment at which to look again, for a call that finds no token now.
    pub(crate) fn look_at(&self, now: Moment) -> Moment {
        let own = self.own.ready_at(now);
        if self.member.ready_at(now) > now { self.member.look_at(now) } else { own }
    }

    /// Returns the earliest moment at which both have a token once `calls` others have had theirs.
    pub(crate) fn ready_after(&self, calls: usize, now: Moment) -> Moment {
        self.own.ready_after(calls, now).max(self.member.ready_after(calls, now))
    }

    /// Returns the number of calls that could have a token now.
    pub(crate) fn whole_tokens(&self, now: Moment) -> u32 {
        let own = self.own.whole_tokens(now).max(u32::from(self.own.ready_at(now) <= now));
        own.min(self.member.available(now))
    }

    /// Takes a token of both.
    pub(crate) fn take(&mut self, turn: Turn, number: u64) {
        let ready_at = self.own.ready_at(Moment::ZERO);
        let awaited = turn.there_since.is_some_and(|there_since| ready_at >= there_since);
        let taken = self.own.take(turn.at, number, 1) > 0;
        let spent = self.member.take(turn.at, turn.now, number);
        debug_assert!(taken && spent, "a token was taken that was not there");
        self.own.learn(awaited, turn.now, number);
    }

    pub(crate) fn give_back(&mut self, number: u64) {
        self.own.give_back(number);
        self.member.give_back(number);
    }

    pub(crate) fn note_short(&mut self, now: Moment) {
        self.own.note_short(now);
        self.member.note_short();
    }

    pub(crate) fn resize(&mut self, policy: BucketPolicy, shared: Arc<SharedPolicy>, now: Moment, number: u64) {
        self.own.resize(policy, now, number);
        self.member.resize(policy, shared);
    }
}

fn offset(id: BucketId) -> usize {
    (id.index & !SHARED) as usize
}

/// The mark of an id that belongs to a shared bucket.
const SHARED: u32 = 1 << 31;
