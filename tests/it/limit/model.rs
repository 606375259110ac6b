//! The limiter once more, slow and obvious: one list of calls, token buckets that count tokens, and at every moment a look at everybody.
//!
//! No keys, no retries: what is compared is who leaves when, over classes, lanes, flows, buckets, slots and room.

use std::{collections::HashMap, time::Duration};

use proptest::prelude::*;
use tidegate::{
    api::Group,
    limit::{
        ClassId, Policy,
        policy::{BucketPolicy, ClassPolicy, Lane, Per, QueuePolicy},
    },
    moment::Moment,
};

use super::{
    lives::{self, Cast, Op, stories},
    world::{Caller, World, ms, open, secs},
};

/// A bucket that counts tokens, in nanoseconds' worth of them.
#[derive(Debug)]
struct Tokens {
    period: u128,
    most: u128,
    held: u128,
    seen: Moment,
}

#[derive(Debug)]
struct Waiting {
    call: usize,
    caller: Caller,
}

/// A queue's identity: class, flow, and whether it is of long-running calls.
type Queue = (u16, u64, bool);

#[derive(Debug)]
struct Model {
    policy: Policy,
    /// The gate's, then the classes'.
    buckets: Vec<Option<Tokens>>,
    rooms: HashMap<bool, i64>,
    gate_slots: u32,
    class_slots: Vec<u32>,
    waiting: Vec<Waiting>,
    /// Turns: of queues, of classes, and how often a lane was passed.
    queue_turns: HashMap<Queue, u64>,
    class_turns: Vec<u64>,
    passed: [u32; 3],
    turns: u64,
    now: Moment,
    left: Vec<(usize, Moment)>,
}

// === impl Tokens ===

impl Tokens {
    fn new(policy: &BucketPolicy) -> Self {
        let period = (1e9 / policy.rate).ceil() as u128;
        let most = period * u128::from(policy.burst.get());
        Self { period, most, held: if policy.starts_empty { 0 } else { most }, seen: Moment::ZERO }
    }

    fn held_at(&self, now: Moment) -> u128 {
        (self.held + (now - self.seen).as_nanos()).min(self.most)
    }

    fn next_token(&self, now: Moment) -> Moment {
        let missing = self.period.saturating_sub(self.held_at(now));
        now + Duration::from_nanos(u64::try_from(missing).expect("a period fits"))
    }

    fn take(&mut self, now: Moment) {
        self.held = self.held_at(now) - self.period;
        self.seen = now;
    }
}

// === impl Model ===

impl Model {
    fn new(policy: &Policy) -> Self {
        let tokens = |bucket: &Option<BucketPolicy>| bucket.as_ref().map(Tokens::new);
        let mut buckets = vec![tokens(&policy.bucket)];
        buckets.extend(policy.classes.iter().map(|class| tokens(&class.bucket)));
        Self {
            buckets,
            rooms: HashMap::from([(false, 1 << 40), (true, 1 << 40)]),
            gate_slots: 0,
            class_slots: vec![0; policy.classes.len()],
            waiting: Vec::new(),
            queue_turns: HashMap::new(),
            class_turns: vec![0; policy.classes.len()],
            passed: [0; 3],
            turns: 0,
            now: Moment::ZERO,
            left: Vec::new(),
            policy: policy.clone(),
        }
    }

    fn class(&self, caller: &Caller) -> &ClassPolicy {
        &self.policy.classes[usize::from(caller.class)]
    }

    fn lane(&self, class: u16) -> usize {
        match self.policy.classes[usize::from(class)].lane {
            Lane::Exempt | Lane::High => 0,
            Lane::Normal => 1,
            Lane::Low => 2,
        }
    }

    /// Which buckets a call needs.
    fn charged(&self, caller: &Caller) -> Vec<usize> {
        let class = self.class(caller);
        if caller.long_running && !class.meter_long_running {
            return Vec::new();
        }
        let mut charged = Vec::new();
        let mut next = Some(ClassId(caller.class));
        while let Some(ClassId(class)) = next {
            charged.push(usize::from(class) + 1);
            next = self.policy.classes[usize::from(class)].within;
        }
        if !class.own_bucket_only {
            charged.push(0);
        }
        charged.retain(|bucket| self.buckets[*bucket].is_some());
        charged
    }

    fn can_leave(&self, caller: &Caller) -> bool {
        let class = self.class(caller);
        let slots = caller.long_running
            || class.in_flight.is_none_or(|slots| self.class_slots[usize::from(caller.class)] < slots.max.get())
                && self.policy.in_flight.is_none_or(|slots| self.gate_slots < slots.max.get());
        let tokens = |bucket: &usize| {
            self.buckets[*bucket].as_ref().is_none_or(|tokens| tokens.next_token(self.now) <= self.now)
        };
        slots && self.rooms[&caller.long_running] > 0 && self.charged(caller).iter().all(tokens)
    }

    fn leave(&mut self, call: usize, caller: &Caller) {
        let now = self.now;
        for bucket in self.charged(caller) {
            self.buckets[bucket].iter_mut().for_each(|tokens| tokens.take(now));
        }
        *self.rooms.get_mut(&caller.long_running).expect("both are there") -= 1;
        if !caller.long_running {
            self.gate_slots += 1;
            self.class_slots[usize::from(caller.class)] += 1;
        }
        self.left.push((call, now));
    }

    fn queue(caller: &Caller) -> Queue {
        (caller.class, caller.flow, caller.long_running)
    }

