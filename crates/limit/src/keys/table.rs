//! The writing half of the key table: records failures, and forgets keys, drops them past the limit
//! and expires them.
//!
//! Beside the table there are two orders of its objects: by the moment they are forgotten, and by
//! the moment they may be tried. The first object of the second order is dropped when there are too
//! many (P9), and a status page shows its first few. No operation goes through all keys at once.

use std::sync::Arc;
use std::time::Duration;

use super::{Dice, Due, Failing, KeyId, Keys, Order, Position};
use crate::key::Key;
use crate::moment::Moment;
use crate::{Backoff, Ended, KeyState, Why};

/// The writing half of the key table.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) keys: Arc<Keys>,
    by_ready: Order,
    by_forget: Due,
    max_keys: usize,
    /// The number of failures recorded so far, which is what a call that leaves now knows of.
    pub(crate) failures: u64,
    /// The number of changes so far of what is remembered.
    pub(crate) changes: u64,
    /// The number of the last trial.
    trials: u32,
    /// The number of trials that are out.
    pub(crate) trials_out: usize,
    dice: Dice,
    /// Keys that are no longer failing, until they are taken: at most a few.
    ended: Vec<Ended>,
}

/// A failure to record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure<'a> {
    pub(crate) key: Key,
    pub(crate) backoff: &'a Backoff,
    /// The upstream's own Retry-After.
    pub(crate) after: Option<Duration>,
    pub(crate) status: Option<u16>,
    /// The number of failures recorded when the call left.
    pub(crate) left: u64,
}

/// The effect of recording a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// The failure counted, or it brought a later time: no call of the key may leave on the old
    /// terms.
    Changed,
    /// The failure was known already.
    Stale,
}

// === impl Table ===

impl Table {
    pub(crate) fn new(max_keys: usize, seed: u64) -> Self {
        Self { max_keys: max_keys.max(1), dice: Dice(seed), ..Self::default() }
    }

    /// Marks a key's trial as out and returns its number; 0 if the key is not failing.
    pub(crate) fn begin_trial(&mut self, key: KeyId) -> u32 {
        let trial = self.trials.wrapping_add(1).max(1);
        let before = self.keys.change(key.object, key.facet, |failing| std::mem::replace(&mut failing.trial, trial));
        let Some(before) = before else { return 0 };
        debug_assert_eq!(before, 0, "one trial at a time");
        self.trials_out += usize::from(before == 0);
        self.trials = trial;
        trial
    }

    /// Ends a key's trial. Does nothing if the key has another trial or none (it was forgotten
    /// meanwhile).
    pub(crate) fn end_trial(&mut self, key: KeyId, trial: u32) {
        let ended = self.keys.change(key.object, key.facet, |failing| {
            let ended = failing.trial == trial;
            failing.trial = if ended { 0 } else { failing.trial };
            ended
        });
        self.trials_out -= usize::from(ended == Some(true) && self.trials_out > 0);
    }

    /// True if this trial is still the key's.
    pub(crate) fn is_trial(&self, key: KeyId, trial: u32) -> bool {
        trial != 0 && self.keys.change(key.object, key.facet, |failing| failing.trial == trial) == Some(true)
    }

    /// Records a failure. Keys dropped to make room are added to `dropped`.
    pub(crate) fn record(
        &mut self,
        failure: &Failure<'_>,
        name: &dyn Fn() -> String,
        now: Moment,
        dropped: &mut Vec<KeyId>,
    ) -> Recorded {
        let id = KeyId::from(&failure.key);
        let after = failure.after.map_or(Moment::ZERO, |after| now + after);
        let read = |known: &mut Failing| {
            known.named = known.named.max(after);
            (known.state, known.is_news_to(failure.left), known.forget_at)
        };
        let known = self.keys.change(id.object, id.facet, read);
        match known {
            Some((_, _, forget_at)) if forget_at <= now => self.forget(id, Some(Why::Old)),
            Some((state, true, _)) => {
                if after <= state.ready_at {
                    return Recorded::Stale;
                }
                self.update(id, KeyState { ready_at: after, ..state }, failure.backoff);
                return Recorded::Changed;
            }
            _ => {}
        }
        self.failures += 1;
        let known = known.filter(|(_, _, forget_at)| *forget_at > now).map(|(state, _, _)| state);
        let failures = known.map_or(0, |known| known.failures).saturating_add(1);
        let rolled = failure.backoff.strategy.rolled_delay(failures, &mut self.dice);
        let delay = rolled.min(failure.key.longest_delay());
        let earliest = known.map_or(Moment::ZERO, |known| known.ready_at);
        let ready_at = (now + delay).max(after).max(earliest);
        let state = KeyState { failures, last_status: failure.status, last_failure: now, ready_at };
        match known {
            Some(_) => self.update(id, state, failure.backoff),
            None => {
                // Makes room for it. After a lower limit that takes several operations.
                self.drop_down_to(self.max_keys - 1, dropped);
                self.insert(failure, state, after, name());
            }
        }
        let failures = self.failures;
        self.keys.change(id.object, id.facet, |failing| {
            failing.count(failures);
            if failing.name.is_empty() {
                failing.name = name().into();
            }
        });
        Recorded::Changed
    }

