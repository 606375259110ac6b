//! All that calls compete for: rooms, slots and buckets, and the pauses that keep them from it. What a call needs is asked for and taken
//! as one.

#![expect(
    clippy::indexing_slicing,
    reason = "classes and lanes are numbered by the policy that made both the number and the table"
)]

use super::{
    buckets::{Buckets, Owner, Turn},
    needs::{Block, BucketId, Charge, Charges, Needs, Place},
    pauses::Pauses,
    policy::{Combine, Per, Policy},
    slots::Slots,
    verdict::Reason,
};
use crate::{api::Group, moment::Moment};

/// Rooms, slots and buckets of one gate.
#[derive(Debug)]
pub(super) struct Supply {
    rooms: [i64; 4],
    pub(super) buckets: Buckets,
    pub(super) pauses: Pauses,
    pub(super) gate_slots: Slots,
    pub(super) class_slots: Vec<Slots>,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) class: usize,
    pub(super) flow: u64,
    pub(super) credential: u64,
    pub(super) group: Group,
    pub(super) long_running: bool,
    pub(super) lists_first: bool,
    /// Its key is failing, and it is the trial.
    pub(super) retry: bool,
}

// === impl Supply ===

impl Supply {
    pub(super) fn new(policy: &Policy, now: Moment) -> Self {
        Self {
            rooms: [0, 0, 0, ALWAYS],
            buckets: Buckets::new(policy, now),
            pauses: Pauses::new(policy),
            gate_slots: Slots::new(policy.in_flight),
            class_slots: policy.classes.iter().map(|class| Slots::new(class.in_flight)).collect(),
        }
    }

    /// What a call needs in order to leave.
    pub(super) fn needs(&mut self, policy: &Policy, asker: &Asker, now: Moment) -> Needs {
        let class = &policy.classes[asker.class];
        let mut charges = Charges::default();
        if !asker.long_running || asker.lists_first || class.meter_long_running {
            if asker.retry && policy.queue.combine == Combine::Sequential {
                self.charge(&mut charges, Owner::Retries, Reason::RetryBucket, asker, now);
            }
            self.charge(&mut charges, Owner::Class(asker.class), Reason::ClassBucket, asker, now);
            // Checked to be no cycle; counting the steps costs nothing and ends any.
            let mut within = class.within;
            for _ in 0..policy.classes.len() {
                let Some(outer) = within.map(|id| usize::from(id.0)) else { break };
                self.charge(&mut charges, Owner::Class(outer), Reason::ClassBucket, asker, now);
                within = policy.classes.get(outer).and_then(|class| class.within);
            }
            if !class.own_bucket_only {
                self.charge(&mut charges, Owner::Gate, Reason::Bucket, asker, now);
            }
        }
        let places = if asker.long_running {
            [Place::None; 2]
        } else {
            let who = |slots: &Slots| if slots.per() == Some(Per::Flow) { asker.flow } else { asker.credential };
            let gate = self.gate_slots.place(who(&self.gate_slots), now);
            let slots = &mut self.class_slots[asker.class];
            [gate, slots.place(who(slots), now)]
        };
        Needs { group: asker.group, places, charges, credential: self.pauses.own(asker.credential) }
    }

    /// The retry bucket's own charge, for reservations.
    pub(super) fn retry_bucket(&mut self, asker: &Asker, now: Moment) -> Option<BucketId> {
        self.buckets.find(Owner::Retries, asker.flow, asker.credential, now).map(|(id, _)| id)
    }

    #[inline]
    fn charge(&mut self, charges: &mut Charges, owner: Owner, reason: Reason, asker: &Asker, now: Moment) {
        if let Some((bucket, own)) = self.buckets.find(owner, asker.flow, asker.credential, now)
            && !charges.contains(bucket)
        {
            charges.push(Charge { bucket, reason, own });
        }
    }

    /// What keeps a call with these needs from leaving now. What the queues of its class have in common comes first.
    pub(super) fn blocked(&self, needs: &Needs, class: usize, now: Moment) -> Option<Block> {
        let slot = |own| Block { reason: Reason::Slot, until: Moment::MAX, own };
        if self.room(needs.group) <= 0 {
            return Some(slot(false));
        }
        self.blocked_but_for_room(needs, class, now)
    }

    /// The same for a call that has room.
    pub(super) fn blocked_but_for_room(&self, needs: &Needs, class: usize, now: Moment) -> Option<Block> {
        let paused = self.pauses.ends(class, needs.credential);
        if paused.shared > now {
            return Some(Block { reason: Reason::Pause, until: paused.shared, own: false });
        }
        let mut own_slot = false;
        for (slots, place) in
            [(Some(&self.gate_slots), needs.places[0]), (self.class_slots.get(class), needs.places[1])]
        {
            if slots.is_some_and(|slots| !slots.is_free(place)) {
                if !place.is_own() {
                    return Some(Block { reason: Reason::Slot, until: Moment::MAX, own: false });
                }
                own_slot = true;
            }
        }
        let (mut shared, mut own) = (None, None);
        for charge in needs.charges.iter() {
            let until = self.buckets.ready_at(charge.bucket, now);
            let block = if charge.own { &mut own } else { &mut shared };
            // The retry bucket comes first and stays the reason: it allows less waiting than the others.
            if until > now && block.is_none_or(|block: Block| until > block.until) {
                let reason = block
                    .filter(|block| block.reason == Reason::RetryBucket)
                    .map_or(charge.reason, |block| block.reason);
                *block = Some(Block { reason, until, own: charge.own });
            }
        }
        let own_pause = Block { reason: Reason::Pause, until: paused.own, own: true };
        let own_slot = own_slot.then_some(Block { reason: Reason::Slot, until: Moment::MAX, own: true });
        shared.or_else(|| (paused.own > now).then_some(own_pause)).or(own_slot).or(own)
    }

