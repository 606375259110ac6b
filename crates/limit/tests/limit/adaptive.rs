//! The adaptive bucket in front of a server that throttles.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tidegate_limit::Policy;
use tidegate_limit::moment::Moment;
use tidegate_limit::outcome::{Answer, Outcome};
use tidegate_limit::policy::{Adapt, BucketPolicy, QueuePolicy};

use super::judge::{self, Meter};
use super::world::{Caller, World, at, bucket, ms, open, secs};

/// A server that accepts this many calls per second and turns the rest away.
struct Server {
    capacity: f64,
    kind: Kind,
    /// Calls that it could accept at once, or calls that wait in it.
    held: f64,
    seen: Moment,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Counts calls, as APIs with quotas do, and accepts this many at once.
    Counts(f64),
    /// Works calls off one after the other and lets this many wait, as the API server's priority
    /// levels do.
    Queues(f64),
}

impl Server {
    fn new(capacity: f64, kind: Kind) -> Self {
        let held = if let Kind::Counts(crowd) = kind { crowd } else { 0.0 };
        Self { capacity, kind, held, seen: Moment::ZERO }
    }

    /// The time it works on a call that it accepts.
    fn takes(&mut self, now: Moment) -> Option<Duration> {
        let done = self.capacity * (now - self.seen).as_secs_f64();
        self.seen = now;
        match self.kind {
            Kind::Counts(crowd) => {
                self.held = (self.held + done).min(crowd);
                let takes = self.held >= 1.0;
                self.held -= if takes { 1.0 } else { 0.0 };
                takes.then_some(Duration::ZERO)
            }
            Kind::Queues(most) => {
                self.held = (self.held - done).max(0.0);
                let takes = self.held < most;
                self.held += if takes { 1.0 } else { 0.0 };
                takes.then(|| Duration::from_secs_f64(self.held / self.capacity))
            }
        }
    }
}

/// A gate and a server, in virtual time.
struct Play {
    world: World,
    server: Server,
    /// The time from the gate to the server, and the same back.
    way: Duration,
    /// The number of calls that wait at every moment.
    demand: usize,
    /// Calls on their way to the server, and their answers on the way back.
    going: BTreeMap<(Moment, usize), ()>,
    coming: BTreeMap<(Moment, usize), bool>,
    seen: usize,
    /// The moment of each answer; true for a refusal.
    answers: Vec<(Moment, bool)>,
}

impl Play {
    fn new(policy: Policy, server: Server, way: Duration) -> Self {
        let (going, coming) = (BTreeMap::new(), BTreeMap::new());
        let world = World::new(policy);
        Self { world, server, way, demand: 60, going, coming, seen: 0, answers: Vec::new() }
    }

    /// Runs everything until `to`.
    fn pass_to(&mut self, to: Moment) {
        loop {
            self.send();
            let next = [
                self.world.limiter.next_wakeup(),
                self.going.keys().next().map(|(at, _)| *at),
                self.coming.keys().next().map(|(at, _)| *at),
            ];
            let Some(next) = next.into_iter().flatten().min().filter(|next| *next <= to) else { break };
            self.world.pass_to(next, &mut || Duration::ZERO);
            self.serve(next);
        }
        self.world.pass_to(to, &mut || Duration::ZERO);
    }

    /// Keeps the gate's queue filled, and records the calls that have left.
    fn send(&mut self) {
        while self.world.limiter.waiting() < self.demand {
            self.world.arrive(Caller::new());
        }
        while let Some(record) = self.world.calls.get(self.seen) {
            let Some((left, _)) = record.left else { return };
            self.going.insert((left + self.way, self.seen), ());
            self.seen += 1;
        }
    }

