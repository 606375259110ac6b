//! Random runs of a gate: policies, and the actions of callers, upstream and driver, step by step.

use std::fmt;
use std::num::NonZeroU16;
use std::ops::Range;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tidegate_limit::key::Group;
use tidegate_limit::outcome::{Answer, Charged, Outcome, Pause, PauseLength};
use tidegate_limit::policy::{
    Adapt, Backoff, BucketPolicy, ClassPolicy, Combine, Cost, InFlight, Lane, Per, Strategy as Delays,
};
use tidegate_limit::quota::{QuotaHint, ResourceId};
use tidegate_limit::{ClassId, Policy};

use super::world::{Caller, Life, World, bucket, class, ms, open, secs, slots};

/// One event, some time after the one before. A call is named by a number that is taken modulo the
/// number of calls.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Arrive(Caller),
    HangUp(usize),
    Claim(usize),
    Answer(usize, Answer),
    End(usize),
    Requeue(usize),
    Retract(usize),
    Room(i64),
    FailGroup,
    Reload(usize),
}

/// A run: its events, and how late the driver is each time.
#[derive(Clone)]
pub(super) struct Story {
    pub(super) steps: Vec<(Duration, Op)>,
    pub(super) lateness: Vec<Duration>,
    pub(super) prompt: bool,
}

/// A policy that prints on a few lines.
#[derive(Clone)]
pub(super) struct Limits(pub(super) Policy);

/// The kinds of events that may happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cast {
    pub(super) classes: u16,
    pub(super) flows: u64,
    pub(super) keys: u64,
    pub(super) credentials: u64,
    pub(super) holders: u64,
    pub(super) watches: bool,
    /// Weights of: hang-ups, answers and ends, take-backs, room changes and failed dials, reloads.
    pub(super) weights: [u32; 5],
    pub(super) timeouts: bool,
    pub(super) late: bool,
    pub(super) prompt: bool,
    /// True if answers ask for pauses and say that the upstream throttles.
    pub(super) signals: bool,
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Policy { bucket, retry_bucket, queue, in_flight, max_keys, classes, .. } = &self.0;
        let Policy { one_at_a_time, slow_refusals, .. } = &self.0;
        writeln!(f, "one write at a time: {one_at_a_time}, slow refusals: {slow_refusals}")?;
        writeln!(f, "bucket {bucket:?}\n  retries {retry_bucket:?}\n  {queue:?} {in_flight:?} {max_keys} keys")?;
        classes.iter().try_for_each(|class| writeln!(f, "  {class:?}"))
    }
}

impl fmt::Debug for Story {
    /// One line for each step: a run that fails is to be read, not scrolled through.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patience = if self.prompt { "at once" } else { "when told" };
        writeln!(f, "claims {patience}, lateness {:?}", self.lateness)?;
        let mut now = Duration::ZERO;
        for (gap, op) in &self.steps {
            now += *gap;
            writeln!(f, "  {now:?}: {op:?}")?;
        }
        Ok(())
    }
}

impl Cast {
    pub(super) const ALL: Self = Self {
        classes: 5,
        flows: 3,
        keys: 6,
        credentials: 2,
        holders: 3,
        watches: true,
        weights: [2, 8, 1, 1, 1],
        timeouts: true,
        late: true,
        prompt: false,
        signals: true,
    };
}

/// Policies of every shape, with five classes, of which the last is exempt.
pub(super) fn policies() -> impl Strategy<Value = Limits> {
    let buckets = || prop_oneof![1 => Just(None), 4 => buckets().prop_map(Some)];
    let keys = (1_usize..8, prop::bool::weighted(0.3), any::<bool>());
    let gate = (buckets(), retry_buckets(), proptest::option::of(in_flight(1..6)), keys);
    let waiting = (select(vec![0, 50, 400, 3000, 60_000]), select(vec![2, 10, 1000]), any::<bool>());
    let classes = (
        vec((buckets(), proptest::option::of(in_flight(1..4)), any::<bool>(), any::<bool>(), costs()), 4),
        0_u16..3,
        holds(),
    );
    (gate, waiting, classes).prop_map(|((gate, retries, in_flight, keys), waiting, (classes, within, hold))| {
        let mut policy = Policy { bucket: gate, retry_bucket: retries, ..open() };
        (policy.max_keys, policy.one_at_a_time, policy.slow_refusals) = keys;
        policy.in_flight = in_flight;
        (policy.queue.max_wait, policy.queue.max_waiting) = (ms(waiting.0), waiting.1);
        policy.queue.combine = if waiting.2 { Combine::MaxOf } else { Combine::Sequential };
        if let Some(retries) = policy.retry_bucket.as_mut() {
            retries.opens &= policy.queue.combine == Combine::Sequential;
        }
        let lanes = [("default", Lane::Normal), ("beside", Lane::Normal), ("high", Lane::High), ("low", Lane::Low)];
        let all =
            lanes.iter().zip(classes).enumerate().map(|(n, ((name, lane), (bucket, slot, own, metered, cost)))| {
                let backoff = Backoff { hold, ..class(name).backoff };
                let outer = (n == 3).then_some(ClassId(within));
                let (own_bucket_only, in_flight) = (own && bucket.is_some(), slot);
                ClassPolicy {
                    lane: *lane,
                    bucket,
                    within: outer,
                    own_bucket_only,
                    in_flight,
                    meter_long_running: metered,
                    cost,
                    backoff,
                    ..class(name)
                }
            });
        policy.classes = all.collect();
        policy.classes.push(ClassPolicy { lane: Lane::Exempt, ..class("exempt") });
        fit_costs(&mut policy);
        Limits(policy)
    })
}

