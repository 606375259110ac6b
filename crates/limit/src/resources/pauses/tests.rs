//! One quota's pause, what is learned, and the bound (Q5).

use super::*;
use crate::ClassPolicy;

const MINUTE: Duration = Duration::from_secs(60);
const A: u64 = 11;
const B: u64 = 12;

fn pauses() -> Pauses {
    let class = |name: &str| ClassPolicy { name: name.into(), ..ClassPolicy::default() };
    Pauses::new(&Policy { classes: vec![class("reads"), class("writes")], ..Policy::default() })
}

fn growing(charged: Charged) -> Pause {
    Pause { charged, length: PauseLength::Growing { first: MINUTE, most: 4 * MINUTE } }
}

fn known(charged: Charged, seconds: u64) -> Pause {
    Pause { charged, length: PauseLength::Known(Duration::from_secs(seconds)) }
}

fn quota(holder: u64, word: &str) -> CallQuota {
    CallQuota { holder, word: if word.is_empty() { ResourceId::ALL } else { ResourceId::named(word) } }
}

fn from(quota: CallQuota, left: u64) -> Origin {
    Origin { class: ClassId(0), quota, left }
}

#[test]
fn a_pause_without_a_time_doubles_until_a_later_call_succeeds() {
    let mut pauses = pauses();
    let of = CallQuota::default();
    let mut now = Moment::ZERO;
    let mut leaves = 10;
    let mut again = |pauses: &mut Pauses, left: u64| {
        leaves += 1;
        let until = pauses.begin(growing(Charged::All), from(of, left), leaves, now);
        let length = until.map(|until| until - now);
        now = until.unwrap_or(now);
        length
    };
    assert_eq!(again(&mut pauses, 10), Some(MINUTE));
    assert_eq!(again(&mut pauses, 11), None, "it was under way when the pause began");
    assert_eq!(again(&mut pauses, 13), Some(2 * MINUTE));
    assert_eq!(again(&mut pauses, 20), Some(4 * MINUTE));
    assert_eq!(again(&mut pauses, 30), Some(4 * MINUTE), "no longer than the longest");
    pauses.succeeded(from(of, 14));
    assert!(pauses.grows(), "that call had left before");
    assert_eq!(again(&mut pauses, 40), Some(4 * MINUTE));
    pauses.succeeded(from(of, 50));
    assert!(!pauses.grows());
    assert_eq!(again(&mut pauses, 60), Some(MINUTE));
}

#[test]
fn a_longer_pause_wins_and_a_shorter_one_changes_nothing() {
    let mut pauses = pauses();
    let of = CallQuota::default();
    let at = Moment::from_millis;
    assert_eq!(pauses.begin(known(Charged::All, 10), from(of, 1), 5, at(0)), Some(at(10_000)));
    assert_eq!(pauses.begin(known(Charged::All, 3), from(of, 1), 5, at(1000)), None);
    assert_eq!(pauses.begin(known(Charged::All, 10), from(of, 1), 5, at(1000)), Some(at(11_000)));
    assert_eq!(pauses.begin(known(Charged::All, 0), from(of, 9), 9, at(20_000)), None);
    assert_eq!(pauses.ends(ClassId(0), of).all(), at(11_000));
}

#[test]
fn what_is_learned_of_an_action_leads_its_next_call_to_the_quota() {
    let mut pauses = pauses();
    let hint = |action| QuotaHint { holder: A, word: ResourceId::named("core"), action };
    let sbom = ResourceId::named("sbom");
    let core = pauses.predict(hint(7));
    pauses.learn(7, sbom, core, Moment::ZERO);
    pauses.begin(known(Charged::Named(sbom), 60), from(core, 1), 1, Moment::ZERO);
    let stops = |pauses: &Pauses, action| pauses.ends(ClassId(0), pauses.predict(hint(action))).all() > Moment::ZERO;
    assert!(stops(&pauses, 7) && !stops(&pauses, 8));
    pauses.learn(7, ResourceId::named("core"), pauses.predict(hint(7)), Moment::ZERO);
    assert!(stops(&pauses, 7), "a word stays while its pause lasts");
    for action in 100..100 + 3 * MOST as u64 {
        pauses.learn(action, sbom, core, Moment::ZERO + 2 * MINUTE);
    }
    assert!(pauses.learned.len() <= MOST);
}

#[test]
fn past_the_most_quotas_the_one_that_ends_first_goes_and_is_counted() {
    let mut pauses = pauses();
    for who in 0..100_000 {
        let of = quota(1 + who, "core");
        pauses.begin(known(Charged::Predicted, 100 + who), from(of, 1), 1, Moment::ZERO);
    }
    assert_eq!((pauses.quotas.len(), pauses.dropped()), (MOST, 100_000 - MOST as u64));
    let ends = |who: u64| pauses.ends(ClassId(0), quota(1 + who, "core")).all();
    assert_eq!(ends(98_000), Moment::ZERO);
    assert_eq!(ends(99_999), Moment::from_millis(100_099_000));
    assert_eq!(pauses.views(Moment::ZERO, 100).len(), 100);
    let short = pauses.begin(known(Charged::Predicted, 1), from(quota(B, "search"), 1), 1, Moment::ZERO);
    assert_eq!((short, pauses.dropped()), (Some(Moment::from_millis(1000)), 100_001 - MOST as u64));
    assert_eq!(pauses.ends(ClassId(0), quota(B, "search")).all(), Moment::ZERO, "it would have ended first");
}
