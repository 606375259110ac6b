//! Judges of a run: they read the record of what happened, and count in the plainest way.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tidegate_limit::moment::Moment;
use tidegate_limit::outcome::{Outcome, Pause, PauseLength};
use tidegate_limit::policy::{Backoff, BucketPolicy, ClassPolicy, Lane, Per, Strategy};
use tidegate_limit::quota::{QuotaId, ResourceId};
use tidegate_limit::{ClassId, Policy, Reason};

use super::world::{Caller, Event, Life, Record, World};

/// The owner of the bucket that is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meter {
    Gate,
    /// A class by its name, which stays the same over a reload.
    Class(&'static str),
}

/// P1: counts tokens. A bucket holds `burst`, gains `rate` per second, and loses one for each call
/// that left. It is never below zero (or below what `lateness` seconds bring). Over a reload it
/// keeps its level, capped by the new burst; a new bucket starts with one token.
pub(super) fn rate_holds(world: &World, meter: Meter, policies: &[Policy], lateness: f64) {
    let mut levels: HashMap<u64, (f64, Moment)> = HashMap::new();
    let mut number = 0;
    let place = meter.place(&policies[0]);
    let mut bucket = policy_of(meter, &policies[0]);
    // The level of a bucket that no call has used yet.
    let mut fresh = bucket.map_or((0.0, Moment::ZERO), |bucket| (start(&bucket), Moment::ZERO));
    // The gate makes up for lateness at the rate of that time, and a reload keeps the resulting
    // level.
    let mut fastest = bucket.map_or(0.0, |bucket| bucket.rate);
    for (at, event) in &world.events {
        match event {
            Event::Rate(changed, rate) => {
                // Of many buckets only one is followed: for the others the full rate is the bound.
                let Some(bucket) = bucket.as_mut().filter(|bucket| *changed == place && bucket.per == Per::Gate) else {
                    continue;
                };
                for level in levels.values_mut().chain([&mut fresh]) {
                    *level = (refill(level.0, bucket, level.1, *at), *at);
                }
                bucket.rate = *rate;
            }
            Event::Reloaded(next) => {
                let (before, after) = (policy_of(meter, &policies[number]), policy_of(meter, &policies[*next]));
                number = *next;
                if before == after {
                    continue;
                }
                match (bucket, after) {
                    (Some(before), Some(after)) if before.per == after.per => {
                        let keep =
                            |(level, last)| (refill(level, &before, last, *at).min(f64::from(after.burst.get())), *at);
                        levels.values_mut().for_each(|level| *level = keep(*level));
                        fresh = keep(fresh);
                    }
                    (_, after) => {
                        levels.clear();
                        fresh = (after.map_or(0.0, |bucket| start(&bucket).min(1.0)), *at);
                    }
                }
                bucket = after;
                fastest = after.map_or(fastest, |bucket| fastest.max(bucket.rate));
            }
            Event::Left(call) => {
                let (caller, policy) = (world.calls[*call].caller, &policies[number]);
                let Some(bucket) = bucket.filter(|_| is_metered(meter, &caller, policy, policies)) else { continue };
                let (level, last) = levels.entry(who(bucket.per, &caller)).or_insert(fresh);
                let cost = class_of(&caller, policy, policies).map_or(1, |class| class.cost.of(caller.cost));
                *level = refill(*level, &bucket, *last, *at) - f64::from(cost.min(bucket.largest_cost.get()));
                *last = *at;
                let least = -fastest * lateness - 1e-6;
                assert!(*level >= least, "{meter:?} at {at:?}: {} tokens short, call {call}", -*level);
            }
            Event::Stayed | Event::Answered(..) | Event::Paused(..) => {}
        }
    }
}

impl Meter {
    /// The bucket's number in [`Event::Rate`].
    fn place(self, policy: &Policy) -> u16 {
        let Self::Class(name) = self else { return 0 };
        let place = policy.classes.iter().position(|class| &*class.name == name).expect("it is a class");
        u16::try_from(place).expect("a few classes") + 1
    }
}

fn who(per: Per, caller: &Caller) -> u64 {
    match per {
        Per::Gate => 0,
        Per::Flow => caller.flow,
        Per::Account | Per::Action | Per::Client | Per::Credential => caller.credential,
    }
}

