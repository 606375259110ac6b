//! The resources that calls compete for: rooms, slots and buckets, and the pauses that keep calls
//! from them. Everything that a call requires is checked and taken as one.

#![expect(
    clippy::indexing_slicing,
    reason = "classes and lanes are numbered by the policy that made both the number and the table"
)]

pub(crate) mod adaptive;
pub(crate) mod bucket;
pub(crate) mod buckets;
pub(crate) mod demand;
pub(crate) mod pauses;
pub(crate) mod refund;
pub(crate) mod slots;

use super::{
    policy::{Combine, Per, Policy},
    refusal::Reason,
    resources::{
        buckets::{Buckets, Owner, Turn},
        demand::{Block, BucketId, Charge, Charges, Demand, Requirements, SlotShare},
        pauses::Pauses,
        slots::Slots,
    },
};
use crate::{api::Group, moment::Moment};

/// The rooms, slots, buckets and pauses of one gate.
#[derive(Debug)]
pub(super) struct Resources {
    rooms: [i64; 4],
    pub(super) buckets: Buckets,
    pub(super) pauses: Pauses,
    pub(super) gate_slots: Slots,
    pub(super) class_slots: Vec<Slots>,
}

// === impl Resources ===

impl Resources {
    pub(super) fn new(policy: &Policy, now: Moment) -> Self {
        Self {
            rooms: [0, 0, 0, ALWAYS],
            buckets: Buckets::new(policy, now),
            pauses: Pauses::new(policy),
            gate_slots: Slots::new(policy.in_flight),
            class_slots: policy.classes.iter().map(|class| Slots::new(class.in_flight)).collect(),
        }
    }

    /// Returns what a call needs in order to leave.
    pub(super) fn requirements(&mut self, policy: &Policy, demand: &Demand, now: Moment) -> Requirements {
        let class = &policy.classes[demand.class];
        let mut charges = Charges::default();
        if !demand.long_running || demand.lists_first || class.meter_long_running {
            if demand.retry && policy.queue.combine == Combine::Sequential {
                self.charge(&mut charges, Owner::Retries, Reason::RetryBucket, demand, now);
            }
            self.charge(&mut charges, Owner::Class(demand.class), Reason::ClassBucket, demand, now);
            // Checked to be no cycle; counting the steps costs nothing and would end one.
            let mut within = class.within;
            for _ in 0..policy.classes.len() {
                let Some(outer) = within.map(|id| usize::from(id.0)) else { break };
                self.charge(&mut charges, Owner::Class(outer), Reason::ClassBucket, demand, now);
                within = policy.classes.get(outer).and_then(|class| class.within);
            }
            if !class.own_bucket_only {
                self.charge(&mut charges, Owner::Gate, Reason::Bucket, demand, now);
            }
        }
        let places = if demand.long_running {
            [SlotShare::None; 2]
        } else {
            let who = |slots: &Slots| if slots.per() == Some(Per::Flow) { demand.flow } else { demand.credential };
            let gate = self.gate_slots.share(who(&self.gate_slots), now);
            let slots = &mut self.class_slots[demand.class];
            [gate, slots.share(who(slots), now)]
        };
        Requirements { group: demand.group, places, charges, credential: self.pauses.own(demand.credential) }
    }

    /// Returns the retry bucket of a call, for a reservation.
    pub(super) fn retry_bucket(&mut self, demand: &Demand, now: Moment) -> Option<BucketId> {
        self.buckets.find(Owner::Retries, demand.flow, demand.credential, now).map(|(id, _)| id)
    }

    #[inline]
    fn charge(&mut self, charges: &mut Charges, owner: Owner, reason: Reason, demand: &Demand, now: Moment) {
        if let Some((bucket, own)) = self.buckets.find(owner, demand.flow, demand.credential, now)
            && !charges.contains(bucket)
        {
            charges.push(Charge { bucket, reason, own });
        }
    }

