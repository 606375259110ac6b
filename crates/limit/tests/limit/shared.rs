//! P13 to P18: what holds for all gates together that share a bucket, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate_limit::moment::Moment;
use tidegate_limit::policy::{Outage, SharedPolicy};
use tidegate_limit::quota::{QuotaId, ResourceId};
use tidegate_limit::{Ask, Ledger, Policy, SharedLimits, Wish};

use super::fleet::{Fleet, bucket, policy};

/// Gates that all have three times their part of the rate to send.
fn short_of(mut fleet: Fleet, length: Duration) -> Fleet {
    let count = fleet.gates.len();
    for gate in 0..count {
        #[expect(clippy::cast_precision_loss, reason = "few gates")]
        fleet.calls(gate, 3.0 * fleet.rate / count as f64, length);
    }
    fleet
}

/// Gates that have half the rate to send together, in crowds of so many calls within 50 ms; the
/// first gate has half of it.
fn quiet(mut fleet: Fleet, crowd: u32, length: Duration) -> Fleet {
    let (mut at, mut number) = (0.05, 0_usize);
    while at < length.as_secs_f64() {
        number += 1;
        let gate = if number.is_multiple_of(2) { 0 } else { number / 2 % fleet.gates.len() };
        for place in 0..crowd {
            let at = at + 0.05 * f64::from(place) / f64::from(crowd);
            fleet.call(gate, Duration::from_secs_f64(at), Duration::from_secs(3600));
        }
        // Not evenly: times that have nothing to do with those of the asks.
        at += f64::from(crowd) * 2.0 / fleet.rate * (0.5 + number as f64 * 0.618_034 % 1.0);
    }
    fleet
}

#[test]
fn p13_all_of_the_rate_is_used_and_never_more() {
    for (count, rate, burst) in [(1, 50.0, 100), (3, 50.0, 100), (20, 50.0, 100), (3, 1.25, 20), (3, 1.0, 1)] {
        let mut fleet = short_of(Fleet::of(count, rate, burst), 40 * SECOND);
        fleet.run(40 * SECOND);
        let from = Moment::from_millis(10_000);
        assert!(fleet.over() <= TINY, "{count} gates at {rate}/s: {} over", fleet.over());
        assert!(fleet.used_since(from) >= 0.96, "{count} gates at {rate}/s used {}", fleet.used_since(from));
    }
}

#[test]
fn p13_one_gate_alone_gets_all_of_the_rate() {
    let mut fleet = Fleet::of(3, 50.0, 100);
    fleet.calls(0, 200.0, 30 * SECOND);
    fleet.run(30 * SECOND);
    assert!(fleet.over() <= TINY);
    assert!(fleet.used_since(Moment::from_millis(10_000)) >= 0.99);
}

#[test]
fn p13_a_crowd_after_a_rest_has_one_burst_and_no_more() {
    let mut fleet = Fleet::of(20, 50.0, 100);
    fleet.call(0, Duration::ZERO, 10 * SECOND); // from now on the store fills
    fleet.run(10 * SECOND);
    for gate in 0..20 {
        for place in 0..60 {
            fleet.call(gate, Duration::from_micros(place * 800), 3600 * SECOND);
        }
    }
    fleet.run(5 * SECOND);
    assert!(fleet.over() <= TINY, "{} over", fleet.over());
    let at_once = fleet.sent.iter().filter(|(at, _)| (10_000..10_200).contains(&(at.as_nanos() / 1_000_000))).count();
    assert!(at_once >= 75, "{at_once} of the burst were there at once");
}

#[test]
fn p14_members_that_are_short_get_tokens_by_their_weights() {
    let mut fleet = Fleet::of(3, 50.0, 100);
    for (gate, part) in [(0, 9.0), (1, 3.0), (2, 1.5)] {
        fleet.calls(gate, part * fleet.rate / 3.0, 40 * SECOND);
    }
    fleet.run(40 * SECOND);
    let fair = fleet.fairness_since(Moment::from_millis(10_000), &[1, 1, 1]);
    assert!(fair >= 0.99, "{fair}");

    let weights = [1, 2, 5];
    let mut fleet = short_of(Fleet::new(50.0, 100, &weights, |_| ()), 40 * SECOND);
    fleet.calls(2, 50.0, 40 * SECOND);
    fleet.run(40 * SECOND);
    let fair = fleet.fairness_since(Moment::from_millis(10_000), &weights);
    assert!(fair >= 0.99, "{fair}");
}