    /// Remembers a key until this moment at least, if it is failing.
    pub(crate) fn keep(&mut self, key: KeyId, until: Moment) {
        // Its entry in the order of those to forget stays, and is corrected when it is due.
        self.keys.change(key.object, key.facet, |failing| failing.forget_at = failing.forget_at.max(until));
    }

    /// Forgets a key if it is failing. Without a `why` the end is not reported: the caller asked
    /// for it.
    pub(crate) fn forget(&mut self, key: KeyId, why: Option<Why>) {
        let forgotten = self.reordered(key.object, |keys| keys.remove(key.object, key.facet));
        if let Some(failing) = forgotten {
            if self.keys.is_empty() {
                self.by_forget = Due::default();
            }
            self.trials_out -= usize::from(failing.trial != 0 && self.trials_out > 0);
            if let Some(why) = why.filter(|_| self.ended.len() < TOLD) {
                let name = failing.label(key.object).into();
                self.ended.push(Ended { name, failures: failing.state.failures, why });
            }
        }
    }

    /// Returns the keys that have ended since the last call.
    pub(crate) fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// Forgets the failures of a key whose object is gone, if it fails, and adds it to
    /// `dirty_keys`. A time that the upstream named stays: a controller that deletes and creates
    /// again would come before it each time (P2).
    pub(crate) fn forget_gone(&mut self, id: KeyId, now: Moment, dirty_keys: &mut Vec<KeyId>) {
        let known = self.keys.change(id.object, id.facet, |failing| (failing.state, failing.named, failing.forget_at));
        let Some((state, named, forget_at)) = known else { return };
        dirty_keys.push(id);
        if named.min(forget_at) <= now {
            return self.forget(id, Some(Why::Gone));
        }
        self.put(id, KeyState { failures: 1, ready_at: named, ..state }, named);
    }

    /// Does the same for every key of an object.
    pub(crate) fn forget_gone_object(&mut self, object: u64, now: Moment, dirty_keys: &mut Vec<KeyId>) {
        let mut facets = Vec::new();
        self.keys.each(object, |failing| facets.push(failing.facet));
        for facet in facets {
            self.forget_gone(KeyId { object, facet }, now, dirty_keys);
        }
    }

    /// Forgets keys whose time is over, and drops those past the limit, a few at a time so that no
    /// operation pays for all of them. Adds them to `dropped`.
    pub(crate) fn expire(&mut self, now: Moment, dropped: &mut Vec<KeyId>) {
        for _ in 0..EXPIRED_AT_ONCE {
            let Some((_, object)) = self.by_forget.first().filter(|(at, _)| *at <= now) else { break };
            let over = self.keys.earliest(object, forget_at).filter(|(at, _)| *at <= now);
            if let Some((_, facet)) = over {
                let id = KeyId { object, facet };
                self.forget(id, Some(Why::Old));
                dropped.push(id);
            }
            self.by_forget.correct_first(self.keys.earliest(object, forget_at).map(|(at, _)| at));
        }
        self.drop_down_to(self.max_keys, dropped);
    }

    /// True if `expire` would do something.
    #[inline]
    pub(crate) fn has_expired(&self, now: Moment) -> bool {
        self.keys.len() > self.max_keys || self.by_forget.first().is_some_and(|(at, _)| at <= now)
    }

