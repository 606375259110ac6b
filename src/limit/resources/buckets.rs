//! The buckets of a gate: the manager's, the retry bucket and the classes' buckets, whole or one
//! per flow or credential.

use std::{collections::HashMap, num::NonZeroU32};

use slab::Slab;

use super::{
    bucket::{Bucket, Start},
    demand::BucketId,
    slots::{INSTANCES, SWEEP_EVERY},
};
use crate::{
    limit::policy::{BucketPolicy, Per, Policy},
    moment::Moment,
};

/// The owner of a family of buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Gate,
    Retries,
    Class(usize),
}

/// Every bucket of a gate.
#[derive(Debug)]
pub(crate) struct Buckets {
    cells: Slab<Cell>,
    gate: Option<Family>,
    retries: Option<Family>,
    classes: Vec<Option<Family>>,
    serial: NonZeroU32,
    /// The number of calls that have left so far, with tokens or without: orders them in time.
    takes: u64,
    /// The queue groups that were set aside until a token which now comes at another time.
    pub(crate) retimed: Vec<u32>,
}

/// The times at which a call takes its requirements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) now: Moment,
    /// The moment at which its tokens are judged: `now`, or earlier if the driver was late.
    pub(crate) at: Moment,
    /// The moment at which the last thing it waited for was there; `None` if it did not wait.
    pub(crate) there_since: Option<Moment>,
}

/// A bucket and the queue groups that use it.
#[derive(Debug)]
struct Cell {
    serial: NonZeroU32,
    bucket: Bucket,
    /// The queue groups that use this one of many.
    users: Vec<u32>,
}

/// The buckets of one policy.
#[derive(Debug)]
pub(crate) struct Family {
    policy: BucketPolicy,
    start: Start,
    split: HashMap<u64, BucketId>,
    /// The only bucket, or the one shared by all flows or credentials past the limit.
    shared: Option<BucketId>,
    swept: Moment,
}

// === impl Turn ===

impl Turn {
    /// Returns the turn of a call that need not wait.
    pub(crate) fn at_once(now: Moment) -> Self {
        Self { now, at: now, there_since: None }
    }

    /// True if a token that was there at `ready_at` was the last thing that the call waited for.
    fn waited_for(self, ready_at: Moment) -> bool {
        self.there_since.is_some_and(|there_since| ready_at >= there_since)
    }
}

// === impl Buckets ===