#[test]
fn p14_weights_are_kept_where_a_turn_is_a_few_tokens() {
    for (rate, burst) in [(50.0, 100), (12.0, 24), (5.0, 20), (1.25, 20), (1.0, 1)] {
        for weights in [&[1, 2, 5][..], &[2, 3], &[1, 1, 4, 4], &[7, 10, 10]] {
            let mut fleet = Fleet::new(rate, burst, weights, |_| ());
            let length = Duration::from_secs_f64(100.0 + 600.0 / rate);
            (0..weights.len()).for_each(|gate| fleet.calls(gate, 2.0 * rate, length));
            fleet.run(length);
            let from = Moment::ZERO + length / 5;
            let fair = fleet.fairness_since(from, weights);
            assert!(fair >= 0.999, "{weights:?} at {rate}/s: {fair}");
            assert!(fleet.over() <= TINY, "{weights:?} at {rate}/s: {} over", fleet.over());
            let used = fleet.used_since(from);
            assert!(used >= 0.96, "{weights:?} at {rate}/s used {used}");
        }
    }
}

#[test]
fn p14_a_gate_of_few_callers_that_wait_for_each_answer_has_its_part_beside_one_of_many() {
    let all = [([1, 1, 1], [18, 6, 2]), ([4, 2, 1], [18, 6, 2]), ([1, 2, 1], [2, 18, 2])];
    for ((weights, callers), burst) in all.into_iter().flat_map(|one| [(one, 20), (one, 80)]) {
        let mut fleet = Fleet::new(40.0, burst, &weights, |_| ());
        for (gate, callers) in callers.into_iter().enumerate() {
            fleet.gates[gate].comes_back = true;
            (0..callers).for_each(|_| fleet.call(gate, Duration::ZERO, HOUR));
        }
        fleet.run(60 * SECOND);
        let from = Moment::from_millis(5_000);
        let fair = fleet.fairness_since(from, &weights);
        assert!(fair >= 0.99, "{weights:?}, {callers:?} callers, burst {burst}: {fair}");
        assert!(fleet.over() <= TINY && fleet.used_since(from) >= 0.99, "{} over", fleet.over());
    }
}

#[test]
fn p14_a_member_of_little_demand_waits_a_turn_and_not_behind_all_others() {
    let mut fleet = Fleet::of(3, 50.0, 100);
    fleet.calls(0, 200.0, 30 * SECOND);
    fleet.calls(1, 200.0, 30 * SECOND);
    fleet.calls(2, 6.0, 30 * SECOND);
    fleet.run(30 * SECOND);
    let wait = fleet.gates[2].wait_of(99);
    assert!(wait <= Duration::from_millis(700), "{wait:?}");
}

#[test]
fn p15_calls_wait_for_no_question_while_it_is_quiet() {
    let waits = |millis: u64, crowd: u32| {
        let mut fleet = Fleet::of(3, 50.0, 100);
        fleet.round_trip = Duration::from_millis(millis);
        let mut fleet = quiet(fleet, crowd, 60 * SECOND);
        fleet.run(10 * SECOND); // a new bucket is empty
        fleet.gates.iter_mut().for_each(|gate| gate.waits.clear());
        let (asks, sent) = (fleet.asks.len(), fleet.sent.len());
        fleet.run(50 * SECOND);
        let (asks, sent) = (fleet.asks.len() - asks, fleet.sent.len() - sent);
        let mut waits: Vec<Duration> = fleet.gates.iter().flat_map(|gate| gate.waits.clone()).collect();
        waits.sort_unstable();
        assert!(asks < sent, "{asks} asks for {sent} calls, in crowds of {crowd} at {millis} ms");
        (waits[waits.len() / 2], waits[waits.len() * 99 / 100])
    };
    for millis in [1, 5, 50] {
        let two_round_trips = Duration::from_millis(2 * millis + 25);
        let (half, most) = waits(millis, 1);
        assert_eq!(half, Duration::ZERO, "at a round trip of {millis} ms");
        assert!(most <= two_round_trips, "at a round trip of {millis} ms: {most:?}");
        let (_, most) = waits(millis, 10);
        assert!(most <= two_round_trips, "in crowds, at a round trip of {millis} ms: {most:?}");
    }
}