fn buckets() -> impl Strategy<Value = BucketPolicy> {
    let per = prop_oneof![6 => Just(Per::Gate), 1 => Just(Per::Flow), 1 => Just(Per::Credential)];
    let floor = proptest::option::weighted(0.3, select(vec![0.1, 0.6]));
    (select(vec![0.3, 1.0, 7.0, 50.0, 1234.5]), 1_u32..6, per, prop::bool::weighted(0.1), floor).prop_map(
        |(rate, burst, per, starts_empty, floor)| {
            let adapt = floor.map(|floor| Adapt { floor: floor * rate });
            BucketPolicy { per, starts_empty, adapt, ..bucket(rate, burst) }
        },
    )
}

/// Most classes have calls of one token each, as most gates do.
fn costs() -> impl Strategy<Value = Cost> {
    prop_oneof![6 => Just(Cost::fixed(1)), 1 => Just(Cost::fixed(2)), 1 => Just(Cost { least: 1, most: 3 })]
}

/// Tells each bucket the largest cost that it is charged, which is at most its burst.
pub(super) fn fit_costs(policy: &mut Policy) {
    let classes = policy.classes.clone();
    let charged = |class: &ClassPolicy, place: usize| {
        let mut next = classes.iter().position(|other| other.name == class.name);
        while let Some(found) = next {
            if found == place {
                return true;
            }
            next = classes[found].within.map(|ClassId(outer)| usize::from(outer));
        }
        false
    };
    let largest = |costs: &mut dyn Iterator<Item = u16>| NonZeroU16::new(costs.max().unwrap_or(1)).expect("at least 1");
    let metered = || classes.iter().filter(|class| class.lane != Lane::Exempt);
    let fit = |bucket: &mut Option<BucketPolicy>, largest: NonZeroU16| {
        if let Some(bucket) = bucket {
            bucket.largest_cost = largest;
            bucket.burst = bucket.burst.max(largest.into());
        }
    };
    let of_gate = largest(&mut metered().filter(|class| !class.own_bucket_only).map(|class| class.cost.most));
    fit(&mut policy.bucket, of_gate);
    for place in 0..classes.len() {
        let inside = largest(&mut metered().filter(|class| charged(class, place)).map(|class| class.cost.most));
        fit(&mut policy.classes[place].bucket, inside);
    }
}

/// Every second one opens, which it does only where tokens are not reserved on arrival.
fn retry_buckets() -> impl Strategy<Value = Option<BucketPolicy>> {
    let opening = |(bucket, opens): (Option<BucketPolicy>, bool)| {
        bucket.map(|bucket| BucketPolicy { adapt: bucket.adapt.filter(|_| !opens), opens, ..bucket })
    };
    (proptest::option::weighted(0.8, buckets()), any::<bool>()).prop_map(opening)
}

fn in_flight(max: Range<u32>) -> impl Strategy<Value = InFlight> {
    let per = prop_oneof![6 => Just(Per::Gate), 1 => Just(Per::Flow), 1 => Just(Per::Credential)];
    (max, per).prop_map(|(max, per)| InFlight { per, ..slots(max) })
}

fn holds() -> impl Strategy<Value = Duration> {
    select(vec![0, 20, 100, 2500]).prop_map(ms)
}

/// A policy with only a backoff, which is short enough for a run.
pub(super) fn backing_off(base: Duration, max: Duration, hold: Duration) -> Policy {
    let mut policy = open();
    policy.classes[0].backoff =
        Backoff { strategy: Delays::Exponential { base, max, jitter: 0.0 }, hold, forget_after: secs(120) };
    policy
}

/// Runs of at most `length` steps.
pub(super) fn stories(cast: Cast, length: Range<usize>) -> impl Strategy<Value = Story> {
    let [hang_ups, answers, take_backs, rooms, reloads] = cast.weights;
    let call = || any::<prop::sample::Index>().prop_map(|index| index.index(1 << 20));
    let op = prop_oneof![
        12 => callers(cast).prop_map(Op::Arrive),
        hang_ups => call().prop_map(Op::HangUp),
        4 => call().prop_map(Op::Claim),
        answers => (call(), self::answers(cast)).prop_map(|(call, answer)| Op::Answer(call, answer)),
        answers => call().prop_map(Op::End),
        take_backs => call().prop_map(Op::Requeue),
        take_backs => call().prop_map(Op::Retract),
        rooms => (-4_i64..5).prop_map(Op::Room),
        rooms => Just(Op::FailGroup),
        reloads => (0_usize..8).prop_map(Op::Reload),
    ];
    // Many events at one moment, some a little later, a few after a long rest.
    let gap = prop_oneof![
        4 => Just(Duration::ZERO),
        4 => (0_u64..2_000).prop_map(Duration::from_micros),
        3 => (0_u64..500).prop_map(ms),
        1 => (0_u64..5_000).prop_map(ms),
    ];
    let late = if cast.late { 20_000_u64 } else { 1 };
    let lateness = vec((0..late).prop_map(Duration::from_micros), 1..20);
    let prompt = if cast.prompt { Just(true).boxed() } else { any::<bool>().boxed() };
    (vec((gap, op), length), lateness, prompt).prop_map(|(steps, lateness, prompt)| Story { steps, lateness, prompt })
}