fn start(bucket: &BucketPolicy) -> f64 {
    if bucket.starts_empty { 0.0 } else { f64::from(bucket.burst.get()) }
}

fn refill(level: f64, bucket: &BucketPolicy, from: Moment, to: Moment) -> f64 {
    (level + bucket.rate * (to - from).as_secs_f64()).min(f64::from(bucket.burst.get()))
}

fn policy_of(meter: Meter, policy: &Policy) -> Option<BucketPolicy> {
    match meter {
        Meter::Gate => policy.bucket,
        Meter::Class(name) => policy.classes.iter().find(|class| &*class.name == name)?.bucket,
    }
}

/// True if a call is charged to the judged bucket. Callers name classes by their place in the first
/// policy.
fn is_metered(meter: Meter, caller: &Caller, policy: &Policy, policies: &[Policy]) -> bool {
    let Some(class) = class_of(caller, policy, policies) else { return false };
    if class.lane == Lane::Exempt || caller.long_running && !caller.lists_first && !class.meter_long_running {
        return false;
    }
    match meter {
        Meter::Gate => !class.own_bucket_only,
        Meter::Class(name) => {
            let mut charged = Some(class);
            while let Some(class) = charged {
                if &*class.name == name {
                    return true;
                }
                charged = class.within.map(|ClassId(outer)| &policy.classes[usize::from(outer)]);
            }
            false
        }
    }
}

fn class_of<'a>(caller: &Caller, policy: &'a Policy, policies: &[Policy]) -> Option<&'a ClassPolicy> {
    let name = &policies[0].classes[usize::from(caller.class)].name;
    policy.classes.iter().find(|class| class.name == *name)
}

/// A judge's memory of a key.
#[derive(Debug, Default)]
struct Remembered {
    failures: u32,
    ready_at: Moment,
    forget_at: Moment,
    /// The event of the last recorded failure.
    failed: usize,
    trial: Option<usize>,
}

/// P2, P3 and P4: no call of a failing key leaves early, and none beside a trial; failures at one
/// time count once; a success forgets, and so does the time since the last failure or the last
/// refusal for want of a retry token. At the end the table must hold exactly the failing keys. For
/// policies in which all classes except the exempt one have the same backoff. Returns the trials,
/// and the moment at which each left.
pub(super) fn keys_hold(world: &World, backoff: &Backoff, exempt: u16) -> Vec<(usize, Moment)> {
    let mut trials = Vec::new();
    let mut keys: HashMap<u64, Remembered> = HashMap::new();
    let mut left = HashMap::new();
    let mut refused = refused_for_retry_tokens(world, exempt).into_iter().peekable();
    for (number, (at, event)) in world.events.iter().enumerate() {
        while let Some((at, key)) = refused.next_if(|(refused, _)| refused <= at) {
            pass_over(&mut keys, key, at, backoff);
        }
        match event {
            Event::Left(call) => {
                left.insert(*call, number);
                let caller = &world.calls[*call].caller;
                let Some(key) = caller.key.filter(|_| caller.class != exempt) else { continue };
                let Some(known) = keys.get_mut(&key).filter(|known| known.forget_at > *at) else { continue };
                assert!(*at >= known.ready_at, "call {call} of key {key} left at {at:?}, before {:?}", known.ready_at);
                assert!(known.trial.is_none(), "call {call} of key {key} left beside the trial {:?}", known.trial);
                known.trial = Some(*call);
                trials.push((*call, *at));
            }
            Event::Answered(call, outcome) => {
                let caller = &world.calls[*call].caller;
                let Some(key) = caller.key.filter(|_| caller.class != exempt) else { continue };
                answered(&mut keys, key, *call, left[call], number, *outcome, *at, backoff);
            }
            Event::Stayed | Event::Reloaded(_) | Event::Paused(..) | Event::Rate(..) => {}
        }
    }
    refused.for_each(|(at, key)| pass_over(&mut keys, key, at, backoff));
    let mut expected: Vec<_> = keys
        .iter()
        .filter(|(_, known)| known.forget_at > world.now)
        .map(|(key, known)| (*key, known.failures, known.ready_at))
        .collect();
    expected.sort_unstable();
    let listed = world.limiter.keys().list(world.now);
    let mut found: Vec<_> = listed.iter().map(|(_, key, state)| (key.object, state.failures, state.ready_at)).collect();
    found.sort_unstable();
    assert_eq!(found, expected, "failing keys at {:?}", world.now);
    trials
}