#[test]
fn p15_a_member_asks_at_most_twenty_times_a_second_and_not_while_it_is_idle() {
    let mut fleet = short_of(Fleet::of(3, 50.0, 100), 20 * SECOND);
    fleet.run(20 * SECOND);
    for gate in 0..3 {
        let asks = fleet.asks.iter().filter(|(_, of)| *of == gate).count();
        assert!(asks <= 20 * 20 + 8, "{asks}");
    }
    fleet.run(60 * SECOND); // what waits leaves
    let before = fleet.asks.len();
    fleet.run(600 * SECOND);
    assert_eq!(fleet.asks.len(), before, "nothing is left to ask for");
    assert!(fleet.gates.iter().all(|gate| gate.limiter.is_at_rest()));
}

#[test]
fn p15_questions_are_counted_in_a_shortage_and_at_half_the_rate() {
    let asks = |mut fleet: Fleet| {
        fleet.run(10 * SECOND);
        let (asks, sent) = (fleet.asks.len(), fleet.sent.len());
        fleet.run(20 * SECOND);
        (fleet.asks.len() - asks, fleet.sent.len() - sent)
    };
    // In twenty seconds: the smaller of the rate and 5 + 5 for each gate, and no more than 8 for
    // each (SHARED-QUOTA, "Targets").
    for (count, rate, burst, most) in
        [(3, 50.0, 100, 20), (20, 50.0, 100, 50), (3, 500.0, 1_000, 20), (20, 500.0, 1_000, 105)]
    {
        let (asks, _) = asks(short_of(Fleet::of(count, rate, burst), 30 * SECOND));
        assert!(asks <= 20 * most, "{count} gates at {rate}/s asked {} times a second", asks / 20);
    }
    for millis in [1, 50] {
        let mut fleet = Fleet::of(3, 50.0, 100);
        fleet.round_trip = Duration::from_millis(millis);
        let (asks, sent) = asks(quiet(fleet, 1, 30 * SECOND));
        assert!(asks <= sent / 2, "{asks} questions for {sent} calls at half the rate, at {millis} ms");
    }
}

#[test]
fn p16_while_the_store_is_away_each_goes_on_at_its_part_and_no_burst_follows() {
    for phase in [0, 130, 777] {
        let mut fleet = short_of(Fleet::of(3, 50.0, 100), 40 * SECOND);
        fleet.run(10 * SECOND + Duration::from_millis(phase));
        fleet.gates.iter_mut().for_each(|gate| gate.cut_off = true);
        let away = fleet.now;
        fleet.run(10 * SECOND);
        let used = fleet.used_since(away + SECOND);
        assert!((0.95..=1.0 + TINY).contains(&used), "{used} of the rate in the outage");
        let view = |fleet: &Fleet, gate: usize| fleet.gates[gate].limiter.snapshot(fleet.now).shared[0].clone();
        let alone = view(&fleet, 0);
        assert!(alone.away && (alone.rate - 50.0 / 3.0).abs() < 0.01, "{alone:?}");
        assert!(alone.next.is_some_and(|next| next <= SECOND / 16), "{alone:?}");
        let asks = fleet.asks.iter().filter(|(at, _)| *at > away).count();
        assert!(asks <= 3 * 16, "{asks} questions to a store that is away");
        fleet.gates.iter_mut().for_each(|gate| gate.cut_off = false);
        let back = fleet.now;
        fleet.run(15 * SECOND);
        assert!(fleet.over() <= TINY, "{} over", fleet.over());
        let used = fleet.used_since(back + 3 * SECOND);
        assert!(used >= 0.99, "{used} of the rate after it");
        for gate in 0..3 {
            let (view, told) = (view(&fleet, gate), fleet.told_alone.iter().rfind(|(of, _)| *of == gate));
            let (_, told) = told.expect("it came back");
            assert!((told.rate - 50.0 / 3.0).abs() < 0.01, "{told:?}");
            // All but what was sent while the question was under way.
            assert!(told.sent > 100 && view.tally.fallback - told.sent <= 1, "{told:?} {view:?}");
            assert!((view.rate - 50.0).abs() < 0.01, "{view:?}");
        }
        assert!(fleet.gates.iter().all(|gate| gate.limiter.snapshot(back).shared.iter().all(|one| !one.away)));
    }
}

