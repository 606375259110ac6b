//! Looking ahead: who could go when, and how long a call would certainly wait.
//!
//! Certain is what must happen before its turn if nobody ahead leaves, nobody joins, and slots and room come free at once (P8). A lower
//! bound, never a guess: whoever might be stopped by something that does not stop this call is not counted. Where all calls of a class
//! need the same, it is exact but for one turn of each other flow.

#![expect(
    clippy::indexing_slicing,
    reason = "classes and lanes are numbered by the policy that made both the number and the table"
)]

use super::{
    doors::Door,
    lanes::{ClassTurns, Lanes, PASSED},
    needs::Needs,
    pauses::Pauses,
    queue::QueueId,
    supply::Supply,
    verdict::Reason,
};
use crate::{api::Group, moment::Moment};

/// When a call could leave at the earliest, and what it would wait for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Certain {
    pub(super) at: Moment,
    pub(super) reason: Reason,
    /// For a retry: when it could have its tokens of the retry bucket and of the gate's, if these meter it.
    pub(super) retry_at: Option<Moment>,
}

/// Calls of a class or a lane that would have their turns first.
#[derive(Clone, Copy, Debug, Default)]
struct Others {
    /// Everyone who waits there.
    all: usize,
    /// Those who go whenever this call could, and take a token of the bucket in question.
    metered: usize,
}

/// Who asks, and when the pauses are over that hold it.
struct Ask<'a> {
    needs: &'a Needs,
    pauses: &'a Pauses,
    now: Moment,
    over: Moment,
}

// === impl Ask ===

impl Ask<'_> {
    /// When the calls of a class have no pause any more.
    fn over_of(&self, class: usize) -> Moment {
        self.now.max(self.pauses.ends(class, None).shared)
    }
}

// === impl Lanes ===

impl Lanes {
    /// When a call that joined now at the end of this queue could leave at the earliest.
    pub(super) fn certain(&self, id: &QueueId, needs: &Needs, supply: &Supply, now: Moment) -> Certain {
        // Those of its own bundle pause as long as it does, others perhaps only with the gate.
        let over = now.max(supply.pauses.ends(id.class(), needs.credential).all());
        let ask = Ask { needs, pauses: &supply.pauses, now, over };
        let gate_over = now.max(supply.pauses.gate_ends());
        let reason = if over > now { Reason::Pause } else { Reason::Slot };
        let mut certain = Certain { at: over, reason, retry_at: None };
        let own = self.own_bundle_turns(id, needs);
        for charge in needs.charges.iter() {
            let metered = |other: &Needs| other.charges.contains(charge.bucket);
            let before = own.saturating_add(self.others_before(id, &ask, own, metered));
            let Some(bucket) = supply.buckets.get(charge.bucket) else { continue };
            if id.mode.retry && charge.reason.is_of_retry() {
                // Its tokens, whatever else holds it.
                certain.retry_at = certain.retry_at.max(Some(bucket.ready_after(before, now)));
            }
            let at = bucket.ready_after(own, over).max(bucket.ready_after(before, gate_over));
            if at > certain.at {
                (certain.at, certain.reason) = (at, charge.reason);
            }
        }
        certain
    }

    /// When somebody may be able to leave if nothing else happens.
    pub(super) fn next_wakeup(&self, supply: &Supply, now: Moment) -> Option<Moment> {
        if self.waiting() == 0 {
            return None;
        }
        let doors = self
            .active
            .iter()
            .flatten()
            .flat_map(|class| self.classes[*class].doors.iter().map(move |door| (class, door)));
        let until = |(class, door): (&usize, &Door)| {
            let has_room = supply.room(door.mode.group) > 0;
            // Without room it still matters when there is nothing else: then a connection is wanted.
            let (looked_at, free) = if has_room { (1, now) } else { (BUNDLES_LOOKED_AT, Moment::MAX) };
            let bundles =
                door.ready.iter().take(looked_at).filter_map(|(_, bundle)| self.bundles.get(*bundle as usize));
            let blocks = bundles.map(|bundle| supply.blocked_but_for_room(&bundle.needs, *class, now));
            blocks.map(|block| block.map_or(free, |block| block.until)).min()
        };
        let parked = self.parked.first().map(|(until, _)| *until);
        doors.filter_map(until).filter(|until| *until < Moment::MAX).chain(parked).min()
    }