    /// When the last of the tokens that a call needs came to be there, and its pauses were over.
    pub(super) fn there_since(&self, needs: &Needs, class: usize) -> Moment {
        let tokens = needs.charges.iter().map(|charge| self.buckets.ready_at(charge.bucket, Moment::ZERO));
        tokens.max().unwrap_or_default().max(self.pauses.ends(class, needs.credential).all())
    }

    /// Takes all of it. Gives the take's number, which a refund names.
    pub(super) fn take(&mut self, needs: &Needs, class: usize, turn: Turn) -> u64 {
        let number = self.buckets.next_take();
        for charge in needs.charges.iter() {
            self.buckets.take(charge.bucket, turn, number);
        }
        self.gate_slots.take(needs.places[0]);
        if let Some(slots) = self.class_slots.get_mut(class) {
            slots.take(needs.places[1]);
        }
        self.add_room(needs.group, -1);
        number
    }

    /// A call with these needs is there and cannot leave now.
    pub(super) fn note_short(&mut self, needs: &Needs, now: Moment) {
        needs.charges.iter().for_each(|charge| self.buckets.note_short(charge.bucket, now));
    }

    /// Gives the tokens of a take back.
    pub(super) fn give_back_tokens(&mut self, needs: &Needs, number: u64, freed: &mut Vec<u32>) {
        for charge in needs.charges.iter() {
            self.buckets.give_back(charge.bucket, number, freed);
        }
    }

    /// Gives the slots of a take back; `class` is `None` when the class is gone.
    #[inline]
    pub(super) fn give_back_slot(&mut self, places: [Place; 2], class: Option<usize>, freed: &mut Vec<u32>) {
        self.gate_slots.give_back(places[0], freed);
        if let Some(slots) = class.and_then(|class| self.class_slots.get_mut(class)) {
            slots.give_back(places[1], freed);
        }
    }

    #[inline]
    pub(super) fn room(&self, group: Group) -> i64 {
        self.rooms[index(group)]
    }

    #[inline]
    pub(super) fn add_room(&mut self, group: Group, change: i64) {
        let room = &mut self.rooms[index(group)];
        *room = room.saturating_add(change);
    }

    /// How many calls with these needs could leave one after the other if there were room.
    pub(super) fn enough_for(&self, needs: &Needs, class: usize, now: Moment) -> usize {
        let slots = self.gate_slots.free(needs.places[0]);
        let slots = self.class_slots.get(class).map_or(slots, |class| slots.min(class.free(needs.places[1])));
        let tokens = needs.charges.iter().filter_map(|charge| self.buckets.get(charge.bucket));
        tokens.fold(slots as usize, |enough, bucket| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "`as` saturates: below zero is none"
            )]
            let whole = bucket.level(now) as usize;
            // A level within rounding of a whole token is decided by what decides everywhere else.
            enough.min(whole.max(usize::from(bucket.ready_at(now) <= now)))
        })
    }

    /// Notes who looks at the parts of which there are many, so that a refund finds them.
    pub(super) fn add_user(&mut self, needs: &Needs, class: usize, bundle: u32) {
        needs
            .charges
            .iter()
            .filter(|charge| charge.own)
            .for_each(|charge| self.buckets.add_user(charge.bucket, bundle));
        self.gate_slots.add_user(needs.places[0], bundle);
        if let Some(slots) = self.class_slots.get_mut(class) {
            slots.add_user(needs.places[1], bundle);
        }
    }

    pub(super) fn remove_user(&mut self, needs: &Needs, class: usize, bundle: u32) {
        needs
            .charges
            .iter()
            .filter(|charge| charge.own)
            .for_each(|charge| self.buckets.remove_user(charge.bucket, bundle));
        self.gate_slots.remove_user(needs.places[0], bundle);
        if let Some(slots) = self.class_slots.get_mut(class) {
            slots.remove_user(needs.places[1], bundle);
        }
    }

    /// New limits; `origins` says for each new class which old one it was.
    pub(super) fn reconfigure(&mut self, policy: &Policy, origins: &[Option<usize>], now: Moment) {
        self.buckets.reconfigure(policy, origins, now);
        self.pauses.reconfigure(policy, origins);
        self.gate_slots.reconfigure(policy.in_flight);
        let mut old: Vec<_> = std::mem::take(&mut self.class_slots).into_iter().map(Some).collect();
        let classes = policy.classes.iter().zip(origins).map(|(class, origin)| {
            let kept = origin.and_then(|origin| old.get_mut(origin)).and_then(Option::take);
            let mut slots = kept.unwrap_or_else(|| Slots::new(None));
            slots.reconfigure(class.in_flight);
            slots
        });
        self.class_slots = classes.collect();
    }
}

fn index(group: Group) -> usize {
    match group {
        Group::Leases => 0,
        Group::Short => 1,
        Group::LongRunning => 2,
        Group::Upgrades => 3,
    }
}

/// Room where nobody counts it: more than can be used up, and far enough from either end of the number.
const ALWAYS: i64 = i64::MAX / 2;