#[test]
fn p16_a_gate_whose_calls_have_ended_in_an_outage_is_back_with_its_store_and_brings_no_burst() {
    let mut fleet = Fleet::of(2, 0.5, 20);
    for gate in [0, 1, 0, 1] {
        fleet.call(gate, 5 * SECOND, HOUR);
    }
    fleet.run(60 * SECOND);
    fleet.gates.iter_mut().for_each(|gate| gate.cut_off = true);
    (0..2).for_each(|gate| fleet.call(gate, Duration::ZERO, HOUR));
    fleet.run(120 * SECOND);
    let away =
        |fleet: &Fleet| fleet.gates.iter().filter(|gate| gate.limiter.snapshot(fleet.now).shared[0].away).count();
    assert_eq!(away(&fleet), 2, "both have found it away");
    let asks = fleet.asks.len();
    assert!(asks <= 2 * 140, "{asks} questions to a store that is away");

    // Nobody calls when it comes back, and later all at once.
    fleet.gates.iter_mut().for_each(|gate| gate.cut_off = false);
    fleet.run(5 * SECOND);
    assert_eq!(away(&fleet), 0, "they have asked without a call");
    let asks = fleet.asks.len();
    fleet.run(60 * SECOND);
    assert_eq!(fleet.asks.len(), asks, "and ask no more");
    for gate in 0..2 {
        (0..30).for_each(|_| fleet.call(gate, Duration::ZERO, HOUR));
    }
    fleet.run(20 * SECOND);
    assert!(fleet.over() <= TINY, "{} over", fleet.over());
    let alone: u64 = fleet.gates.iter().map(|gate| gate.limiter.snapshot(fleet.now).shared[0].tally.fallback).sum();
    assert!(alone <= 2, "{alone} calls beside the store");
}

#[test]
fn p16_a_call_now_and_then_finds_the_store_that_is_back() {
    let mut fleet = Fleet::of(1, 20.0, 20);
    (0..3).for_each(|call| fleet.call(0, SECOND * call, HOUR));
    fleet.run(10 * SECOND);
    fleet.gates[0].cut_off = true;
    fleet.call(0, Duration::ZERO, HOUR);
    fleet.run(20 * SECOND);
    fleet.gates[0].cut_off = false;
    fleet.calls(0, 1.0, 40 * SECOND);
    fleet.run(40 * SECOND);
    let seen = fleet.gates[0].limiter.snapshot(fleet.now).shared[0].clone();
    assert!(!seen.away && seen.tally.fallback <= 4, "{seen:?}");
}

#[test]
fn p16_a_gate_that_is_cut_off_alone_adds_its_part_and_no_more() {
    let mut fleet = short_of(Fleet::of(3, 50.0, 100), 40 * SECOND);
    fleet.run(10 * SECOND);
    fleet.gates[0].cut_off = true;
    let from = fleet.now;
    fleet.run(20 * SECOND);
    let used = fleet.used_since(from);
    assert!(used <= 1.0 + 1.0 / 3.0 + 0.02, "{used}");
    assert!(fleet.sent_since(from, Some(0)) > 250, "it goes on at its part");
}

#[test]
fn p16_a_gate_that_never_met_its_store_reckons_with_the_members_it_was_told() {
    let mut fleet = Fleet::of(1, 50.0, 100);
    fleet.gates[0].cut_off = true;
    fleet.calls(0, 100.0, 20 * SECOND);
    fleet.run(20 * SECOND);
    let used = fleet.used_since(Moment::from_millis(1_000));
    assert!((0.09..0.11).contains(&used), "{used}");
}

#[test]
fn p16_outage_stop_holds_the_bound_through_everything_and_full_gives_each_all() {
    let run = |outage| {
        let mut fleet = Fleet::new(50.0, 100, &[1, 1], |shared| shared.outage = outage);
        fleet = short_of(fleet, 30 * SECOND);
        fleet.run(10 * SECOND);
        fleet.gates.iter_mut().for_each(|gate| gate.cut_off = true);
        let away = fleet.now;
        fleet.run(10 * SECOND);
        fleet.sent_since(away + SECOND, None)
    };
    assert_eq!(run(Outage::Stop), 0);
    let full = run(Outage::Full);
    assert!((880..=900).contains(&full), "{full}");
}

#[test]
fn p17_a_store_that_forgets_everything_grants_no_second_burst() {
    let mut fleet = short_of(Fleet::of(3, 50.0, 100), 40 * SECOND);
    for _ in 0..6 {
        fleet.run(5 * SECOND);
        fleet.ledger = Ledger::default();
    }
    assert!(fleet.over() <= fleet.rate * 0.2 + 3.0, "{} over", fleet.over());
    assert!(fleet.used_since(Moment::from_millis(10_000)) >= 0.97);

    // An older copy, as after a failover that lost the last writes.
    let mut fleet = quiet(Fleet::of(3, 50.0, 100), 10, 40 * SECOND);
    for _ in 0..6 {
        fleet.run(3 * SECOND);
        let copy = fleet.ledger.clone();
        fleet.run(2 * SECOND);
        fleet.ledger = copy;
    }
    assert!(fleet.over() <= fleet.terms.burst + fleet.rate * 0.2 + 3.0, "{} over", fleet.over());
}

