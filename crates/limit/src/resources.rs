//! The resources a call needs before it is sent: room on a connection, slots, tokens of buckets,
//! and no pause in force. All of them are checked and taken at once.

mod adaptive;
mod bucket;
mod buckets;
mod demand;
mod levels;
mod opening;
mod pauses;
mod refund;
mod shared;
mod slots;
mod split;

pub(crate) use self::adaptive::{Adaptive, Answers};
pub(crate) use self::bucket::{Bucket, Start};
pub(crate) use self::buckets::{Buckets, Owner};
pub use self::buckets::{Gap, Levels};
pub(crate) use self::demand::{Block, BucketId, Charges, Demand, Lasts, Requirements, SlotShare, Turn};
pub(crate) use self::opening::Valve;
pub use self::pauses::{FrozenPause, PauseView};
pub(crate) use self::pauses::{Origin, Pauses};
pub(crate) use self::refund::Refunds;
pub use self::shared::{
    Ask, AskId, BucketPart, Fallback, Ledger, MOST_PAUSES, PauseNotice, Questions, SharedLimits, SharedView,
    StoreAnswer, StoreFailure, TokenTally, Wish,
};
pub(crate) use self::shared::{News, Want};
pub(crate) use self::slots::Slots;
pub(crate) use self::split::Split;

use super::{ClassId, Combine, GroupIndex, Origins, Per, PerClass, Policy, Reason};
use crate::key::Group;
use crate::moment::Moment;

/// The connections' room, slots, buckets and pauses of one gate.
#[derive(Debug)]
pub(crate) struct Resources {
    rooms: [i64; 4],
    pub(super) buckets: Buckets,
    pub(super) pauses: Pauses,
    pub(super) gate_slots: Slots,
    pub(super) class_slots: PerClass<Slots>,
    /// The queue groups to check again: a token or slot was given back to them, or the time of
    /// their next token has changed.
    pub(super) unblocked: Vec<GroupIndex>,
    /// The limit on tokens given back for calls the upstream did not count.
    uncounted: Option<Bucket>,
}

// === impl Resources ===

impl Resources {
    pub(super) fn new(policy: &Policy, seed: u64, now: Moment) -> Self {
        Self {
            rooms: [0, 0, 0, ALWAYS],
            buckets: Buckets::new(policy, seed, now),
            pauses: Pauses::new(policy),
            gate_slots: Slots::new(policy.in_flight),
            class_slots: policy.per_class(|class| Slots::new(class.in_flight)),
            unblocked: Vec::new(),
            uncounted: policy.uncounted.map(|uncounted| Bucket::new(uncounted, Start::Full)),
        }
    }

    /// Returns the tokens, slots and connection a call needs before it is sent. `retry` is true for
    /// a call testing a failing key.
    pub(super) fn requirements(&mut self, policy: &Policy, demand: &Demand, retry: bool, now: Moment) -> Requirements {
        let class = policy.class(demand.class);
        let mut charges = Charges::default();
        let is_counted = !demand.quota.is_free();
        if is_counted && (demand.lasts != Lasts::Long || class.meter_long_running) {
            if retry && policy.queue.combine == Combine::Sequential {
                self.charge(&mut charges, Owner::Retries, Reason::RetryBucket, demand, now);
            }
            for owner in policy.within(demand.class) {
                self.charge(&mut charges, Owner::Class(owner), Reason::ClassBucket, demand, now);
            }
            if !class.own_bucket_only {
                self.charge(&mut charges, Owner::Gate, Reason::Bucket, demand, now);
            }
        }
        let Demand { flow, credential, .. } = *demand;
        let shares = match demand.lasts {
            Lasts::Long | Lasts::LongAfterList => [SlotShare::None; 2],
            Lasts::Shortly => [
                self.gate_slots.share(flow, credential, now),
                self.class_slots.of_mut(demand.class).share(flow, credential, now),
            ],
        };
        Requirements { group: demand.group, shares, charges, quota: demand.quota }
    }

    /// Returns the retry bucket to reserve a token from.
    pub(super) fn retry_bucket(&mut self, demand: &Demand, now: Moment) -> Option<BucketId> {
        self.buckets.find(Owner::Retries, demand.flow, demand.credential, now).map(|(id, _)| id)
    }

    /// Returns the end of the pauses stopping a call; `None` if there is none.
    pub(super) fn paused_until(&self, demand: &Demand, now: Moment) -> Option<Moment> {
        let pauses = &self.pauses;
        let until = pauses.any(now).then(|| pauses.ends(demand.class, demand.quota).all());
        until.filter(|until| *until > now)
    }

