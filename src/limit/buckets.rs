//! The buckets of a gate: the manager's, the retry bucket and the classes', whole or one per flow or credential.

use std::{collections::HashMap, num::NonZeroU32};

use slab::Slab;

use super::{
    bucket::{Bucket, Start},
    needs::BucketId,
    policy::{BucketPolicy, Per, Policy},
    slots::{INSTANCES, SWEEP_EVERY},
};
use crate::moment::Moment;

/// Whose buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Gate,
    Retries,
    Class(usize),
}

/// Every bucket of a gate.
#[derive(Debug)]
pub(super) struct Buckets {
    cells: Slab<Cell>,
    gate: Option<Family>,
    retries: Option<Family>,
    classes: Vec<Option<Family>>,
    serial: NonZeroU32,
    /// Calls that have left so far, with tokens or without: orders them in time.
    takes: u64,
    /// Bundles that were set aside until a token that now comes at another time.
    pub(super) moved: Vec<u32>,
}

/// When a call takes what it needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) now: Moment,
    /// When its tokens are judged: `now`, or before that when somebody was late.
    pub(super) at: Moment,
    /// When the last of what it waited for was there; `None` when it did not wait.
    pub(super) there_since: Option<Moment>,
}

/// A bucket with those who look at it.
#[derive(Debug)]
struct Cell {
    serial: NonZeroU32,
    bucket: Bucket,
    /// Bundles of queues that need this one of many.
    users: Vec<u32>,
}

/// One policy's buckets.
#[derive(Debug)]
pub(super) struct Family {
    policy: BucketPolicy,
    start: Start,
    split: HashMap<u64, BucketId>,
    /// The only one, or that of all flows or credentials past the limit.
    shared: Option<BucketId>,
    swept: Moment,
}

// === impl Turn ===

impl Turn {
    /// That of a call that need not wait.
    pub(super) fn at_once(now: Moment) -> Self {
        Self { now, at: now, there_since: None }
    }

    /// Whether a token that was there at `ready_at` was the last thing that the call waited for.
    fn waited_for(self, ready_at: Moment) -> bool {
        self.there_since.is_some_and(|there_since| ready_at >= there_since)
    }
}

// === impl Buckets ===

impl Buckets {
    pub(super) fn new(policy: &Policy, now: Moment) -> Self {
        let family = |bucket: &Option<BucketPolicy>| bucket.map(|policy| Family::new(policy, start(&policy, now)));
        Self {
            cells: Slab::new(),
            gate: family(&policy.bucket),
            retries: family(&policy.retry_bucket),
            classes: policy.classes.iter().map(|class| family(&class.bucket)).collect(),
            serial: NonZeroU32::MIN,
            takes: 0,
            moved: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn family(&self, owner: Owner) -> Option<&Family> {
        match owner {
            Owner::Gate => self.gate.as_ref(),
            Owner::Retries => self.retries.as_ref(),
            Owner::Class(class) => self.classes.get(class)?.as_ref(),
        }
    }

    /// The bucket that meters a call of this flow and credential, and whether it is one of many.
    #[inline]
    pub(super) fn find(&mut self, owner: Owner, flow: u64, credential: u64, now: Moment) -> Option<(BucketId, bool)> {
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
    pub(super) fn get(&self, id: BucketId) -> Option<&Bucket> {
        self.cells.get(id.index as usize).filter(|cell| cell.serial == id.serial).map(|cell| &cell.bucket)
    }

    /// When this bucket has a token. One that is gone limits nothing.
    #[inline]
    pub(super) fn ready_at(&self, id: BucketId, now: Moment) -> Moment {
        self.get(id).map_or(now, |bucket| bucket.ready_at(now))
    }

    /// How many calls have left so far.
    pub(super) fn takes(&self) -> u64 {
        self.takes
    }

    /// The number of the take that comes next.
    #[inline]
    pub(super) fn next_take(&mut self) -> u64 {
        self.takes += 1;
        self.takes
    }

    #[expect(clippy::indexing_slicing, reason = "the cell was found by this number at the beginning")]
    /// Takes the token that is there at `at`. `could_leave` is when the call could have left but for this bucket, if it waited at all.
    #[inline]
    pub(super) fn take(&mut self, id: BucketId, turn: Turn, number: u64) {
        if let Some(cell) = self.cell(id) {
            let awaited = turn.waited_for(cell.bucket.ready_at(Moment::ZERO));
            let taken = cell.bucket.take(turn.at, number);
            debug_assert!(taken, "a token was taken that was not there");
            if cell.bucket.learn(awaited, turn.now, number) {
                // Set aside longer than they must be, they would look late, and lateness is made up for.
                self.moved.extend_from_slice(&self.cells[id.index as usize].users);
            }
        }
    }

    /// A call is there and must wait, or go: buckets without a token take note.
    pub(super) fn note_short(&mut self, id: BucketId, now: Moment) {
        if let Some(cell) = self.cell(id) {
            cell.bucket.note_short(now);
        }
    }

    /// The upstream turned away a call that had take `left`.
    pub(super) fn throttled(&mut self, id: BucketId, left: u64, now: Moment) {
        let takes = self.takes;
        if let Some(cell) = self.cell(id) {
            cell.bucket.throttled(left, now, takes);
        }
    }

    /// Takes the next token even if it is only there later; says when, and the take's number.
    pub(super) fn reserve(&mut self, id: BucketId, now: Moment) -> (Moment, u64) {
        let number = self.next_take();
        (self.cell(id).map_or(now, |cell| cell.bucket.reserve(now, number)), number)
    }

    /// Gives a token back; the bundles that may now go on are added to `freed`.
    pub(super) fn give_back(&mut self, id: BucketId, number: u64, freed: &mut Vec<u32>) {
        if let Some(cell) = self.cell(id) {
            cell.bucket.give_back(number);
            freed.extend_from_slice(&cell.users);
        }
    }

    pub(super) fn add_user(&mut self, id: BucketId, bundle: u32) {
        if let Some(cell) = self.cell(id) {
            cell.users.push(bundle);
        }
    }

    pub(super) fn remove_user(&mut self, id: BucketId, bundle: u32) {
        if let Some(cell) = self.cell(id)
            && let Some(at) = cell.users.iter().position(|user| *user == bundle)
        {
            cell.users.swap_remove(at);
        }
    }

    /// New policies; `origins` says for each new class which old one it was. Where a bucket was, its level stays. Where there was none, or
    /// it was split differently, there is one token: enough not to stop anyone, and no burst for free (P11).
    pub(super) fn reconfigure(&mut self, policy: &Policy, origins: &[Option<usize>], now: Moment) {
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

    /// Drops those of many that are full and that nobody waits for.
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

    pub(super) fn policy(&self) -> &BucketPolicy {
        &self.policy
    }

    /// How buckets begin that nobody has asked for before a change of policy: at the level they would have had, in whole tokens.
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

    /// Every bucket of it, the shared one first.
    pub(super) fn ids(&self) -> Vec<BucketId> {
        self.shared.iter().chain(self.split.values()).copied().collect()
    }
}

fn start(policy: &BucketPolicy, now: Moment) -> Start {
    if policy.starts_empty { Start::Level(0, now) } else { Start::Full }
}
