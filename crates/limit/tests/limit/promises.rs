//! P1 to P9 and P11 of docs/internals/design.md, each over random runs of a gate. P10 and P12 are promises of
//! the proxy.

use std::collections::HashSet;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tidegate_limit::Policy;
use tidegate_limit::moment::Moment;
use tidegate_limit::policy::{Combine, QueuePolicy, Strategy};

use super::judge::{self, Meter};
use super::lives::{self, Cast, Limits, live, stories};
use super::world::{Caller, Life, World, at, bucket, ms, open, secs, slots};

const METERS: [Meter; 5] =
    [Meter::Gate, Meter::Class("default"), Meter::Class("beside"), Meter::Class("high"), Meter::Class("low")];

fn unwrap(limits: &[Limits]) -> Vec<Policy> {
    limits.iter().map(|limits| limits.0.clone()).collect()
}

/// As many runs as a test of a second or two has time for.
pub(super) fn config(cases: u32) -> ProptestConfig {
    let chosen = ProptestConfig::default();
    // `PROPTEST_CASES=10000 cargo test` for the long run.
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { chosen.cases } else { cases };
    ProptestConfig { cases, max_shrink_iters: 20_000, ..chosen }
}

proptest! {
    #![proptest_config(config(250))]

    /// Exact for a driver that is never late: across waits, hang-ups, take-backs and reloads.
    #[test]
    fn p1_no_bucket_ever_lets_more_out_than_it_holds(
        limits in vec(lives::policies(), 3),
        story in stories(Cast { late: false, ..Cast::ALL }, 1..150),
    ) {
        let policies = unwrap(&limits);
        let mut world = World::new(policies[0].clone());
        live(&mut world, &story, &policies, |_| ());
        for meter in METERS {
            judge::rate_holds(&world, meter, &policies, 0.0);
        }
        world.wind_down();
    }

    /// Of the up to 20 ms that the driver is late, 2 ms are made up for, and no more.
    #[test]
    fn p1_lateness_is_made_up_for_by_two_milliseconds_at_most(
        limits in vec(lives::policies(), 3),
        story in stories(Cast::ALL, 1..150),
    ) {
        let policies = unwrap(&limits);
        let mut world = World::new(policies[0].clone());
        live(&mut world, &story, &policies, |_| ());
        for meter in METERS {
            judge::rate_holds(&world, meter, &policies, 0.002);
        }
        world.wind_down();
    }

    #[test]
    fn p2_p3_p4_a_failing_key_waits_tries_once_at_a_time_and_is_forgotten_by_a_success(
        limits in lives::policies(),
        times in (select(vec![0_u64, 10, 300]), select(vec![300_u64, 2_000, 10_000]), select(vec![500_u64, 120_000])),
        story in stories(Cast { weights: [2, 10, 1, 0, 0], ..Cast::ALL }, 1..150),
    ) {
        let mut policy = limits.0;
        policy.max_keys = 1000;
        let hold = policy.classes[0].backoff.hold;
        let mut backoff = lives::backing_off(ms(times.0), ms(times.1), hold).classes[0].backoff;
        backoff.forget_after = ms(times.2);
        policy.classes.iter_mut().for_each(|class| class.backoff = backoff);
        let mut world = World::new(policy.clone());
        live(&mut world, &story, &[], |_| ());
        let trials = judge::keys_hold(&world, &backoff, 4);
        if policy.queue.combine == Combine::Sequential {
            judge::retries_hold(&world, &trials, &policy, 0.002);
        }
        world.wind_down();
    }

    #[test]
    fn p5_calls_of_a_queue_leave_in_the_order_in_which_they_came(
        limits in vec(lives::policies(), 3),
        story in stories(Cast { keys: 0, weights: [2, 8, 0, 1, 1], ..Cast::ALL }, 1..150),
    ) {
        let policies = unwrap(&limits);
        let mut world = World::new(policies[0].clone());
        live(&mut world, &story, &policies, |_| ());
        judge::order_holds(&world);
        world.wind_down();
    }

    /// A caller that hung up might as well never have come.
    #[test]
    fn p6_a_caller_that_hangs_up_spends_nothing(
        rate in select(vec![0.7, 1.0, 13.0, 400.0]),
        burst in 1_u32..5,
        callers in vec((0_u64..600, proptest::option::weighted(0.5, 0_u64..3_000)), 1..60),
    ) {
        let policy = Policy { bucket: Some(bucket(rate, burst)), ..open() };
        let (mut with, mut without) = (World::new(policy.clone()), World::new(policy));
        let mut now = 0;
        let mut steps: Vec<(u64, usize, bool)> = Vec::new();
        for (call, (gap, stays)) in callers.iter().enumerate() {
            now += gap;
            steps.push((now, call, false));
            steps.extend(stays.map(|stays| (now + stays, call, true)));
        }
        steps.sort_unstable();
        for (time, call, leaves) in steps.iter().copied() {
            with.pass_to(at(time), &mut || Duration::ZERO);
            if leaves {
                let index = with.calls.iter().position(|record| record.caller.credential == call as u64).expect("it came");
                with.hang_up(index);
            } else {
                with.arrive(Caller { credential: call as u64, ..Caller::new() });
            }
        }
        with.pass(secs(3600));
        let gone: HashSet<u64> = with.calls.iter().filter(|call| call.left.is_none()).map(|call| call.caller.credential).collect();
        for (time, call, _) in steps.into_iter().filter(|(_, call, leaves)| !leaves && !gone.contains(&(*call as u64))) {
            without.pass_to(at(time), &mut || Duration::ZERO);
            without.arrive(Caller { credential: call as u64, ..Caller::new() });
        }
        without.pass(secs(7200));
        let times = |world: &World| -> Vec<_> {
            world.calls.iter().filter_map(|call| Some((call.caller.credential, call.left?.0))).collect()
        };
        prop_assert_eq!(times(&with), times(&without));
    }

    #[test]
    fn p7_exempt_calls_never_wait_and_never_spend(
        limits in vec(lives::policies(), 3),
        story in stories(Cast { weights: [2, 8, 0, 1, 1], ..Cast::ALL }, 1..100),
    ) {
        let policies = unwrap(&limits);
        let mut world = World::without_room(policies[0].clone());
        live(&mut world, &story, &policies, |world| {
            let Some(last) = world.calls.last().filter(|call| call.caller.class == 4) else { return };
            assert!(last.left.is_some() || !matches!(last.life, Life::Waiting(_) | Life::Refused(_)), "{last:?}");
        });
        for call in world.calls.iter().filter(|call| call.caller.class == 4) {
            prop_assert!(call.left.is_none_or(|(left, _)| left == call.arrived));
            prop_assert!(!matches!(call.life, Life::Refused(_) | Life::HungUp | Life::Unconnected));
        }
        world.wind_down();
    }

    /// Sound: a call that is refused on arrival could not have gone before the time in its refusal,
    /// as the same run with a patient caller in its place shows.
    #[test]
    fn p8_a_refusal_at_the_door_is_right(
        limits in lives::policies(),
        story in stories(Cast { keys: 0, timeouts: false, late: false, prompt: true, weights: [2, 8, 0, 0, 0], ..Cast::ALL }, 1..80),
        crowds in vec((0_u16..4, 0_u64..3, 1_usize..30), 0..5),
        probe in (0_u16..4, 0_u64..4, 0_u64..2, 1_u64..2_000),
    ) {
        let mut policy = limits.0;
        policy.queue = QueuePolicy { max_wait: secs(36_000), max_waiting: 10_000, ..policy.queue };
        policy.in_flight = None;
        policy.classes.iter_mut().for_each(|class| class.in_flight = None);
        let (class, flow, credential, timeout) = probe;
        let hurried = Caller { flow, credential, timeout: Some(ms(timeout)), ..Caller::new().of_class(class) };
        let patient = Caller { patient: true, timeout: None, ..hurried };
        let crowd = |world: &mut World| {
            for (class, flow, size) in &crowds {
                (0..*size).for_each(|_| _ = world.arrive(Caller::new().of_class(*class).of_flow(*flow)));
            }
        };
        let mut world = World::new(policy.clone());
        live(&mut world, &story, &[], |_| ());
        crowd(&mut world);
        let call = world.arrive(hurried);
        let Some(refusal) = world.refusal(call) else { return Ok(()) };
        let mut other = World::new(policy);
        live(&mut other, &story, &[], |_| ());
        crowd(&mut other);
        let call = other.arrive(patient);
        prop_assert!(refusal.retry_at > other.now + ms(timeout) / 2);
        other.pass(secs(36_000));
        let left = other.left_at(call).unwrap_or(Moment::MAX);
        prop_assert!(left >= refusal.retry_at, "told {:?}, could have gone at {left:?}", refusal.retry_at);
    }

    /// Complete where all calls need the same and none overtakes: a call that is let in goes in
    /// time, and none waits in vain.
    #[test]
    fn p8_whoever_is_let_in_goes_in_time(
        rate in select(vec![0.5, 3.0, 40.0]),
        burst in 1_u32..4,
        max_wait in 1_u64..20_000,
        arrivals in vec((0_u64..400, proptest::option::weighted(0.3, 1_u64..20_000)), 1..120),
    ) {
        let policy = Policy { bucket: Some(bucket(rate, burst)), ..open() };
        let queue = QueuePolicy { max_wait: ms(max_wait), ..policy.queue };
        let mut world = World::new(Policy { queue, ..policy });
        for (gap, timeout) in arrivals {
            world.pass(ms(gap));
            world.arrive(Caller { timeout: timeout.map(ms), ..Caller::new() });
        }
        world.pass(secs(100));
        for call in &world.calls {
            let limit = call.caller.timeout.map_or_else(|| ms(max_wait), |timeout| (timeout / 2).min(ms(max_wait)));
            match &call.life {
                Life::Refused(refusal) => {
                    prop_assert!(refusal.waited.is_zero(), "{call:?} waited in vain");
                    prop_assert!(refusal.retry_at > call.arrived + limit, "{call:?} could have made it");
                }
                _ => prop_assert!(call.left.is_some_and(|(left, _)| left <= call.arrived + limit), "{call:?}"),
            }
        }
    }

    /// No call waits longer than its limit (plus the driver's lateness), for whatever it waits.
    #[test]
    fn p8_nobody_waits_past_its_limit(
        limits in lives::policies(),
        story in stories(Cast { weights: [2, 8, 0, 1, 0], prompt: true, ..Cast::ALL }, 1..150),
    ) {
        let policy = limits.0;
        let mut world = World::new(policy.clone());
        live(&mut world, &story, &[], |_| ());
        let late = story.lateness.iter().max().copied().unwrap_or_default();
        world.pass(policy.queue.max_wait + secs(1));
        for call in &world.calls {
            let limit = call.caller.timeout.map_or(policy.queue.max_wait, |timeout| (timeout / 2).min(policy.queue.max_wait));
            let waited = match &call.life {
                Life::Refused(refusal) => refusal.waited,
                _ => call.left.map_or(Duration::ZERO, |(left, _)| left - call.arrived),
            };
            prop_assert!(waited <= limit + late, "{call:?} of {limit:?}");
            prop_assert!(!matches!(call.life, Life::Waiting(_)), "{call:?} of {limit:?}");
        }
        world.wind_down();
    }

    #[test]
    fn p9_the_waiting_room_and_the_key_table_are_bounded(
        limits in vec(lives::policies(), 3),
        story in stories(Cast { weights: [1, 10, 0, 1, 1], keys: 30, ..Cast::ALL }, 1..150),
    ) {
        let policies = unwrap(&limits);
        let mut world = World::new(policies[0].clone());
        let waiting = policies.iter().map(|policy| policy.queue.max_waiting).max().unwrap_or(0);
        let keys = policies.iter().map(|policy| policy.max_keys).max().unwrap_or(0);
        live(&mut world, &story, &policies, |world| {
            let now = world.limiter.snapshot(world.now);
            // Calls that came back from a grant wait beyond the limit: they had been let in before.
            let came_back = |life: &Life, again: bool| match life {
                Life::Granted(_) => true,
                Life::Waiting(_) => again,
                _ => false,
            };
            let returned = world.calls.iter().filter(|call| came_back(&call.life, call.came_back)).count();
            assert!(now.waiting <= waiting + returned, "{} wait", now.waiting);
            assert!(now.failing_keys <= keys, "{} keys", now.failing_keys);
        });
        world.wind_down();
    }

    /// A reload ends no pause.
    #[test]
    fn nobody_leaves_while_its_pause_lasts(
        limits in vec(lives::policies(), 3),
        story in stories(Cast { weights: [2, 14, 1, 1, 1], ..Cast::ALL }, 1..150),
    ) {
        let policies = unwrap(&limits);
        let mut world = World::new(policies[0].clone());
        live(&mut world, &story, &policies, |_| ());
        judge::pauses_hold(&world, &policies[0], 4);
        world.wind_down();
    }

    #[test]
    fn at_most_one_write_of_a_key_is_out_where_the_policy_says_so(
        limits in lives::policies(),
        forgetful in any::<bool>(),
        story in stories(Cast { weights: [2, 8, 1, 1, 0], keys: 4, ..Cast::ALL }, 1..150),
    ) {
        let mut policy = Policy { one_at_a_time: true, ..limits.0 };
        if forgetful {
            policy.classes.iter_mut().for_each(|class| class.backoff.strategy = Strategy::Off);
        }
        let mut world = World::new(policy);
        live(&mut world, &story, &[], |_| ());
        judge::writes_hold(&world, 4);
        world.wind_down();
    }

    /// A reload drops no call: each waiting call waits on, or goes, or is past a limit that is
    /// shorter now.
    #[test]
    fn p11_a_reload_drops_no_call(
        limits in vec(lives::policies(), 4),
        story in stories(Cast { weights: [1, 6, 0, 0, 0], ..Cast::ALL }, 1..60),
    ) {
        let policies = unwrap(&limits);
        let mut world = World::new(policies[0].clone());
        live(&mut world, &story, &[], |_| ());
        for (number, policy) in policies.iter().enumerate() {
            let waiting: Vec<_> = (0..world.calls.len()).filter(|call| world.is_waiting(*call)).collect();
            world.reload(policy.clone(), number);
            for call in waiting {
                let waited = world.now - world.calls[call].arrived;
                if let Some(refusal) = world.refusal(call) {
                    let short = refusal.reason.concerns_key() || waited >= policy.queue.max_wait || refusal.waited.is_zero();
                    let hurry = world.calls[call].caller.timeout.map(|timeout| timeout / 2);
                    let hurried = hurry.is_some_and(|hurry| waited >= hurry);
                    // Released by the write before it, it reaches its queue only now, and cannot be
                    // in time.
                    let limit = hurry.map_or(policy.queue.max_wait, |hurry| hurry.min(policy.queue.max_wait));
                    let in_vain = refusal.retry_at > world.calls[call].arrived + limit;
                    prop_assert!(short || hurried || in_vain, "{refusal:?} under {policy:?}");
                }
                prop_assert!(!matches!(world.calls[call].life, Life::Unconnected | Life::HungUp));
            }
        }
        world.wind_down();
    }
}