    fn serve(&mut self, now: Moment) {
        while let Some((&(at, call), ())) = self.going.first_key_value().filter(|((at, _), ())| *at <= now) {
            self.going.remove(&(at, call));
            let takes = self.server.takes(at);
            self.answers.push((at, takes.is_none()));
            self.coming.insert((at + self.way + takes.unwrap_or_default(), call), takes.is_some());
        }
        while let Some((&(at, call), &took)) = self.coming.first_key_value().filter(|((at, _), _)| *at <= now) {
            self.coming.remove(&(at, call));
            let (outcome, status) = if took { (Outcome::Success, 200) } else { (Outcome::Failure, 429) };
            self.world.answer_with(call, Answer { throttled: !took, ..Answer::new(outcome, Some(status)) });
            self.world.end(call);
        }
    }

    /// The answers in a span of time: all of them, and the refusals.
    fn count(&self, from: Moment, to: Moment) -> (usize, usize) {
        let all = self.answers.iter().filter(|(at, _)| (from..to).contains(at));
        (all.clone().count(), all.filter(|(_, refused)| *refused).count())
    }

    #[expect(clippy::cast_precision_loss, reason = "a few thousand calls")]
    fn refused(&self, from: Moment, to: Moment) -> f64 {
        let (all, refused) = self.count(from, to);
        refused as f64 / (all as f64).max(1.0)
    }

    #[expect(clippy::cast_precision_loss, reason = "a few thousand calls")]
    fn taken_per_second(&self, from: Moment, to: Moment) -> f64 {
        let (all, refused) = self.count(from, to);
        (all - refused) as f64 / (to - from).as_secs_f64()
    }

    fn rate(&self) -> f64 {
        self.world.limiter.snapshot(self.world.now).buckets[0].rate
    }
}

fn adapting(rate: f64, burst: u32, floor: f64) -> Policy {
    let bucket = BucketPolicy { adapt: Some(Adapt { floor }), ..bucket(rate, burst) };
    let queue = QueuePolicy { max_wait: secs(1_000_000), ..open().queue };
    Policy { bucket: Some(bucket), queue, ..open() }
}

/// Capacity drops to a quarter for two minutes and comes back. Returns the refusals in the two
/// minutes from 10 s after the drop, and the accepted calls per second from 45 s after the return.
fn drop_and_return(kind: Kind, way: Duration, first: u64) -> (f64, f64, f64) {
    let mut play = Play::new(adapting(50.0, 100, 5.0), Server::new(50.0, kind), way);
    let (drop, back) = (secs(first), secs(first + 120));
    play.pass_to(at(0) + drop);
    play.server.capacity = 12.5;
    play.pass_to(at(0) + back);
    play.server.capacity = 50.0;
    play.pass_to(at(0) + back + secs(75));
    let refused = play.refused(at(0) + drop + secs(10), at(0) + back);
    let used = play.taken_per_second(at(0) + drop + secs(10), at(0) + back) / 12.5;
    let recovered = play.taken_per_second(at(0) + back + secs(45), at(0) + back + secs(75)) / 50.0;
    judge::rate_holds(&play.world, Meter::Gate, &[adapting(50.0, 100, 5.0)], 0.0);
    (refused, used, recovered)
}

#[test]
fn a_server_at_a_quarter_of_its_capacity_turns_few_calls_away_and_has_them_back_when_it_recovers() {
    let kinds = [Kind::Counts(1.0), Kind::Counts(25.0), Kind::Queues(10.0), Kind::Queues(50.0)];
    for (kind, first) in kinds.into_iter().zip([20, 31, 43, 52]) {
        for way in [5, 250] {
            let (refused, used, recovered) = drop_and_return(kind, ms(way), first);
            println!("{kind:?}, {way} ms: {:.2}% refused, {used:.2} used, {recovered:.2} back", 100.0 * refused);
            assert!(refused < 0.04, "{kind:?}, {way} ms: {refused} refused");
            assert!(used > 0.8, "{kind:?}, {way} ms: {used} of the capacity used");
            assert!(recovered > 0.9, "{kind:?}, {way} ms: {recovered} of the rate");
        }
    }
}

