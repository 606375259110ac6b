//! Log lines about failing keys: when they begin and cease to fail.
//!
//! The changes of a second are logged together. Up to five keys have a line each; more have one
//! line with their number and the first name. Such a line is written at most every ten seconds: a
//! webhook that is down must not push everything else out of the log.

use std::collections::BTreeMap;
use std::mem;
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
    /// The first few keys of each kind of change, in the order of the changes.
    lines: Vec<Line>,
    kinds: BTreeMap<KeyChange, KindNews>,
}

/// The keys of one kind of change that are not logged yet.
#[derive(Debug, Default)]
struct KindNews {
    /// The number of keys.
    keys: usize,
    /// The end of the silence after a line about many keys: until then no line of this kind is
    /// written.
    quiet_until: Option<Moment>,
}

/// What a log line says about one key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyNews {
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
    Ended(Why),
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
        self.note(kind, KeyNews { name: name.into(), failures: state.failures, failing });
    }

    /// Records for the log that a key ceased to fail or was forgotten.
    pub(super) fn ended(&self, ended: KeyEnd) {
        let KeyEnd { name, failures, why } = ended;
        self.note(KeyChange::Ended(why), KeyNews { name, failures, failing: None });
    }

    /// Writes the lines that are due, or all of them if `is_last`.
    pub(super) fn write(&self, gate: &str, now: Moment, is_last: bool) {
        for line in self.take(now, is_last) {
            line.write(gate);
        }
    }

    fn note(&self, kind: KeyChange, told: KeyNews) {
        let PendingNews { lines, kinds, .. } = &mut *lock(&self.0);
        let news = kinds.entry(kind).or_default();
        news.keys += 1;
        if news.keys <= FEW {
            lines.push(Line { kind, count: 1, told });
        }
    }

    fn take(&self, now: Moment, is_last: bool) -> Vec<Line> {
        let PendingNews { lines, kinds, .. } = &mut *lock(&self.0);
        let is_due = |news: &KindNews| is_last || news.quiet_until.is_none_or(|until| until <= now);
        let (mut due, later): (Vec<_>, Vec<_>) =
            mem::take(lines).into_iter().partition(|line| kinds.get(&line.kind).is_none_or(is_due));
        *lines = later;
        for (kind, news) in kinds.iter_mut().filter(|(_, news)| is_due(news)) {
            let count = mem::take(&mut news.keys);
            if count > FEW {
                news.quiet_until = Some(now + STORM);
                let mut is_first = true;
                due.retain_mut(|line| line.kind != *kind || mem::replace(&mut is_first, false));
                due.iter_mut().filter(|line| line.kind == *kind).for_each(|line| line.count = count);
            }
        }
        due
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
        if self.kind == KeyChange::Ended(Why::Crowded) {
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
            KeyChange::Ended(Why::Recovered) => ("key has recovered", "keys have recovered"),
            KeyChange::Ended(Why::Gone) => {
                ("key forgotten: its object is gone", "keys forgotten: their objects are gone")
            }
            KeyChange::Ended(Why::Old) => (
                "key forgotten: it has not failed for backoff.forget_after",
                "keys forgotten: they have not failed for backoff.forget_after",
            ),
            KeyChange::Ended(Why::Crowded) => (
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
