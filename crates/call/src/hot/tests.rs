//! Plays clients in virtual time, and holds what is named to what they do.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use super::{Act, CallNames, Content, FoundLoop, Loops, News, ObjectCall, Pace};
use crate::api::Key;
use crate::moment::Moment;

/// One write in a second, ten at once: the default.
fn writes() -> Pace {
    Pace::new(1.0, NonZeroU32::new(10).expect("ten"))
}

/// A call of an object.
#[derive(Clone, Copy, Debug)]
struct Call {
    object: u64,
    caller: &'static str,
    verb: &'static str,
    status: u16,
    body: Option<u64>,
    /// The version in the answer.
    version: Option<u64>,
}

impl Call {
    fn act(&self) -> Act {
        match self.verb {
            "get" => Act::Read,
            "create" => Act::Create,
            "report" => Act::CreateEvent,
            "delete" => Act::Delete,
            _ => Act::Write,
        }
    }

    fn key(&self) -> Key {
        Key { object: hash(self.object), collection: 0, facet: hash(self.act() as u64) }
    }

    fn names(&self) -> CallNames {
        CallNames {
            object: format!("configmaps default/o{}", self.object).into(),
            kind: "configmaps".into(),
            caller: self.caller.into(),
            verb: self.verb.into(),
            ..CallNames::default()
        }
    }
}

fn write(object: u64, caller: &'static str) -> Call {
    Call { object, caller, verb: "update", status: 200, body: None, version: None }
}

