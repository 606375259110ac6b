//! P13 to P19 for a bucket that is split: what holds for one shared bucket holds for each of its
//! parts, and the parts cost no questions of their own.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tidegate_limit::moment::Moment;

use super::fleet::Fleet;

/// Expects the bound of each account, and says how much of the rate each used.
fn judged(fleet: &Fleet, from: Moment) -> BTreeMap<u64, f64> {
    for (who, over) in fleet.over_of_each() {
        assert!(over <= TINY, "account {who}: {over} over");
    }
    let time = (fleet.now - from).as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "few calls")]
    let used = |who| fleet.sent_of(who, from) as f64 / (fleet.rate * time);
    fleet.over_of_each().into_iter().map(|(who, _)| (who, used(who))).collect()
}

/// Expects no more questions than a gate may ask, whatever the number of parts.
fn asks_little(fleet: &Fleet, length: Duration) {
    for gate in 0..fleet.gates.len() {
        let questions = fleet.questions.iter().filter(|(_, of)| *of == gate).count();
        assert!(questions as u64 <= 8 + 20 * length.as_secs(), "gate {gate} asked {questions} times");
    }
}

#[test]
fn p13_p15_thirty_gates_share_a_hundred_actions_of_five_accounts_each_at_its_own_rate() {
    let length = 12 * SECOND;
    let mut fleet = Fleet::split(30, 5.0, 10);
    // Each gate is after thirty of the five hundred; each of these is wanted at three times its rate.
    let mut wanted = BTreeMap::<u64, Vec<usize>>::new();
    for gate in 0..30 {
        for number in 0..30 {
            wanted.entry((gate as u64 * 17 + number * 23) % 500).or_default().push(gate);
        }
    }
    for (who, gates) in &wanted {
        #[expect(clippy::cast_precision_loss, reason = "few gates")]
        let each = 3.0 * fleet.rate / gates.len() as f64;
        gates.iter().for_each(|gate| fleet.calls_of(*who, *gate, each, length));
    }
    fleet.run(length);
    let used = judged(&fleet, Moment::from_millis(4_000));
    assert!(used.len() > 250, "{} parts", used.len());
    let (who, least) = used.iter().min_by(|one, other| one.1.total_cmp(other.1)).expect("some");
    assert!(*least >= 0.95, "account {who} used {least}");
    asks_little(&fleet, length);
}

#[test]
fn p14_members_that_are_short_share_each_part_alike() {
    let mut fleet = Fleet::split(3, 20.0, 40);
    for who in 1..=3 {
        for (gate, part) in [(0, 9.0), (1, 3.0), (2, 1.5)] {
            fleet.calls_of(who, gate, part * fleet.rate / 3.0, 20 * SECOND);
        }
    }
    fleet.run(20 * SECOND);
    judged(&fleet, Moment::from_millis(8_000)).values().for_each(|used| assert!(*used >= 0.99, "{used}"));
    let fair = fleet.fairness_since(Moment::from_millis(8_000), &[1, 1, 1]);
    assert!(fair >= 0.99, "{fair}");
}

#[test]
fn p15_an_account_that_is_quiet_waits_for_nothing_while_another_is_short() {
    let mut fleet = Fleet::split(3, 50.0, 100);
    for gate in 0..3 {
        fleet.calls_of(1, gate, 100.0, 30 * SECOND);
    }
    fleet.call_of(2, 0, Duration::ZERO, 3600 * SECOND); // from now on its part fills
    fleet.run(10 * SECOND);
    let before = fleet.gates[0].waits.len();
    for place in 0..20 {
        fleet.call_of(2, 0, Duration::from_millis(100 * place), 3600 * SECOND);
    }
    let sent = fleet.sent.len();
    fleet.run(3 * SECOND);
    assert!(fleet.gates[0].waits.len() > before);
    let of_quiet = fleet.of[sent..].iter().filter(|who| **who == 2).count();
    assert_eq!(of_quiet, 20);
    judged(&fleet, Moment::from_millis(2_000));
}

#[test]
fn p16_while_the_store_is_away_every_part_goes_on_and_it_is_asked_by_one_question_at_a_time() {
    let mut fleet = Fleet::split(3, 20.0, 20);
    for (who, gate) in (1..=40).flat_map(|who| (0..3).map(move |gate| (who, gate))) {
        fleet.calls_of(who, gate, 20.0, 30 * SECOND);
    }
    fleet.run(10 * SECOND);
    fleet.gates.iter_mut().for_each(|gate| gate.cut_off = true);
    let (away, asked) = (fleet.now, fleet.questions.len());
    fleet.run(10 * SECOND);
    let questions = fleet.questions.len() - asked;
    assert!(questions <= 3 * 20, "{questions} questions to a store that is away");
    for who in 1..=40 {
        let sent = fleet.sent_of(who, away + SECOND);
        assert!((150..=185).contains(&sent), "account {who} sent {sent} in nine seconds at 20/s");
    }
    fleet.gates.iter_mut().for_each(|gate| gate.cut_off = false);
    fleet.run(10 * SECOND);
    judged(&fleet, away + 13 * SECOND).values().for_each(|used| assert!(*used >= 0.97, "{used}"));
}

