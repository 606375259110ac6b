//! The buckets of a gate: the manager's, the retry bucket and the classes' buckets, whole or one
//! per flow or credential.

mod families;
mod frozen;

use std::num::NonZeroU32;
use std::sync::Arc;

use slab::Slab;

use self::families::{Families, Family};
pub(crate) use self::frozen::Flow;
pub use self::frozen::Levels;
use super::{Bucket, BucketId, SharedBuckets, Start, Turn};
use crate::moment::Moment;
use crate::{BucketPolicy, ClassId, GroupIndex, KeyState, Origins, Per, Policy, SharedPolicy};

/// The owner of a family of buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Gate,
    Retries,
    Class(ClassId),
}

/// Every bucket of a gate.
#[derive(Debug)]
pub(crate) struct Buckets {
    cells: Slab<Cell>,
    /// Those that are shared with other gates.
    pub(crate) shared: SharedBuckets,
    families: Families,
    serial: NonZeroU32,
    /// The number of calls that have left so far, with tokens or without: orders them in time.
    pub(crate) takes: u64,
}

/// A bucket and the queue groups that use it.
#[derive(Debug)]
struct Cell {
    serial: NonZeroU32,
    bucket: Bucket,
    /// The queue groups that use this one of many.
    users: Vec<GroupIndex>,
}

// === impl Buckets ===

impl Buckets {
    pub(crate) fn new(policy: &Policy, seed: u64, now: Moment) -> Self {
        let start = |policy: &BucketPolicy| if policy.starts_empty { Start::Level(0, now) } else { Start::Full };
        let family = |bucket: Option<BucketPolicy>| {
            bucket.map(|bucket| Family::new(bucket, start(&bucket), policy.shared_by(&bucket).cloned()))
        };
        let families = Families {
            gate: family(policy.bucket),
            retries: family(policy.retry_bucket),
            classes: policy.per_class(|class| family(class.bucket)),
        };
        let shared = SharedBuckets::new(seed);
        Self { cells: Slab::new(), shared, families, serial: NonZeroU32::MIN, takes: 0 }
    }

    /// Returns the bucket that meters a call of this flow and credential; true with it if it is one
    /// of many.
    #[inline]
    pub(crate) fn find(&mut self, owner: Owner, flow: u64, credential: u64, now: Moment) -> Option<(BucketId, bool)> {
        let family = self.families.get(owner)?;
        match (family.policy.per, family.split.rest) {
            (Per::Gate, Some(only)) => Some((only, false)),
            (Per::Gate, None) => self.open(owner, None, now).map(|id| (id, false)),
            (Per::Flow, _) => self.one_of_many(owner, flow, now).map(|id| (id, true)),
            (Per::Account | Per::Action | Per::Client | Per::Credential, _) => {
                self.one_of_many(owner, credential, now).map(|id| (id, true))
            }
        }
    }