impl Buckets {
    pub(crate) fn new(policy: &Policy, now: Moment) -> Self {
        let family = |bucket: &Option<BucketPolicy>| bucket.map(|policy| Family::new(policy, start(&policy, now)));
        Self {
            cells: Slab::new(),
            gate: family(&policy.bucket),
            retries: family(&policy.retry_bucket),
            classes: policy.classes.iter().map(|class| family(&class.bucket)).collect(),
            serial: NonZeroU32::MIN,
            takes: 0,
            retimed: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn family(&self, owner: Owner) -> Option<&Family> {
        match owner {
            Owner::Gate => self.gate.as_ref(),
            Owner::Retries => self.retries.as_ref(),
            Owner::Class(class) => self.classes.get(class)?.as_ref(),
        }
    }

    /// Returns the bucket that meters a call of this flow and credential; true with it if it is one
    /// of many.
    #[inline]
    pub(crate) fn find(&mut self, owner: Owner, flow: u64, credential: u64, now: Moment) -> Option<(BucketId, bool)> {
        let family = self.family(owner)?;
        match (family.policy.per, family.shared) {
            (Per::Gate, Some(shared)) => Some((shared, false)),
            (Per::Gate, None) => self.open(owner, None, now).map(|id| (id, false)),
            (Per::Flow, _) => self.one_of_many(owner, flow, now).map(|id| (id, true)),
            (Per::Credential, _) => self.one_of_many(owner, credential, now).map(|id| (id, true)),
        }
    }

    #[inline(never)]
    fn one_of_many(&mut self, owner: Owner, who: u64, now: Moment) -> Option<BucketId> {
        match self.family(owner)?.split.get(&who) {
            Some(id) => Some(*id),
            None => self.open(owner, Some(who), now),
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: BucketId) -> Option<&Bucket> {
        self.cells.get(id.index as usize).filter(|cell| cell.serial == id.serial).map(|cell| &cell.bucket)
    }

    /// Returns the moment this bucket has a token. One that is gone limits nothing.
    #[inline]
    pub(crate) fn ready_at(&self, id: BucketId, now: Moment) -> Moment {
        self.get(id).map_or(now, |bucket| bucket.ready_at(now))
    }

    /// Returns the number of calls that have left so far.
    pub(crate) fn takes(&self) -> u64 {
        self.takes
    }

    /// Counts a take and returns its number.
    #[inline]
    pub(crate) fn next_take(&mut self) -> u64 {
        self.takes += 1;
        self.takes
    }

    #[expect(clippy::indexing_slicing, reason = "the cell was found by this number at the beginning")]
    /// Takes the token that is there at `turn.at`, as take `number`.
    #[inline]
    pub(crate) fn take(&mut self, id: BucketId, turn: Turn, number: u64) {
        if let Some(cell) = self.cell(id) {
            let awaited = turn.waited_for(cell.bucket.ready_at(Moment::ZERO));
            let taken = cell.bucket.take(turn.at, number);
            debug_assert!(taken, "a token was taken that was not there");
            if cell.bucket.learn(awaited, turn.now, number) {
                // If they stayed set aside longer than necessary, they would look late, and
                // lateness is made up for.
                self.retimed.extend_from_slice(&self.cells[id.index as usize].users);
            }
        }
    }

    /// Records that a call had to wait: the bucket takes note if it has no token.
    pub(crate) fn note_short(&mut self, id: BucketId, now: Moment) {
        if let Some(cell) = self.cell(id) {
            cell.bucket.note_short(now);
        }
    }

    /// Slows a bucket down because the upstream throttled the call of take `left`.
    pub(crate) fn throttled(&mut self, id: BucketId, left: u64, now: Moment) {
        let takes = self.takes;
        if let Some(cell) = self.cell(id) {
            cell.bucket.throttled(left, now, takes);
        }
    }

    /// Takes the next token even if it comes only later. Returns when that is, and the number of
    /// the take.
    pub(crate) fn reserve(&mut self, id: BucketId, now: Moment) -> (Moment, u64) {
        let number = self.next_take();
        (self.cell(id).map_or(now, |cell| cell.bucket.reserve(now, number)), number)
    }

    /// Gives a token back and adds the queue groups that may now continue to `unblocked`.
    pub(crate) fn give_back(&mut self, id: BucketId, number: u64, unblocked: &mut Vec<u32>) {
        if let Some(cell) = self.cell(id) {
            cell.bucket.give_back(number);
            unblocked.extend_from_slice(&cell.users);
        }
    }

    pub(crate) fn add_user(&mut self, id: BucketId, queue_group: u32) {
        if let Some(cell) = self.cell(id) {
            cell.users.push(queue_group);
        }
    }

    pub(crate) fn remove_user(&mut self, id: BucketId, queue_group: u32) {
        if let Some(cell) = self.cell(id)
            && let Some(at) = cell.users.iter().position(|user| *user == queue_group)
        {
            cell.users.swap_remove(at);
        }
    }

    /// Applies new policies; `origins` gives for each new class which old one it was. A bucket that
    /// existed keeps its level. One that did not, or was split differently, starts with one token:
    /// enough not to stop any call, and no free burst (P11).
    pub(crate) fn reconfigure(&mut self, policy: &Policy, origins: &[Option<usize>], now: Moment) {
        let mut old: Vec<_> = std::mem::take(&mut self.classes);
        let classes = policy.classes.iter().zip(origins).map(|(class, origin)| {
            let family = origin.and_then(|origin| old.get_mut(origin)).and_then(Option::take);
            (family, class.bucket)
        });
        let classes: Vec<_> = classes.collect();
        let (gate, retries) = (self.gate.take(), self.retries.take());
        self.gate = self.adopt(gate, policy.bucket, now);
        self.retries = self.adopt(retries, policy.retry_bucket, now);
        self.classes = classes.into_iter().map(|(family, policy)| self.adopt(family, policy, now)).collect();
        for family in old.into_iter().flatten() {
            self.close(&family);
        }
        for (_, cell) in &mut self.cells {
            cell.users.clear();
        }
    }

    fn adopt(&mut self, family: Option<Family>, policy: Option<BucketPolicy>, now: Moment) -> Option<Family> {
        let Some(policy) = policy else {
            family.iter().for_each(|family| self.close(family));
            return None;
        };
        match family {
            Some(mut family) if family.policy.per == policy.per => {
                if family.policy != policy {
                    family.start = family.start_after(&policy, now);
                }
                family.policy = policy;
                for id in family.ids() {
                    let takes = self.takes;
                    if let Some(cell) = self.cell(id) {
                        cell.bucket.resize(policy, now, takes);
                    }
                }
                Some(family)
            }
            other => {
                other.iter().for_each(|family| self.close(family));
                let tokens = u32::from(!policy.starts_empty);
                Some(Family::new(policy, Start::Level(tokens, now)))
            }
        }
    }

    fn close(&mut self, family: &Family) {
        for id in family.ids() {
            self.cells.try_remove(id.index as usize);
        }
    }

    /// Makes a bucket of a family for `who`, or the shared one.
    #[cold]
    fn open(&mut self, owner: Owner, who: Option<u64>, now: Moment) -> Option<BucketId> {
        if who.is_some() && self.family(owner)?.split.len() >= INSTANCES {
            self.sweep(owner, now);
        }
        let family = self.family(owner)?;
        let own = who.filter(|_| family.split.len() < INSTANCES);
        if let (None, Some(shared)) = (own, family.shared) {
            return Some(shared);
        }
        let bucket = Bucket::new(family.policy, family.start);
        self.serial = self.serial.checked_add(1).unwrap_or(NonZeroU32::MIN);
        let cell = Cell { serial: self.serial, bucket, users: Vec::new() };
        let id = BucketId { index: u32::try_from(self.cells.insert(cell)).ok()?, serial: self.serial };
        let family = self.family_mut(owner)?;
        match own {
            Some(who) => drop(family.split.insert(who, id)),
            None => family.shared = Some(id),
        }
        Some(id)
    }

    /// Drops those of many buckets that are full and for which no call waits.
    fn sweep(&mut self, owner: Owner, now: Moment) {
        let idle = |cells: &Slab<Cell>, id: BucketId| {
            cells.get(id.index as usize).is_none_or(|cell| cell.users.is_empty() && cell.bucket.is_idle(now))
        };
        let Some(family) = self.family(owner).filter(|family| now.since(family.swept) >= SWEEP_EVERY) else { return };
        let gone: Vec<_> =
            family.split.iter().filter(|(_, id)| idle(&self.cells, **id)).map(|(who, id)| (*who, *id)).collect();
        for (who, id) in gone {
            self.cells.try_remove(id.index as usize);
            if let Some(family) = self.family_mut(owner) {
                family.split.remove(&who);
            }
        }
        if let Some(family) = self.family_mut(owner) {
            family.swept = now;
        }
    }

    fn family_mut(&mut self, owner: Owner) -> Option<&mut Family> {
        match owner {
            Owner::Gate => self.gate.as_mut(),
            Owner::Retries => self.retries.as_mut(),
            Owner::Class(class) => self.classes.get_mut(class)?.as_mut(),
        }
    }

    #[inline]
    fn cell(&mut self, id: BucketId) -> Option<&mut Cell> {
        self.cells.get_mut(id.index as usize).filter(|cell| cell.serial == id.serial)
    }
}

// === impl Family ===

impl Family {
    fn new(policy: BucketPolicy, start: Start) -> Self {
        Self { policy, start, split: HashMap::new(), shared: None, swept: Moment::ZERO }
    }

    pub(crate) fn policy(&self) -> &BucketPolicy {
        &self.policy
    }

    /// Returns the start of buckets that were not used before a change of policy: the level they
    /// would have had, in whole tokens.
    fn start_after(&self, policy: &BucketPolicy, now: Moment) -> Start {
        let level = Bucket::new(self.policy, self.start).level(now).min(f64::from(policy.burst.get()));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "`as` saturates: below zero is none"
        )]
        let tokens = level as u32;
        Start::Level(tokens, now)
    }

    /// Returns all its buckets, the shared one first.
    pub(crate) fn ids(&self) -> Vec<BucketId> {
        self.shared.iter().chain(self.split.values()).copied().collect()
    }
}

fn start(policy: &BucketPolicy, now: Moment) -> Start {
    if policy.starts_empty { Start::Level(0, now) } else { Start::Full }
}
