//! P13 to P20 over random histories, in virtual time: what holds for gates that share a bucket
//! whatever befalls them, their store, its clock and the way between.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate_limit::moment::Moment;
use tidegate_limit::policy::SharedPolicy;
use tidegate_limit::{Ask, Ledger, SharedLimits, StoreAnswer, Wish};

use super::fleet::{Fleet, bucket};

/// Something that befalls a fleet.
#[derive(Clone, Debug)]
enum Trouble {
    /// The store answers some of the gates, by the bits of a number, no more for a while.
    CutOff(u8, u64),
    /// The store forgets everything.
    Forgets,
    /// The store forgets what happened in the last while.
    Older(u64),
    /// The store's clock jumps by so many milliseconds.
    Jumps(i64),
    /// A gate dies, and another takes its place.
    Dies(usize),
    /// From now on a question takes so many milliseconds.
    Slow(u64),
}

fn trouble() -> impl Strategy<Value = Trouble> {
    prop_oneof![
        (any::<u8>(), 0_u64..4_000).prop_map(|(whom, millis)| Trouble::CutOff(whom, millis)),
        Just(Trouble::Forgets),
        (1_u64..3_000).prop_map(Trouble::Older),
        prop_oneof![-3_600_000_i64..0, 1_i64..3_000, Just(3_600_000)].prop_map(Trouble::Jumps),
        (0_usize..6).prop_map(Trouble::Dies),
        (0_u64..120).prop_map(Trouble::Slow),
    ]
}

/// Calls, by gate: when, how many at once, and how long each would wait.
fn calls() -> impl Strategy<Value = Vec<(usize, u64, usize, u64)>> {
    prop::collection::vec((0_usize..6, 0_u64..20_000, 1_usize..40, 1_u64..9_000), 1..30)
}

fn call_all(fleet: &mut Fleet, calls: Vec<(usize, u64, usize, u64)>) {
    let gates = fleet.gates.len();
    for (gate, at, crowd, patience) in calls {
        for place in 0..crowd {
            let at = Duration::from_millis(at) + Duration::from_micros(37 * place as u64);
            fleet.call(gate % gates, at, Duration::from_millis(patience));
        }
    }
}

/// Lets something happen. Returns the most calls that it may add, as SHARED-QUOTA says in "What
/// faults add"; `ends` are the moments at which gates are answered again.
#[expect(clippy::cast_precision_loss, reason = "short times")]
fn befall(fleet: &mut Fleet, trouble: &Trouble, copies: &[(Moment, Ledger)], ends: &mut [Moment]) -> f64 {
    let lost = fleet.terms.burst + fleet.promised();
    match trouble {
        Trouble::CutOff(whom, millis) => {
            for gate in (0..fleet.gates.len()).filter(|gate| whom >> gate & 1 == 1) {
                fleet.gates[gate].cut_off = true;
                ends[gate] = ends[gate].max(fleet.now + Duration::from_millis(*millis));
            }
            0.0
        }
        Trouble::Forgets => {
            fleet.ledger = Ledger::default();
            lost
        }
        Trouble::Older(millis) => {
            let wanted = fleet.now.back(Duration::from_millis(*millis));
            let copy = copies.iter().rev().find(|(at, _)| *at <= wanted);
            fleet.ledger = copy.map(|(_, ledger)| ledger.clone()).unwrap_or_default();
            lost
        }
        Trouble::Jumps(millis) => {
            fleet.clock += millis * 1_000;
            if *millis < 0 { 0.0 } else { (fleet.rate * *millis as f64 / 1e3).min(lost) }
        }
        Trouble::Dies(gate) => {
            let gate = gate % fleet.gates.len();
            fleet.replace(gate);
            fleet.gates[gate].cut_off = ends[gate] > fleet.now;
            0.0
        }
        Trouble::Slow(millis) => {
            fleet.round_trip = Duration::from_millis(*millis);
            0.0
        }
    }
}

