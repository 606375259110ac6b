//! A second limiter, slow and simple: one list of calls, token buckets that count tokens, and at
//! every moment a look at every call.
//!
//! It has no keys and no retries. What is compared is which call leaves when, over classes, lanes,
//! flows, buckets, slots and room.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proptest::prelude::*;
use tidegate_limit::key::Group;
use tidegate_limit::moment::Moment;
use tidegate_limit::outcome::{Answer, Charged, Outcome, Pause, PauseLength};
use tidegate_limit::policy::{BucketPolicy, ClassPolicy, InFlight, Lane, Per, QueuePolicy};
use tidegate_limit::quota::{QuotaHint, QuotaId, ResourceId};
use tidegate_limit::{ClassId, Policy};

use super::lives::{self, Cast, Limits, Op, Story, stories};
use super::world::{Caller, World, ms, open, secs};

/// A bucket that counts tokens, in nanoseconds' worth of them.
#[derive(Debug)]
struct Tokens {
    period: u128,
    /// The nanoseconds' worth that one call takes at most.
    call: u128,
    most: u128,
    held: u128,
    seen: Moment,
}

#[derive(Debug)]
struct Waiting {
    call: usize,
    caller: Caller,
}

/// A queue's identity: class, flow, true for long-running calls, true for calls that list first,
/// the credential if anything is split by it, and the holder and word of the quota.
type Queue = (u16, u64, bool, bool, u64, u64, ResourceId);

#[derive(Debug)]
struct Model {
    policy: Policy,
    /// The gate's bucket, then those of the classes.
    buckets: Vec<Option<BucketPolicy>>,
    /// By bucket and flow or credential; made full at the first use.
    tokens: HashMap<(usize, u64), Tokens>,
    rooms: HashMap<bool, i64>,
    /// Calls in flight that hold a slot.
    flying: Vec<Caller>,
    waiting: Vec<Waiting>,
    /// Turns of queues, with what they owe, and of classes, and how often each lane was passed over.
    queue_turns: HashMap<Queue, (u64, u64)>,
    class_turns: Vec<u64>,
    passed: [u32; 3],
    turns: u64,
    now: Moment,
    /// Every pause, with its end.
    pauses: Vec<(QuotaId, Moment)>,
    left: Vec<(usize, Moment)>,
}

fn who(per: Per, caller: &Caller) -> u64 {
    match per {
        Per::Gate => 0,
        Per::Flow => caller.flow,
        Per::Account | Per::Action | Per::Client | Per::Credential => caller.credential,
    }
}

// === impl Tokens ===

impl Tokens {
    fn new(policy: &BucketPolicy) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "`as` saturates, which is what is wanted"
        )]
        let period = (1e9 / policy.rate).ceil() as u128;
        let most = period * u128::from(policy.burst.get());
        let call = period * u128::from(policy.largest_cost.get());
        Self { period, call, most, held: if policy.starts_empty { 0 } else { most }, seen: Moment::ZERO }
    }

    fn held_at(&self, now: Moment) -> u128 {
        (self.held + (now - self.seen).as_nanos()).min(self.most)
    }

    fn next_token(&self, now: Moment) -> Moment {
        let missing = self.call.saturating_sub(self.held_at(now));
        now + Duration::from_nanos(u64::try_from(missing).expect("a period fits"))
    }

    fn take(&mut self, now: Moment, cost: u16) {
        self.held = self.held_at(now) - (self.period * u128::from(cost)).min(self.call);
        self.seen = now;
    }
}

// === impl Model ===