fn callers(cast: Cast) -> impl Strategy<Value = Caller> {
    let key = proptest::option::weighted(0.7, 0..cast.keys.max(1)).prop_map(move |key| key.filter(|_| cast.keys > 0));
    let long = (prop::bool::weighted(if cast.watches { 0.15 } else { 0.0 }), prop::bool::weighted(0.3));
    let patient = prop::bool::weighted(if cast.watches { 0.1 } else { 0.0 });
    let timeout = proptest::option::weighted(0.2, (0_u64..4_000).prop_map(ms))
        .prop_map(move |timeout| timeout.filter(|_| cast.timeouts));
    let quota = (0..cast.holders, 0_u64..3);
    let who = (0..cast.classes, 0..cast.flows, 0..cast.credentials, 0_u16..5, quota);
    (who, key, long, patient, timeout).prop_map(
        |((class, flow, credential, cost, (holder, word)), key, (long_running, lists), patient, timeout)| {
            let group = if long_running { Group::LongRunning } else { Group::Short };
            Caller {
                class,
                flow,
                key,
                facet: 0,
                collection: None,
                credential,
                quota: QuotaHint { holder, word: ResourceId(word), action: 0 },
                group,
                long_running,
                lists_first: long_running && lists,
                patient,
                timeout,
                cost,
            }
        },
    )
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        6 => Just(Outcome::Failure),
        4 => Just(Outcome::Success),
        1 => Just(Outcome::Neutral),
        1 => Just(Outcome::Abandoned),
        1 => (0_u64..5_000).prop_map(|after| Outcome::Throttled { after: ms(after) }),
    ]
}

fn answers(cast: Cast) -> impl Strategy<Value = Answer> {
    let likely = if cast.signals { 0.15 } else { 0.0 };
    let pause = proptest::option::weighted(likely, pauses());
    (outcomes(), prop::bool::weighted(likely), pause).prop_map(|(outcome, throttled, pause)| Answer {
        throttled,
        pause,
        ..Answer::new(outcome, Some(500))
    })
}

fn pauses() -> impl Strategy<Value = Pause> {
    let length = prop_oneof![
        (0_u64..3_000).prop_map(|length| PauseLength::Known(ms(length))),
        (1_u64..500).prop_map(|first| PauseLength::Growing { first: ms(first), most: ms(5 * first) }),
    ];
    let named = Charged::Named(ResourceId(1));
    (select(vec![Charged::All, Charged::Class, Charged::Predicted, named]), length)
        .prop_map(|(charged, length)| Pause { charged, length })
}

/// Runs a story. `policies` are those that `Reload` loads; `look` is called after every step.
pub(super) fn live(world: &mut World, story: &Story, policies: &[Policy], mut look: impl FnMut(&World)) {
    let mut turn = 0_usize;
    let mut late = || {
        turn += 1;
        story.lateness[turn % story.lateness.len()]
    };
    world.prompt = story.prompt;
    for (gap, op) in &story.steps {
        world.pass_to(world.now + *gap, &mut late);
        let calls = world.calls.len();
        let pick = |n: &usize| (calls > 0).then(|| calls - 1 - n % calls.min(12));
        match op {
            Op::Arrive(caller) => _ = world.arrive(*caller),
            Op::HangUp(n) => pick(n).into_iter().for_each(|call| world.hang_up(call)),
            Op::Claim(n) => pick(n).into_iter().for_each(|call| world.claim(call)),
            Op::Answer(n, answer) => pick(n).into_iter().for_each(|call| world.answer_with(call, *answer)),
            Op::End(n) => pick(n).into_iter().for_each(|call| world.end(call)),
            Op::Requeue(n) => pick(n).into_iter().for_each(|call| world.take_back(call, true)),
            Op::Retract(n) => pick(n).into_iter().for_each(|call| world.take_back(call, false)),
            Op::Room(change) => world.room(Group::Short, *change),
            Op::FailGroup => world.fail_group(Group::Short),
            Op::Reload(n) if !policies.is_empty() => {
                let number = n % policies.len();
                world.reload(policies[number].clone(), number);
            }
            Op::Reload(_) => {}
        }
        look(world);
    }
    // This shows which calls were granted and which were refused.
    world.prompt = true;
    (0..world.calls.len())
        .filter(|call| matches!(world.calls[*call].life, Life::Granted(_)))
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|call| world.claim(call));
}
