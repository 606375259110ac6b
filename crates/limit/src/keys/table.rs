//! The writing half of the key table: records failures, and forgets keys when a call succeeds, when
//! their time is over, and when there are too many.
//!
//! Objects are also kept in two orders: by when they may be tried, and by when they are forgotten.
//! Past the limit the first object of the first order is dropped (P9). No operation goes through
//! all keys at once.

use std::sync::Arc;
use std::time::Duration;

use super::{Dice, FailingKey, KeyId, Keys, ObjectChange, Order, Position};
use crate::key::Key;
use crate::moment::Moment;
use crate::{Backoff, KeyEnd, KeyState, Why};

/// The writing half of the key table.
#[derive(Debug, Default)]
pub(crate) struct Table {
    keys: Arc<Keys>,
    by_ready: Order,
    by_forget: Order,
    /// The moment of forgetting the next object; zero while there are too many keys.
    next_expiry: Moment,
    max_keys: usize,
    /// The number of failures recorded so far.
    failures: u64,
    /// The number of changes to the table so far.
    changes: u64,
    last_trial: u32,
    trials_out: usize,
    dice: Dice,
    /// The keys that recovered or were forgotten, until they are read for the logs: at most
    /// [`MOST_ENDED`].
    ended: Vec<KeyEnd>,
}

/// A failure to record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyFailure<'a> {
    pub(crate) key: Key,
    pub(crate) backoff: &'a Backoff,
    /// The time from the upstream's Retry-After header.
    pub(crate) after: Option<Duration>,
    pub(crate) status: Option<u16>,
    /// The number of failures the limiter had recorded when the call was admitted. If the call's
    /// key has failed since, this failure is stale.
    pub(crate) left: u64,
}

// === impl Table ===

impl Table {
    pub(crate) fn new(max_keys: usize, seed: u64) -> Self {
        Self { next_expiry: Moment::MAX, max_keys: max_keys.max(1), dice: Dice(seed), ..Self::default() }
    }

