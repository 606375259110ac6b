//! What happened lately in a gate: ten minutes of numbers, and the last refusals. For people who look, not for reckoning.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    api::Rejection,
    classify::Classified,
    clock::Clock,
    limit::{Reason, Refusal},
    moment::Moment,
    status,
    telemetry::table,
};

/// Counts what left and what was refused, and remembers a little of both.
#[derive(Debug)]
pub(crate) struct Tally {
    clock: Clock,
    admitted: AtomicU64,
    refused: AtomicU64,
    bypassed: AtomicU64,
    /// `bypassed` as a metric.
    counter: metrics::Counter,
    lately: Mutex<Lately>,
}

#[derive(Debug, Default)]
struct Lately {
    /// Latest first.
    refusals: VecDeque<Turned>,
    /// Oldest first.
    points: VecDeque<Point>,
    /// The step that is under way: seconds in it, and what was counted when it began.
    seconds: u32,
    counted: (u64, u64),
    waiting: usize,
    /// How often the upstream turned a call away, and when last.
    rejections: [(u64, Moment); Rejection::ALL.len()],
}

/// Calls that were refused alike.
#[derive(Debug)]
struct Turned {
    at: Moment,
    count: u64,
    class: Box<str>,
    reason: Reason,
    /// Verb and resource.
    what: String,
    /// The key's name.
    name: String,
    retry_in: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    admitted: u64,
    refused: u64,
    waiting: usize,
}

// === impl Tally ===

impl Tally {
    pub(crate) fn new(gate: &str, clock: Clock) -> Self {
        let counter = table::BYPASSED.counter(&[gate]);
        let (admitted, refused, bypassed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Self { clock, admitted, refused, bypassed, counter, lately: Mutex::default() }
    }

    /// A call has left.
    pub(crate) fn admitted(&self) {
        self.admitted.fetch_add(1, Relaxed);
    }

    /// A call has left that a limit might have held, had it been asked.
    pub(crate) fn bypassed(&self) {
        self.bypassed.fetch_add(1, Relaxed);
        self.counter.increment(1);
    }

    /// The upstream turned a call away.
    pub(crate) fn rejected(&self, by: Rejection) {
        let now = self.clock.now();
        let place = Rejection::ALL.iter().position(|known| *known == by).unwrap_or_default();
        if let Some((count, at)) = self.lock().rejections.get_mut(place) {
            (*count, *at) = (*count + 1, now);
        }
    }

    /// A call was refused.
    pub(crate) fn refused(&self, class: &str, refusal: &Refusal, call: &Classified) {
        self.refused.fetch_add(1, Relaxed);
        let at = self.clock.now();
        let (name, retry_in) = (shortened(call.key_name(None)), refusal.retry_at - at);
        let mut lately = self.lock();
        let alike = |turned: &Turned| turned.reason == refusal.reason && *turned.class == *class && turned.name == name;
        let turned = lately.refusals.iter().position(alike).and_then(|index| lately.refusals.remove(index));
        let turned = match turned {
            Some(turned) => Turned { at, count: turned.count + 1, retry_in, ..turned },
            None => {
                Turned { at, count: 1, class: class.into(), reason: refusal.reason, what: what(call), name, retry_in }
            }
        };
        lately.refusals.push_front(turned);
        lately.refusals.truncate(REFUSALS);
    }

    /// Every second: how many wait now.
    pub(crate) fn second(&self, waiting: usize) {
        let counted = (self.admitted.load(Relaxed), self.refused.load(Relaxed));
        let mut lately = self.lock();
        lately.waiting = lately.waiting.max(waiting);
        lately.seconds += 1;
        if lately.seconds < STEP {
            return;
        }
        let point = Point {
            admitted: counted.0 - lately.counted.0,
            refused: counted.1 - lately.counted.1,
            waiting: std::mem::take(&mut lately.waiting),
        };
        (lately.seconds, lately.counted) = (0, counted);
        if lately.points.len() == POINTS {
            lately.points.pop_front();
        }
        lately.points.push_back(point);
    }

    /// Writes down what is known.
    pub(crate) fn tell(&self, gate: &mut status::Gate, names: bool) {
        gate.admitted = self.admitted.load(Relaxed);
        gate.refused = self.refused.load(Relaxed);
        gate.bypassed = self.bypassed.load(Relaxed);
        let lately = self.lock();
        let refusal = |turned: &Turned| status::Refusal {
            at_ms: self.clock.wall(turned.at),
            count: turned.count,
            class: turned.class.to_string(),
            reason: turned.reason.word().to_owned(),
            call: if names { turned.name.clone() } else { turned.what.clone() },
            retry_in_seconds: turned.retry_in.as_secs_f64(),
        };
        gate.refusals = lately.refusals.iter().map(refusal).collect();
        let rejection = |(by, (count, at)): (Rejection, (u64, Moment))| status::Rejection {
            by: by.word().to_owned(),
            count,
            at_ms: self.clock.wall(at),
        };
        gate.rejections = std::iter::zip(Rejection::ALL, lately.rejections)
            .filter(|(_, (count, _))| *count > 0)
            .map(rejection)
            .collect();
        gate.history = status::History {
            step_seconds: STEP,
            admitted: lately.points.iter().map(|point| point.admitted).collect(),
            refused: lately.points.iter().map(|point| point.refused).collect(),
            waiting: lately.points.iter().map(|point| u64::try_from(point.waiting).unwrap_or(u64::MAX)).collect(),
        };
    }

    fn lock(&self) -> MutexGuard<'_, Lately> {
        self.lately.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Verb and resource, without any name.
fn what(call: &Classified) -> String {
    let (verb, resource, group) = (call.call.verb().word(), call.call.resource(), call.call.group());
    match (resource, group) {
        ("", _) => verb.to_owned(),
        (resource, "") => format!("{verb} {resource}"),
        (resource, group) => format!("{verb} {resource}.{group}"),
    }
}

/// A client may send a path of any length.
pub(super) fn shortened(mut name: String) -> String {
    if let Some((end, _)) = name.char_indices().nth(NAME) {
        name.truncate(end);
        name.push('\u{2026}');
    }
    name
}

/// Seconds of a step: 120 of them are ten minutes.
const STEP: u32 = 5;
const POINTS: usize = 120;
/// Refusals remembered.
const REFUSALS: usize = 20;
/// Characters of a name that are shown.
const NAME: usize = 200;

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};

