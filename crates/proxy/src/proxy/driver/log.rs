//! Log lines about failing keys: when they begin and cease to fail.
//!
//! The changes of a second are logged together. Up to five keys have a line each; more have one
//! line with their number and the first name. Such a line is written at most every ten seconds: a
//! webhook that is down must not push everything else out of the log.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::limit::refusal::Why;
use crate::limit::{KeyEnd, KeyState};
use crate::lock;
use crate::moment::Moment;
use crate::status::text::duration;

/// The keys that began or ceased to fail, and are not logged yet.
#[derive(Debug, Default)]
pub(super) struct KeyLog(Mutex<PendingNews>);

#[derive(Debug, Default)]
struct PendingNews {
    /// True in shadow mode, where the calls of a failing key are not delayed.
    is_shadow: bool,
    /// The number of changes so far; each change has a number, in order.
    changes: u64,
    news: BTreeMap<KeyChange, News>,
}

/// The keys of one kind of change that are not logged yet.
#[derive(Debug, Default)]
struct News {
    /// The number of keys.
    count: usize,
    /// The first few of these keys.
    first: Vec<KeyNews>,
    /// The end of the silence after a line about many keys: until then no line of this kind is
    /// written.
    quiet_until: Option<Moment>,
}

/// What a log line says about one key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyNews {
    /// The number of the change, for the order of lines.
    change: u64,
    name: Box<str>,
    failures: u32,
    /// While the key fails: the HTTP status of its last failure, and the delay after it.
    failing: Option<(Option<u16>, Duration)>,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum KeyChange {
    Began,
    /// The key began to fail, in shadow mode.
    Fails,
    Recovered,
    Gone,
    Old,
    Crowded,
}

/// A line of the log, about one or many keys.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    kind: KeyChange,
    /// The number of keys the line is about.
    count: usize,
    /// The key named in the line: the first of them.
    told: KeyNews,
}

// === impl KeyLog ===

impl KeyLog {
    /// Uses the log texts for shadow mode from now on.
    pub(super) fn cast_shadow(&self) {
        lock(&self.0).is_shadow = true;
    }

    /// Records a key's first failure for the log.
    pub(super) fn began(&self, name: String, state: &KeyState) {
        let failing = Some((state.last_status, state.ready_at - state.last_failure));
        let kind = if lock(&self.0).is_shadow { KeyChange::Fails } else { KeyChange::Began };
        self.note(kind, KeyNews { change: 0, name: name.into(), failures: state.failures, failing });
    }

    /// Records for the log that a key ceased to fail or was forgotten.
    pub(super) fn ended(&self, ended: KeyEnd) {
        let kind = match ended.why {
            Why::Crowded => KeyChange::Crowded,
            Why::Gone => KeyChange::Gone,
            Why::Old => KeyChange::Old,
            Why::Recovered => KeyChange::Recovered,
        };
        self.note(kind, KeyNews { change: 0, name: ended.name, failures: ended.failures, failing: None });
    }

    /// Writes the lines that are due, or all of them if `is_last`.
    pub(super) fn write(&self, gate: &str, now: Moment, is_last: bool) {
        for line in self.take(now, is_last) {
            line.write(gate);
        }
    }

    fn note(&self, kind: KeyChange, told: KeyNews) {
        let pending = &mut *lock(&self.0);
        pending.changes += 1;
        let news = pending.news.entry(kind).or_default();
        news.count += 1;
        if news.first.len() < FEW {
            news.first.push(KeyNews { change: pending.changes, ..told });
        }
    }

    fn take(&self, now: Moment, is_last: bool) -> Vec<Line> {
        let mut lines = Vec::new();
        for (kind, news) in &mut lock(&self.0).news {
            if is_last || news.quiet_until.is_none_or(|until| until <= now) {
                lines.extend(news.lines(*kind, now));
            }
        }
        lines.sort_by_key(|line| line.told.change);
        lines
    }
}

// === impl News ===

impl News {
    fn lines(&mut self, kind: KeyChange, now: Moment) -> impl Iterator<Item = Line> {
        let count = std::mem::take(&mut self.count);
        let first = std::mem::take(&mut self.first);
        let are_many = count > FEW;
        self.quiet_until = are_many.then(|| now + STORM);
        let shown = if are_many { 1 } else { FEW };
        let count = if are_many { count } else { 1 };
        first.into_iter().take(shown).map(move |told| Line { kind, count, told })
    }
}

// === impl Line ===