    /// Calls of a group that would go if there were room.
    pub(super) fn would_go(&self, group: Group, supply: &Supply, now: Moment) -> usize {
        if self.waiting() == 0 {
            return 0;
        }
        let classes = self.active.iter().flatten().map(|class| (*class, &self.classes[*class]));
        let doors = classes.flat_map(|(class, turns)| turns.doors.iter().map(move |door| (class, door)));
        let mut calls = 0_usize;
        for (class, door) in doors.filter(|(_, door)| door.mode.group == group) {
            for (_, bundle) in door.ready.iter().take(BUNDLES_LOOKED_AT) {
                let Some(bundle) = self.bundles.get(*bundle as usize) else { continue };
                if supply.blocked_but_for_room(&bundle.needs, class, now).is_none() {
                    calls = calls.saturating_add(bundle.waiting.min(supply.enough_for(&bundle.needs, class, now)));
                }
            }
        }
        calls
    }

    /// Turns that its own bundle of queues gives before it.
    fn own_bundle_turns(&self, id: &QueueId, needs: &Needs) -> usize {
        if let Some((queue, bundle)) =
            self.find(id).and_then(|queue| Some((self.queue(queue)?, self.bundle_of(queue)?)))
        {
            return bundle.turns.within(queue.len as usize);
        }
        if needs.have_own() {
            return 0;
        }
        // A queue that is new is behind one turn of every other.
        self.plain_bundle(id.class(), id.mode).map_or(0, |bundle| bundle.turns.within(1))
    }

    /// Turns that other classes have before it, of calls that `metered` counts.
    fn others_before(&self, id: &QueueId, ask: &Ask<'_>, own: usize, metered: impl Fn(&Needs) -> bool) -> usize {
        let Some(mine) = self.classes.get(id.class()) else { return 0 };
        let lane = mine.lane();
        // Between two turns of its class every other class of the lane has one.
        let beside = |class: &usize| *class != id.class();
        let classes = self.active[lane].iter().copied().filter(beside);
        let (mut turns, mut counted) = (own, 0_usize);
        for class in classes {
            let others = self.others(&self.classes[class], class, ask, &metered);
            counted = counted.saturating_add(others.in_turns(own));
            let any = self.others(&self.classes[class], class, ask, &|_| true);
            turns = turns.saturating_add(any.metered.min(own));
        }
        // Higher lanes go first but for every tenth turn, and of the nine in between a lower lane may have one. Calls of lower lanes that
        // need something else than this one have their turns when they like, and those too count as passing it.
        let lower = self.active[lane + 1..].iter().flatten();
        let slips: usize = lower.map(|class| self.slips(&self.classes[*class], *class, ask)).sum();
        let mut higher = Others::default();
        for class in self.active[..lane].iter().flatten() {
            let others = self.others(&self.classes[*class], *class, ask, &metered);
            higher = Others { all: higher.all + others.all, metered: higher.metered + others.metered };
        }
        let passed = self.passed[lane] as usize;
        let turns = turns.saturating_add(1).saturating_mul(PASSED as usize - 1).saturating_sub(passed + slips);
        counted.saturating_add(higher.in_turns(turns))
    }

    /// Calls of a class that may go while one with these needs may not.
    fn slips(&self, turns: &ClassTurns, class: usize, ask: &Ask<'_>) -> usize {
        if ask.over_of(class) < ask.over {
            return turns.waiting;
        }
        let needs = ask.needs;
        let goes_later = |other: &Needs| other.group == needs.group && needs.charges.are_among(&other.charges);
        let plain = turns.doors.iter().filter_map(|door| self.plain_bundle(class, door.mode));
        let later: usize = plain.filter(|bundle| goes_later(&bundle.needs)).map(|bundle| bundle.waiting).sum();
        turns.waiting.saturating_sub(later)
    }

    /// Those of a class who go whenever a call with these needs could.
    fn others(&self, turns: &ClassTurns, class: usize, ask: &Ask<'_>, metered: &impl Fn(&Needs) -> bool) -> Others {
        let mut others = Others { all: turns.waiting, metered: 0 };
        if ask.over_of(class) > ask.over {
            return others;
        }
        let needs = ask.needs;
        let goes_first = |needs_of: &Needs| needs_of.group == needs.group && needs_of.charges.are_among(&needs.charges);
        for door in &turns.doors {
            // Bundles with something of their own may be set aside; there is at most one without.
            let plain = self
                .plain_bundle(class, door.mode)
                .filter(|bundle| goes_first(&bundle.needs) && metered(&bundle.needs));
            others.metered += plain.map_or(0, |bundle| bundle.waiting);
        }
        others
    }
}

// === impl Others ===

impl Others {
    /// How many of the metered ones have gone when the class or lane has had this many turns (fewer only if none of them is left).
    fn in_turns(self, turns: usize) -> usize {
        self.metered.min(turns.saturating_sub(self.all - self.metered.min(self.all)))
    }
}

/// How many connections to dial is not decided by the hundredth bucket.
const BUNDLES_LOOKED_AT: usize = 100;
