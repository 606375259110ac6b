//! Eight clients in front of a GitHub that keeps its documented limits, in virtual time: the preset
//! `github`, the real parsers, the limiter.

mod city;
mod hub;

use std::time::Duration;

use self::city::{City, Kind, Plan, Sent};
use self::hub::{Hub, Trouble};

const HOUR: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);

/// Holds for every run: writes are at least a second apart, and few things are created in an hour.
fn keeps_its_distance(sent: &[Sent]) {
    let writes: Vec<Duration> = sent.iter().filter(|sent| sent.kind != Kind::Read).map(|sent| sent.at).collect();
    for pair in writes.windows(2) {
        assert!(pair[1] - pair[0] >= SECOND, "writes at {pair:?}");
    }
    let creates: Vec<Duration> = sent.iter().filter(|sent| sent.kind == Kind::Create).map(|sent| sent.at).collect();
    for (first, at) in creates.iter().enumerate() {
        let in_an_hour = creates[first..].iter().take_while(|other| **other - *at < HOUR).count();
        assert!(in_an_hour < 500, "{in_an_hour} new things in the hour from {at:?}");
    }
}

/// No call was sent, and refused, after a refusal for the same reason had already come back.
fn is_refused_once(sent: &[Sent]) {
    for late in sent.iter().filter(|sent| sent.refused.is_some()) {
        let known = sent.iter().find(|sent| sent.refused == late.refused && sent.answered <= late.at);
        assert!(known.is_none(), "{late:?} was sent though {known:?} had said no");
    }
}

fn used(sent: &[Sent], from: Duration, to: Duration) -> usize {
    sent.iter().filter(|sent| sent.counted && sent.at >= from && sent.at < to).count()
}

#[test]
fn the_quota_is_used_and_nothing_is_refused() {
    let city = City::run(Plan { last: 2 * HOUR, ..Plan::default() }, Hub::default());
    assert_eq!(city.refusals(), 0);
    keeps_its_distance(&city.sent);
    for hour in 0..2 {
        let used = used(&city.sent, HOUR * hour, HOUR * (hour + 1));
        assert!((4400..=4520).contains(&used), "{used} of 5000 in hour {hour}");
    }
    for kind in [Kind::Read, Kind::Write, Kind::Create] {
        let clients = city.clients_of(kind);
        let (least, most) = (clients.iter().min().unwrap(), clients.iter().max().unwrap());
        assert!(*least * 2 > *most, "{kind:?}: {clients:?} among the clients");
    }
}

#[test]
fn what_other_tools_need_is_left_to_them() {
    // They take up to a tenth of the same token's quota.
    let city = City::run(Plan { last: 2 * HOUR, others_per_hour: 490, ..Plan::default() }, Hub::default());
    assert_eq!(city.refusals(), 0, "{:?}", city.sent.iter().find(|sent| sent.refused.is_some()));
    assert_eq!(city.others_refused, 0);
    keeps_its_distance(&city.sent);
    for hour in 0..2 {
        let (from, to) = (HOUR * hour, HOUR * (hour + 1));
        let all = used(&city.sent, from, to) + city.others_used(from, to);
        assert!(all >= 4400, "{all} of 5000 in hour {hour}");
    }
}

#[test]
fn a_used_up_quota_is_asked_for_only_once() {
    for told_as in [403, 429] {
        let exhausted = Trouble::Exhausted { at: Duration::ZERO };
        let again = Trouble::Exhausted { at: HOUR + HOUR / 3 };
        let hub = Hub::in_trouble(vec![exhausted, again], told_as);
        let city = City::run(Plan { last: 2 * HOUR, ..Plan::default() }, hub);
        assert!(city.refusals() > 0, "it was used up by others");
        assert!(city.refusals() <= 2 * 24, "{} calls were under way at most", city.refusals());
        is_refused_once(&city.sent);
        keeps_its_distance(&city.sent);
        // No call in the first hour, and a third of them in the second.
        let used = used(&city.sent, HOUR, 2 * HOUR);
        assert!(used > 1400, "{used}");
        assert!(city.exempt_waits.iter().all(|waited| !waited), "a pause is never applied to exempt calls");
        assert!(city.exempt_waits.len() > 5000);
    }
}

#[test]
fn a_secondary_limit_is_waited_out() {
    for header in [false, true] {
        let trouble = Trouble::Secondary { at: HOUR / 2, lasts: Duration::from_secs(60), header };
        let city = City::run(Plan { last: HOUR, ..Plan::default() }, Hub::in_trouble(vec![trouble], 403));
        assert!(city.refusals() > 0);
        is_refused_once(&city.sent);
        keeps_its_distance(&city.sent);
        let used = used(&city.sent, Duration::ZERO, HOUR);
        assert!(used >= 4400 - 90, "{used}: a minute is lost, not more");
    }
}

#[test]
fn a_secondary_limit_that_does_not_end_is_asked_ever_more_rarely() {
    let trouble = Trouble::Secondary { at: Duration::ZERO, lasts: 2 * HOUR, header: false };
    let city = City::run(Plan { last: 2 * HOUR, ..Plan::default() }, Hub::in_trouble(vec![trouble], 403));
    let mut asked: Vec<u64> = Vec::new();
    for sent in &city.sent {
        if asked.last().is_none_or(|last| sent.at.as_secs() > last + 10) {
            asked.push(sent.at.as_secs());
        }
    }
    let apart: Vec<u64> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (gap, expected) in apart.iter().zip([60, 120, 240, 480, 960, 1920, 3600]) {
        assert!((expected..expected + 3).contains(gap), "{apart:?}");
    }
    assert!(apart.len() >= 6, "{apart:?}");
}