/// Objects are known by salted hashes.
fn hash(number: u64) -> u64 {
    let mixed = (number ^ 0x5bf0_3635).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// The loops, and all that was told of them.
#[derive(Default)]
struct Watch {
    loops: Loops,
    news: Vec<(u64, News)>,
    second: u64,
}

impl Watch {
    fn call(&mut self, call: &Call, now: Moment) {
        self.go_on(now);
        let denied = (400..500).contains(&call.status);
        let pace = Some(writes()).filter(|_| call.act() == Act::Write);
        if let Some(too_soon) = self.loops.count(call.key(), call.act(), pace, now, denied) {
            self.loops.learn(&seen(call, now), too_soon, &|| call.names());
        }
    }

    fn go_on(&mut self, now: Moment) {
        while self.second < now.since_start().as_secs() {
            self.second += 1;
            let news = self.loops.tick(Moment::from_millis(self.second * 1000));
            self.news.extend(news.into_iter().map(|news| (self.second, news)));
        }
    }

    /// The second in which the only loop was named, and what is said of it then.
    fn only(&self) -> (u64, String) {
        let began = self.news.iter().filter_map(|(second, news)| match news {
            News::Began(report) => Some((*second, text(report))),
            News::Ended(_) => None,
        });
        let began: Vec<_> = began.collect();
        assert_eq!(began.len(), 1, "{began:?}");
        began[0].clone()
    }
}

fn seen(call: &Call, at: Moment) -> ObjectCall {
    ObjectCall {
        object: call.key().object,
        facet: call.key().facet,
        act: call.act(),
        at,
        caller: call.caller.len() as u64,
        status: call.status,
        is_upstreams: true,
        content: Content { body: call.body, version: call.version, ..Content::default() },
        ..ObjectCall::default()
    }
}

fn text(found: &FoundLoop) -> String {
    format!("{}: {}", found.names.object, found.says(true))
}

fn at(seconds: f64) -> Moment {
    Moment::ZERO + Duration::from_secs_f64(seconds)
}

/// Calls that come regularly, for so many seconds.
fn regularly(watch: &mut Watch, per_second: u32, seconds: u32, call: impl Fn(u32) -> Call) {
    for number in 0..per_second * seconds {
        watch.call(&call(number), at(f64::from(number) / f64::from(per_second)));
    }
}

#[test]
fn an_object_that_feeds_itself_is_named_within_a_minute() {
    for (per_second, latest) in [(2, 60), (5, 50), (20, 45)] {
        let mut watch = Watch::default();
        regularly(&mut watch, per_second, 90, |_| Call { body: Some(7), ..write(1, "manager/1.2") });
        let (second, says) = watch.only();
        assert!(second <= latest, "{per_second}: {second}");
        assert!(says.starts_with("configmaps default/o1: written "), "{says}");
        assert!(says.ends_with(" seconds by manager/1.2, the same body each time"), "{says}");
    }
}

#[test]
fn a_loop_is_told_in_its_own_numbers_and_its_end_once() {
    let mut watch = Watch::default();
    regularly(&mut watch, 2, 900, |number| Call { body: Some(number.into()), ..write(1, "manager/1.2") });
    let list = watch.loops.list();
    assert_eq!(list.len(), 1);
    assert!((1_760..=1_800).contains(&list[0].calls), "{}", list[0].calls);
    let says = text(&list[0]);
    assert!(says.ends_with(" times in 15 minutes by manager/1.2, another body each time"), "{says}");
    assert_eq!(list[0].says(false), says.split(": ").nth(1).unwrap().replace(" by manager/1.2", ""));
    watch.go_on(at(950.0));
    assert_eq!((watch.loops.list().len(), watch.news.len()), (1, 1), "a pause of a minute ends it");
    watch.go_on(at(970.0));
    assert!(matches!(&watch.news[1..], [(_, News::Ended(_))]), "{:?}", watch.news);
    assert!(watch.loops.is_calm());
}

#[test]
fn two_that_fight_over_an_object_are_both_named() {
    let mut watch = Watch::default();
    let callers = ["kustomize-controller/1", "my-operator/2"];
    regularly(&mut watch, 6, 60, |number| Call {
        body: Some(u64::from(number % 2)),
        ..write(1, callers[number as usize % 2])
    });
    let (_, says) = watch.only();
    let wanted =
        ": two writers take turns, kustomize-controller/1 and my-operator/2, each with the same body each time";
    assert!(says.ends_with(wanted), "{says}");
}

#[test]
fn each_pace_counts_its_own_calls_and_an_object_that_exceeds_two_has_one_name() {
    let (slow, fast) =
        (Pace::new(0.01, NonZeroU32::new(2).expect("two")), Pace::new(5.0, NonZeroU32::new(10).expect("ten")));
    for (per_second, wanted) in [(1, 0), (20, 1)] {
        let mut watch = Watch::default();
        let call = write(1, "manager/1.2");
        for number in 0..per_second * 120 {
            let now = at(f64::from(number) / f64::from(per_second));
            watch.go_on(now);
            let mut counted = |pace| {
                let too_soon = watch.loops.count(call.key(), Act::Other, Some(pace), now, false).unwrap_or_default();
                watch.loops.learn(&seen(&call, now), too_soon, &|| call.names());
            };
            counted(fast);
            if number == 0 || per_second > 5 {
                counted(slow);
            }
        }
        assert_eq!(watch.news.len(), wanted, "{per_second} in a second: {:?}", watch.news);
    }
}

/// The pauses of a controller's queue after each failure.
fn queue(failures: u32) -> f64 {
    (0.005 * f64::from(2_u32.saturating_pow(failures))).min(1000.0)
}

#[test]
fn a_call_that_is_denied_for_ever_is_named_within_a_minute_however_slowly_it_is_retried() {
    for (status, verb) in [(403, "update"), (404, "patch"), (403, "get"), (422, "update"), (409, "update")] {
        let mut watch = Watch::default();
        let mut now = 0.0;
        for failures in 0..30 {
            watch.call(&Call { status, verb, ..write(1, "manager/1.2") }, at(now));
            now += queue(failures);
        }
        let (second, says) = watch.only();
        assert!(second <= 60, "{second}");
        let wanted = format!(
            "configmaps default/o1: {status} for ever: every {verb} by manager/1.2 got it, 14 times in a row in "
        );
        assert!(says.starts_with(&wanted), "{says}");
        assert_eq!(watch.news.len(), 1, "it goes on, if only every quarter of an hour");
        watch.call(&Call { status: 200, verb, ..write(1, "manager/1.2") }, at(now));
        watch.go_on(at(now + 1.0));
        assert_eq!(watch.news.len(), 2, "a success ends it at once");
    }
}

#[test]
fn what_was_named_stays_so_however_many_others_are_denied() {
    let mut watch = Watch::default();
    let denied = |object| Call { status: 403, ..write(object, "manager/1.2") };
    let once = |watch: &mut Watch, round: u32| {
        // Some have more calls than others.
        let some = (0..350_u64).filter(|object| object % 5 >= u64::from(round.saturating_sub(10)));
        some.for_each(|object| watch.call(&denied(object), at(f64::from(round) * 4.0)));
    };
    (0..14).for_each(|round| once(&mut watch, round));
    watch.go_on(at(57.0));
    assert_eq!(watch.news.len(), 350);
    (1_000..3_000).for_each(|object| watch.call(&denied(object), at(58.0)));
    for step in 0..12 {
        (0..350).for_each(|object| watch.call(&denied(object), at(60.0 + f64::from(step) * 4.0)));
    }
    watch.go_on(at(120.0));
    assert_eq!((watch.news.len(), watch.loops.list().len()), (350, 350), "each has one name");
    // There is room for some more, but no more than there is.
    for round in 0..12 {
        (10_000..12_000).for_each(|object| watch.call(&denied(object), at(130.0 + f64::from(round) * 4.0)));
    }
    watch.go_on(at(180.0));
    assert!((350..=384).contains(&watch.loops.list().len()), "{}", watch.loops.list().len());
    assert!(watch.news.iter().all(|(_, news)| matches!(news, News::Began(_))));
}

#[test]
fn one_that_is_denied_is_named_though_another_succeeds_and_a_fast_one_is_named_once() {
    let mut watch = Watch::default();
    regularly(&mut watch, 10, 60, |number| match number % 20 {
        0 => write(1, "healthy-controller"),
        _ => Call { status: 403, ..write(1, "manager/1.2") },
    });
    let (_, says) = watch.only();
    assert!(says.contains("403 for ever: every update by manager/1.2"), "{says}");
}

#[test]
fn a_read_that_polls_a_404_is_a_loop_only_if_it_does_so_in_a_hurry() {
    for (every, is_loop) in [(5.0, false), (3.0, false), (1.0, true), (0.2, true)] {
        let mut watch = Watch::default();
        let mut now = 0.0;
        while now < 240.0 {
            watch.call(&Call { status: 404, verb: "get", ..write(1, "manager/1.2") }, at(now));
            now += every;
        }
        watch.go_on(at(now + 1.0));
        assert_eq!(!watch.news.is_empty(), is_loop, "every {every} s");
        assert!(!is_loop || watch.news[0].0 <= 60, "{}", watch.news[0].0);
    }
}

/// What one of ten healthy operators does to one of its objects.
#[derive(Clone, Copy, Debug)]
enum Does {
    /// Looks for it, creates it and reports progress in a burst.
    Creates,
    /// Writes it again, every ten minutes and whenever something has changed.
    Reconciles,
    /// Reports how many pods of a large rollout are ready.
    RollsOut { left: u32 },
    /// Holds an old lock: a ConfigMap, written every two seconds.
    Leads,
    /// Waits for an object that somebody else makes.
    Polls { left: u32 },
    /// Updates progress every other second.
    Progresses { left: u32 },
}

#[test]
fn a_day_of_ten_healthy_operators_names_nobody() {
    let mut watch = Watch::default();
    let mut agenda = BTreeMap::new();
    let mut seed = 1_u64;
    let mut random = move |below: u32| {
        seed = hash(seed);
        u32::try_from(seed % u64::from(below)).expect("small")
    };
    for operator in 0..10_u64 {
        agenda.insert((at(0.1 * operator as f64), operator * 1000), (operator, Does::Leads));
        for object in 1..=50 {
            let begins = at(f64::from(random(60_000)) / 1000.0);
            agenda.insert((begins, operator * 1000 + object), (operator, Does::Creates));
        }
    }
    const NAMES: [&str; 10] =
        ["0", "11", "222", "3333", "44444", "5_____", "6______", "7_______", "8________", "9_________"];
    let mut calls = 0_u64;
    let mut version = 0;
    while let Some(((now, object), (operator, does))) = agenda.pop_first() {
        if now > at(86_400.0) {
            break;
        }
        let call = write(object, NAMES[usize::try_from(operator).expect("one of ten")]);
        let mut tell = |call: Call, after: f64| {
            calls += 1;
            // One write in five changes nothing.
            version += u64::from(!calls.is_multiple_of(5));
            watch.call(&Call { version: Some(version), ..call }, now + Duration::from_secs_f64(after));
        };
        let next = match does {
            Does::Creates => {
                tell(Call { verb: "get", status: 404, ..call }, 0.0);
                tell(Call { verb: "create", status: if random(4) == 0 { 409 } else { 201 }, ..call }, 0.01);
                tell(Call { verb: "report", status: 201, ..call }, 0.02);
                (0..8).for_each(|step| tell(call, 0.1 + 0.05 * f64::from(step)));
                if object % 10 == 3 { (1.0, Does::Polls { left: 24 }) } else { (5.0, Does::RollsOut { left: 60 }) }
            }
            Does::RollsOut { left: 0 } | Does::Polls { left: 0 } | Does::Progresses { left: 0 } => {
                (60.0 + f64::from(random(540)), Does::Reconciles)
            }
            Does::RollsOut { left } => {
                tell(call, 0.0);
                (0.4, Does::RollsOut { left: left - 1 })
            }
            Does::Polls { left } => {
                tell(Call { verb: "get", status: 404, ..call }, 0.0);
                (5.0, Does::Polls { left: left - 1 })
            }
            Does::Progresses { left } => {
                tell(call, 0.0);
                (2.0, Does::Progresses { left: left - 1 })
            }
            Does::Leads => {
                tell(call, 0.0);
                (1.99, Does::Leads)
            }
            Does::Reconciles => {
                tell(Call { verb: "get", ..call }, 0.0);
                tell(Call { verb: "report", status: 201, ..call }, 0.02);
                if random(10) == 0 {
                    tell(Call { verb: "delete", status: if random(4) == 0 { 404 } else { 200 }, ..call }, 0.03);
                    tell(Call { verb: "create", status: if random(4) == 0 { 409 } else { 201 }, ..call }, 0.04);
                }
                let conflicts = random(4);
                (0..conflicts).for_each(|step| tell(Call { status: 409, ..call }, 0.01 * f64::from(step)));
                (0..3).for_each(|step| tell(call, 0.1 + 0.05 * f64::from(step)));
                match random(10) {
                    0 => (1.0, Does::Progresses { left: 120 }),
                    1 => (1.0, Does::RollsOut { left: 60 }),
                    _ => (60.0 + f64::from(random(540)), Does::Reconciles),
                }
            }
        };
        agenda.insert((now + Duration::from_secs_f64(next.0), object), (operator, next.1));
    }
    assert!(calls > 900_000, "{calls}");
    assert!(watch.news.is_empty(), "{:?}", watch.news);
}

#[test]
fn of_a_million_objects_the_ten_hottest_are_right_and_a_mebibyte_is_enough() {
    let mut watch = Watch::default();
    let mut others = 1_000..1_001_000_u64;
    // A thousand other objects in each second, and ten that are written two to eleven times.
    for second in 0..1000_u64 {
        for part in 0..1000_u32 {
            let now = at(second as f64 + f64::from(part) / 1000.0);
            let other = others.next().expect("a million");
            let status = if other.is_multiple_of(3) { 404 } else { 200 };
            watch.call(&Call { status, ..write(other, "everyone") }, now);
            for hot in 2..12 {
                if u64::from(part) * hot / 1000 != (u64::from(part) + 1) * hot / 1000 {
                    watch.call(&write(hot, "manager/1.2"), now);
                }
            }
        }
    }
    let list = watch.loops.list();
    let names: Vec<_> = list.iter().map(|report| report.names.object.to_string()).collect();
    let wanted: Vec<_> = (2..12).rev().map(|hot| format!("configmaps default/o{hot}")).collect();
    assert_eq!(names, wanted);
    assert!(watch.loops.bytes() <= 1 << 20, "{}", watch.loops.bytes());
}