    /// Returns the number of failing keys, without those whose time is over, which go with the next
    /// operations. When thousands of them go at one moment, some are counted until they have gone.
    pub(crate) fn failing(&self, now: Moment) -> usize {
        if self.by_forget.first().is_none_or(|(at, _)| at > now) {
            return self.keys.len();
        }
        let mut over = 0;
        for object in self.by_forget.by(now, COUNTED) {
            self.keys.each(object, |failing| over += usize::from(failing.forget_at <= now));
        }
        self.keys.len().saturating_sub(over)
    }

    /// Returns the failing keys that may be tried first, by name, at most `most`. Of keys whose
    /// time is over some hundreds are passed over.
    pub(crate) fn next_tried(&self, most: usize, now: Moment) -> Vec<(String, Key, KeyState)> {
        let mut found: Vec<(String, Key, KeyState)> = Vec::new();
        let mut last = 0;
        for stand in self.by_ready.after(None).take(LOOKED_AT) {
            // Keys of the same moment are shown by name.
            if found.len() >= most && stand.time() > last {
                break;
            }
            let object = stand.object();
            self.keys.each(object, |failing| {
                if failing.forget_at > now {
                    found.push(failing.shown(object));
                }
            });
            last = stand.time();
        }
        found.sort_by(|(one, _, this), (other, _, that)| (this.ready_at, one).cmp(&(that.ready_at, other)));
        found.truncate(most);
        found
    }

    /// Returns those keys of the next few objects after a position that `is_meant`, and the
    /// position to go on at, if there may be more.
    pub(crate) fn next_meant(
        &self,
        place: Option<Position>,
        is_meant: &dyn Fn(&str, &KeyState) -> bool,
    ) -> (Vec<KeyId>, Option<Position>) {
        let mut meant = Vec::new();
        let mut looked_at = 0;
        let mut last = None;
        for stand in self.by_ready.after(place).take(WALKED_AT_ONCE) {
            let object = stand.object();
            self.keys.each(object, |failing| {
                if is_meant(&failing.label(object), &failing.state) {
                    meant.push(KeyId { object, facet: failing.facet });
                }
            });
            looked_at += 1;
            last = Some(stand);
        }
        (meant, last.filter(|_| looked_at == WALKED_AT_ONCE))
    }

    /// Reads the keys of the next few objects before a position, those that wait longest first.
    /// Returns the position to go on at, if there may be more.
    pub(crate) fn read_some(&self, place: Option<Position>, mut read: impl FnMut(u64, &Failing)) -> Option<Position> {
        let mut looked_at = 0;
        let mut last = None;
        for stand in self.by_ready.before(place).take(WALKED_AT_ONCE) {
            self.keys.each(stand.object(), |failing| read(stand.object(), failing));
            looked_at += 1;
            last = Some(stand);
        }
        last.filter(|_| looked_at == WALKED_AT_ONCE)
    }

    /// Adds a key that failed before a restart, unless it is there or there is no room for it. Its
    /// name is not known.
    pub(crate) fn restore(&mut self, key: Key, state: KeyState, named: Moment, forget_at: Moment) {
        let is_there = self.keys.change(key.object, key.facet, |_| ()).is_some();
        if is_there || self.keys.len() >= self.max_keys {
            return;
        }
        let Key { object, collection, facet } = key;
        let name = Box::default();
        let failing = Failing { facet, collection, name, state, named, forget_at, generation: 0, trial: 0 };
        self.reordered(object, |keys| keys.add(object, failing));
        self.by_forget.add(forget_at, object);
    }

    /// Sets a new limit. Keys past it are dropped a few at a time, as those whose time is over.
    pub(crate) fn set_max_keys(&mut self, max_keys: usize) {
        self.max_keys = max_keys.max(1);
    }

    fn drop_down_to(&mut self, most: usize, dropped: &mut Vec<KeyId>) {
        for _ in 0..EXPIRED_AT_ONCE {
            if self.keys.len() <= most {
                return;
            }
            let Some(object) = self.by_ready.first() else { return };
            let Some((_, facet)) = self.keys.earliest(object, ready_at) else { return };
            let id = KeyId { object, facet };
            self.forget(id, Some(Why::Crowded));
            dropped.push(id);
        }
    }

    fn insert(&mut self, failure: &Failure<'_>, state: KeyState, named: Moment, name: String) {
        let Key { object, collection, facet } = failure.key;
        let forget_at = forgotten(&state, failure.backoff);
        let name = name.into_boxed_str();
        let failing = Failing { facet, collection, name, state, named, forget_at, generation: 0, trial: 0 };
        self.reordered(object, |keys| keys.add(object, failing));
        self.by_forget.add(forget_at, object);
        self.leave_the_forgotten_behind();
    }