    use super::*;
    use crate::classify::{Kind, Rules};

    fn refuse(tally: &Tally, path: &str, reason: Reason) {
        let (hasher, uri) = (std::hash::RandomState::new(), path.parse().expect("a path"));
        let call = Rules::single(Kind::Kubernetes).classify(&Method::PUT, &uri, &HeaderMap::new(), &hasher);
        tally.refused("default", &Refusal { reason, retry_at: Moment::ZERO, waited: Duration::ZERO, key: None }, &call);
    }

    fn told(tally: &Tally, names: bool) -> status::Gate {
        let mut gate = status::Gate::default();
        tally.tell(&mut gate, names);
        gate
    }

    #[tokio::test]
    async fn equal_refusals_are_one_line_and_names_are_left_out_where_they_must_be() {
        let tally = Tally::new("tallied", Clock::start());
        let web = "/apis/apps/v1/namespaces/prod/deployments/web";
        for _ in 0..3 {
            refuse(&tally, web, Reason::Backoff);
        }
        refuse(&tally, web, Reason::Bucket);
        let shown = told(&tally, true);
        let lines: Vec<_> = shown.refusals.iter().map(|it| (it.count, &*it.reason, &*it.call)).collect();
        let name = "write deployments.apps/prod/web";
        assert_eq!(lines, [(1, "bucket", name), (3, "backoff", name)]);
        assert_eq!((shown.refused, told(&tally, false).refusals[0].call.as_str()), (4, "update deployments.apps"));
        for object in 0..100 {
            refuse(&tally, &format!("{web}{object}"), Reason::Backoff);
        }
        assert_eq!(told(&tally, true).refusals.len(), REFUSALS);
        refuse(&tally, &format!("/{}", "x".repeat(60_000)), Reason::Bucket);
        assert!(told(&tally, true).refusals[0].call.chars().count() <= NAME + 1);
    }

    #[tokio::test]
    async fn history_is_ten_minutes_of_five_seconds_each() {
        let tally = Tally::new("tallied", Clock::start());
        for second in 0..700 {
            tally.admitted();
            tally.second(second % 10);
        }
        let history = told(&tally, false).history;
        assert_eq!((history.admitted.len(), history.waiting.len()), (POINTS, POINTS));
        assert!(history.admitted.iter().all(|admitted| *admitted == 5));
        assert_eq!(history.waiting[..2], [4, 9]);
    }
}