    #[inline]
    pub(crate) fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    /// Returns the number of failures recorded so far. Each call keeps this number when it is
    /// admitted, to tell later whether its outcome is stale.
    #[inline]
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }

    /// Returns the number of changes to the table so far.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the number of calls testing a failing key now.
    pub(crate) fn trials_out(&self) -> usize {
        self.trials_out
    }

    /// Begins to test a failing key with one call, the trial, and returns the trial's number; 0 if
    /// the key is not failing.
    pub(crate) fn begin_trial(&mut self, key: KeyId) -> u32 {
        let trial = self.last_trial.wrapping_add(1).max(1);
        let before = self.keys.change(key, |failing| std::mem::replace(&mut failing.trial, trial));
        let Some(before) = before else { return 0 };
        debug_assert_eq!(before, 0, "one trial at a time");
        self.trials_out += usize::from(before == 0);
        self.last_trial = trial;
        trial
    }

    /// Ends the trial of a key, unless the key was forgotten meanwhile.
    pub(crate) fn end_trial(&mut self, key: KeyId, trial: u32) {
        if self.is_trial(key, trial) {
            self.keys.change(key, |failing| failing.trial = 0);
            self.trials_out = self.trials_out.saturating_sub(1);
        }
    }

    /// Returns true if this is still the number of the key's trial.
    pub(crate) fn is_trial(&self, key: KeyId, trial: u32) -> bool {
        trial != 0 && self.keys.change(key, |failing| failing.trial == trial) == Some(true)
    }

    /// Records a failure of a key, and adds keys dropped to make room to `dropped`. Returns true if
    /// the failure counts or delays the next trial: then the key's queued calls must wait for the
    /// key again.
    #[must_use]
    pub(crate) fn record(
        &mut self,
        failure: &KeyFailure<'_>,
        name: &dyn Fn() -> String,
        now: Moment,
        dropped: &mut Vec<KeyId>,
    ) -> bool {
        let id = KeyId::from(&failure.key);
        let after = failure.after.map_or(Moment::ZERO, |after| now + after);
        let known = self.keys.change(id, |known| {
            known.named = known.named.max(after);
            (known.state, failure.left < known.number, known.forget_at)
        });
        match known {
            Some((_, _, forget_at)) if forget_at <= now => self.forget(id, Some(Why::Old)),
            Some((state, true, _)) => {
                if after <= state.ready_at {
                    return false;
                }
                let state = KeyState { ready_at: after, ..state };
                self.put(id, state, forgotten(&state, failure.backoff));
                return true;
            }
            _ => {}
        }
        let known = known.filter(|(_, _, forget_at)| *forget_at > now).map(|(state, _, _)| state);
        let state = self.state_after(failure, known, after, now);
        self.failures += 1;
        let forget_at = forgotten(&state, failure.backoff);
        let number = self.failures;
        if known.is_some() {
            self.change(id, |failing| {
                failing.state = state;
                failing.forget_at = forget_at;
                failing.number = number;
                if failing.name.is_empty() {
                    failing.name = name().into();
                }
            });
        } else {
            // After a lower limit this takes several operations.
            self.drop_down_to(self.max_keys - 1, dropped);
            let Key { collection, facet, .. } = failure.key;
            let name = name().into();
            let failing = FailingKey { facet, collection, name, state, named: after, forget_at, number, trial: 0 };
            self.add(id.object, failing);
        }
        true
    }

    /// Returns the state of a key after one more failure. `after` is a time named by the upstream.
    fn state_after(
        &mut self,
        failure: &KeyFailure<'_>,
        known: Option<KeyState>,
        after: Moment,
        now: Moment,
    ) -> KeyState {
        let failures = known.map_or(0, |known| known.failures).saturating_add(1);
        let rolled = failure.backoff.strategy.rolled_delay(failures, &mut self.dice);
        let delay = rolled.min(failure.key.longest_delay());
        let earliest = known.map_or(Moment::ZERO, |known| known.ready_at);
        let ready_at = (now + delay).max(after).max(earliest);
        KeyState { failures, last_status: failure.status, last_failure: now, ready_at }
    }

    /// Remembers a key until this moment at least, if it is failing.
    pub(crate) fn keep(&mut self, key: KeyId, until: Moment) {
        self.change(key, |failing| failing.forget_at = failing.forget_at.max(until));
    }

    /// Forgets a key if it is failing. Without a `why` nothing is logged, because an operator asked
    /// for it.
    pub(crate) fn forget(&mut self, key: KeyId, why: Option<Why>) {
        let removed = self.keys.remove(key);
        let Some(failing) = self.reorder(key.object, removed) else { return };
        self.trials_out = self.trials_out.saturating_sub(usize::from(failing.trial != 0));
        if let Some(why) = why.filter(|_| self.ended.len() < MOST_ENDED) {
            let name = failing.label(key.object).into();
            self.ended.push(KeyEnd { name, failures: failing.state.failures, why });
        }
    }

    /// Returns the keys that have recovered or were forgotten since the last call.
    pub(crate) fn take_ended(&mut self) -> Vec<KeyEnd> {
        std::mem::take(&mut self.ended)
    }

    /// Forgets the failures of a key, because its object is gone, and adds it to `dirty_keys`.
    ///
    /// A time that the upstream named stays: otherwise a controller that deletes and creates again
    /// would call too early again and again (P2).
    pub(crate) fn forget_gone(&mut self, id: KeyId, now: Moment, dirty_keys: &mut Vec<KeyId>) {
        let known = self.keys.change(id, |failing| (failing.state, failing.named, failing.forget_at));
        let Some((state, named, forget_at)) = known else { return };
        dirty_keys.push(id);
        if named.min(forget_at) <= now {
            return self.forget(id, Some(Why::Gone));
        }
        self.put(id, KeyState { failures: 1, ready_at: named, ..state }, named);
    }

    /// Does the same as [`Self::forget_gone`] for every key of an object.
    pub(crate) fn forget_gone_object(&mut self, object: u64, now: Moment, dirty_keys: &mut Vec<KeyId>) {
        let mut facets = Vec::new();
        self.keys.each(object, |failing| facets.push(failing.facet));
        for facet in facets {
            self.forget_gone(KeyId { object, facet }, now, dirty_keys);
        }
    }

    /// Forgets expired keys, drops keys past the limit, and adds all of these to `dropped`. Each
    /// call of this function handles only a few, so that no operation takes long.
    pub(crate) fn expire(&mut self, now: Moment, dropped: &mut Vec<KeyId>) {
        for _ in 0..EXPIRED_AT_ONCE {
            if self.by_forget.first().is_none_or(|first| first.at > now) {
                break;
            }
            let first = self.first(&self.by_forget, |failing| failing.forget_at);
            self.drop_key(first, Why::Old, dropped);
        }
        self.drop_down_to(self.max_keys, dropped);
    }

    /// Returns true if `expire` would do something.
    #[inline]
    pub(crate) fn has_expired(&self, now: Moment) -> bool {
        self.next_expiry <= now
    }

    /// Returns the number of failing keys, leaving out expired ones. If thousands expire at one
    /// moment, some are still counted until they are forgotten.
    pub(crate) fn failing(&self, now: Moment) -> usize {
        let mut over = 0;
        for position in self.by_forget.iter().take_while(|position| position.at <= now).take(MOST_COUNTED) {
            self.keys.each(position.object, |failing| over += usize::from(failing.forget_at <= now));
        }
        self.keys.len().saturating_sub(over)
    }

    /// Returns the failing keys that may be tried soonest, at most `most`, with their names. Up to
    /// some hundreds of expired keys are skipped.
    pub(crate) fn next_tried(&self, most: usize, now: Moment) -> Vec<(String, Key, KeyState)> {
        let mut found: Vec<(String, Key, KeyState)> = Vec::new();
        for Position { object, .. } in self.by_ready.iter().take(LOOKED_AT) {
            self.keys.each(object, |failing| {
                if failing.forget_at > now {
                    found.push(failing.shown(object));
                }
            });
        }
        found.sort_by(|(one, _, this), (other, _, that)| (this.ready_at, one).cmp(&(that.ready_at, other)));
        found.truncate(most);
        found
    }

    /// Calls `read` for the keys of the next few objects before a position, those with the longest
    /// wait first. Returns the position to continue at, if there may be more.
    pub(crate) fn read_some(
        &self,
        place: Option<Position>,
        mut read: impl FnMut(u64, &FailingKey),
    ) -> Option<Position> {
        let positions: Vec<_> = self.by_ready.before(place).take(WALKED_AT_ONCE).collect();
        for Position { object, .. } in &positions {
            self.keys.each(*object, |failing| read(*object, failing));
        }
        positions.last().copied().filter(|_| positions.len() == WALKED_AT_ONCE)
    }

    /// Adds a failing key saved before a restart, unless it is in the table already or the table is
    /// full. The name is empty if it is not known.
    pub(crate) fn restore(&mut self, key: Key, name: Box<str>, state: KeyState, named: Moment, forget_at: Moment) {
        let is_there = self.keys.change(KeyId::from(&key), |_| ()).is_some();
        if is_there || self.keys.len() >= self.max_keys {
            return;
        }
        let Key { object, collection, facet } = key;
        let failing = FailingKey { facet, collection, name, state, named, forget_at, number: 0, trial: 0 };
        self.add(object, failing);
    }

    fn add(&mut self, object: u64, failing: FailingKey) {
        let added = self.keys.add(object, failing);
        self.reorder(object, added);
    }

    /// Sets a new limit. Keys past it are dropped a few at a time.
    pub(crate) fn set_max_keys(&mut self, max_keys: usize) {
        self.max_keys = max_keys.max(1);
        self.set_next_expiry();
    }

    fn set_next_expiry(&mut self) {
        let first = self.by_forget.first().map_or(Moment::MAX, |first| first.at);
        self.next_expiry = if self.keys.len() > self.max_keys { Moment::ZERO } else { first };
    }

    fn drop_down_to(&mut self, most: usize, dropped: &mut Vec<KeyId>) {
        for _ in 0..EXPIRED_AT_ONCE {
            if self.keys.len() <= most {
                return;
            }
            let first = self.first(&self.by_ready, |failing| failing.state.ready_at);
            self.drop_key(first, Why::Crowded, dropped);
        }
    }

    /// Returns the first key in an order of objects: of the first object's keys, the one with the
    /// earliest `time`.
    fn first(&self, order: &Order, time: fn(&FailingKey) -> Moment) -> Option<KeyId> {
        self.keys.earliest(order.first()?.object, time)
    }

    fn drop_key(&mut self, key: Option<KeyId>, why: Why, dropped: &mut Vec<KeyId>) {
        if let Some(key) = key {
            self.forget(key, Some(why));
            dropped.push(key);
        }
    }

    fn put(&mut self, id: KeyId, state: KeyState, forget_at: Moment) {
        self.change(id, |failing| {
            failing.state = state;
            failing.forget_at = forget_at;
        });
    }

    /// Changes a key, if it is failing.
    fn change(&mut self, id: KeyId, change: impl FnOnce(&mut FailingKey)) {
        let changed = self.keys.change_object(id.object, |keys| {
            keys.iter_mut().find(|failing| failing.facet == id.facet).map(change);
        });
        self.reorder(id.object, changed);
    }

    /// Moves an object to its new positions after a change of its keys.
    fn reorder<T>(&mut self, object: u64, change: ObjectChange<T>) -> T {
        let ObjectChange { result, before, after } = change;
        self.changes += 1;
        self.by_ready.change(object, before.map(|times| times.ready_at), after.map(|times| times.ready_at));
        self.by_forget.change(object, before.map(|times| times.forget_at), after.map(|times| times.forget_at));
        self.set_next_expiry();
        result
    }
}