    /// Returns what keeps a call with these requirements from leaving now. Causes that the queues
    /// of its class share come first.
    pub(super) fn blocked(&self, needs: &Requirements, class: usize, now: Moment) -> Option<Block> {
        let slot = |own| Block { reason: Reason::Slot, until: Moment::MAX, own };
        if self.room(needs.group) <= 0 {
            return Some(slot(false));
        }
        self.blocked_but_for_room(needs, class, now)
    }

    /// Returns the same for a call that has room.
    pub(super) fn blocked_but_for_room(&self, needs: &Requirements, class: usize, now: Moment) -> Option<Block> {
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
        let own_slot = own_slot.then_some(Block { reason: Reason::Slot, until: Moment::MAX, own: true });
        shared.or_else(|| (paused.own > now).then_some(own_pause)).or(own_slot).or(own)
    }

    /// Returns the moment from which all tokens that a call needs were there and its pauses were
    /// over.
    pub(super) fn there_since(&self, needs: &Requirements, class: usize) -> Moment {
        let tokens = needs.charges.iter().map(|charge| self.buckets.ready_at(charge.bucket, Moment::ZERO));
        tokens.max().unwrap_or_default().max(self.pauses.ends(class, needs.credential).all())
    }

    /// Takes all requirements. Returns the number of the take, which a refund names.
    pub(super) fn take(&mut self, needs: &Requirements, class: usize, turn: Turn) -> u64 {
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

    /// Records that a call with these requirements cannot leave now.
    pub(super) fn note_short(&mut self, needs: &Requirements, now: Moment) {
        needs.charges.iter().for_each(|charge| self.buckets.note_short(charge.bucket, now));
    }

    /// Gives the tokens of a take back.
    pub(super) fn give_back_tokens(&mut self, needs: &Requirements, number: u64, unblocked: &mut Vec<u32>) {
        for charge in needs.charges.iter() {
            self.buckets.give_back(charge.bucket, number, unblocked);
        }
    }

    /// Gives the slots of a take back; `class` is `None` when the class is gone.
    #[inline]
    pub(super) fn give_back_slot(&mut self, places: [SlotShare; 2], class: Option<usize>, unblocked: &mut Vec<u32>) {
        self.gate_slots.give_back(places[0], unblocked);
        if let Some(slots) = class.and_then(|class| self.class_slots.get_mut(class)) {
            slots.give_back(places[1], unblocked);
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

    /// Returns how many calls with these requirements could leave one after the other if there were
    /// room.
    pub(super) fn enough_for(&self, needs: &Requirements, class: usize, now: Moment) -> usize {
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
            // A level within rounding of a whole token is decided by `ready_at`, as everywhere
            // else.
            enough.min(whole.max(usize::from(bucket.ready_at(now) <= now)))
        })
    }

    /// Registers a queue group with the split buckets and slots that it uses, so that a refund
    /// finds it.
    pub(super) fn add_user(&mut self, needs: &Requirements, class: usize, queue_group: u32) {
        needs
            .charges
            .iter()
            .filter(|charge| charge.own)
            .for_each(|charge| self.buckets.add_user(charge.bucket, queue_group));
        self.gate_slots.add_user(needs.places[0], queue_group);
        if let Some(slots) = self.class_slots.get_mut(class) {
            slots.add_user(needs.places[1], queue_group);
        }
    }

    pub(super) fn remove_user(&mut self, needs: &Requirements, class: usize, queue_group: u32) {
        needs
            .charges
            .iter()
            .filter(|charge| charge.own)
            .for_each(|charge| self.buckets.remove_user(charge.bucket, queue_group));
        self.gate_slots.remove_user(needs.places[0], queue_group);
        if let Some(slots) = self.class_slots.get_mut(class) {
            slots.remove_user(needs.places[1], queue_group);
        }
    }

    /// Applies new limits; `origins` gives for each new class which old one it was.
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
        Group::Exempt => 0,
        Group::Short => 1,
        Group::LongRunning => 2,
        Group::Upgrades => 3,
    }
}

/// The room of exempt calls, which is not counted: more than can be used up, and far from either
/// end of the number.
const ALWAYS: i64 = i64::MAX / 2;