/// At least 99% of the rate under constant demand, with a timer that rounds up to the next
/// millisecond.
#[test]
fn p1_it_delivers_its_rate_from_one_in_a_hundred_seconds_to_ten_thousand_a_second() {
    for (rate, burst) in [
        (0.01, 1),
        (0.5, 1),
        (3.0, 1),
        (50.0, 1),
        (400.0, 1),
        (1_000.0, 1),
        (3_333.0, 1),
        (10_000.0, 1),
        (10_000.0, 20),
    ] {
        let mut world = World::new(Policy { bucket: Some(bucket(rate, burst)), ..open() });
        let demand = 60;
        let mut waiting: Vec<usize> = (0..demand + burst as usize).map(|_| world.arrive(Caller::new())).collect();
        let goal = (rate * 2.0).max(20.0);
        let end = at(0) + Duration::from_secs_f64(goal / rate);
        let mut left = 0_u32;
        while world.now < end {
            let wakeup = world.limiter.next_wakeup().expect("calls wait");
            let millis = u64::try_from(wakeup.since_start().as_micros().div_ceil(1000)).expect("fits");
            world.now = at(millis) + Duration::from_micros(80);
            world.limiter.advance(world.now);
            world.pass(Duration::ZERO);
            world.notice();
            waiting.retain(|call| world.is_waiting(*call));
            while waiting.len() < demand {
                left += 1;
                waiting.push(world.arrive(Caller::new()));
            }
        }
        let share = f64::from(left) / (rate * end.since_start().as_secs_f64());
        assert!(share >= 0.99, "{rate}/s burst {burst}: {share:.4} of the rate");
        judge::rate_holds(&world, Meter::Gate, &[Policy { bucket: Some(bucket(rate, burst)), ..open() }], 0.002);
    }
}

/// A noisy flow costs a quiet one a turn, not its place.
#[test]
fn p5_no_flow_starves_another() {
    let mut world = World::new(Policy { bucket: Some(bucket(10.0, 1)), in_flight: Some(slots(1000)), ..open() });
    for _ in 0..2_000 {
        world.arrive(Caller::new());
    }
    for flow in 1..20 {
        world.arrive(Caller::new().of_flow(flow));
    }
    world.pass(secs(2));
    for (call, record) in world.calls.iter().enumerate().skip(2_000) {
        assert!(record.left.is_some(), "flow {} waits behind the noisy one (call {call})", record.caller.flow);
    }
}