/// P1 for the retry bucket: the same count, for trials only. One that opens gets ten tokens for each
/// trial that succeeds, and one for nineteen refusals.
pub(super) fn retries_hold(world: &World, trials: &[(usize, Moment)], policy: &Policy, lateness: f64) {
    let Some(bucket) = policy.retry_bucket else { return };
    let mut levels: HashMap<u64, (f64, Moment)> = HashMap::new();
    let trials: HashSet<usize> = trials.iter().map(|(call, _)| *call).collect();
    let refused = if bucket.opens { refused_for_retry_tokens(world, u16::MAX) } else { Vec::new() };
    for (at, event) in &world.events {
        let (call, succeeds) = match event {
            Event::Left(call) => (call, false),
            Event::Answered(call, Outcome::Success) if bucket.opens => (call, true),
            _ => continue,
        };
        let caller = world.calls[*call].caller;
        if !trials.contains(call) {
            continue;
        }
        if caller.long_running && !caller.lists_first && !policy.classes[usize::from(caller.class)].meter_long_running {
            continue;
        }
        let (level, last) = levels.entry(who(bucket.per, &caller)).or_insert_with(|| (start(&bucket), Moment::ZERO));
        let change = if succeeds { 10.0 } else { -1.0 };
        *level = (refill(*level, &bucket, *last, *at) + change).min(f64::from(bucket.burst.get()));
        *last = *at;
        let gifts = refused.partition_point(|(refused, _)| refused <= at) / 19;
        let least = -f64::from(u32::try_from(gifts).expect("few")) - bucket.rate * lateness - 1e-6;
        assert!(*level >= least, "at {at:?}: {} retry tokens short, call {call}", -*level);
    }
}

/// The keys of calls that were refused for want of a retry token, in the order of the refusals.
fn refused_for_retry_tokens(world: &World, exempt: u16) -> Vec<(Moment, u64)> {
    let of_call = |call: &Record| match call.life {
        Life::Refused(refusal) if refusal.reason == Reason::RetryBucket && call.caller.class != exempt => {
            Some((call.arrived + refusal.waited, call.caller.key?))
        }
        _ => None,
    };
    let mut found: Vec<_> = world.calls.iter().filter_map(of_call).collect();
    found.sort_unstable();
    found
}

/// Such a key had no chance to fail again: its time to be forgotten runs anew.
fn pass_over(keys: &mut HashMap<u64, Remembered>, key: u64, at: Moment, backoff: &Backoff) {
    if let Some(known) = keys.get_mut(&key).filter(|known| known.forget_at > at) {
        known.forget_at = known.forget_at.max(at + backoff.forget_after);
    }
}

#[expect(clippy::too_many_arguments, reason = "a step of the loop above, for its length")]
fn answered(
    keys: &mut HashMap<u64, Remembered>,
    key: u64,
    call: usize,
    left: usize,
    number: usize,
    outcome: Outcome,
    at: Moment,
    backoff: &Backoff,
) {
    if keys.get(&key).is_some_and(|known| known.forget_at <= at) {
        keys.remove(&key);
    }
    if let Some(known) = keys.get_mut(&key).filter(|known| known.trial == Some(call)) {
        known.trial = None;
    }
    let after = match outcome {
        Outcome::Abandoned | Outcome::Neutral => return,
        Outcome::Success => {
            keys.remove(&key);
            return;
        }
        Outcome::Failure => Moment::ZERO,
        Outcome::Throttled { after } => at + after,
    };
    let known = keys.entry(key).or_default();
    if known.failures > 0 && left < known.failed {
        known.ready_at = known.ready_at.max(after);
        known.forget_at = known.forget_at.max(known.ready_at);
        return;
    }
    known.failures += 1;
    known.failed = number;
    let Strategy::Exponential { base, max, .. } = backoff.strategy else {
        unreachable!("judged with a doubling backoff")
    };
    // Key 0 is that of a collection: informers back off by themselves.
    let longest = if key == 0 { Duration::from_secs(5) } else { Duration::MAX };
    let delay = base.saturating_mul(2_u32.saturating_pow(known.failures - 1)).min(max).min(longest);
    known.ready_at = known.ready_at.max(at + delay).max(after);
    known.forget_at = (at + backoff.forget_after).max(known.ready_at);
}

