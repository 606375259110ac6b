//! The buckets of a gate: its own, the retry bucket and those of the classes; each one for all
//! calls, or one per flow or credential. Other gates may share some of them.

mod families;
mod frozen;
mod sharing;

use std::num::NonZeroU32;
use std::sync::Arc;

use slab::Slab;

use self::families::{Families, Family};
pub use self::frozen::{Gap, Levels};
pub(crate) use self::sharing::Sharing;
use super::shared::Member;
use super::{Answers, Bucket, BucketId, Start, Turn};
use crate::moment::Moment;
use crate::{BucketPolicy, ClassId, GroupIndex, KeyState, Origins, Per, Policy, SharedPolicy};

/// The owner of a set of buckets: the gate, its retries, or a class.
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
    families: Families,
    pub(crate) sharing: Sharing,
    serial: NonZeroU32,
    /// The number given to the latest call or reservation. Later ones have higher numbers.
    pub(crate) takes: u64,
}

/// A bucket and the queue groups waiting for it.
#[derive(Debug)]
pub(crate) struct Cell {
    serial: NonZeroU32,
    /// The bucket with the gate's own limits, in force even where other gates share it.
    pub(crate) bucket: Bucket,
    /// The tokens granted by the store, if other gates share the bucket.
    member: Option<Box<Member>>,
    /// The queue groups with calls for the bucket, if it is one per flow or credential.
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
        Self { cells: Slab::new(), families, sharing: Sharing::new(seed), serial: NonZeroU32::MIN, takes: 0 }
    }

    /// Returns the bucket for a call of this flow and credential, and true if its owner has one for
    /// each flow or credential.
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
    pub(crate) fn get(&self, id: BucketId) -> Option<&Cell> {
        self.cells.get(id.place()).filter(|cell| cell.serial == id.serial)
    }

    #[inline]
    fn get_mut(&mut self, id: BucketId) -> Option<&mut Cell> {
        self.cells.get_mut(id.place()).filter(|cell| cell.serial == id.serial)
    }

    /// Returns the result of `view` for each bucket of an owner, the common one first. If no bucket
    /// was used yet, `view` gets a new one.
    pub(crate) fn view<T>(&self, owner: Owner, most: usize, view: impl Fn(&Bucket) -> T) -> Vec<T> {
        let Some(family) = self.families.get(owner) else { return Vec::new() };
        let used: Vec<_> =
            family.ids().filter_map(|id| self.get(id)).take(most).map(|cell| view(&cell.bucket)).collect();
        if used.is_empty() { vec![view(&Bucket::new(family.policy, family.start))] } else { used }
    }

    /// Returns the result of `view` for an owner's bucket for this flow and credential; it gets a
    /// new bucket if none was used yet.
    pub(crate) fn view_one<T>(
        &self,
        owner: Owner,
        flow: u64,
        credential: u64,
        view: impl FnOnce(&Bucket) -> T,
    ) -> Option<T> {
        let family = self.families.get(owner)?;
        let who = if family.policy.per == Per::Flow { flow } else { credential };
        Some(match family.split.own_or_rest(who).and_then(|id| self.get(id)) {
            Some(cell) => view(&cell.bucket),
            None => view(&Bucket::new(family.policy, family.start)),
        })
    }

    /// Returns when this bucket has a token. A removed bucket limits nothing.
    #[inline]
    pub(crate) fn ready_at(&self, id: BucketId, now: Moment) -> Moment {
        self.get(id).map_or(now, |cell| cell.ready_at(now))
    }

    /// Returns the moment to check again for a call without a token of this bucket: when the bucket
    /// has a token, or when to request one from the bucket's store.
    #[inline]
    pub(crate) fn look_at(&self, id: BucketId, now: Moment) -> Moment {
        match self.get(id) {
            Some(Cell { member: Some(member), .. }) if !member.held().has_token(now) => {
                member.look_at(self.question_at(now), now)
            }
            Some(cell) => cell.bucket.ready_at(now),
            None => now,
        }
    }

    /// Returns since when this bucket has had a token.
    #[inline]
    pub(crate) fn there_since(&self, id: BucketId, now: Moment) -> Moment {
        let Some(cell) = self.get(id) else { return Moment::ZERO };
        let own = cell.bucket.ready_at(Moment::ZERO);
        cell.member.as_ref().map_or(own, |member| own.max(member.held().there_since(now)))
    }

    /// Returns how many calls the bucket's present tokens are enough for; `None` if the bucket was
    /// removed.
    #[inline]
    pub(crate) fn whole_calls(&self, id: BucketId, now: Moment) -> Option<u32> {
        let cell = self.get(id)?;
        let own = cell.bucket.whole_calls(now);
        Some(cell.member.as_ref().map_or(own, |member| own.min(member.held().available(now))))
    }

    /// Returns the number for the next call that takes tokens.
    #[inline]
    pub(crate) fn next_take(&mut self) -> u64 {
        self.takes += 1;
        self.takes
    }

    /// Takes the tokens of a call under `number`, and returns how many. If this changes the
    /// bucket's rate, the queue groups waiting for the bucket are added to `unblocked`, because the
    /// time of their next token has changed. `answers` are all answers, if all are to calls of this
    /// bucket.
    #[inline]
    pub(crate) fn take(
        &mut self,
        id: BucketId,
        turn: Turn,
        number: u64,
        cost: u16,
        answers: Option<Answers>,
        unblocked: &mut Vec<GroupIndex>,
    ) -> u16 {
        let Some(cell) = self.get_mut(id) else { return 0 };
        // True if the token was the last thing that the call waited for.
        let ready_at = cell.bucket.ready_at(Moment::ZERO);
        let awaited = turn.there_since.is_some_and(|there_since| ready_at >= there_since);
        let taken = cell.bucket.take(turn.at, number, cost);
        let spent = cell.member.as_mut().is_none_or(|member| member.take(turn.at, turn.now, number));
        debug_assert!(taken > 0 && spent, "a token was taken that was not there");
        if cell.bucket.learn(awaited, turn.now, number, answers) {
            // If they stayed set aside longer than necessary, they would look late, and lateness is
            // made up for.
            unblocked.extend_from_slice(&cell.users);
        }
        taken
    }

    /// Records that a call waits for this bucket, if it has no token.
    pub(crate) fn note_short(&mut self, id: BucketId, now: Moment) {
        if let Some(cell) = self.get_mut(id) {
            cell.bucket.note_short(now);
            cell.member.iter_mut().for_each(|member| member.note_short());
        }
    }

    /// Slows a bucket down because the upstream throttled a call. `left` is the number under which
    /// the call took its tokens.
    pub(crate) fn throttled(&mut self, id: BucketId, left: u64, now: Moment) {
        let takes = self.takes;
        if let Some(cell) = self.get_mut(id) {
            cell.bucket.throttled(left, now, takes);
        }
    }

    /// Adds the tokens for a successful retry to its bucket, and the waiting queue groups to
    /// `unblocked`.
    pub(crate) fn succeeded(&mut self, id: BucketId, unblocked: &mut Vec<GroupIndex>) {
        if let Some(cell) = self.get_mut(id) {
            cell.bucket.succeeded();
            unblocked.extend_from_slice(&cell.users);
        }
    }

    /// Records the refusal of a key's retry, so that the next token can be kept for the key.
    pub(crate) fn pass_over(&mut self, id: BucketId, key: KeyState, now: Moment) {
        if let Some(cell) = self.get_mut(id) {
            cell.bucket.pass_over(key, now);
        }
    }

    /// Takes tokens out of a retry bucket because a retry failed.
    pub(crate) fn failed(&mut self, id: BucketId, now: Moment) {
        if let Some(cell) = self.get_mut(id) {
            cell.bucket.failed(now);
        }
    }

    /// Takes the next token even if it comes only later. Returns its moment and the number under
    /// which it was taken.
    pub(crate) fn reserve(&mut self, id: BucketId, now: Moment) -> (Moment, u64) {
        let number = self.next_take();
        (self.get_mut(id).map_or(now, |cell| cell.bucket.reserve(now, number)), number)
    }

    /// Gives a token back and adds the queue groups waiting for the bucket to `unblocked`.
    pub(crate) fn give_back(&mut self, id: BucketId, number: u64, unblocked: &mut Vec<GroupIndex>) {
        if let Some(cell) = self.get_mut(id) {
            cell.bucket.give_back(number);
            cell.member.iter_mut().for_each(|member| member.give_back(number));
            unblocked.extend_from_slice(&cell.users);
        }
    }

    /// Returns the queue groups with calls for a bucket.
    pub(crate) fn users(&mut self, id: BucketId) -> Option<&mut Vec<GroupIndex>> {
        self.get_mut(id).map(|cell| &mut cell.users)
    }

    /// Applies new limits; `origins` gives the old class of each new one. A bucket keeps its level.
    /// One that is new, or was split differently, starts with one token: enough not to stop any
    /// call, and no free burst (P11).
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
                let takes = self.takes;
                for id in family.ids() {
                    let Some(cell) = self.get_mut(id) else { continue };
                    cell.bucket.resize(policy, now, takes);
                    if let (Some(member), Some(shared)) = (&mut cell.member, &shared) {
                        member.resize(policy, Arc::clone(shared));
                    }
                }
                family.policy = policy;
                family.shared = shared;
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
            let cell = self.cells.try_remove(id.place());
            self.sharing.members -= usize::from(cell.is_some_and(|cell| cell.member.is_some()));
        }
    }

    /// Makes a bucket of an owner for the flow or credential `who`, or the common one.
    #[cold]
    fn open(&mut self, owner: Owner, who: Option<u64>, now: Moment) -> Option<BucketId> {
        let family = self.families.get_mut(owner)?;
        let cells = &mut self.cells;
        let sharing = &mut self.sharing;
        let kept = |id: &mut Option<BucketId>| {
            let place = id.map_or(usize::MAX, BucketId::place);
            let kept = cells.get(place).is_some_and(|cell| !cell.is_idle(now));
            let idle = if kept { None } else { cells.try_remove(place) };
            idle.and_then(|cell| cell.member).into_iter().for_each(|member| sharing.forget(&member));
            kept
        };
        let who = who.filter(|who| family.split.open(*who, now, kept));
        let place = match who {
            Some(who) => family.split.own_or_rest_mut(who),
            None => &mut family.split.rest,
        };
        if place.is_none() {
            self.serial = self.serial.checked_add(1).unwrap_or(NonZeroU32::MIN);
            let serial = self.serial;
            let shared = family.shared.as_ref();
            let member = shared.map(|shared| self.sharing.join(family.policy, Arc::clone(shared), who, serial));
            let mark = if member.is_some() { BucketId::SHARED } else { 0 };
            let bucket = Bucket::new(family.policy, family.start);
            let index = self.cells.insert(Cell { serial, bucket, member, users: Vec::new() });
            *place = Some(BucketId { index: u32::try_from(index).ok()? | mark, serial });
        }
        *place
    }
}

// === impl Cell ===

impl Cell {
    #[inline]
    fn ready_at(&self, now: Moment) -> Moment {
        let own = self.bucket.ready_at(now);
        self.member.as_ref().map_or(own, |member| own.max(member.held().ready_at(now)))
    }

    /// Returns the earliest moment of a call's tokens, not before `from`, if the calls ahead of it
    /// take `tokens`.
    pub(crate) fn ready_after(&self, tokens: usize, from: Moment, now: Moment) -> Moment {
        let own = self.bucket.ready_after(tokens, from, now);
        self.member.as_ref().map_or(own, |member| own.max(member.held().ready_after(tokens, from, now)))
    }

    /// Returns true if dropping the bucket loses nothing.
    fn is_idle(&self, now: Moment) -> bool {
        let member_is_idle = || self.member.as_ref().is_none_or(|member| member.is_idle(now));
        self.users.is_empty() && self.bucket.is_idle(now) && member_is_idle()
    }
}