    /// Copies a few more of the objects, if the order in which they are forgotten has come to hold
    /// far more entries than there are objects.
    fn leave_the_forgotten_behind(&mut self) {
        let Some(place) = self.by_forget.copies_after(self.keys.len()) else { return };
        let stands: Vec<_> = self.by_ready.after(place).take(EXPIRED_AT_ONCE).collect();
        let last = stands.last().copied().filter(|_| stands.len() == EXPIRED_AT_ONCE);
        let due = |stand: &Position| Some((self.keys.earliest(stand.object(), forget_at)?.0, stand.object()));
        self.by_forget.copied(stands.iter().filter_map(due), last);
    }

    fn update(&mut self, id: KeyId, state: KeyState, backoff: &Backoff) {
        self.put(id, state, forgotten(&state, backoff));
    }

    fn put(&mut self, id: KeyId, state: KeyState, forget_at: Moment) {
        let before = self.reordered(id.object, |keys| {
            keys.change(id.object, id.facet, |failing| {
                failing.state = state;
                std::mem::replace(&mut failing.forget_at, forget_at)
            })
        });
        // New limits can bring it forward, and so can the end of its object.
        if before.is_some_and(|before| forget_at < before) {
            self.by_forget.add(forget_at, id.object);
        }
    }

    /// Changes something of an object's keys, and moves the object to its new position.
    fn reordered<T>(&mut self, object: u64, change: impl FnOnce(&Keys) -> T) -> T {
        let time = |keys: &Keys| keys.earliest(object, ready_at).map(|(at, _)| at);
        let before = time(&self.keys);
        self.changes += 1;
        let changed = change(&self.keys);
        self.by_ready.change(object, before, time(&self.keys));
        changed
    }
}

/// Returns the moment at which a key is forgotten: not before it may leave again, or a long
/// Retry-After would be forgotten before it is over (P2).
fn forgotten(state: &KeyState, backoff: &Backoff) -> Moment {
    (state.last_failure + backoff.forget_after).max(state.ready_at)
}

fn ready_at(failing: &Failing) -> Moment {
    failing.state.ready_at
}

fn forget_at(failing: &Failing) -> Moment {
    failing.forget_at
}

