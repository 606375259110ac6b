//! Calls that get the same 4xx again and again, and never a success.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use super::report::{Caller, Habit, News, Report};
use super::seen::Seen;
use crate::moment::Moment;

/// The runs of the same 4xx, by object, part of it and caller.
#[derive(Debug, Default)]
pub(super) struct Denied(HashMap<u64, Run, BuildHasherDefault<AsItIs>>);

/// A run of the same 4xx.
#[derive(Clone, Debug)]
struct Run {
    object: u64,
    status: u16,
    calls: u64,
    first: Moment,
    last: Moment,
    /// The time between the last two: a controller's queue doubles it each time.
    gap: Duration,
    reads: bool,
    is_named: bool,
    names: Option<Box<Names>>,
}

/// The names of a run, once it may be one.
#[derive(Clone, Debug)]
struct Names {
    object: Box<str>,
    kind: Box<str>,
    path: Box<str>,
    caller: Box<str>,
    verb: Box<str>,
    part: Box<str>,
}

// === impl Denied ===

impl Denied {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Learns of a call that was denied.
    pub(super) fn denied(&mut self, seen: &Seen<'_>) -> Option<News> {
        let id = id(seen);
        let mut ended = None;
        if self.0.get(&id).is_some_and(|run| run.status != seen.status) {
            ended = self.0.remove(&id).and_then(|run| run.ended());
        }
        if self.0.len() >= MOST && !self.0.contains_key(&id) {
            self.make_room();
            if self.0.len() >= MOST {
                return ended;
            }
        }
        self.0.entry(id).or_insert_with(|| Run::new(seen)).learn(seen);
        ended
    }

    /// Forgets the shorter half of the runs, but none that was named: it would be named again.
    fn make_room(&mut self) {
        let mut lengths: Vec<_> = self.0.values().map(Run::length).collect();
        let (_, middle, _) = lengths.select_nth_unstable(MOST / 2);
        let middle = *middle;
        self.0.retain(|_, run| run.is_named || run.length() >= middle);
    }

    /// Learns of a call that was not denied: its run is over.
    pub(super) fn passed(&mut self, seen: &Seen<'_>) -> Option<News> {
        self.0.remove(&id(seen)).and_then(|run| run.ended())
    }

    /// Names what is a loop by now, and forgets what is over.
    pub(super) fn tick(&mut self, now: Moment, news: &mut Vec<News>) {
        for run in self.0.values_mut().filter(|run| !run.is_named && run.is_loop()) {
            run.is_named = true;
            news.extend(run.report().map(News::Began));
        }
        self.0.retain(|_, run| {
            let is_over = run.is_over(now);
            if is_over && run.is_named {
                news.extend(run.report().map(News::Ended));
            }
            !is_over
        });
    }

    /// True if a run of an object was named.
    pub(super) fn names(&self, object: u64) -> bool {
        self.0.values().any(|run| run.is_named && run.object == object)
    }

    /// Returns what is a loop.
    pub(super) fn list(&self) -> impl Iterator<Item = Report> {
        self.0.values().filter(|run| run.is_named).filter_map(Run::report)
    }

    pub(super) fn bytes(&self) -> usize {
        let names = |run: &Run| run.names.as_ref().map_or(0, |names| names.bytes());
        self.0.capacity() * (size_of::<Run>() + size_of::<u64>() + 1) + self.0.values().map(names).sum::<usize>()
    }
}

// === impl Run ===

impl Run {
    fn new(seen: &Seen<'_>) -> Self {
        let object = seen.object;
        let status = seen.status;
        let reads = seen.reads;
        let at = seen.at;
        Self { object, status, calls: 0, first: at, last: at, gap: Duration::ZERO, reads, is_named: false, names: None }
    }

    fn learn(&mut self, seen: &Seen<'_>) {
        self.calls += 1;
        self.gap = seen.at - self.last;
        self.last = self.last.max(seen.at);
        if self.calls == SERIOUS {
            let names = seen.names;
            self.names = Some(Box::new(Names {
                object: names.object().into(),
                kind: names.kind().into(),
                path: names.path().into(),
                caller: names.caller().into(),
                verb: names.verb().into(),
                part: names.part().into(),
            }));
        }
    }

    /// True if it has gone on for long enough. A 404 may be what a read waits to see the end of:
    /// only one that is asked for more than every other second is a loop.
    fn is_loop(&self) -> bool {
        let lasted = self.last - self.first;
        let is_poll = self.reads && self.status == 404;
        let is_often = !is_poll || self.calls >= POLLS && Duration::from_secs(2 * self.calls) >= lasted;
        self.calls >= CALLS && lasted >= LASTS && is_often
    }

    /// Returns its length, by which others make room for it.
    fn length(&self) -> (bool, u64, Moment) {
        (self.is_named, self.calls, self.last)
    }

    fn is_over(&self, now: Moment) -> bool {
        now - self.last > (self.gap * 3).clamp(QUIET, LONGEST_QUIET)
    }

    fn ended(self) -> Option<News> {
        if self.is_named { self.report().map(News::Ended) } else { None }
    }

    fn report(&self) -> Option<Report> {
        let Names { object, kind, path, caller, verb, part } = &**self.names.as_ref()?;
        Some(Report {
            object: object.clone(),
            kind: kind.clone(),
            path: path.clone(),
            habit: Habit::Denied { status: self.status, verb: verb.clone(), part: part.clone() },
            calls: self.calls,
            within: self.last - self.first,
            since: self.first,
            last: self.last,
            callers: vec![Caller { name: caller.clone(), calls: self.calls }],
            is_paced: false,
        })
    }
}

impl Names {
    fn bytes(&self) -> usize {
        let texts = [&self.object, &self.kind, &self.path, &self.caller, &self.verb, &self.part];
        size_of::<Self>() + texts.map(|text| text.len()).iter().sum::<usize>()
    }
}

/// Returns the number of an object, a part of it and a caller.
fn id(seen: &Seen<'_>) -> u64 {
    seen.object ^ seen.facet.rotate_left(17) ^ seen.caller.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Numbers that are hashes already.
#[derive(Debug, Default)]
pub(super) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// The runs that are remembered; past it the shortest goes.
const MOST: usize = 1024;
/// The calls from which a run has its names, and may be a loop.
const SERIOUS: u64 = 4;
const CALLS: u64 = 10;
/// The same for reads that get 404.
const POLLS: u64 = 30;
/// The least time that a loop has gone on for.
const LASTS: Duration = Duration::from_secs(30);
/// The time after which a run that does not go on is over, if it did not come more slowly before.
const QUIET: Duration = Duration::from_secs(300);
const LONGEST_QUIET: Duration = Duration::from_secs(3600);
