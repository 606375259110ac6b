//! Hours of an operator's calls, made by the simulator's controllers: people change its objects,
//! each hour all of them are read again, and releases change some.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::moment::Moment;
use tidegate_simulate::controller::{Controller, RateLimiter, ReconcileResult};
use tidegate_simulate::random::Random;

/// A number of objects that change together.
struct Change {
    objects: std::ops::Range<usize>,
    at: Duration,
}

struct Operator {
    controller: Controller,
    random: Random,
    /// The ends of calls: the object, and the calls left of its reconcile.
    ends: BTreeMap<(Moment, usize), usize>,
    log: String,
}

/// The log of `hours` hours of calls.
pub(crate) fn log(seed: u64, hours: u32) -> String {
    let controller = Controller::new(RateLimiter::DEFAULT, OBJECTS, 10);
    let mut operator = Operator { controller, random: Random::new(seed), ends: BTreeMap::new(), log: String::new() };
    for change in changes(&mut operator.random, Duration::from_secs(3600) * hours) {
        operator.play(Moment::ZERO + change.at);
        change.objects.for_each(|object| operator.controller.queue.add(object, Moment::ZERO + change.at));
        operator.start(Moment::ZERO + change.at);
    }
    operator.play(Moment::MAX);
    operator.log
}

/// Changes in order: of people at random, hourly of all, and a release each two hours.
fn changes(random: &mut Random, length: Duration) -> Vec<Change> {
    let hours = Duration::from_secs(3600);
    let mut all = Vec::new();
    let mut at = Duration::ZERO;
    while at < length {
        let object = random.below(OBJECTS);
        all.push(Change { objects: object..object + 1, at });
        // Twice as many in each second hour.
        let rate = if (at.as_secs() / 3600).is_multiple_of(2) { 1.0 } else { 2.0 };
        at += Duration::from_secs_f64(-(1.0 - random.fraction()).ln() / rate);
    }
    let half = Duration::from_secs(1800);
    all.extend((0..24).map(|hour| Change { objects: 0..OBJECTS, at: hours * hour + half }));
    all.extend((0..12).map(|release| {
        let changed = OBJECTS / 4 + random.below(OBJECTS / 2);
        Change { objects: 0..changed, at: hours * 2 * release + half / 2 }
    }));
    all.retain(|change| change.at < length);
    all.sort_by_key(|change| change.at);
    all
}

impl Operator {
    /// Ends all calls up to a moment.
    fn play(&mut self, until: Moment) {
        while let Some(((at, object), left)) = self.ends.first_key_value().map(|(key, left)| (*key, *left)) {
            if at > until {
                return;
            }
            self.ends.remove(&(at, object));
            match left {
                0 => drop(self.controller.finish(object, ReconcileResult::Done, at)),
                _ => self.call(object, left - 1, at),
            }
            self.start(at);
        }
    }

    fn start(&mut self, now: Moment) {
        while let Ok(object) = self.controller.start(now) {
            self.call(object, 1, now);
        }
    }

    fn call(&mut self, object: usize, left: usize, now: Moment) {
        let took = Duration::from_micros(5_000 + u64::try_from(self.random.below(20_000)).expect("few"));
        self.log += &line(now, if left == 0 { "update" } else { "get" }, object, took);
        self.ends.insert((now + took, object), left);
    }
}

fn line(at: Moment, verb: &str, object: usize, took: Duration) -> String {
    format!(
        "{{\"arrived_ns\":{0},\"wall_ms\":{1},\"gate\":\"kubernetes\",\"class\":\"default\",\"lane\":\"normal\",\"flow\":\"01\",\
         \"verb\":\"{verb}\",\"group\":\"rds.aws.upbound.io\",\"resource\":\"instances\",\"namespace\":\"prod\",\
         \"user_agent\":\"operator/v1.2\",\"key\":\"{object:x}\",\"sent_ns\":{0},\"upstream_ns\":{2},\"status\":200}}\n",
        at.as_nanos(),
        at.since_start().as_millis(),
        took.as_nanos(),
    )
}

const OBJECTS: usize = 300;