/// The most keys expired in one operation: more than a single operation can add, so the table
/// cannot outgrow it.
const EXPIRED_AT_ONCE: usize = 16;
/// The number of objects that a walk over all of them looks at before other tasks have their turn:
/// with their names compared and forgotten, a tenth of a millisecond.
pub(crate) const WALKED_AT_ONCE: usize = 64;
/// The number of entries that are looked at to count the keys whose time is over.
const COUNTED: usize = 4000;
/// The number of objects that are looked at to show a few.
pub(crate) const LOOKED_AT: usize = 300;
/// The most ends of keys that are kept until they are taken; a simulation takes none.
const TOLD: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Strategy;

    const BACKOFF: Backoff = Backoff {
        strategy: Strategy::Exponential { base: Duration::from_secs(1), max: Duration::from_secs(60), jitter: 0.0 },
        hold: Duration::ZERO,
        forget_after: Duration::from_secs(120),
    };

    fn key(object: u64) -> Key {
        Key { object, collection: 1, facet: 0 }
    }

    fn fail(table: &mut Table, object: u64, left: u64, after: Option<Duration>, now: Moment) -> (Recorded, Vec<KeyId>) {
        let mut dropped = Vec::new();
        let failure = Failure { key: key(object), backoff: &BACKOFF, after, status: Some(500), left };
        (table.record(&failure, &|| format!("key {object}"), now, &mut dropped), dropped)
    }

    fn ready_at(table: &Table, object: u64, now: Moment) -> Option<Moment> {
        table.keys.view(&key(object), now).map(|view| view.state.ready_at)
    }

    #[test]
    fn failures_of_calls_that_left_together_count_once() {
        let mut table = Table::new(10, 0);
        let now = Moment::from_millis(1000);
        let left = table.failures;
        assert_eq!(fail(&mut table, 1, left, None, now).0, Recorded::Changed);
        for _ in 0..10 {
            assert_eq!(fail(&mut table, 1, left, None, now + Duration::from_millis(5)).0, Recorded::Stale);
        }
        assert_eq!(ready_at(&table, 1, now), Some(now + Duration::from_secs(1)));
        let later = now + Duration::from_secs(1);
        let left = table.failures;
        fail(&mut table, 1, left, None, later);
        assert_eq!(ready_at(&table, 1, later), Some(later + Duration::from_secs(2)));
    }

    #[test]
    fn a_late_answer_still_brings_its_retry_after() {
        let mut table = Table::new(10, 0);
        fail(&mut table, 1, 0, None, Moment::ZERO);
        let late = Moment::from_millis(10);
        assert_eq!(fail(&mut table, 1, 0, Some(Duration::from_secs(300)), late).0, Recorded::Changed);
        assert_eq!(ready_at(&table, 1, late), Some(late + Duration::from_secs(300)), "and it is not forgotten before");
        assert_eq!(table.keys.list(late)[0].2.failures, 1);
    }

    #[test]
    fn past_the_limit_the_key_with_least_left_to_wait_is_dropped() {
        let mut table = Table::new(3, 0);
        fail(&mut table, 1, 0, Some(Duration::from_secs(9)), Moment::ZERO);
        fail(&mut table, 2, 0, None, Moment::ZERO);
        fail(&mut table, 3, 0, Some(Duration::from_secs(5)), Moment::ZERO);
        let (_, dropped) = fail(&mut table, 4, 0, Some(Duration::from_secs(7)), Moment::ZERO);
        assert_eq!(dropped, [KeyId { object: 2, facet: 0 }]);
        assert_eq!(table.keys.len(), 3);
        for object in 5..1000 {
            fail(&mut table, object, 0, None, Moment::ZERO);
        }
        assert_eq!(table.keys.len(), 3);
        let beside = (table.by_forget.len(), table.by_ready.len());
        assert!(beside.0 < 100 && beside.1 == 3, "what is kept beside the table grows: {beside:?}");
        assert!(table.keys.any_failing_in(1) && !table.keys.any_failing_in(2));
    }

    #[test]
    fn a_key_is_forgotten_after_its_time_and_takes_its_memory_along() {
        let mut table = Table::new(1000, 0);
        for object in 0..100 {
            fail(&mut table, object, 0, None, Moment::ZERO);
        }
        let over = Moment::from_millis(120_000);
        assert!(ready_at(&table, 7, over).is_none(), "expired keys are not seen even before they are removed");
        assert_eq!(
            (table.failing(Moment::ZERO), table.failing(over)),
            (100, 0),
            "nor counted, if nobody comes to remove them"
        );
        let mut dropped = Vec::new();
        while !table.keys.is_empty() {
            table.expire(over, &mut dropped);
        }
        assert_eq!((dropped.len(), table.by_ready.len(), table.by_forget.len()), (100, 0, 0));
        assert!(!table.keys.any_failing_in(1));
    }

    #[test]
    fn who_is_dropped_and_who_is_forgotten_goes_by_the_last_failure_not_the_first() {
        let secs = |secs| Some(Duration::from_secs(secs));
        let id = |object| KeyId { object, facet: 0 };
        let mut table = Table::new(3, 0);
        for (object, after) in [(1, 2), (2, 3), (3, 4)] {
            fail(&mut table, object, 0, secs(after), Moment::ZERO);
        }
        assert_eq!(fail(&mut table, 4, 0, secs(9), Moment::ZERO).1, [id(1)]);
        let left = table.failures;
        fail(&mut table, 2, left, secs(20), Moment::ZERO);
        assert_eq!(fail(&mut table, 5, 0, secs(30), Moment::ZERO).1, [id(3)], "2 has come to wait longer");
        table.forget(id(4), Some(Why::Recovered));
        assert_eq!(fail(&mut table, 6, 0, None, Moment::ZERO).1, [], "there was room");
        assert_eq!(fail(&mut table, 7, 0, secs(40), Moment::ZERO).1, [id(6)]);

        let left = table.failures;
        fail(&mut table, 5, left, None, Moment::from_millis(60_000));
        let mut gone = |at| {
            let mut dropped = Vec::new();
            table.expire(Moment::from_millis(at), &mut dropped);
            dropped
        };
        assert_eq!(gone(119_999), []);
        assert_eq!(gone(120_000), [id(2), id(7)]);
        assert_eq!(gone(179_999), []);
        assert_eq!(gone(180_000), [id(5)]);
    }

    #[test]
    fn a_success_forgets_and_a_deleted_object_forgets_all_its_keys() {
        let mut table = Table::new(1000, 0);
        let mut dropped = Vec::new();
        for facet in 0..3 {
            let key = Key { object: 1, collection: 1, facet };
            let failure = Failure { key, backoff: &BACKOFF, after: None, status: None, left: 0 };
            table.record(&failure, &String::new, Moment::ZERO, &mut dropped);
        }
        table.forget(KeyId { object: 1, facet: 0 }, Some(Why::Recovered));
        assert_eq!(table.keys.len(), 2);
        table.forget_gone_object(1, Moment::ZERO, &mut dropped);
        assert_eq!((table.keys.len(), dropped.len()), (0, 2));
        let why: Vec<Why> = table.take_ended().iter().map(|ended| ended.why).collect();
        assert_eq!((why, table.take_ended()), (vec![Why::Recovered, Why::Gone, Why::Gone], vec![]));
    }

    #[test]
    fn of_what_is_gone_only_a_time_that_the_upstream_named_is_kept_and_only_so_long() {
        let mut table = Table::new(1000, 0);
        let id = |object| KeyId { object, facet: 0 };
        let named = |secs| Some(Duration::from_secs(secs));
        let later = Moment::from_millis(1_000);
        fail(&mut table, 1, 0, None, Moment::ZERO);
        fail(&mut table, 2, 0, named(30), Moment::ZERO);
        fail(&mut table, 3, 0, None, Moment::ZERO);
        for _ in 0..7 {
            let left = table.failures;
            fail(&mut table, 3, left, None, later);
        }
        // It left before the last failure, and what it brings is shorter than the delay that is
        // known.
        fail(&mut table, 3, 0, named(20), later);
        assert_eq!(ready_at(&table, 3, later), Some(Moment::from_millis(61_000)));
        for object in 1..=3 {
            table.forget_gone(id(object), later, &mut Vec::new());
        }
        let ready = [1, 2, 3].map(|object| ready_at(&table, object, later));
        assert_eq!(ready, [None, Some(Moment::from_millis(30_000)), Some(Moment::from_millis(21_000))]);
        let mut over = Vec::new();
        table.expire(Moment::from_millis(20_999), &mut over);
        assert_eq!(over, []);
        table.expire(Moment::from_millis(30_000), &mut over);
        assert_eq!(over, [id(3), id(2)]);
        fail(&mut table, 4, 0, named(5), later);
        table.forget_gone(id(4), Moment::from_millis(6_000), &mut Vec::new());
        assert!(table.keys.is_empty(), "that time is over");
    }

    #[test]
    fn a_key_that_came_to_wait_less_is_dropped_in_its_order() {
        let mut table = Table::new(3, 0);
        for (object, secs) in [(1, 2), (2, 30), (3, 4), (4, 50)] {
            fail(&mut table, object, 0, Some(Duration::from_secs(secs)), Moment::ZERO);
        }
        let mut minute = Duration::ZERO;
        while minute < Duration::from_secs(59) {
            let (left, now) = (table.failures, Moment::ZERO + minute);
            fail(&mut table, 2, left, None, now);
            minute = ready_at(&table, 2, now).expect("it fails") - Moment::ZERO;
        }
        table.forget_gone(KeyId { object: 3, facet: 0 }, Moment::ZERO, &mut Vec::new());
        let (_, dropped) = fail(&mut table, 5, 0, Some(Duration::from_secs(9)), Moment::ZERO);
        assert_eq!(dropped, [KeyId { object: 3, facet: 0 }], "four seconds, whatever its delay was");
    }

    #[test]
    fn who_was_dropped_or_forgotten_is_told_by_name_and_not_without_bound() {
        let mut table = Table::new(3, 0);
        for object in 0..4 {
            fail(&mut table, object, 0, None, Moment::ZERO);
        }
        let ended = |name: &str, why| Ended { name: name.into(), failures: 1, why };
        assert_eq!(table.take_ended(), [ended("key 0", Why::Crowded)]);
        table.expire(Moment::from_millis(120_000), &mut Vec::new());
        let told = table.take_ended();
        assert!(told.len() == 3 && told.contains(&ended("key 3", Why::Old)), "{told:?}");
        for object in 0..1000 {
            fail(&mut table, object, 0, None, Moment::ZERO);
        }
        assert_eq!(table.take_ended().len(), TOLD, "nobody asked");
    }
}