    #[inline(never)]
    fn one_of_many(&mut self, owner: Owner, who: u64, now: Moment) -> Option<BucketId> {
        match self.families.get(owner)?.split.get(who) {
            Some(id) => *id,
            None => self.open(owner, Some(who), now),
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: BucketId) -> Option<&Bucket> {
        self.cells.get(id.index as usize).filter(|cell| cell.serial == id.serial).map(|cell| &cell.bucket)
    }

    /// Returns the buckets of an owner, the shared one first; the one that the first call will find
    /// if none was used yet.
    pub(crate) fn view<T>(&self, owner: Owner, most: usize, view: impl Fn(&Bucket) -> T) -> Vec<T> {
        let Some(family) = self.families.get(owner) else { return Vec::new() };
        let own = |id| self.get(id).or_else(|| self.shared.get(id).map(|cell| &cell.own));
        let used: Vec<_> = family.ids().filter_map(own).take(most).map(&view).collect();
        if used.is_empty() { vec![view(&Bucket::new(family.policy, family.start))] } else { used }
    }

    /// Returns the moment this bucket has a token. One that is gone limits nothing.
    #[inline]
    pub(crate) fn ready_at(&self, id: BucketId, now: Moment) -> Moment {
        match self.get(id) {
            Some(bucket) => bucket.ready_at(now),
            None => self.shared.get(id).map_or(now, |cell| cell.ready_at(now)),
        }
    }

    /// Returns the moment at which to look again, for a call that needs a token of this bucket:
    /// when it has one, or when a shared bucket is to be asked.
    #[inline]
    pub(crate) fn look_at(&self, id: BucketId, now: Moment) -> Moment {
        match self.get(id) {
            Some(bucket) => bucket.ready_at(now),
            None => self.shared.look_at(id, now).unwrap_or(now),
        }
    }

    /// Returns the moment since when this bucket has had the token that is there now.
    #[inline]
    pub(crate) fn there_since(&self, id: BucketId, now: Moment) -> Moment {
        match self.get(id) {
            Some(bucket) => bucket.ready_at(Moment::ZERO),
            None => self.shared.get(id).map_or(Moment::ZERO, |cell| cell.there_since(now)),
        }
    }

    /// Returns the number of calls that could have a token now; `None` for a bucket that is gone.
    #[inline]
    pub(crate) fn whole_calls(&self, id: BucketId, now: Moment) -> Option<u32> {
        match self.get(id) {
            Some(bucket) => Some(bucket.whole_calls(now)),
            None => self.shared.get(id).map(|cell| cell.whole_tokens(now)),
        }
    }

    /// Counts a take and returns its number.
    #[inline]
    pub(crate) fn next_take(&mut self) -> u64 {
        self.takes += 1;
        self.takes
    }

    /// Takes the tokens that are there at `turn.at`, as many as a call of `cost` takes, as take
    /// `number`, and returns how many. Queue groups whose next token now comes at another time are
    /// added to `unblocked`.
    #[inline]
    pub(crate) fn take(
        &mut self,
        id: BucketId,
        turn: Turn,
        number: u64,
        cost: u16,
        unblocked: &mut Vec<GroupIndex>,
    ) -> u16 {
        let mut taken = 0;
        if let Some(cell) = self.cell(id) {
            // True if the token was the last thing that the call waited for.
            let ready_at = cell.bucket.ready_at(Moment::ZERO);
            let awaited = turn.there_since.is_some_and(|there_since| ready_at >= there_since);
            taken = cell.bucket.take(turn.at, number, cost);
            debug_assert!(taken > 0, "a token was taken that was not there");
            if cell.bucket.learn(awaited, turn.now, number) {
                // If they stayed set aside longer than necessary, they would look late, and
                // lateness is made up for.
                unblocked.extend_from_slice(&cell.users);
            }
        } else if let Some(cell) = self.shared.get_mut(id) {
            cell.take(turn, number, unblocked);
            taken = 1; // it counts calls
        }
        taken
    }

    /// Records that a call had to wait: the bucket takes note if it has no token.
    pub(crate) fn note_short(&mut self, id: BucketId, now: Moment) {
        if let Some(cell) = self.cell(id) {
            cell.bucket.note_short(now);
        } else if let Some(cell) = self.shared.get_mut(id) {
            cell.note_short(now);
        }
    }

    /// Slows a bucket down because the upstream throttled the call of take `left`.
    pub(crate) fn throttled(&mut self, id: BucketId, left: u64, now: Moment) {
        let takes = self.takes;
        if let Some(cell) = self.cell(id) {
            cell.bucket.throttled(left, now, takes);
        } else if let Some(cell) = self.shared.get_mut(id) {
            cell.own.throttled(left, now, takes);
        }
    }

    /// Gives a bucket that opens the tokens for a success, and adds the queue groups that may now
    /// continue to `unblocked`.
    pub(crate) fn succeeded(&mut self, id: BucketId, unblocked: &mut Vec<GroupIndex>) {
        if let Some(cell) = self.cell(id) {
            cell.bucket.succeeded();
            unblocked.extend_from_slice(&cell.users);
        }
    }

    /// Tells a bucket that the trial of a key was refused for want of a token.
    pub(crate) fn pass_over(&mut self, id: BucketId, key: KeyState) {
        if let Some(cell) = self.cell(id) {
            cell.bucket.pass_over(key);
        }
    }

    /// Takes tokens from a bucket that opens for the failure of a call that it metered.
    pub(crate) fn failed(&mut self, id: BucketId, now: Moment) {
        if let Some(cell) = self.cell(id) {
            cell.bucket.failed(now);
        }
    }

    /// Takes the next token even if it comes only later. Returns when that is, and the number of
    /// the take.
    pub(crate) fn reserve(&mut self, id: BucketId, now: Moment) -> (Moment, u64) {
        let number = self.next_take();
        (self.cell(id).map_or(now, |cell| cell.bucket.reserve(now, number)), number)
    }

    /// Gives a token back and adds the queue groups that may now continue to `unblocked`.
    pub(crate) fn give_back(&mut self, id: BucketId, number: u64, unblocked: &mut Vec<GroupIndex>) {
        if let Some(cell) = self.cell(id) {
            cell.bucket.give_back(number);
            unblocked.extend_from_slice(&cell.users);
        } else if let Some(cell) = self.shared.get_mut(id) {
            cell.give_back(number, unblocked);
        }
    }

    /// Returns the queue groups that use a bucket.
    pub(crate) fn users(&mut self, id: BucketId) -> Option<&mut Vec<GroupIndex>> {
        if id.is_shared() {
            return self.shared.get_mut(id).map(|cell| &mut cell.users);
        }
        self.cell(id).map(|cell| &mut cell.users)
    }

    /// Returns the shared bucket of an owner, if it has one that was used: the part of `who`, if it
    /// is split.
    pub(crate) fn shared_of(&self, owner: Owner, who: u64) -> Option<BucketId> {
        let family = self.families.get(owner).filter(|family| family.shared.is_some())?;
        *family.split.own_or_rest(who)
    }

    /// Returns the owner of a shared bucket, and whose part it is.
    pub(crate) fn owner_of(&self, id: BucketId) -> Option<(Owner, Option<u64>)> {
        let who = self.shared.get(id)?.member.part.and_then(|part| part.who);
        let has = |family: &Family| match who {
            Some(who) => family.split.get(who) == Some(&Some(id)),
            None => family.split.rest == Some(id),
        };
        let class = self.families.classes.find(|family| family.as_ref().is_some_and(has));
        let is_gates = self.families.gate.as_ref().is_some_and(has);
        Some((if is_gates { Owner::Gate } else { Owner::Class(class?) }, who))
    }

    /// Applies new policies; `origins` gives for each new class which old one it was. A bucket that
    /// existed keeps its level. One that did not, or was split differently, starts with one token:
    /// enough not to stop any call, and no free burst (P11).
    pub(crate) fn reconfigure(&mut self, policy: &Policy, origins: &Origins, now: Moment) {
        let Families { gate, retries, mut classes } = std::mem::take(&mut self.families);
        for family in classes.carry_over(origins).iter().flatten() {
            self.close(family);
        }
        let shared = |bucket: &Option<BucketPolicy>| bucket.and_then(|bucket| policy.shared_by(&bucket).cloned());
        let gate = self.adopt(gate, policy.bucket, shared(&policy.bucket), now);
        let retries = self.adopt(retries, policy.retry_bucket, None, now);
        for (class, family) in policy.classes.iter().zip(classes.values_mut()) {
            *family = self.adopt(family.take(), class.bucket, shared(&class.bucket), now);
        }
        self.families = Families { gate, retries, classes };
        for (_, cell) in &mut self.cells {
            cell.users.clear();
        }
        self.shared.forget_users();
    }

    fn adopt(
        &mut self,
        family: Option<Family>,
        policy: Option<BucketPolicy>,
        shared: Option<Arc<SharedPolicy>>,
        now: Moment,
    ) -> Option<Family> {
        match (family, policy) {
            (Some(mut family), Some(policy)) if family.is_like(&policy, shared.as_ref()) => {
                if family.policy != policy {
                    family.start = family.start_after(&policy, now);
                }
                family.policy = policy;
                family.shared = shared;
                for id in family.ids() {
                    let takes = self.takes;
                    if let Some(cell) = self.cell(id) {
                        cell.bucket.resize(policy, now, takes);
                    } else if let (Some(cell), Some(shared)) = (self.shared.get_mut(id), &family.shared) {
                        cell.resize(policy, Arc::clone(shared), now, takes);
                    }
                }
                Some(family)
            }
            (family, policy) => {
                family.iter().for_each(|family| self.close(family));
                policy.map(|policy| Family::new(policy, Start::Level(u32::from(!policy.starts_empty), now), shared))
            }
        }
    }

    fn close(&mut self, family: &Family) {
        for id in family.ids() {
            self.cells.try_remove(id.index as usize);
            self.shared.close(id);
        }
    }

    /// Makes a bucket of a family for `who`, or the shared one.
    #[cold]
    fn open(&mut self, owner: Owner, who: Option<u64>, now: Moment) -> Option<BucketId> {
        let family = self.families.get_mut(owner)?;
        let cells = &mut self.cells;
        let shared = &mut self.shared;
        let kept = |id: &mut Option<BucketId>| match *id {
            Some(id) if id.is_shared() => shared.keep(id, now),
            id => {
                let place = id.map_or(usize::MAX, |id| id.index as usize);
                let is_idle = |cell: &Cell| cell.users.is_empty() && cell.bucket.is_idle(now);
                let kept = cells.get(place).is_some_and(|cell| !is_idle(cell));
                if !kept {
                    cells.try_remove(place);
                }
                kept
            }
        };
        let who = who.filter(|who| family.split.open(*who, now, kept));
        let place = match who {
            Some(who) => family.split.own_or_rest_mut(who),
            None => &mut family.split.rest,
        };
        if place.is_none() {
            self.serial = self.serial.checked_add(1).unwrap_or(NonZeroU32::MIN);
            if let Some(policy) = &family.shared {
                *place = self.shared.open(family.policy, family.start, Arc::clone(policy), who, self.serial);
                return *place;
            }
            let bucket = Bucket::new(family.policy, family.start);
            let index = cells.insert(Cell { serial: self.serial, bucket, users: Vec::new() });
            *place = Some(BucketId { index: u32::try_from(index).ok()?, serial: self.serial });
        }
        *place
    }

    #[inline]
    fn cell(&mut self, id: BucketId) -> Option<&mut Cell> {
        self.cells.get_mut(id.index as usize).filter(|cell| cell.serial == id.serial)
    }
}