/// Returns when to forget a key: not before it may be tried again, or a long
/// Retry-After would be forgotten before it is over (P2).
fn forgotten(state: &KeyState, backoff: &Backoff) -> Moment {
    (state.last_failure + backoff.forget_after).max(state.ready_at)
}

/// The most keys forgotten in one operation: more than an operation can add, so the table stays
/// bounded.
const EXPIRED_AT_ONCE: usize = 16;
/// The number of objects in one step of a walk over all failing keys. With their names compared and
/// forgotten, a step takes a tenth of a millisecond.
const WALKED_AT_ONCE: usize = 64;
/// The most expired objects to subtract from the number of failing keys; counting more would take
/// too long.
const MOST_COUNTED: usize = 4000;
/// The most objects to look at to find a few for the status page.
const LOOKED_AT: usize = 300;
/// The most ended keys to keep for the logs. A simulation never reads them, so they must be
/// bounded.
const MOST_ENDED: usize = 64;

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

    fn fail(table: &mut Table, object: u64, left: u64, after: Option<Duration>, now: Moment) -> (bool, Vec<KeyId>) {
        let mut dropped = Vec::new();
        let failure = KeyFailure { key: key(object), backoff: &BACKOFF, after, status: Some(500), left };
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
        assert!(fail(&mut table, 1, left, None, now).0);
        for _ in 0..10 {
            assert!(!fail(&mut table, 1, left, None, now + Duration::from_millis(5)).0);
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
        assert!(fail(&mut table, 1, 0, Some(Duration::from_secs(300)), late).0);
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
        assert_eq!((table.by_forget.len(), table.by_ready.len()), (3, 3), "the orders grow");
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
            let failure = KeyFailure { key, backoff: &BACKOFF, after: None, status: None, left: 0 };
            assert!(table.record(&failure, &String::new, Moment::ZERO, &mut dropped));
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
        let ended = |name: &str, why| KeyEnd { name: name.into(), failures: 1, why };
        assert_eq!(table.take_ended(), [ended("key 0", Why::Crowded)]);
        table.expire(Moment::from_millis(120_000), &mut Vec::new());
        let told = table.take_ended();
        assert!(told.len() == 3 && told.contains(&ended("key 3", Why::Old)), "{told:?}");
        for object in 0..1000 {
            fail(&mut table, object, 0, None, Moment::ZERO);
        }
        assert_eq!(table.take_ended().len(), MOST_ENDED, "nobody asked");
    }
}