    #[inline]
    fn charge(&mut self, charges: &mut Charges, owner: Owner, reason: Reason, demand: &Demand, now: Moment) {
        if let Some((bucket, own)) = self.buckets.find(owner, demand.flow, demand.credential, now)
            && !charges.contains(bucket)
        {
            charges.push(bucket, reason, own);
        }
    }

    /// Returns true if one of the charged buckets is a retry bucket letting more retries through,
    /// because retries succeed.
    pub(super) fn retries_are_open(&self, charges: &Charges) -> bool {
        charges.of_retry().filter_map(|bucket| self.buckets.get(bucket)).any(|cell| cell.bucket.is_open())
    }

    /// Returns the obstacle to sending a call now; `None` if there is none. Obstacles for the
    /// call's whole class come first. A missing connection comes last, as one is made once nothing
    /// else stops the call.
    pub(super) fn blocked(&self, needs: &Requirements, class: ClassId, now: Moment) -> Option<Block> {
        let no_room = || (self.room(needs.group) <= 0).then_some(Block::slot(false));
        self.blocked_but_for_room(needs, class, now).or_else(no_room)
    }

    /// Returns the obstacle to sending a call now, ignoring a missing connection.
    pub(super) fn blocked_but_for_room(&self, needs: &Requirements, class: ClassId, now: Moment) -> Option<Block> {
        let paused = self.pauses.ends(class, needs.quota);
        if paused.shared > now {
            return Some(Block { reason: Reason::Pause, until: paused.shared, own: false });
        }
        let mut own_slot = false;
        for (slots, share) in
            [(Some(&self.gate_slots), needs.shares[0]), (self.class_slots.get(class), needs.shares[1])]
        {
            if slots.is_some_and(|slots| slots.free(share) == 0) {
                if !share.is_own() {
                    return Some(Block::slot(false));
                }
                own_slot = true;
            }
        }
        let mut shared = None;
        let mut own = None;
        for charge in needs.charges.iter() {
            let until = self.buckets.look_at(charge.bucket, now);
            let block = if charge.own { &mut own } else { &mut shared };
            // The retry bucket comes first and stays the reason: it allows less waiting than the
            // others.
            if until > now && block.is_none_or(|block: Block| until > block.until) {
                let reason = block
                    .filter(|block| block.reason == Reason::RetryBucket)
                    .map_or(charge.reason, |block| block.reason);
                *block = Some(Block { reason, until, own: charge.own });
            }
        }
        let own_pause = Block { reason: Reason::Pause, until: paused.own, own: true };
        let own_slot = own_slot.then_some(Block::slot(true));
        shared.or_else(|| (paused.own > now).then_some(own_pause)).or(own_slot).or(own)
    }

    /// Records the turn of a waiting call. Returns the moment since when its tokens were available
    /// and its pauses over.
    pub(super) fn turn_since(&mut self, needs: &Requirements, class: ClassId, now: Moment) -> Moment {
        let tokens = needs.charges.iter().map(|charge| self.buckets.there_since(charge.bucket, now));
        tokens.max().unwrap_or_default().max(self.pauses.depart(class, needs.quota, now))
    }

    /// Takes the tokens, slots and room a call needs. Returns a number that identifies the tokens
    /// for refunds.
    pub(super) fn take(&mut self, needs: &mut Requirements, class: ClassId, cost: u16, turn: Turn) -> u64 {
        let number = self.buckets.next_take();
        let in_flight = self.gate_slots.used;
        let answers = Answers { at: turn.now, count: number.saturating_sub(in_flight.into()), in_flight };
        for charge in needs.charges.iter_mut() {
            let answers = (charge.reason == Reason::Bucket && !charge.own).then_some(answers);
            charge.taken = self.buckets.take(charge.bucket, turn, number, cost, answers, &mut self.unblocked);
        }
        self.gate_slots.take(needs.shares[0]);
        if let Some(slots) = self.class_slots.get_mut(class) {
            slots.take(needs.shares[1]);
        }
        self.add_room(needs.group, -1);
        number
    }

    /// Records that a call with these needs waits, so that adaptive and shared buckets know of the
    /// demand.
    pub(super) fn note_short(&mut self, needs: &Requirements, now: Moment) {
        needs.charges.iter().for_each(|charge| self.buckets.note_short(charge.bucket, now));
    }

    /// Gives one token back to the bucket. `number` is what [`Self::take`] returned.
    pub(super) fn give_back_token(&mut self, bucket: BucketId, number: u64) {
        self.buckets.give_back(bucket, number, &mut self.unblocked);
    }

