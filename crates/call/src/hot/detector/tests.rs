//! Holds what is called in vain to what the API did.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use super::Detector;
use crate::api::Key;
use crate::hot::{Act, CallNames, Content, Loops, News, ObjectCall, Pace, Proof};
use crate::moment::Moment;

/// A write of an object by a manager, answered with this version.
fn write(object: u64, version: u64, at: Moment) -> ObjectCall {
    ObjectCall {
        object: hash(object),
        kind: object,
        act: Act::Write,
        at,
        status: 200,
        is_upstreams: true,
        content: Content { version: Some(version), ..Content::default() },
        ..ObjectCall::default()
    }
}

fn names(object: u64) -> CallNames {
    CallNames { object: object.to_string().into(), caller: "manager/1.2".into(), ..CallNames::default() }
}

/// Objects are known by salted hashes.
fn hash(number: u64) -> u64 {
    let mixed = (number ^ 0x5bf0_3635).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// etcd gives each change a revision; a write that changes nothing is answered with the old one.
#[test]
fn of_100_000_writes_none_is_falsely_called_in_vain() {
    for is_alone in [true, false] {
        let proof = Proof { calls: 10, lasts: Duration::ZERO, flood_lasts: Duration::ZERO };
        let mut detector = Detector::new(proof, 512);
        let mut seed = 1_u64;
        let mut random = move |below: u64| {
            seed = hash(seed);
            seed % below
        };
        let mut revision = 0;
        let mut revisions = BTreeMap::new();
        let mut in_vain = BTreeMap::<String, u64>::new();
        for number in 0..100_000 {
            let object = random(50);
            // Some objects are changed by others, past the gate.
            let is_seen = is_alone || random(10) > 0;
            let changes = random(50) < object || !revisions.contains_key(&object);
            revision += u64::from(changes);
            let current = revisions.entry(object).or_insert(revision);
            *current = if changes { revision } else { *current };
            if is_seen {
                *in_vain.entry(object.to_string()).or_default() += u64::from(!changes);
                let call = write(object, *current, Moment::from_millis(number * 10));
                detector.count(&call, &|| names(object));
            }
        }
        let found = detector.found();
        assert_eq!(found.len(), 50, "{found:?}");
        for found in found {
            let really = in_vain[&*found.names.object];
            assert!(if is_alone { found.in_vain == really } else { found.in_vain <= really }, "{really}: {found:?}");
            assert!(found.in_vain * 10 >= really * 7 && found.unchanged == found.in_vain, "{really}: {found:?}");
        }
    }
}

/// Others may have changed the object, scaled it, or deleted and made it again.
#[test]
fn a_body_sent_again_does_not_prove_that_nothing_changed() {
    let proof = Proof { calls: 10, lasts: Duration::ZERO, flood_lasts: Duration::ZERO };
    for (has_version, has_base) in [(false, false), (true, false), (false, true)] {
        let mut detector = Detector::new(proof, 8);
        for number in 0..100 {
            let [version, base] = [has_version, has_base].map(|is_known| is_known.then_some(number));
            let content = Content { version, base, body: Some(7), timeless: Some(7) };
            let call = ObjectCall { content, ..write(1, number, Moment::from_millis(number * 1000)) };
            detector.count(&call, &|| names(1));
        }
        let found = &detector.found()[0];
        assert_eq!((found.in_vain, found.judged, found.unchanged), (99, 99, 0));
        let says = found.says(true);
        assert!(says.ends_with("; 100% of the writes repeated an earlier one, times aside"), "{says}");
    }
}

/// What a gate tells of one object, written every so many seconds for some hours. Of so many writes
/// in a row the first changes it.
fn told_of(every: u64, in_a_row: u64, hours: u64) -> Vec<News> {
    let (mut loops, mut news) = (Loops::default(), Vec::new());
    for second in 0..3600 * hours + 500 {
        let at = Moment::from_millis(second * 1000);
        if second.is_multiple_of(every) && second < 3600 * hours {
            let call = write(1, second / every / in_a_row, at);
            let key = Key { object: call.object, collection: 0, facet: 0 };
            let pace = Pace::new(1.0, NonZeroU32::new(10).expect("ten"));
            if let Some(too_soon) = loops.count(key, Act::Write, Some(pace), at, false) {
                loops.learn(&call, too_soon, &|| names(1));
            }
        }
        news.extend(loops.tick(at));
    }
    news
}

#[test]
fn a_slow_loop_is_named_within_its_hour_and_its_end_is_told() {
    for every in [3, 60, 120] {
        let news = told_of(every, 3, 1);
        let [News::Began(found), News::Ended(_)] = &news[..] else { panic!("{every}: {news:?}") };
        let says = found.says(true);
        assert!(says.contains(" by manager/1.2; 6"), "{every}: {says}");
        assert!(says.ends_with("% of the writes changed nothing"), "{every}: {says}");
    }
}

/// Half of the writes in vain are now a little more, now a little less than half.
#[test]
fn a_loop_that_goes_on_for_hours_is_named_once() {
    for every in [7, 118] {
        let news = told_of(every, 2, 9);
        assert!(matches!(news[..], [News::Began(_), News::Ended(_)]), "{every}: {news:?}");
    }
}

#[test]
fn a_mebibyte_is_enough_whatever_is_repeated() {
    let mut loops = Loops::default();
    for round in 0..100 {
        let at = Moment::from_millis(round * 6000);
        for object in 0..1000 {
            for caller in 0..6 {
                let call = ObjectCall { caller, ..write(object, round / 2, at) };
                let key = Key { object: call.object, collection: 0, facet: 0 };
                if loops.count(key, call.act, None, at, false).is_some() || round > 3 {
                    loops.judge(&call, &|| names(object));
                }
            }
            let collection = hash(object);
            loops
                .judge(&ObjectCall { collection, act: Act::Create, status: 201, ..write(object, 1, at) }, &|| names(1));
            loops.judge(&ObjectCall { facet: 1, status: 403, ..write(object, 1, at) }, &|| names(object));
        }
        loops.tick(at);
    }
    // And 64 KiB of answers that are being read.
    assert!(loops.bytes() <= (1 << 20) - (64 << 10), "{}", loops.bytes());
    assert!(loops.list().len() > 300, "it names as many as it knows");
}