/// Lets everything happen in its turn. Returns the most calls that it may add, without those that
/// were sent while the store was away, and the number of these.
fn live(fleet: &mut Fleet, troubles: Vec<(u64, Trouble)>) -> (f64, u64) {
    let (mut allowed, mut alone, mut copies) = (TINY, 0, Vec::new());
    let mut ends = vec![Moment::ZERO; fleet.gates.len()];
    let mut troubles = troubles.into_iter();
    let (mut next, mut due) = (troubles.next(), Moment::ZERO);
    due += next.as_ref().map_or(Duration::ZERO, |(after, _)| Duration::from_millis(*after));
    while fleet.now < Moment::ZERO + LENGTH {
        fleet.run(STEP);
        copies.push((fleet.now, fleet.ledger.clone()));
        for (gate, end) in fleet.gates.iter_mut().zip(&ends) {
            gate.cut_off &= *end > fleet.now;
        }
        while let Some((_, trouble)) = next.take_if(|_| due <= fleet.now) {
            if let Trouble::Dies(gate) = &trouble {
                let gate = gate % fleet.gates.len();
                alone += fleet.gates[gate].alone(fleet.now);
            }
            allowed += befall(fleet, &trouble, &copies, &mut ends);
            next = troubles.next();
            due += next.as_ref().map_or(Duration::ZERO, |(after, _)| Duration::from_millis(*after));
        }
    }
    fleet.gates.iter_mut().for_each(|gate| gate.cut_off = false);
    (allowed, alone)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: super::shared_cases(), ..ProptestConfig::default() })]

    /// P13, P15 to P18.
    #[test]
    fn p13_to_p18_whatever_befalls_gates_and_store_the_sum_keeps_to_its_bound(
        rate in prop::sample::select(vec![0.5, 1.25, 10.0, 50.0, 400.0, 3_000.0]),
        burst in 1_u32..120,
        gates in 1_usize..6,
        troubles in prop::collection::vec((0_u64..6_000, trouble()), 0..6),
        calls in calls(),
    ) {
        let mut fleet = Fleet::of(gates, rate, burst);
        call_all(&mut fleet, calls);
        let deaths = troubles.iter().filter(|(_, trouble)| matches!(trouble, Trouble::Dies(_))).count();
        let (allowed, alone) = live(&mut fleet, troubles);
        // The last crowd waits until the store has answered again, and each call comes to its end.
        fleet.run(Duration::from_secs(60));
        prop_assert_eq!(fleet.waiting(), 0);
        let alone = alone + fleet.alone();
        #[expect(clippy::cast_precision_loss, reason = "few calls")]
        let all = allowed + alone as f64;
        prop_assert!(fleet.over() <= all, "{} over, {allowed} and {alone} allowed", fleet.over());
        let asks = |gate| fleet.asks.iter().filter(|(_, of)| *of == gate).map(|(at, _)| *at).collect::<Vec<_>>();
        for gate in 0..gates {
            let asks = asks(gate);
            let (mut least, mut most) = (f64::MAX, 0.0_f64);
            for (number, at) in (0_u32..).zip(&asks) {
                let ahead = f64::from(number) - 20.0 * at.since_start().as_secs_f64();
                least = least.min(ahead);
                most = most.max(ahead + 1.0 - least);
            }
            let lives = u32::try_from(deaths).expect("few");
            prop_assert!(most <= 8.0 * f64::from(1 + lives) + 1e-3, "gate {gate} asks {most} times beyond 20 a second");
        }
        let before = fleet.asks.len();
        fleet.run(Duration::from_secs(600));
        prop_assert_eq!(fleet.asks.len(), before, "nothing is left to ask for");
        prop_assert!(fleet.gates.iter().all(|gate| gate.limiter.is_at_rest()));
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: super::shared_cases(), ..ProptestConfig::default() })]

    /// P14: who begins to want tokens later, gets its part from then on.
    #[test]
    fn p14_members_that_are_short_share_by_weight_however_many_join(
        rate in prop::sample::select(vec![2.0, 10.0, 50.0, 100.0]),
        burst in 1_u32..120,
        weights in prop::collection::vec(1_u32..=10, 1..6),
        joins in prop::collection::vec(0_u64..4_000, 6),
        millis in 0_u64..20,
    ) {
        let mut fleet = Fleet::new(rate, burst, &weights, |_| ());
        fleet.round_trip = Duration::from_millis(millis);
        let turns = f64::from(weights.iter().sum::<u32>()) / rate;
        // Each has more callers than a turn has tokens, who come back as soon as they are answered.
        // None is refused: it would not come back, and its gate would not be short.
        fleet.wait_at_most(Duration::from_secs(3600));
        for (gate, join) in (0..weights.len()).zip(joins) {
            fleet.gates[gate].comes_back = true;
            for caller in 0..CALLERS {
                fleet.call(gate, Duration::from_millis(join + caller), Duration::from_secs(3600));
            }
        }
        let from = Moment::from_millis(5_000) + Duration::from_secs_f64(5.0 * turns);
        fleet.run(from - Moment::ZERO + Duration::from_secs_f64(8.0 + 30.0 * turns));
        prop_assert_eq!(fleet.refused, 0);
        let fair = fleet.fairness_since(from, &weights);
        // A turn of a short lease is cut where a question takes a good part of it.
        let least = if fleet.terms.lease < Duration::from_millis(200) { 0.95 } else { 0.99 };
        let sent: Vec<_> = (0..weights.len()).map(|gate| fleet.sent_since(from, Some(gate))).collect();
        prop_assert!(fair >= least, "{fair}: {sent:?}");
        prop_assert!(fleet.over() <= TINY, "{} over", fleet.over());
        prop_assert!(fleet.used_since(from) >= 0.96, "{} used", fleet.used_since(from));
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: super::shared_cases(), ..ProptestConfig::default() })]

    /// P19: nobody spends a token from before a pause later than a lease after the last token that
    /// was promised before it.
    #[test]
    fn p19_a_pause_that_one_gate_is_asked_for_is_kept_by_all(
        rate in prop::sample::select(vec![1.25, 10.0, 50.0, 400.0]),
        burst in 1_u32..120,
        gates in 1_usize..6,
        millis in 0_u64..60,
        at in 0_u64..10_000,
        length in 1_u64..30_000,
        jumps in prop::option::of(-10_000_000_i64..0),
        calls in calls(),
    ) {
        let mut fleet = Fleet::of(gates, rate, burst);
        fleet.round_trip = Duration::from_millis(millis);
        call_all(&mut fleet, calls);
        fleet.run(Duration::from_millis(at));
        let before = fleet.sent.len();
        fleet.asks_pause = Some(Duration::from_millis(length));
        while fleet.asks_pause.is_some() && fleet.now < Moment::ZERO + LENGTH {
            fleet.run(Duration::from_millis(1));
        }
        if let Some((began, _)) = fleet.sent.get(before).copied() {
            fleet.clock += jumps.unwrap_or(0);
            fleet.run(Duration::from_millis(length + 10_000));
            let promised = Duration::from_secs_f64(fleet.promised() / rate);
            let heard = began + promised + fleet.terms.lease + fleet.round_trip + Duration::from_millis(60);
            let ends = began + Duration::from_millis(length);
            let late: Vec<_> = fleet.sent.iter().filter(|(at, _)| *at > heard && *at < ends).collect();
            prop_assert!(late.is_empty(), "asked for at {began:?}, for {length} ms: {late:?}");
        }
        prop_assert!(fleet.over() <= TINY, "{} over", fleet.over());
    }

    /// P20: whatever a store says, a gate sends no more than its own limits allow, and asks no more
    /// often than it may.
    #[test]
    fn p20_a_store_that_lies_brings_no_gate_above_its_own_limits(
        rate in prop::sample::select(vec![1.25, 10.0, 400.0]),
        burst in 1_u32..120,
        gates in 1_usize..4,
        lies in prop::collection::vec((any::<u32>(), any::<i64>(), any::<u64>(), any::<f64>(), any::<(u32, u32)>(), prop::option::of(any::<u64>()), any::<u64>()), 1..20),
        calls in calls(),
    ) {
        let mut fleet = Fleet::of(gates, rate, burst);
        let mut number = 0;
        fleet.bend = Box::new(move |answer| {
            number += 1;
            let (granted, first, period, level, (members, rivals), pause, epoch) = lies[number % lies.len()];
            if number % 3 == 0 {
                return answer;
            }
            let (period, pause) = (Duration::from_nanos(period), pause.map(Duration::from_nanos));
            // Small numbers, too: those that are out of range end as if the store were away.
            StoreAnswer { granted: granted >> (number % 32), first, period, level, epoch, members, rivals, pause, quotas: Vec::new() }
        });
        call_all(&mut fleet, calls);
        fleet.run(LENGTH);
        for gate in 0..gates {
            let (mut least, mut most) = (f64::MAX, 0.0_f64);
            for (number, (at, _)) in (0_u32..).zip(fleet.sent.iter().filter(|(_, of)| *of == gate)) {
                let ahead = f64::from(number) - rate * at.since_start().as_secs_f64();
                least = least.min(ahead);
                most = most.max(ahead + 1.0 - least);
            }
            prop_assert!(most <= f64::from(burst) + TINY, "gate {gate}: {most} at once");
            let asks = fleet.asks.iter().filter(|(_, of)| *of == gate).count();
            prop_assert!(asks as u64 <= 8 + 20 * LENGTH.as_secs(), "{asks} questions");
        }
    }
}