#[test]
fn p17_p18_a_store_that_forgets_or_whose_clock_jumps_gives_no_part_more_than_once_a_burst() {
    let mut fleet = Fleet::split(3, 20.0, 20);
    for (who, gate) in (1..=10).flat_map(|who| (0..3).map(move |gate| (who, gate))) {
        fleet.calls_of(who, gate, 20.0, 30 * SECOND);
    }
    fleet.run(10 * SECOND);
    fleet.parts.clear();
    fleet.run(10 * SECOND);
    fleet.clock -= 3_600_000_000;
    fleet.run(10 * SECOND);
    judged(&fleet, Moment::from_millis(3_000)).values().for_each(|used| assert!(*used >= 0.97, "{used}"));
}

#[test]
fn p19_a_pause_that_an_account_is_asked_for_is_heard_through_its_part() {
    let mut fleet = Fleet::split(3, 50.0, 100);
    for (who, gate) in [(1, 0), (1, 1), (2, 1), (2, 2)] {
        fleet.calls_of(who, gate, 40.0, 20 * SECOND);
    }
    fleet.run(5 * SECOND);
    // The next call that leaves is asked for a pause; those who do not use its part do not hear.
    fleet.asks_pause = Some(5 * SECOND);
    let before = fleet.of.len();
    while fleet.asks_pause.is_some() {
        fleet.run(Duration::from_millis(1));
    }
    let (began, asked) = (fleet.now, fleet.of[before]);
    fleet.run(SECOND);
    let paused: Vec<bool> = fleet.gates.iter().map(|gate| !gate.limiter.pauses(fleet.now).is_empty()).collect();
    let expected = if asked == 1 { [true, true, false] } else { [false, true, true] };
    assert!(paused[1] && paused == expected, "{paused:?} of account {asked}");
    fleet.run(10 * SECOND);
    assert!(fleet.gates.iter().all(|gate| gate.limiter.pauses(fleet.now).is_empty()));
    assert!((1..=2).all(|who| fleet.sent_of(who, began + 6 * SECOND) > 50));
}

#[test]
fn past_a_thousand_accounts_all_others_share_one_and_those_that_are_full_and_unused_make_room() {
    let mut fleet = Fleet::split(1, 50.0, 100);
    for who in 1..=1_200 {
        fleet.call_of(who, 0, Duration::from_millis(who), 3600 * SECOND);
    }
    fleet.run(20 * SECOND);
    assert_eq!(fleet.sent.len(), 1_200);
    let parts = |fleet: &Fleet| fleet.gates[0].limiter.snapshot(fleet.now).shared[0].parts.expect("it is split");
    assert_eq!(parts(&fleet), 1_001, "a thousand, and the rest");
    fleet.run(60 * SECOND);
    fleet.call_of(5_000, 0, Duration::ZERO, 3600 * SECOND);
    fleet.run(SECOND);
    assert!(parts(&fleet) <= 2, "{} parts are kept, of which one is used", parts(&fleet));
    assert_eq!(fleet.gates[0].limiter.snapshot(fleet.now).shared[0].tally.spent, 1_201, "what is gone counts");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: super::shared_cases() / 2, ..ProptestConfig::default() })]

    /// P13, P17 for each part, whatever comes, hangs up, is lost or forgotten.
    #[test]
    fn p13_random_histories_of_each_part_stay_within_the_bound(
        rate in prop::sample::select(vec![1.25, 10.0, 50.0]),
        burst in 1_u32..80,
        gates in 1_usize..5,
        millis in 0_u64..120,
        forgets in any::<bool>(),
        calls in prop::collection::vec((0_usize..5, 1_u64..40, 0_u64..15_000, 1_usize..30, 1_u64..9_000), 1..40),
    ) {
        let mut fleet = Fleet::split(gates, rate, burst);
        fleet.round_trip = Duration::from_millis(millis);
        for (gate, who, at, crowd, patience) in calls {
            for place in 0..crowd {
                let at = Duration::from_millis(at) + Duration::from_micros(37 * place as u64);
                fleet.call_of(who, gate % gates, at, Duration::from_millis(patience));
            }
        }
        fleet.run(8 * SECOND);
        let mut allowed = TINY;
        if forgets {
            fleet.parts.clear();
            allowed += fleet.terms.burst + rate * 0.2 + gates as f64;
        }
        fleet.run(12 * SECOND);
        for (who, over) in fleet.over_of_each() {
            prop_assert!(over <= allowed, "account {who}: {over} over");
        }
        for gate in 0..gates {
            let questions = fleet.questions.iter().filter(|(_, of)| *of == gate).count();
            prop_assert!(questions <= 8 + 20 * 20, "{questions} questions");
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
const TINY: f64 = 1e-6;