    fn arrive(&mut self, call: usize, caller: Caller) {
        if self.class(&caller).lane == Lane::Exempt {
            self.left.push((call, self.now));
            return;
        }
        let queue = Self::queue(&caller);
        let joins = self.waiting.iter().any(|other| Self::queue(&other.caller) == queue);
        if !joins && self.can_leave(&caller) {
            return self.leave(call, &caller);
        }
        if !joins {
            self.turns += 1;
            self.queue_turns.insert(queue, self.turns);
        }
        self.waiting.push(Waiting { call, caller });
    }

    /// Everyone who can leave leaves, by all rules of order.
    fn settle(&mut self) {
        loop {
            let heads = self.waiting.iter().enumerate().filter(|(at, waiting)| {
                let queue = Self::queue(&waiting.caller);
                !self.waiting[..*at].iter().any(|other| Self::queue(&other.caller) == queue)
            });
            let able = heads.filter(|(_, waiting)| self.can_leave(&waiting.caller));
            let next = able.min_by_key(|(_, waiting)| {
                let (class, lane) = (waiting.caller.class, self.lane(waiting.caller.class));
                let overdue = if self.passed[lane] >= 9 { self.passed[lane] } else { 0 };
                let queue = self.queue_turns[&Self::queue(&waiting.caller)];
                (std::cmp::Reverse(overdue), lane, self.class_turns[usize::from(class)], class, queue)
            });
            let Some((at, _)) = next else { return };
            let lane = self.lane(self.waiting[at].caller.class);
            for other in 0..3 {
                let waits = other > 0
                    && other != lane
                    && self.waiting.iter().any(|waiting| self.lane(waiting.caller.class) == other);
                self.passed[other] = if waits { self.passed[other] + 1 } else { 0 };
            }
            let Waiting { call, caller } = self.waiting.remove(at);
            self.turns += 1;
            self.queue_turns.insert(Self::queue(&caller), self.turns);
            self.class_turns[usize::from(caller.class)] = self.turns;
            self.leave(call, &caller);
        }
    }

    fn pass_to(&mut self, to: Moment) {
        loop {
            self.settle();
            let next = self
                .buckets
                .iter()
                .flatten()
                .map(|tokens| tokens.next_token(self.now))
                .filter(|at| *at > self.now)
                .min();
            match next.filter(|next| *next <= to) {
                Some(next) => self.now = next,
                None => break,
            }
        }
        self.now = to;
        self.settle();
    }

    fn end(&mut self, caller: &Caller) {
        if self.class(caller).lane != Lane::Exempt && !caller.long_running {
            self.gate_slots -= 1;
            self.class_slots[usize::from(caller.class)] -= 1;
        }
        self.settle();
        *self.rooms.get_mut(&caller.long_running).expect("both are there") += 1;
        self.settle();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn who_leaves_when_is_what_a_slow_and_obvious_limiter_says(
        limits in lives::policies(),
        story in stories(
            Cast { keys: 0, credentials: 1, timeouts: false, late: false, prompt: true, weights: [2, 8, 0, 1, 0], ..Cast::ALL },
            1..120,
        ),
    ) {
        let mut policy = limits.0;
        policy.queue = QueuePolicy { max_wait: secs(100_000), ..open().queue };
        policy.bucket.iter_mut().chain(policy.classes.iter_mut().filter_map(|class| class.bucket.as_mut())).for_each(|bucket| bucket.per = Per::Gate);
        let (mut world, mut model) = (World::new(policy.clone()), Model::new(&policy));
        let mut ended = Vec::new();
        for (gap, op) in &story.steps {
            let to = world.now + *gap;
            world.pass_to(to, &mut || Duration::ZERO);
            model.pass_to(to);
            let pick = |n: &usize| world.calls.len().checked_sub(1 + n % world.calls.len().clamp(1, 12));
            match op {
                Op::Arrive(caller) => {
                    // One flow comes in crowds, so that lanes are passed and flows have turns.
                    for _ in 0..if caller.flow == 2 { 8 } else { 1 } {
                        let call = world.arrive(*caller);
                        model.arrive(call, *caller);
                    }
                }
                Op::HangUp(n) => {
                    let Some(call) = pick(n) else { continue };
                    world.hang_up(call);
                    model.waiting.retain(|waiting| waiting.call != call);
                    model.settle();
                }
                Op::Answer(n, _) | Op::End(n) => {
                    let Some(call) = pick(n).filter(|call| world.calls[*call].left.is_some() && !ended.contains(call)) else { continue };
                    ended.push(call);
                    let caller = world.calls[call].caller;
                    if world.calls[call].caller.class != 4 {
                        world.end(call);
                        model.end(&caller);
                    }
                }
                Op::Room(change) => {
                    // Far below zero and back, so that it matters.
                    let change = change * (1 << 39);
                    world.room(Group::Short, change);
                    *model.rooms.get_mut(&false).expect("both are there") += change;
                    model.settle();
                }
                Op::Claim(_) | Op::Requeue(_) | Op::Retract(_) | Op::FailGroup | Op::Reload(_) => {}
            }
        }
        world.pass(ms(1_000));
        model.pass_to(world.now);
        let mut left: Vec<_> = world.calls.iter().enumerate().filter_map(|(call, record)| Some((record.left?.1, call, record.left?.0))).collect();
        left.sort_unstable();
        let left: Vec<_> = left.into_iter().map(|(_, call, at)| (call, at)).collect();
        prop_assert_eq!(left, model.left);
        world.wind_down();
    }
}