/// Class, flow, credential, needs, and the holder and word of the quota.
type Queue = (u16, u64, u64, u8, u64, ResourceId);

/// P5: within a flow of a class, calls that need the same leave in the order in which they came.
/// For calls without keys.
pub(super) fn order_holds(world: &World) {
    let mut last: HashMap<Queue, (usize, usize)> = HashMap::new();
    let mut left: Vec<_> =
        world.calls.iter().enumerate().filter_map(|(call, record)| Some((record.left?.1, call))).collect();
    left.sort_unstable();
    for (turn, call) in left {
        // Its turn came in order, and a pause took it back before its caller claimed it. The calls
        // that left meanwhile had come after it.
        if world.calls[call].came_back {
            continue;
        }
        let caller = &world.calls[call].caller;
        let needs = u8::from(caller.long_running) + u8::from(caller.lists_first);
        let queue = (caller.class, caller.flow, caller.credential, needs, caller.quota.holder, caller.quota.word);
        if let Some((before, _)) = last.insert(queue, (call, turn)) {
            assert!(before < call, "call {call} left after call {before} of the same queue");
        }
    }
}

/// A judge's memory of a quota's pauses.
#[derive(Clone, Copy, Debug, Default)]
struct Paused {
    until: Moment,
    grown: Duration,
    /// The event of the last pause that grew.
    began: usize,
}

/// No call leaves before the pauses of its quota are over.
pub(super) fn pauses_hold(world: &World, policy: &Policy, exempt: u16) {
    let mut quotas: HashMap<QuotaId, Paused> = HashMap::new();
    let mut left = HashMap::new();
    let class = |caller: &Caller| ResourceId::of_class(&policy.classes[usize::from(caller.class)].name);
    for (number, (at, event)) in world.events.iter().enumerate() {
        match event {
            Event::Left(call) => {
                left.insert(*call, number);
                let caller = &world.calls[*call].caller;
                for (quota, Paused { until, .. }) in quotas.iter().filter(|_| caller.class != exempt) {
                    let may = *at >= *until || !caller.is_charged_to(*quota, class(caller));
                    assert!(may, "call {call} left at {at:?}, {quota:?} pauses until {until:?}");
                }
            }
            Event::Paused(call, Pause { charged, length }) => {
                let caller = &world.calls[*call].caller;
                let paused = quotas.entry(caller.paused(*charged, class(caller))).or_default();
                let length = match length {
                    PauseLength::Known(length) => *length,
                    PauseLength::Growing { .. } if paused.began > left[call] => continue,
                    PauseLength::Growing { first, most } => {
                        paused.grown = if paused.grown.is_zero() { *first } else { (2 * paused.grown).min(*most) };
                        paused.began = number;
                        paused.grown
                    }
                };
                paused.until = paused.until.max(*at + length);
            }
            // An exempt call passes every pause, so its success says nothing about one.
            Event::Answered(call, Outcome::Success) if world.calls[*call].caller.class != exempt => {
                let caller = &world.calls[*call].caller;
                for (_, paused) in quotas.iter_mut().filter(|(quota, _)| caller.is_charged_to(**quota, class(caller))) {
                    paused.grown = if left[call] > paused.began { Duration::ZERO } else { paused.grown };
                }
            }
            _ => {}
        }
    }
}

/// At most one write of a key is out at a time, failing or not.
pub(super) fn writes_hold(world: &World, exempt: u16) {
    let mut out: HashMap<u64, usize> = HashMap::new();
    for (at, event) in &world.events {
        let (Event::Left(call) | Event::Answered(call, _)) = event else { continue };
        let caller = &world.calls[*call].caller;
        let Some(key) = caller.key.filter(|_| caller.writes() && caller.class != exempt) else { continue };
        if matches!(event, Event::Answered(..)) {
            out.remove(&key);
        } else if let Some(other) = out.insert(key, *call) {
            panic!("call {call} of key {key} left at {at:?} while call {other} was out");
        }
    }
}