impl Model {
    fn new(policy: &Policy) -> Self {
        let mut buckets = vec![policy.bucket];
        buckets.extend(policy.classes.iter().map(|class| class.bucket));
        Self {
            buckets,
            tokens: HashMap::new(),
            rooms: HashMap::from([(false, 1 << 40), (true, 1 << 40)]),
            flying: Vec::new(),
            waiting: Vec::new(),
            queue_turns: HashMap::new(),
            class_turns: vec![0; policy.classes.len()],
            passed: [0; 3],
            turns: 0,
            now: Moment::ZERO,
            pauses: Vec::new(),
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

    /// The buckets that a call needs.
    fn charged(&self, caller: &Caller) -> Vec<usize> {
        let class = self.class(caller);
        if caller.long_running && !caller.lists_first && !class.meter_long_running {
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

    fn tokens(&self, bucket: usize, caller: &Caller) -> (usize, u64) {
        (bucket, who(self.buckets[bucket].expect("it is charged").per, caller))
    }

    fn has_slot(&self, caller: &Caller) -> bool {
        let free = |limit: Option<InFlight>, same_class: bool| {
            limit.is_none_or(|limit| {
                let like = |other: &&Caller| {
                    who(limit.per, other) == who(limit.per, caller) && (!same_class || other.class == caller.class)
                };
                self.flying.iter().filter(like).count() < limit.max.get() as usize
            })
        };
        caller.long_running || free(self.policy.in_flight, false) && free(self.class(caller).in_flight, true)
    }

    fn resource(&self, caller: &Caller) -> ResourceId {
        ResourceId::of_class(&self.class(caller).name)
    }

    fn pause(&mut self, caller: &Caller, charged: Charged, length: Duration) {
        let quota = caller.paused(charged, self.resource(caller));
        self.pauses.push((quota, self.now + length));
    }

    fn can_leave(&self, caller: &Caller) -> bool {
        let class = self.resource(caller);
        let stops = |(quota, until): &(QuotaId, Moment)| *until > self.now && caller.is_charged_to(*quota, class);
        if self.pauses.iter().any(stops) {
            return false;
        }
        let token = |bucket: &usize| {
            self.tokens.get(&self.tokens(*bucket, caller)).is_none_or(|tokens| tokens.next_token(self.now) <= self.now)
        };
        self.has_slot(caller) && self.rooms[&caller.long_running] > 0 && self.charged(caller).iter().all(token)
    }

    fn leave(&mut self, call: usize, caller: &Caller) {
        let (now, cost) = (self.now, self.class(caller).cost.of(caller.cost));
        for bucket in self.charged(caller) {
            let tokens = self.tokens(bucket, caller);
            self.tokens.get_mut(&tokens).expect("made on arrival").take(now, cost);
        }
        *self.rooms.get_mut(&caller.long_running).expect("both are there") -= 1;
        if !caller.long_running {
            self.flying.push(*caller);
        }
        self.left.push((call, now));
    }

    fn queue(&self, caller: &Caller) -> Queue {
        let slots = |slots: Option<InFlight>| slots.is_some_and(|slots| slots.per == Per::Credential);
        let bucket = |bucket: Option<BucketPolicy>| bucket.is_some_and(|bucket| bucket.per == Per::Credential);
        let mut split = bucket(self.policy.bucket) || bucket(self.policy.retry_bucket) || slots(self.policy.in_flight);
        split |= slots(self.class(caller).in_flight);
        let mut next = Some(ClassId(caller.class));
        while let Some(ClassId(class)) = next {
            split |= bucket(self.policy.classes[usize::from(class)].bucket);
            next = self.policy.classes[usize::from(class)].within;
        }
        let (long_running, lists_first) = (caller.long_running, caller.lists_first);
        let QuotaHint { holder, word, .. } = caller.quota;
        (caller.class, caller.flow, long_running, lists_first, if split { caller.credential } else { 0 }, holder, word)
    }

    /// The turns that the other queues with the same requirements have after one of a dear call,
    /// besides the usual one.
    fn turns_owed(&self, caller: &Caller) -> u64 {
        let cost = self.class(caller).cost;
        let alike = self.waiting.iter().map(|waiting| &waiting.caller).filter(|other| self.alike(other, caller));
        let queues: HashSet<_> = alike.map(|other| self.queue(other)).collect();
        u64::from(cost.of(caller.cost) / cost.least - 1) * (queues.len() as u64 - 1)
    }

    /// True if two calls of a class need exactly the same.
    fn alike(&self, one: &Caller, other: &Caller) -> bool {
        let needs = |caller: &Caller| {
            let tokens: Vec<_> = self.charged(caller).into_iter().map(|bucket| self.tokens(bucket, caller)).collect();
            let holds =
                |slots: Option<InFlight>| slots.filter(|_| !caller.long_running).map(|slots| who(slots.per, caller));
            let slots = (holds(self.policy.in_flight), holds(self.class(caller).in_flight));
            (
                caller.class,
                caller.long_running,
                caller.lists_first,
                tokens,
                slots,
                (caller.quota.holder, caller.quota.word),
            )
        };
        needs(one) == needs(other)
    }

    fn arrive(&mut self, call: usize, caller: Caller) {
        if self.class(&caller).lane == Lane::Exempt {
            self.left.push((call, self.now));
            return;
        }
        for bucket in self.charged(&caller) {
            let policy = self.buckets[bucket].expect("it is charged");
            self.tokens.entry(self.tokens(bucket, &caller)).or_insert_with(|| Tokens::new(&policy));
        }
        let queue = self.queue(&caller);
        let joins = self.waiting.iter().any(|other| self.queue(&other.caller) == queue);
        if !joins && self.can_leave(&caller) {
            return self.leave(call, &caller);
        }
        if !joins {
            self.turns += 1;
            self.queue_turns.insert(queue, (self.turns, 0));
        }
        self.waiting.push(Waiting { call, caller });
    }

    /// Every call that can leave leaves, by all rules of order.
    fn settle(&mut self) {
        loop {
            let heads = self.waiting.iter().enumerate().filter(|(at, waiting)| {
                let queue = self.queue(&waiting.caller);
                !self.waiting[..*at].iter().any(|other| self.queue(&other.caller) == queue)
            });
            let able = heads.filter(|(_, waiting)| self.can_leave(&waiting.caller));
            let next = able.min_by_key(|(_, waiting)| {
                let (class, lane) = (waiting.caller.class, self.lane(waiting.caller.class));
                let overdue = if self.passed[lane] >= 9 { self.passed[lane] } else { 0 };
                let queue = self.queue_turns[&self.queue(&waiting.caller)];
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
            let owed = self.turns_owed(&self.waiting[at].caller);
            let Waiting { call, caller } = self.waiting.remove(at);
            self.turns += 1;
            let queue = self.queue(&caller);
            self.queue_turns.insert(queue, (self.turns + owed, owed));
            self.class_turns[usize::from(caller.class)] = self.turns;
            self.leave(call, &caller);
        }
    }

    fn pass_to(&mut self, to: Moment) {
        loop {
            self.settle();
            let tokens = self.tokens.values().map(|tokens| tokens.next_token(self.now));
            let next = tokens.chain(self.pauses.iter().map(|(_, until)| *until)).filter(|at| *at > self.now).min();
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
            let at = self.flying.iter().position(|other| other == caller).expect("it flies");
            self.flying.remove(at);
        }
        self.settle();
        *self.rooms.get_mut(&caller.long_running).expect("both are there") += 1;
        self.settle();
    }
}

/// The runs that are compared: with nothing that the model does not know.
pub(super) fn lives() -> impl Strategy<Value = (Limits, Story)> {
    let cast = Cast { keys: 0, timeouts: false, late: false, prompt: true, weights: [2, 8, 0, 1, 0], ..Cast::ALL };
    (lives::policies(), stories(cast, 1..120))
}

/// Runs a story with both.
pub(super) fn agree(limits: Limits, story: &Story) -> Result<(), TestCaseError> {
    let mut policy = limits.0;
    policy.queue = QueuePolicy { max_wait: secs(100_000), ..open().queue };
    let (mut world, mut model) = (World::new(policy.clone()), Model::new(&policy));
    let mut ended = Vec::new();
    for (gap, op) in &story.steps {
        let to = world.now + *gap;
        world.pass_to(to, &mut || Duration::ZERO);
        model.pass_to(to);
        let pick = |n: &usize| world.calls.len().checked_sub(1 + n % world.calls.len().clamp(1, 12));
        match op {
            Op::Arrive(caller) => {
                // One flow comes in crowds, so that lanes are passed over and flows have turns.
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
                let pause = if let Op::Answer(_, answer) = op { answer.pause } else { None };
                let Some(call) = pick(n).filter(|call| world.calls[*call].left.is_some() && !ended.contains(call))
                else {
                    continue;
                };
                ended.push(call);
                let caller = world.calls[call].caller;
                if let Some(Pause { charged, length: PauseLength::Known(length) }) = pause {
                    world.answer_with(call, Answer { pause, ..Answer::new(Outcome::Neutral, Some(429)) });
                    model.pause(&caller, charged, length);
                }
                if world.calls[call].caller.class != 4 {
                    world.end(call);
                    model.end(&caller);
                }
            }
            Op::Room(change) => {
                // The level goes far below zero and back, so that it matters.
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
    let mut left: Vec<_> = world
        .calls
        .iter()
        .enumerate()
        .filter_map(|(call, record)| Some((record.left?.1, call, record.left?.0)))
        .collect();
    left.sort_unstable();
    let left: Vec<_> = left.into_iter().map(|(_, call, at)| (call, at)).collect();
    prop_assert_eq!(left, model.left);
    world.wind_down();
    Ok(())
}

proptest! {
    #![proptest_config(super::promises::config(250))]

    #[test]
    fn who_leaves_when_is_what_a_slow_and_obvious_limiter_says((limits, story) in lives()) {
        agree(limits, &story)?;
    }
}