#[test]
fn p18_a_clock_of_the_store_that_goes_back_adds_nothing_and_one_that_jumps_ahead_a_burst() {
    let mut fleet = short_of(Fleet::of(3, 50.0, 100), 40 * SECOND);
    fleet.run(10 * SECOND);
    fleet.clock -= 3_600_000_000;
    fleet.run(10 * SECOND);
    assert!(fleet.over() <= TINY, "{} over", fleet.over());
    assert!(fleet.used_since(Moment::from_millis(12_000)) >= 0.99, "it goes on");
    fleet.clock += 3_600_000_000;
    fleet.run(10 * SECOND);
    // A bucket that seems to be full, beside what was promised before the jump.
    assert!(fleet.over() <= fleet.terms.burst + fleet.promised(), "{} over", fleet.over());
}

#[test]
fn p18_a_member_that_is_gone_is_none_after_a_minute_though_the_clock_went_back() {
    let mut fleet = short_of(Fleet::of(2, 50.0, 100), 120 * SECOND);
    fleet.run(10 * SECOND);
    fleet.gates[1].cut_off = true; // as one that was killed
    fleet.run(SECOND);
    fleet.clock -= 3_600_000_000;
    fleet.run(70 * SECOND);
    let members = fleet.gates[0].limiter.snapshot(fleet.now).shared[0].members;
    assert_eq!(members, 1, "it was seen an hour from now");
}

#[test]
fn p11_a_reload_keeps_the_tokens_and_the_strictest_limits_hold() {
    let mut fleet = short_of(Fleet::of(2, 50.0, 100), 60 * SECOND);
    fleet.run(10 * SECOND);
    let shared = SharedPolicy::new("account");
    fleet.gates[0].limiter.reconfigure(policy(bucket(20.0, 100), shared.clone()), fleet.now);
    let from = fleet.now;
    fleet.run(10 * SECOND);
    let sent = fleet.sent_since(from + SECOND, None);
    assert!((175..=200).contains(&sent), "{sent} calls under the lower of two rates");
    let differs = |fleet: &Fleet, gate: usize| fleet.gates[gate].limiter.snapshot(fleet.now).shared[0].differs;
    assert!(differs(&fleet, 1) && !differs(&fleet, 0));
    fleet.gates[1].limiter.reconfigure(policy(bucket(20.0, 100), shared), fleet.now);
    fleet.run(10 * SECOND);
    assert!(!differs(&fleet, 1));
}

#[test]
fn a_gate_that_shares_nothing_any_more_has_no_member_to_look_at() {
    let mut fleet = quiet(Fleet::of(1, 20.0, 100), 1, 20 * SECOND);
    fleet.run(10 * SECOND);
    let (limiter, now) = (&mut fleet.gates[0].limiter, fleet.now);
    assert!(limiter.waiting() == 0 && limiter.next_wakeup().is_some(), "its member is looked at");
    limiter.reconfigure(Policy::default(), now);
    assert!(limiter.take_asks(now).is_empty());
    assert_eq!(limiter.next_wakeup(), None);
}

#[test]
fn p6_a_call_that_was_not_sent_gives_its_token_back() {
    let mut fleet = Fleet::of(1, 1.0, 20);
    fleet.call(0, Duration::ZERO, 10 * SECOND);
    fleet.run(30 * SECOND);
    fleet.gates[0].returns = true;
    let before = fleet.gates[0].limiter.snapshot(fleet.now).shared[0].clone();
    for _ in 0..5 {
        fleet.call(0, Duration::from_millis(1), 10 * SECOND);
        fleet.run(Duration::from_millis(10));
    }
    let after = fleet.gates[0].limiter.snapshot(fleet.now).shared[0].clone();
    assert_eq!(after.tally.spent, before.tally.spent);
    assert!(after.tally.granted <= before.tally.granted + 1, "one token served all: {after:?}");
}

/// Three busy gates, one of which the upstream asks for a pause after five seconds.
fn paused(length: Duration, change: impl Fn(&mut SharedPolicy)) -> (Fleet, Moment) {
    let mut fleet = Fleet::new(50.0, 100, &[1, 1, 1], change);
    (0..3).for_each(|gate| fleet.calls(gate, 30.0, 30 * SECOND));
    fleet.run(5 * SECOND);
    fleet.asks_pause = Some(length);
    let before = fleet.sent.len();
    while fleet.asks_pause.is_some() {
        fleet.run(Duration::from_millis(1));
    }
    let began = fleet.sent[before].0;
    (fleet, began)
}

