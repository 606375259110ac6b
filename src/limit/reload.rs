//! New limits at run time: buckets keep their level, calls in flight their slots, waiters their places (P11).
//!
//! Waiters hold a place, not a time, so there is nothing to convert: all queues are made anew in the order in which calls entered them,
//! under whatever identity the new policy gives them, and everyone is asked again.

#![expect(
    clippy::indexing_slicing,
    reason = "classes and lanes are numbered by the policy that made both the number and the table"
)]

use std::collections::HashMap;

use super::{
    lanes::Lanes,
    limiter::Limiter,
    needs::Needs,
    policy::{Lane, Policy},
    queue::QueueId,
    supply::Supply,
    table::KeyId,
    waiter::{Pass, State},
};
use crate::moment::Moment;

// === impl Limiter ===

impl Limiter {
    /// New limits. Buckets keep their level, waiters their place. Classes are the same by name; calls of a class that is gone go on as
    /// those of `default`. A bucket that is new, or split differently than before, starts with one token: no burst for free.
    pub fn reconfigure(&mut self, policy: Policy, now: Moment) {
        let now = self.catch_up(now);
        debug_assert!(!policy.classes.is_empty(), "a policy has a class");
        if policy == self.policy || policy.classes.is_empty() {
            return;
        }
        let origins = self.adopt_classes(&policy);
        self.supply.reconfigure(&policy, &origins, now);
        self.policy = policy;
        self.table.set_max_keys(self.policy.max_keys, &mut self.stirred);
        self.rebuild_queues(&origins);
        self.let_exempt_go(now);
        self.stirred.extend(self.lines.keys());
        self.stirred.sort_unstable();
        self.run(now);
    }

    /// Gives the new classes the lasting numbers of the old ones of their name; says which old class each one was.
    fn adopt_classes(&mut self, policy: &Policy) -> Vec<Option<usize>> {
        let mut fresh = self.serials.iter().max().map_or(0, |most| most.wrapping_add(1));
        let origin = |name: &str| self.policy.classes.iter().position(|class| &*class.name == name);
        let origins: Vec<_> = policy.classes.iter().map(|class| origin(&class.name)).collect();
        let serial = |origin: &Option<usize>| {
            origin.and_then(|origin| self.serials.get(origin).copied()).unwrap_or_else(|| {
                fresh = fresh.wrapping_add(1);
                fresh.wrapping_sub(1)
            })
        };
        self.serials = origins.iter().map(serial).collect();
        origins
    }

    fn rebuild_queues(&mut self, origins: &[Option<usize>]) {
        let now = self.now;
        let old = std::mem::replace(&mut self.lanes, Lanes::new(&self.policy));
        self.freed.clear();
        self.supply.buckets.moved.clear();
        self.lanes.inherit(&old, origins);
        let mut queued = Vec::new();
        let mut names = HashMap::new();
        let everyone: Vec<_> = self.waiters.iter().map(|(index, waiter)| (index, waiter.sequence)).collect();
        for (index, sequence) in everyone {
            self.update_waiter(index);
            if let Some(State::Queued(queue)) = self.waiters.get(index).map(|waiter| &waiter.state) {
                let stamp = old.queue(*queue).map_or(0, |queue| queue.stamp);
                names.entry(*queue).or_insert_with(|| old.queue(*queue).and_then(|queue| queue.name.clone()));
                queued.push((sequence, index, *queue, stamp));
            }
        }
        queued.sort_unstable();
        for (_, index, queue, stamp) in queued {
            let Some(waiter) = self.waiters.get(index) else { continue };
            let (call, retry) = (waiter.call, waiter.pass.trial != 0);
            let (id, needs) = self.queue_of(&call, retry, now);
            let name = names.get(&queue).cloned().flatten();
            let queue = self.lanes.open_at(id, &needs, name, stamp, &mut self.supply);
            self.lanes.join(queue, index, false, &mut self.waiters);
            self.set_timer(index);
        }
    }

    /// A waiter under the new limits: its class, when its wait ends, and no reckoned retry token where there is none any more.
    fn update_waiter(&mut self, index: u32) {
        let Some(waiter) = self.waiters.get(index) else { return };
        let mut call = waiter.call;
        call.class = self.class_of(call.serial);
        call.serial = self.serials[call.class];
        let ends = self.ends(&call);
        let sequential = self.policy.queue.combine == super::policy::Combine::Sequential;
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        waiter.call = call;
        waiter.ends = ends;
        let paid = if sequential { waiter.pass.paid.take() } else { None };
        self.end_pass(None, Pass { paid, ..Pass::default() });
        self.set_timer(index);
    }

    /// Calls of a class that has become exempt wait no longer.
    fn let_exempt_go(&mut self, now: Moment) {
        let exempt = |class: usize| self.policy.classes[class].lane == Lane::Exempt;
        let waiting = self.waiters.iter().filter(|(_, waiter)| waiter.is_waiting() && exempt(waiter.call.class));
        let waiting: Vec<u32> = waiting.map(|(index, _)| index).collect();
        for index in waiting {
            let key = self.waiters.get(index).and_then(|waiter| waiter.call.key.as_ref().map(KeyId::from));
            self.let_go(index, now);
            self.stirred.extend(key);
            if let Some(waiter) = self.waiters.get_mut(index) {
                waiter.call.key = None;
            }
        }
    }
}

// === impl Lanes ===

impl Lanes {
    /// The queue with this identity, made if need be with a stamp it had before a reload.
    pub(super) fn open_at(
        &mut self,
        id: QueueId,
        needs: &Needs,
        name: Option<Box<str>>,
        stamp: u64,
        supply: &mut Supply,
    ) -> u32 {
        let is_new = self.find(&id).is_none();
        let queue = self.open(id, needs, || name, supply);
        if let Some(found) = self.queues.get_mut(queue as usize).filter(|_| is_new) {
            found.stamp = stamp;
        }
        queue
    }

    /// Takes over from before a reload whose turn it is. `origins` says for each class which old one it was.
    pub(super) fn inherit(&mut self, old: &Self, origins: &[Option<usize>]) {
        self.clock = old.clock;
        self.passed = old.passed;
        for (class, origin) in self.classes.iter_mut().zip(origins) {
            class.stamp = origin.and_then(|origin| old.classes.get(origin)).map_or(old.clock, |old| old.stamp);
        }
    }
}