/// The callers of a gate that is always short.
const CALLERS: u64 = 50;

/// A token that an adversary was granted: when it may be spent, by the store's clock.
fn tokens(ask: &Ask, answer: &StoreAnswer, now: f64) -> impl Iterator<Item = f64> {
    let (first, period, lease) = (answer.first as f64 / 1e9, answer.period.as_secs_f64(), ask.limits.lease);
    // It hoards, and spends at the first or at the last moment.
    let last = lease.as_secs_f64();
    (0..answer.granted)
        .map(move |place| now + (first + period * f64::from(place)).max(0.0) + if place % 2 == 0 { last } else { 0.0 })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: super::shared_cases(), ..ProptestConfig::default() })]

    /// P13, for members that ask as they like, hoard, spend each token at the worst moment, and
    /// lose answers.
    #[test]
    fn p13_an_adversary_spends_no_more_than_the_bound(
        rate in prop_oneof![Just(0.01), Just(1.25), Just(50.0), Just(10_000.0), 0.01_f64..10_000.0],
        burst in 1_u32..2_000,
        asks in prop::collection::vec((0_u64..6, 0_u32..200, 0_u32..65, 0_u32..20, 0_u64..10_000_000, 0.0_f64..4.0, 0_u8..4), 1..120),
    ) {
        let (bucket, shared) = (bucket(rate, burst), Arc::new(SharedPolicy::new("account")));
        let limits = SharedLimits::new(&bucket, &shared);
        let (mut ledger, start) = (Ledger::default(), 1_700_000_000_000_000_u64);
        let (mut now, mut known, mut spent) = (start, [(0, 0); 6], Vec::new());
        for (member, need, extra, ahead, within, after, fate) in asks {
            let after = Duration::from_secs_f64(after * 4.0 * limits.period / 1e6);
            now += u64::try_from(after.as_micros()).expect("short");
            let of = usize::try_from(member).expect("small");
            let (total, epoch) = known[of];
            let ask = Ask {
                wish: Wish { need, extra, within: Duration::from_micros(within) },
                total,
                epoch,
                ahead,
                away: fate == 1,
                leave: fate == 2,
                ..Ask::new(member, limits, Arc::clone(&shared))
            };
            let answer = ledger.ask(&ask, now);
            spent.extend(tokens(&ask, &answer, (now - start) as f64 / 1e6));
            if fate < 3 {
                known[of] = (total + u64::from(answer.granted), answer.epoch);
            }
        }
        spent.sort_by(f64::total_cmp);
        let bound = f64::from(burst).max(1.0 + rate * limits.lease.as_secs_f64());
        let (mut least, mut most) = (f64::MAX, 0.0_f64);
        for (number, at) in (0_u32..).zip(spent) {
            let ahead = f64::from(number) - rate * at;
            least = least.min(ahead);
            most = most.max(ahead + 1.0 - least);
        }
        // A double holds the microseconds of this century to a quarter.
        prop_assert!(most <= bound + rate * 1e-6 + 1e-3, "{most}, at most {bound}");
    }
}

const LENGTH: Duration = Duration::from_secs(25);
const STEP: Duration = Duration::from_millis(50);
const TINY: f64 = 1e-6;