#[test]
fn p19_a_pause_that_one_gate_is_asked_for_is_kept_by_all_within_a_lease() {
    let (mut fleet, began) = paused(10 * SECOND, |_| ());
    fleet.run(20 * SECOND);
    let heard = began + fleet.terms.lease + Duration::from_millis(10);
    let over = began + 10 * SECOND;
    let meanwhile = fleet.sent.iter().filter(|(at, _)| *at > heard && *at < over).count();
    assert_eq!(meanwhile, 0, "{:?}", fleet.sent.iter().find(|(at, _)| *at > heard));
    assert!(fleet.sent_since(over, None) > 400, "it goes on afterwards");
    assert!(fleet.over() <= TINY, "{}", fleet.over());
    let asks = fleet.asks.iter().filter(|(at, _)| *at > heard && *at < over).count();
    assert!(asks <= 20, "while it lasts each gate looks every two seconds if it still holds: {asks}");
}

#[test]
fn p19_a_gate_takes_no_longer_pause_than_its_own_longest_and_none_where_they_are_not_shared() {
    let (mut fleet, began) = paused(10 * SECOND, |shared| shared.pauses = None);
    let first = fleet.sent.last().expect("one left").1;
    fleet.run(9 * SECOND);
    let others = fleet.sent.iter().filter(|(at, gate)| *at > began && *gate != first).count();
    assert!(others > 200, "{others}");
    let (mut fleet, began) = paused(10 * SECOND, |shared| shared.pauses = Some(2 * SECOND));
    fleet.run(SECOND);
    let ends: Vec<_> = fleet.gates.iter().map(|gate| gate.limiter.pauses(fleet.now)[0].until).collect();
    assert_eq!(ends.iter().filter(|end| **end <= began + 4 * SECOND).count(), 2, "{ends:?}");
}

#[test]
fn p19_a_pause_that_an_operator_lifts_everywhere_ends_everywhere() {
    let (mut fleet, began) = paused(20 * SECOND, |_| ());
    fleet.run(3 * SECOND);
    assert!(fleet.gates.iter().all(|gate| gate.limiter.pauses(fleet.now).len() == 1));
    let now = fleet.now;
    fleet.gates[0].limiter.lift_pauses(true, now);
    fleet.run(4 * SECOND);
    for gate in 0..3 {
        assert!(fleet.sent_since(began + 3 * SECOND, Some(gate)) > 10, "gate {gate}");
    }
    assert!(fleet.gates.iter().all(|gate| gate.limiter.pauses(fleet.now).is_empty()));
}

#[test]
fn p19_a_store_that_forgets_a_pause_ends_nobodys() {
    let (mut fleet, _) = paused(20 * SECOND, |_| ());
    fleet.run(3 * SECOND);
    fleet.ledger = Ledger::default();
    let before = fleet.sent.len();
    fleet.run(10 * SECOND);
    assert_eq!(fleet.sent.len(), before);
}

/// Three gates that share one bucket, two holders at each, and a pause for one of the holders.
/// Returns that holder and the other.
fn paused_holder(length: Duration) -> (Fleet, Moment, [u64; 2]) {
    let mut fleet = Fleet::of(3, 100.0, 100);
    for (gate, who) in (0..3).flat_map(|gate| [(gate, 1), (gate, 2)]) {
        fleet.calls_of(who, gate, 10.0, 40 * SECOND);
    }
    fleet.run(5 * SECOND);
    fleet.asks_pause = Some(length);
    let before = fleet.of.len();
    while fleet.asks_pause.is_some() {
        fleet.run(Duration::from_millis(1));
    }
    let paused = fleet.of[before];
    let began = fleet.sent[before].0;
    (fleet, began, [paused, 3 - paused])
}

fn sent_within(fleet: &Fleet, who: u64, from: Moment, to: Moment) -> usize {
    fleet.sent.iter().zip(&fleet.of).filter(|((at, _), of)| **of == who && *at > from && *at < to).count()
}