    /// Gives all tokens of a call back. `number` is what [`Self::take`] returned.
    pub(super) fn give_back_tokens(&mut self, needs: &Requirements, number: u64) {
        for charge in needs.charges.iter() {
            (0..charge.taken).for_each(|_| self.give_back_token(charge.bucket, number));
        }
    }

    /// Gives back the gate's tokens for a sent call, because the upstream did not count it. Other
    /// limits of the upstream do count such calls, so the tokens given back are limited.
    pub(super) fn give_back_uncounted(&mut self, needs: &Requirements, number: u64, now: Moment) {
        let is_within = |uncounted: &mut Bucket| uncounted.take(now, number, 1) > 0;
        if self.uncounted.as_mut().is_some_and(is_within) {
            for charge in needs.charges.iter().filter(|charge| charge.reason == Reason::Bucket) {
                (0..charge.taken).for_each(|_| self.give_back_token(charge.bucket, number));
            }
        }
    }

    /// Gives a call's slots back; `class` is `None` if the class was removed.
    #[inline]
    pub(super) fn give_back_slot(&mut self, shares: [SlotShare; 2], class: Option<ClassId>) {
        self.gate_slots.give_back(shares[0], &mut self.unblocked);
        if let Some(slots) = class.and_then(|class| self.class_slots.get_mut(class)) {
            slots.give_back(shares[1], &mut self.unblocked);
        }
    }

    #[inline]
    pub(super) fn room(&self, group: Group) -> i64 {
        self.rooms.get(group as usize).copied().unwrap_or_default()
    }

    #[inline]
    pub(super) fn add_room(&mut self, group: Group, change: i64) {
        if let Some(room) = self.rooms.get_mut(group as usize) {
            *room = room.saturating_add(change);
        }
    }

    /// Returns how many calls with these needs could be sent now, if there were enough connections.
    pub(super) fn enough_for(&self, needs: &Requirements, class: ClassId, now: Moment) -> usize {
        let slots = self.gate_slots.free(needs.shares[0]);
        let slots = self.class_slots.get(class).map_or(slots, |class| slots.min(class.free(needs.shares[1])));
        let calls = needs.charges.iter().filter_map(|charge| self.buckets.whole_calls(charge.bucket, now));
        calls.fold(slots, u32::min) as usize
    }

    /// Returns the free slots of the gate.
    pub(super) fn free_slots(&self) -> usize {
        match self.gate_slots.limit {
            Some(limit) if limit.per == Per::Gate => self.gate_slots.free(SlotShare::Whole) as usize,
            Some(_) | None => usize::MAX,
        }
    }

    /// Registers a queue group with the buckets and slots it uses, so that it is checked again
    /// after a refund.
    pub(super) fn add_user(&mut self, needs: &Requirements, class: ClassId, group: GroupIndex) {
        self.change_users(needs, class, |users| users.push(group));
    }

    pub(super) fn remove_user(&mut self, needs: &Requirements, class: ClassId, group: GroupIndex) {
        self.change_users(needs, class, |users| {
            let at = users.iter().position(|user| *user == group);
            at.map(|at| users.swap_remove(at));
        });
    }

    /// Changes which queue groups are registered with the buckets and slots of a call.
    fn change_users(&mut self, needs: &Requirements, class: ClassId, change: impl Fn(&mut Vec<GroupIndex>)) {
        let own = needs.charges.iter().filter(|charge| charge.own);
        own.for_each(|charge| self.buckets.users(charge.bucket).into_iter().for_each(&change));
        self.gate_slots.users(needs.shares[0]).into_iter().for_each(&change);
        let slots = self.class_slots.get_mut(class);
        slots.and_then(|slots| slots.users(needs.shares[1])).into_iter().for_each(change);
    }

    /// Applies new limits once no queue group is registered. `origins` maps each new class to its
    /// old one.
    pub(super) fn reconfigure(&mut self, policy: &Policy, origins: &Origins, now: Moment) {
        self.unblocked.clear();
        self.buckets.reconfigure(policy, origins, now);
        self.pauses.reconfigure(policy);
        self.gate_slots.reconfigure(policy.in_flight);
        self.uncounted = policy.uncounted.map(|uncounted| match self.uncounted.take() {
            Some(mut bucket) => {
                bucket.resize(uncounted, now, self.buckets.takes);
                bucket
            }
            None => Bucket::new(uncounted, Start::Level(1, now)),
        });
        self.class_slots.carry_over(origins);
        for (class, slots) in policy.classes.iter().zip(self.class_slots.values_mut()) {
            slots.reconfigure(class.in_flight);
        }
    }
}

/// The room of exempt calls: more than can be used up, and far from overflow at either end.
const ALWAYS: i64 = i64::MAX / 2;
