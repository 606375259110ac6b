//! The writing half of the key table: failures recorded, keys forgotten, expired and, past the limit, dropped.
//!
//! Two orders are kept beside the table: by what is left to wait (the first is dropped when there are too many, P9) and by when a key is
//! forgotten. Both make every operation O(log n).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{
    backoff::Dice,
    keys::{Failing, Keys},
    policy::Backoff,
    verdict::{Ended, KeyState, Why},
};
use crate::{api::Key, moment::Moment};

/// A key without its collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct KeyId {
    pub(super) object: u64,
    pub(super) facet: u64,
}

/// The writing half of the key table.
#[derive(Debug)]
pub(super) struct Table {
    keys: Arc<Keys>,
    by_ready: BTreeSet<(Moment, KeyId)>,
    by_forget: BTreeSet<(Moment, KeyId)>,
    max_keys: usize,
    /// Failures recorded so far.
    failures: u64,
    /// Trials begun so far.
    trials: u64,
    /// Trials that are out.
    out: usize,
    dice: Dice,
    /// Keys that do not fail any more, until they are taken; not more than a few.
    ended: Vec<Ended>,
}

/// A failure, as it is written down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure<'a> {
    pub(super) key: Key,
    pub(super) backoff: &'a Backoff,
    /// The upstream's own Retry-After.
    pub(super) after: Option<Duration>,
    pub(super) status: Option<u16>,
    /// How many failures were recorded when the call left.
    pub(super) left: u64,
}

/// What recording a failure did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    /// It counted, or it brought a later time: nothing of the key may leave as things stood before.
    Changed,
    /// It was known already.
    Stale,
}

// === impl KeyId ===

impl From<&Key> for KeyId {
    fn from(key: &Key) -> Self {
        Self { object: key.object, facet: key.facet }
    }
}

// === impl Table ===

impl Table {
    pub(super) fn new(max_keys: usize, seed: u64) -> Self {
        Self {
            keys: Arc::new(Keys::new()),
            by_ready: BTreeSet::new(),
            by_forget: BTreeSet::new(),
            max_keys: max_keys.max(1),
            failures: 0,
            trials: 0,
            out: 0,
            dice: Dice::new(seed),
            ended: Vec::new(),
        }
    }

    pub(super) fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    /// How many failures were recorded: what a call that leaves now knows of.
    pub(super) fn failures(&self) -> u64 {
        self.failures
    }

    /// Keys whose trial is out.
    pub(super) fn trials_out(&self) -> usize {
        self.out
    }

    /// Marks a key's trial as out; 0 when the key does not fail.
    pub(super) fn begin_trial(&mut self, key: KeyId) -> u64 {
        let trial = self.trials + 1;
        let before = self.keys.change(key.object, key.facet, |failing| std::mem::replace(&mut failing.trial, trial));
        let Some(before) = before else { return 0 };
        debug_assert_eq!(before, 0, "one trial at a time");
        self.out += usize::from(before == 0);
        self.trials = trial;
        trial
    }

    /// Frees a key's trial. Nothing happens when it is not that one (the key was forgotten meanwhile).
    pub(super) fn end_trial(&mut self, key: KeyId, trial: u64) {
        let ended = self.keys.change(key.object, key.facet, |failing| {
            let ended = failing.trial == trial;
            failing.trial = if ended { 0 } else { failing.trial };
            ended
        });
        self.out -= usize::from(ended == Some(true) && self.out > 0);
    }

    /// Whether this trial is still the key's.
    pub(super) fn is_trial(&self, key: KeyId, trial: u64) -> bool {
        trial != 0 && self.keys.change(key.object, key.facet, |failing| failing.trial == trial) == Some(true)
    }