#[test]
fn q6_a_pause_of_one_holders_quota_is_heard_by_all_and_stops_nobody_else() {
    let (mut fleet, began, [paused, other]) = paused_holder(10 * SECOND);
    fleet.run(20 * SECOND);
    let heard = began + fleet.terms.lease + Duration::from_millis(10);
    let over = began + 10 * SECOND;
    assert_eq!(sent_within(&fleet, paused, heard, over), 0);
    let went = sent_within(&fleet, other, heard, over);
    assert!(went >= 270, "{went} of some 290");
    assert!(sent_within(&fleet, paused, over, over + 5 * SECOND) > 200, "it goes on afterwards");
    assert!(fleet.over() <= TINY, "{}", fleet.over());
}

#[test]
fn q6_a_pause_of_one_holders_quota_is_lifted_everywhere_and_outlives_a_forgetful_store() {
    let (mut fleet, _, [paused, _]) = paused_holder(20 * SECOND);
    fleet.run(3 * SECOND);
    fleet.ledger = Ledger::default();
    let from = fleet.now;
    fleet.run(4 * SECOND);
    assert_eq!(sent_within(&fleet, paused, from, fleet.now), 0, "a store that forgets ends nobody's");

    let (mut fleet, _, [paused, _]) = paused_holder(20 * SECOND);
    fleet.run(3 * SECOND);
    let now = fleet.now;
    let quota = QuotaId { holder: paused, resource: ResourceId::ALL };
    assert!(fleet.gates.iter().all(|gate| gate.limiter.pauses(now).iter().any(|pause| pause.quota == quota)));
    fleet.gates[1].limiter.lift_pauses(true, now);
    fleet.run(4 * SECOND);
    assert!(fleet.gates.iter().all(|gate| gate.limiter.pauses(fleet.now).is_empty()));
}

/// Gates that have let the bucket fill, and a call of the first whose answer says what is left.
fn told_of(left: Option<u32>) -> Fleet {
    let mut fleet = Fleet::of(2, 10.0, 20);
    fleet.call(0, Duration::ZERO, HOUR);
    fleet.call(1, Duration::ZERO, HOUR);
    fleet.run(10 * SECOND);
    fleet.left = left;
    fleet.call(0, Duration::ZERO, HOUR);
    fleet.run(SECOND / 10);
    fleet
}

#[test]
fn p19_what_is_left_of_the_upstreams_quota_is_heard_by_all_and_only_lowers() {
    let at_once = |left| {
        let mut fleet = told_of(left);
        fleet.left = None;
        let from = fleet.now;
        (0..20).for_each(|_| fleet.call(1, Duration::ZERO, HOUR));
        fleet.run(SECOND / 20);
        assert!(fleet.over() <= TINY);
        (fleet.sent_since(from, Some(1)), fleet.told_left.len())
    };
    assert_eq!(at_once(None), (15, 0), "others than these gates spend nothing");
    assert_eq!(at_once(Some(3)), (4, 1), "three, and what flows in a tenth of a second");
    assert_eq!(at_once(Some(0)), (1, 1));
    assert_eq!(at_once(Some(5_000)), (15, 0), "more than the burst is no news");
    // It raises nothing: an empty bucket stays so.
    let mut fleet = short_of(Fleet::of(2, 10.0, 20), 10 * SECOND);
    fleet.left = Some(14);
    fleet.run(10 * SECOND);
    assert!(fleet.over() <= TINY && !fleet.told_left.is_empty(), "{}", fleet.over());
    assert!(fleet.used_since(Moment::from_millis(2_000)) >= 0.96, "{}", fleet.used_since(Moment::ZERO));
}

#[test]
fn p19_what_is_left_is_told_once_a_second_and_not_when_it_is_old() {
    let mut fleet = Fleet::of(1, 50.0, 100);
    fleet.calls(0, 25.0, 10 * SECOND);
    fleet.left = Some(7);
    fleet.run(10 * SECOND);
    let times: Vec<_> = fleet.told_left.iter().map(|(at, ..)| *at).collect();
    assert!((9..=11).contains(&times.len()), "{}", times.len());
    assert!(times.windows(2).all(|two| two[1] - two[0] >= SECOND), "{times:?}");

    // The store is away for longer than what is left stays true.
    fleet.gates[0].cut_off = true;
    fleet.calls(0, 25.0, SECOND);
    fleet.run(2 * SECOND);
    fleet.left = None;
    fleet.run(20 * SECOND);
    fleet.gates[0].cut_off = false;
    let told = fleet.told_left.len();
    fleet.calls(0, 25.0, 2 * SECOND);
    fleet.run(4 * SECOND);
    assert_eq!(fleet.told_left.len(), told);
}