#[test]
fn a_rate_comes_back_within_a_minute_or_two_of_little_demand() {
    let mut world = slowed(adapting(50.0, 1, 5.0), 1);
    for _ in 0..30 {
        world.pass(secs(1));
        let call = world.arrive(Caller::new());
        world.answer(call, Outcome::Success);
    }
    assert!((45.0..47.5).contains(&rate(&world)), "{}", rate(&world));
    for _ in 0..60 {
        world.pass(secs(1));
        let call = world.arrive(Caller::new());
        world.answer(call, Outcome::Success);
    }
    assert!((rate(&world) - 50.0).abs() < 1e-9, "{}", rate(&world));
    judge::rate_holds(&world, Meter::Gate, &[adapting(50.0, 1, 5.0)], 0.0);
    world.wind_down();
}

#[test]
fn a_rate_comes_back_to_a_gate_without_calls() {
    for (full, floor, refusals, within) in [(20.0, 5.0, 1, 70), (20.0, 5.0, 30, 90), (50.0, 5.0, 30, 90)] {
        let mut world = slowed(adapting(full, 100, floor), refusals);
        let low = rate(&world);
        world.pass(secs(5));
        assert!(rate(&world) < full, "not at once");
        world.pass(secs(within));
        assert!((rate(&world) - full).abs() < 1e-9, "{} of {full}, from {low}", rate(&world));
        let call = world.arrive(Caller::new());
        world.answer(call, Outcome::Success);
        assert!((rate(&world) - full).abs() < 1e-9, "it stays when a call comes");
        judge::rate_holds(&world, Meter::Gate, &[adapting(full, 100, floor)], 0.0);
        world.wind_down();
    }
}

#[test]
fn a_rate_that_was_idle_brings_no_burst() {
    let policy = adapting(50.0, 100, 5.0);
    let mut world = slowed(policy.clone(), 12);
    world.pass(secs(120));
    for _ in 0..300 {
        world.arrive(Caller::new());
    }
    assert!(world.calls.iter().filter(|call| call.left.is_some_and(|(at, _)| at == world.now)).count() < 100);
    world.pass(secs(5));
    judge::rate_holds(&world, Meter::Gate, &[policy], 0.0);
    world.wind_down();
}

#[test]
fn calls_that_wait_bring_a_rate_back_twice_as_fast() {
    let mut world = slowed(adapting(50.0, 1, 5.0), 1);
    for _ in 0..300 {
        world.arrive(Caller::new());
    }
    world.pass(secs(2));
    assert!(rate(&world) > 42.0, "{}", rate(&world));
    world.wind_down();
}

fn rate(world: &World) -> f64 {
    world.limiter.snapshot(world.now).buckets[0].rate
}

/// A gate that was throttled so many times, each time by a call that left later.
fn slowed(policy: Policy, times: usize) -> World {
    let mut world = World::new(policy);
    for _ in 0..times {
        let call = world.arrive(Caller::new());
        world.pass(ms(250));
        world.answer_with(call, Answer { throttled: true, ..Answer::new(Outcome::Failure, Some(429)) });
    }
    world
}

/// A gate that never holds calls refuses them instead, and the refused ones count as short of
/// tokens too.
#[test]
fn a_gate_that_only_refuses_comes_back_too() {
    let mut policy = adapting(50.0, 1, 5.0);
    policy.queue.max_wait = Duration::ZERO;
    let mut world = World::new(policy);
    let call = world.arrive(Caller::new());
    world.answer_with(call, Answer { throttled: true, ..Answer::new(Outcome::Failure, Some(429)) });
    for _ in 0..60_000 {
        world.pass(ms(1));
        world.arrive(Caller::new());
    }
    assert!((world.limiter.snapshot(world.now).buckets[0].rate - 50.0).abs() < 1e-9);
    world.wind_down();
}