    /// Writes a failure down. Keys that had to go for it are added to `dropped`.
    pub(super) fn record(
        &mut self,
        failure: &Failure<'_>,
        name: &dyn Fn() -> String,
        now: Moment,
        dropped: &mut Vec<KeyId>,
    ) -> Recorded {
        let id = KeyId::from(&failure.key);
        let after = failure.after.map_or(Moment::ZERO, |after| now + after);
        let known = self.keys.change(id.object, id.facet, |known| (known.state, known.generation, known.forget_at));
        match known {
            Some((_, _, forget_at)) if forget_at <= now => self.forget(id, Some(Why::Old)),
            Some((state, generation, _)) if failure.left < generation => {
                if after <= state.ready_at {
                    return Recorded::Stale;
                }
                self.update(id, KeyState { ready_at: after, ..state }, failure.backoff, generation);
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
        if known.is_none() {
            self.make_room(dropped);
            self.insert(failure.key, state, name());
        }
        self.update(id, state, failure.backoff, self.failures);
        Recorded::Changed
    }

    /// Forgets a key, if it fails. Without a `why` nobody is told: whoever asked for it knows.
    pub(super) fn forget(&mut self, key: KeyId, why: Option<Why>) {
        if let Some(failing) = self.keys.remove(key.object, key.facet) {
            self.by_ready.remove(&(failing.state.ready_at, key));
            self.by_forget.remove(&(failing.forget_at, key));
            self.out -= usize::from(failing.trial != 0 && self.out > 0);
            if let Some(why) = why.filter(|_| self.ended.len() < TOLD) {
                self.ended.push(Ended { name: failing.name, why });
            }
        }
    }

    /// What has ended since this was asked last.
    pub(super) fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// Forgets every key of an object; adds them to `dropped`.
    pub(super) fn forget_object(&mut self, object: u64, dropped: &mut Vec<KeyId>) {
        for facet in self.keys.facets(object) {
            let id = KeyId { object, facet };
            self.forget(id, Some(Why::Gone));
            dropped.push(id);
        }
    }

    /// Forgets keys whose time is over, a few at a time so that no operation pays for all of them; adds them to `dropped`.
    pub(super) fn expire(&mut self, now: Moment, dropped: &mut Vec<KeyId>) {
        for _ in 0..EXPIRED_AT_ONCE {
            let Some(&(_, id)) = self.by_forget.first().filter(|(at, _)| *at <= now) else { return };
            self.forget(id, Some(Why::Old));
            dropped.push(id);
        }
    }

    /// How many keys fail: without those whose time is over, which go with the next operations.
    pub(super) fn failing(&self, now: Moment) -> usize {
        let over = self.by_forget.iter().take_while(|(at, _)| *at <= now).count();
        self.keys.len().saturating_sub(over)
    }

    /// A new limit; keys past it are added to `dropped`.
    pub(super) fn set_max_keys(&mut self, max_keys: usize, dropped: &mut Vec<KeyId>) {
        self.max_keys = max_keys.max(1);
        while self.keys.len() > self.max_keys {
            self.drop_first(dropped);
        }
    }

    fn make_room(&mut self, dropped: &mut Vec<KeyId>) {
        while self.keys.len() >= self.max_keys {
            self.drop_first(dropped);
        }
    }

    fn drop_first(&mut self, dropped: &mut Vec<KeyId>) {
        let Some(&(_, id)) = self.by_ready.first() else { return };
        self.forget(id, Some(Why::Crowded));
        dropped.push(id);
    }

    fn insert(&mut self, key: Key, state: KeyState, name: String) {
        let failing = Failing {
            facet: key.facet,
            collection: key.collection,
            name: name.into_boxed_str(),
            state,
            forget_at: Moment::MAX,
            generation: 0,
            trial: 0,
        };
        let id = KeyId::from(&key);
        self.by_ready.insert((state.ready_at, id));
        self.by_forget.insert((Moment::MAX, id));
        self.keys.add(key.object, failing);
    }

    fn update(&mut self, id: KeyId, state: KeyState, backoff: &Backoff, generation: u64) {
        // Not before it may leave again, or a long Retry-After would be forgotten before it is over (P2).
        let forget_at = (state.last_failure + backoff.forget_after).max(state.ready_at);
        let before = self.keys.change(id.object, id.facet, |failing| {
            let before = (failing.state.ready_at, failing.forget_at);
            failing.state = state;
            failing.forget_at = forget_at;
            failing.generation = generation;
            before
        });
        if let Some((ready_at, forgotten_at)) = before {
            self.by_ready.remove(&(ready_at, id));
            self.by_ready.insert((state.ready_at, id));
            self.by_forget.remove(&(forgotten_at, id));
            self.by_forget.insert((forget_at, id));
        }
    }
}

/// Per operation that looks; more than one operation can add, so the table cannot grow behind it.
const EXPIRED_AT_ONCE: usize = 16;
/// Ends that are kept for whoever asks; in a simulation nobody does.
const TOLD: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::policy::Strategy;

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
        let left = table.failures();
        assert_eq!(fail(&mut table, 1, left, None, now).0, Recorded::Changed);
        for _ in 0..10 {
            assert_eq!(fail(&mut table, 1, left, None, now + Duration::from_millis(5)).0, Recorded::Stale);
        }
        assert_eq!(ready_at(&table, 1, now), Some(now + Duration::from_secs(1)));
        let later = now + Duration::from_secs(1);
        let left = table.failures();
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
        assert_eq!((table.keys.len(), table.by_ready.len(), table.by_forget.len()), (3, 3, 3));
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
        table.forget_object(1, &mut dropped);
        assert_eq!((table.keys.len(), dropped.len()), (0, 2));
        let why: Vec<Why> = table.take_ended().iter().map(|ended| ended.why).collect();
        assert_eq!((why, table.take_ended()), (vec![Why::Recovered, Why::Gone, Why::Gone], vec![]));
    }

    #[test]
    fn who_was_dropped_or_forgotten_is_told_by_name_and_not_without_bound() {
        let mut table = Table::new(3, 0);
        for object in 0..4 {
            fail(&mut table, object, 0, None, Moment::ZERO);
        }
        let ended = |name: &str, why| Ended { name: name.into(), why };
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