impl Line {
    fn write(&self, gate: &str) {
        let KeyNews { name, failures, failing, .. } = &self.told;
        let key = &**name;
        let failures = *failures;
        let keys = (self.count > 1).then_some(self.count);
        let status = failing.and_then(|(status, _)| status);
        let delay = failing.map(|(_, delay)| duration(delay.as_secs_f64()));
        let says = self.says();
        if self.kind == KeyChange::Crowded {
            tracing::warn!(gate, keys, key, failures, "{says}");
        } else {
            tracing::info!(gate, keys, key, status, failures, delay, "{says}");
        }
    }

    /// Returns the text of the line.
    fn says(&self) -> String {
        let (one, many) = match self.kind {
            KeyChange::Began => ("key is backing off", "keys are backing off"),
            KeyChange::Fails => ("key fails; shadow: nothing is held", "keys fail; shadow: nothing is held"),
            KeyChange::Recovered => ("key has recovered", "keys have recovered"),
            KeyChange::Gone => ("key forgotten: its object is gone", "keys forgotten: their objects are gone"),
            KeyChange::Old => (
                "key forgotten: it has not failed for backoff.forget_after",
                "keys forgotten: they have not failed for backoff.forget_after",
            ),
            KeyChange::Crowded => (
                "key forgotten: more are failing than backoff.max_keys",
                "keys forgotten: more are failing than backoff.max_keys",
            ),
        };
        if self.count == 1 { one.to_owned() } else { format!("{} {many}; the first:", self.count) }
    }
}

/// Up to this many keys get a line each.
const FEW: usize = 5;
/// The time between two lines about many keys.
const STORM: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn state(failures: u32) -> KeyState {
        let failed = Moment::from_millis(1_000);
        KeyState {
            failures,
            last_status: Some(500),
            last_failure: failed,
            ready_at: failed + Duration::from_secs(64 * u64::from(failures)),
        }
    }

    fn ended(name: &str, why: Why) -> KeyEnd {
        KeyEnd { name: name.into(), failures: 3, why }
    }

    /// The due lines, as text.
    fn lines(log: &KeyLog, second: u64) -> Vec<String> {
        let lines = log.take(Moment::from_millis(second * 1000), false);
        lines.iter().map(|line| format!("{} {}", line.says(), line.told.name)).collect()
    }

    #[test]
    fn a_storm_is_one_line_that_counts_its_keys_and_names_the_first() {
        let log = KeyLog::default();
        (0..312).for_each(|object| log.began(format!("write pods/prod/web-{object}"), &state(1)));
        assert_eq!(lines(&log, 1), ["312 keys are backing off; the first: write pods/prod/web-0"]);
        (0..40).for_each(|object| log.began(format!("write pods/prod/api-{object}"), &state(1)));
        (2..11).for_each(|second| assert_eq!(lines(&log, second), [""; 0], "the storm goes on"));
        assert_eq!(lines(&log, 11), ["40 keys are backing off; the first: write pods/prod/api-0"]);
        assert_eq!(lines(&log, 60), [""; 0]);
        (0..312).for_each(|_| log.ended(ended("write pods/prod/web-0", Why::Recovered)));
        assert_eq!(lines(&log, 61), ["312 keys have recovered; the first: write pods/prod/web-0"]);
    }

    #[test]
    fn a_shadow_does_not_say_that_it_backs_off() {
        let log = KeyLog::default();
        log.cast_shadow();
        log.began("write pods/prod/web".to_owned(), &state(1));
        assert_eq!(lines(&log, 1), ["key fails; shadow: nothing is held write pods/prod/web"]);
    }

    #[test]
    fn few_keys_have_a_line_each_in_the_order_of_what_happened_to_them() {
        let log = KeyLog::default();
        log.ended(ended("write pods/prod/old", Why::Old));
        log.began("write pods/prod/web".to_owned(), &state(1));
        log.began("write pods/prod/api".to_owned(), &state(2));
        log.ended(ended("write pods/prod/web", Why::Recovered));
        log.began("write pods/prod/web".to_owned(), &state(1));
        let wanted = [
            "key forgotten: it has not failed for backoff.forget_after write pods/prod/old",
            "key is backing off write pods/prod/web",
            "key is backing off write pods/prod/api",
            "key has recovered write pods/prod/web",
            "key is backing off write pods/prod/web",
        ];
        assert_eq!(lines(&log, 1), wanted);
        log.began("write pods/prod/web".to_owned(), &state(1));
        assert_eq!(lines(&log, 2).len(), 1, "few do not make others wait");
    }

    #[test]
    fn what_is_not_written_yet_is_written_at_the_end() {
        let log = KeyLog::default();
        let storm = || (0..9).for_each(|object| log.began(format!("key {object}"), &state(1)));
        storm();
        assert_eq!(log.take(Moment::ZERO, false).len(), 1);
        storm();
        assert_eq!((log.take(Moment::ZERO, false).len(), log.take(Moment::ZERO, true).len()), (0, 1));
    }
}