#[test]
fn only_the_buckets_that_the_call_was_charged_to_give_way() {
    let mut policy = adapting(50.0, 10, 5.0);
    let ec2 = tidegate_limit::policy::ClassPolicy {
        bucket: Some(BucketPolicy { adapt: Some(Adapt { floor: 1.0 }), ..bucket(20.0, 5) }),
        own_bucket_only: true,
        ..super::world::class("ec2")
    };
    policy.classes.push(ec2);
    let mut world = World::new(policy);
    let call = world.arrive(Caller::new().of_class(1));
    world.answer_with(call, Answer { throttled: true, ..Answer::new(Outcome::Failure, Some(429)) });
    let snapshot = world.limiter.snapshot(world.now);
    let (gate, class) = (snapshot.buckets[0], snapshot.classes[1].buckets[0]);
    assert_eq!((gate.rate, gate.full_rate), (50.0, 50.0));
    assert_eq!((class.rate, class.full_rate, class.burst), (14.0, 20.0, 4));
    world.wind_down();
}

#[test]
fn each_credential_gives_way_alone() {
    let mut policy = adapting(50.0, 10, 5.0);
    policy.bucket = policy.bucket.map(|bucket| BucketPolicy { per: tidegate_limit::policy::Per::Credential, ..bucket });
    let mut world = World::new(policy);
    let call = world.arrive(Caller { credential: 1, ..Caller::new() });
    world.arrive(Caller { credential: 2, ..Caller::new() });
    world.answer_with(call, Answer { throttled: true, ..Answer::new(Outcome::Failure, Some(429)) });
    let mut rates: Vec<_> = world.limiter.snapshot(world.now).buckets.iter().map(|bucket| bucket.rate).collect();
    rates.sort_unstable_by(f64::total_cmp);
    assert_eq!(rates, [35.0, 50.0]);
    world.wind_down();
}

#[test]
fn a_reload_keeps_the_rate_that_was_found() {
    let mut world = World::new(adapting(50.0, 100, 5.0));
    let call = world.arrive(Caller::new());
    world.answer_with(call, Answer { throttled: true, ..Answer::new(Outcome::Failure, Some(429)) });
    let rate = |world: &World| world.limiter.snapshot(world.now).buckets[0].rate;
    world.reload(adapting(100.0, 100, 5.0), 0);
    assert!((rate(&world) - 35.0).abs() < 1e-9);
    world.reload(adapting(20.0, 100, 5.0), 0);
    assert!((rate(&world) - 20.0).abs() < 1e-9);
    let steady = Policy { bucket: Some(bucket(50.0, 100)), ..adapting(50.0, 100, 5.0) };
    world.reload(steady, 0);
    assert!((rate(&world) - 50.0).abs() < 1e-9);
    world.wind_down();
}

proptest! {
    #![proptest_config(super::promises::config(60))]

    /// For any server: the level at the start plus the integral of the rate bounds the calls, and
    /// the rate stays between its floor and the configured one.
    #[test]
    fn p1_holds_for_a_rate_that_adapts(
        rate in prop::sample::select(vec![0.5, 3.0, 50.0, 800.0]),
        burst in 1_u32..40,
        floor in 0.05_f64..1.0,
        crowd in 1_u32..30,
        way in 0_u64..400,
        capacities in prop::collection::vec((0.02_f64..1.5, 1_u64..400), 1..6),
    ) {
        let policy = adapting(rate, burst, floor * rate);
        let mut play = Play::new(policy.clone(), Server::new(rate, Kind::Counts(f64::from(crowd))), ms(way));
        for (share, calls) in capacities {
            play.server.capacity = share * rate;
            #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
            play.pass_to(play.world.now + Duration::from_secs_f64(calls as f64 / rate));
            prop_assert!((floor * rate - 1e-9..=rate).contains(&play.rate()));
        }
        judge::rate_holds(&play.world, Meter::Gate, &[policy], 0.0);
    }
}