proptest! {
    #[test]
    fn p19_a_ledger_that_is_told_what_is_left_never_has_more_and_grants_no_more(
        asks in prop::collection::vec((0_u64..4, 0_u32..40, prop::option::of(0_u32..150), 0_u64..500_000), 1..60),
    ) {
        let (bucket, shared) = (bucket(50.0, 100), Arc::new(SharedPolicy::new("account")));
        let (mut ledger, mut now) = (Ledger::default(), 1_700_000_000_000_000);
        let mut known = [(0, 0); 4];
        for (member, need, left, after) in asks {
            now += after;
            let (total, epoch) = known[usize::try_from(member).expect("small")];
            let limits = SharedLimits::new(&bucket, &shared);
            let ask = Ask {
                wish: Wish { need, extra: need, within: SECOND },
                total,
                epoch,
                left,
                ..Ask::new(member, limits, Arc::clone(&shared))
            };
            let untold = ledger.clone().ask(&Ask { left: None, ..ask.clone() }, now);
            let told = ledger.ask(&ask, now);
            prop_assert!(told.level <= untold.level && told.granted <= untold.granted, "{told:?} {untold:?}");
            prop_assert!(left.is_none_or(|left| told.level <= f64::from(left)), "{told:?}");
            // An answer has the level in thousandths.
            let lowers = left.is_some_and(|left| f64::from(left) < untold.level + 0.001);
            prop_assert!(lowers || told == untold, "no other change: {told:?} {untold:?}");
            known[usize::try_from(member).expect("small")] = (total + u64::from(told.granted), told.epoch);
        }
    }
}

#[test]
fn a_gate_that_takes_its_leave_is_no_member_any_more() {
    let mut fleet = short_of(Fleet::of(3, 50.0, 100), 3 * SECOND);
    fleet.run(5 * SECOND);
    assert_eq!(fleet.gates[1].limiter.snapshot(fleet.now).shared[0].members, 3);
    let now = fleet.now;
    for ask in fleet.gates[0].limiter.take_farewells(now) {
        let answer = fleet.ledger.ask(&ask, 1_700_000_005_000_001);
        fleet.gates[0].limiter.answered(ask.asked, Ok(answer), now, now);
    }
    let mut idle = Fleet::of(3, 50.0, 100);
    assert!(idle.gates[0].limiter.take_farewells(idle.now).is_empty(), "a store that was never asked knows nobody");
    fleet.gates[0].cut_off = true; // it has gone
    (1..3).for_each(|gate| fleet.calls(gate, 30.0, 2 * SECOND));
    fleet.run(2 * SECOND);
    assert_eq!(fleet.gates[1].limiter.snapshot(fleet.now).shared[0].members, 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: super::shared_cases(), ..ProptestConfig::default() })]

    /// P13, P17: whatever calls come, hang up and are given back, whatever answers are lost, however
    /// long they take.
    #[test]
    fn p13_random_histories_stay_within_the_bound(
        rate in prop::sample::select(vec![0.5, 1.25, 10.0, 50.0, 400.0]),
        burst in 1_u32..120,
        gates in 1_usize..6,
        millis in 0_u64..120,
        lost in 0_u32..4,
        forgets in prop::collection::vec(0_u64..20, 0..2),
        calls in prop::collection::vec((0_usize..6, 0_u64..20_000, 1_usize..40, 1_u64..9_000), 1..30),
    ) {
        let mut fleet = Fleet::of(gates, rate, burst);
        fleet.round_trip = Duration::from_millis(millis);
        let mut number = 0_u32;
        fleet.lose_answer = Box::new(move || { number += 1; lost > 0 && number % 7 < lost });
        for (gate, at, crowd, patience) in calls {
            for place in 0..crowd {
                let at = Duration::from_millis(at) + Duration::from_micros(37 * place as u64);
                fleet.call(gate % gates, at, Duration::from_millis(patience));
            }
        }
        let mut allowed = TINY;
        let mut now = 0;
        let mut forgets = forgets;
        forgets.sort_unstable();
        for at in forgets {
            fleet.run(Duration::from_secs(at - now));
            now = at;
            fleet.ledger = Ledger::default();
            allowed += fleet.terms.burst + fleet.promised();
        }
        fleet.run(Duration::from_secs(25 - now));
        // A member that hears nothing goes on at its part, beside those that hear.
        let away = if lost > 0 { fleet.rate * 25.0 } else { 0.0 };
        prop_assert!(fleet.over() <= allowed + away, "{} over", fleet.over());
    }
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const TINY: f64 = 1e-6;
