//! The key stage: the check of each call before it enters a queue. Calls of failing keys wait here.
//!
//! At most one call of a failing key, its trial, is past this stage at a time (P3). Where writes go
//! one at a time, at most one write of each key is past it, whether the key fails or not.

use std::collections::HashSet;
use std::sync::Arc;

use super::{
    Arrival, AtKey, BucketId, CallFacts, Cause, ClassId, Combine, FailingKey, KeyEnd, KeyFailure, KeyGrant, KeyId,
    KeyState, KeyView, Keys, Lane, Origins, Policy, Position, Queues, Reason, Reservation, Resources, Rules, Spread,
    Strategy, Table, Why, Work,
};
use crate::key::Key;
use crate::moment::Moment;
use crate::outcome::{Answer, Outcome, Removal};
use crate::sketch::Sketch;

/// The failing keys, and the keys with a write in progress.
#[derive(Debug)]
pub(crate) struct KeyStage {
    table: Table,
    /// The keys with a write queued or in flight, where writes go one at a time. A DELETE counts
    /// under the same key as other writes ([`KeyId::written`]).
    writes: HashSet<KeyId, Spread>,
    /// How often each object was called lately, for classes with a rate per object (`per_key`).
    objects: Sketch,
}

/// An upstream answer to a call, and what is needed to apply it to the call's key.
#[derive(Clone, Copy, derive_more::Debug)]
pub(crate) struct KeyAnswer<'a> {
    pub(crate) key: Key,
    pub(crate) class: ClassId,
    /// The number of failures the limiter had recorded when the call was admitted. If the call's
    /// key has failed since, the answer is stale.
    pub(crate) left: u64,
    pub(crate) answer: Answer,
    /// Makes the key's readable name. It is called only if the key starts to fail.
    #[debug(skip)]
    pub(crate) name: &'a dyn Fn() -> String,
}

// === impl KeyStage ===

impl KeyStage {
    pub(crate) fn new(max_keys: usize, seed: u64) -> Self {
        Self { table: Table::new(max_keys, seed), writes: HashSet::default(), objects: Sketch::default() }
    }

    #[inline]
    pub(crate) fn keys(&self) -> &Arc<Keys> {
        self.table.keys()
    }

    #[inline]
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the failure state of a call's key; `None` if the key's last call did not fail.
    #[inline]
    pub(crate) fn view(&self, call: &CallFacts, now: Moment) -> Option<KeyView> {
        self.keys().view(call.key.as_ref()?, now)
    }

    /// Returns true if no call is testing a failing key, and no write excludes other writes of its
    /// key.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.writes.is_empty() && self.table.trials_out() == 0
    }

    /// Returns the number of keys with a write queued or in flight, where writes go one at a time.
    pub(crate) fn writes(&self) -> usize {
        self.writes.len()
    }

    /// Returns whether, why and until when an arriving call must wait for its key.
    pub(crate) fn at_key(
        &self,
        call: &CallFacts,
        rules: &Rules,
        queues: &Queues,
        resources: &mut Resources,
        now: Moment,
    ) -> AtKey {
        let Some(key) = &call.key else { return AtKey::healthy(false, now) };
        let id = KeyId::from(key);
        let alone = rules.goes_alone(call);
        let busy = alone && self.writes.contains(&id.written());
        let Some(view) = self.keys().view(key, now) else {
            return AtKey::healthy(busy || alone && queues.first_held(id).is_some(), now);
        };
        let reserve = if rules.reserves(call) { resources.retry_bucket(&call.demand, now) } else { None };
        let reserved_at = reserve.map(|bucket| resources.buckets.ready_at(bucket, now));
        let token_at = reserved_at.or_else(|| last_token_kept_until(call, &view.state, rules, resources, now));
        let tried = view.trial != 0 || queues.first_held(id).is_some();
        AtKey { reserve, ..AtKey::failing(view.state, tried, busy, token_at, now) }
    }

    /// Refuses a call if its object was called more often than its class allows (`per_key`, step 5
    /// of the order of refusals).
    ///
    /// A call that is not refused takes a token of its object. A call of a failing key takes none,
    /// because its backoff is slower; nor does a call whose object is known only from its body.
    #[inline(never)]
    pub(crate) fn per_key(&mut self, arrival: &Arrival<'_>, rules: &Rules, now: Moment) -> Result<(), Cause> {
        let class = rules.policy().classes.get(usize::from(arrival.class.0));
        let pace = class.and_then(|class| class.per_key).filter(|per_key| per_key.enforce);
        let Some(pace) = pace.and_then(|per_key| per_key.pace(arrival.reads)) else { return Ok(()) };
        let known = arrival.key.filter(|key| !arrival.key_in_body && !key.is_collection_read());
        let Some(key) = known.filter(|key| self.keys().view(key, now).is_none()) else { return Ok(()) };
        let taken = self.objects.take(rules.counted_as(&key, arrival), pace, now);
        taken.map_err(|retry_at| Cause::new(Reason::PerKey, retry_at))
    }

    /// Returns when calls of an object have their full burst again; `None` if they have it now or
    /// are not counted.
    pub(crate) fn object_full_at(&self, object: u64) -> Option<Moment> {
        self.objects.full_at(object)
    }

    /// Undoes the counting of calls of an object since [`Self::object_full_at`] was read. Used
    /// after a preview.
    pub(crate) fn restore_object(&mut self, object: u64, full_at: Option<Moment>) {
        self.objects.restore(object, full_at);
    }

    /// Converts the calls counted for each object to the new rates per object, after a reload.
    pub(crate) fn carry_paces_over(&mut self, rules: &Rules, policy: &Policy, origins: &Origins, now: Moment) {
        for (id, class) in (0..).map(ClassId).zip(&policy.classes) {
            let origin = origins.get(id).copied().flatten();
            let old = origin.and_then(|origin| rules.policy().classes.get(usize::from(origin.0))?.per_key);
            for reads in [false, true] {
                let new = class.per_key.and_then(|per_key| per_key.pace(reads));
                let old = old.and_then(|per_key| per_key.pace(reads)).filter(|old| new != Some(*old));
                if let Some((old, serial)) = old.zip(rules.serial(id)) {
                    self.objects.carry_over(serial, reads, old, new, now);
                }
            }
        }
    }

    /// Returns true if a call is a write and must wait until another write of its key is over.
    pub(crate) fn waits_for_write(&self, call: &CallFacts, rules: &Rules) -> bool {
        rules.goes_alone(call) && call.key_id().is_some_and(|key| self.writes.contains(&key.written()))
    }

    /// Records a call as the only write in progress of its key. Returns false, and records nothing,
    /// if other calls of the key may be in progress at the same time.
    pub(crate) fn begin_write(&mut self, call: &CallFacts, rules: &Rules) -> bool {
        let key = call.key_id().filter(|_| rules.goes_alone(call));
        key.is_some_and(|key| {
            let is_only = self.writes.insert(key.written());
            debug_assert!(is_only, "one write at a time");
            is_only
        })
    }

    /// Lets a call test its failing key. Returns the number of this test (the trial); 0 if the key
    /// is not failing.
    pub(crate) fn begin_trial(&mut self, call: &CallFacts) -> u32 {
        call.key_id().map_or(0, |key| self.table.begin_trial(key))
    }

    /// Lets a call continue past its key, and reserves its retry token if configured. The call
    /// becomes the one testing a failing key (the trial), and the only write of its key where
    /// writes go one at a time.
    #[inline]
    pub(crate) fn begin_grant(
        &mut self,
        call: &CallFacts,
        at_key: &AtKey,
        rules: &Rules,
        resources: &mut Resources,
        now: Moment,
    ) -> KeyGrant {
        if at_key.state.is_none() && !rules.policy().one_at_a_time {
            return KeyGrant::default();
        }
        self.take_key(call, at_key, rules, resources, now)
    }

    #[inline(never)]
    fn take_key(
        &mut self,
        call: &CallFacts,
        at_key: &AtKey,
        rules: &Rules,
        resources: &mut Resources,
        now: Moment,
    ) -> KeyGrant {
        let trial = if at_key.state.is_some() { self.begin_trial(call) } else { 0 };
        KeyGrant { trial, reserved: reserve(at_key.reserve, resources, now), alone: self.begin_write(call, rules) }
    }

    /// Revokes the permission from [`Self::begin_grant`]. Keys whose waiting calls may now continue
    /// are marked for review in `work`.
    pub(crate) fn end_grant(
        &mut self,
        key: Option<KeyId>,
        key_grant: KeyGrant,
        resources: &mut Resources,
        work: &mut Work,
    ) {
        if let Some(reserved) = key_grant.reserved {
            resources.give_back_token(reserved.bucket, reserved.number);
        }
        let Some(key) = key else { return };
        if key_grant.alone {
            self.writes.remove(&key.written());
            // The last is reviewed first: a waiting delete has its turn after a write, and a write
            // after a delete.
            work.dirty_keys.extend([key, key.neighbour()]);
        }
        if key_grant.trial != 0 {
            self.table.end_trial(key, key_grant.trial);
            work.dirty_keys.push(key);
        }
    }

    /// Applies an answer to its key. Returns true if the key now fails, so that its calls already
    /// in queues must return to the key stage.
    pub(crate) fn learn(&mut self, of: &KeyAnswer<'_>, rules: &Rules, work: &mut Work, now: Moment) -> bool {
        let KeyAnswer { key, class, left, answer, name } = *of;
        let id = KeyId::from(&key);
        let after = match answer.outcome {
            Outcome::Failure => None,
            Outcome::Throttled { after } => Some(after),
            Outcome::Success | Outcome::Abandoned | Outcome::Neutral => {
                if answer.outcome == Outcome::Success {
                    self.table.forget(id, Some(Why::Recovered));
                    work.dirty_keys.push(id);
                }
                match answer.gone {
                    Removal::Nothing => {}
                    Removal::Key => self.table.forget_gone(id, now, &mut work.dirty_keys),
                    Removal::Object => self.table.forget_gone_object(id.object, now, &mut work.dirty_keys),
                }
                return false;
            }
        };
        let class = rules.policy().class(class);
        if class.lane == Lane::Exempt || class.backoff.strategy == Strategy::Off {
            return false;
        }
        let failure = KeyFailure { key, backoff: &class.backoff, after, status: answer.status, left };
        self.table.record(&failure, name, now, &mut work.dirty_keys)
    }

    /// Remembers a failing key for longer, because one of its calls was refused for lack of a retry
    /// token.
    ///
    /// A key cannot fail again without a call, so the time until it is forgotten starts anew.
    /// Otherwise rarely tried objects would count as healthy again, and the retry bucket would no
    /// longer limit them.
    #[inline(never)]
    pub(crate) fn pass_over(&mut self, call: &CallFacts, rules: &Rules, resources: &mut Resources, now: Moment) {
        let Some((key, view)) = call.key_id().zip(self.view(call, now)) else { return };
        self.table.keep(key, now + rules.class(call).backoff.forget_after);
        if let Some(bucket) = resources.retry_bucket(&call.demand, now) {
            resources.buckets.pass_over(bucket, view.state, now);
        }
    }

    /// Forgets a few expired keys, and keys beyond `max_keys`. They are marked for
    /// review in `work`.
    pub(crate) fn expire(&mut self, work: &mut Work, now: Moment) {
        self.table.expire(now, &mut work.dirty_keys);
    }

    /// Looks at the next few failing keys, forgets those accepted by `is_meant`, and marks them for
    /// review. Returns the number of forgotten keys. `place` is the position to continue from;
    /// `None` at the end.
    pub(crate) fn forget_some(
        &mut self,
        place: &mut Option<Position>,
        is_meant: impl Fn(&str, &KeyState) -> bool,
        work: &mut Work,
    ) -> usize {
        let before = work.dirty_keys.len();
        *place = self.table.read_some(*place, |object, failing: &FailingKey| {
            if is_meant(&failing.label(object), &failing.state) {
                work.dirty_keys.push(KeyId { object, facet: failing.facet });
            }
        });
        let meant = work.dirty_keys.get(before..).unwrap_or_default();
        meant.iter().for_each(|key| self.table.forget(*key, None));
        meant.len()
    }

    /// Returns the keys that have recovered or were forgotten since the last call.
    pub(crate) fn take_ended(&mut self) -> Vec<KeyEnd> {
        self.table.take_ended()
    }

    pub(crate) fn set_max_keys(&mut self, max_keys: usize) {
        self.table.set_max_keys(max_keys);
    }

    /// Adds a failing key saved before a restart. Until `named`, the upstream wants no call of the
    /// key.
    pub(crate) fn restore(&mut self, key: Key, name: Box<str>, state: KeyState, named: Moment, forget_at: Moment) {
        self.table.restore(key, name, state, named, forget_at);
    }
}

/// Returns when a call waiting for its key can have a retry token: the reserved one, or one not
/// kept for another key. `None` if nothing delays the token.
pub(crate) fn token_at(
    call: &CallFacts,
    key: &KeyState,
    reserved: Option<Reservation>,
    rules: &Rules,
    resources: &mut Resources,
    now: Moment,
) -> Option<Moment> {
    reserved.map(|reserved| reserved.at).or_else(|| last_token_kept_until(call, key, rules, resources, now))
}

/// Returns until when the retry bucket's last token is kept for another key; `None` if it is not.
/// The other key has been tried less often, and its last try is longer ago.
///
/// Without this rule the order in which a controller tries its objects would decide: if the same
/// objects come at each token, only they are tried, and the backoff of all other objects outlasts
/// the outage.
#[inline]
fn last_token_kept_until(
    call: &CallFacts,
    key: &KeyState,
    rules: &Rules,
    resources: &mut Resources,
    now: Moment,
) -> Option<Moment> {
    // Nearly always, the key is tried during its backoff.
    if key.ready_at > now || !rules.is_metered(call) || rules.policy().queue.combine != Combine::Sequential {
        return None;
    }
    let bucket = resources.retry_bucket(&call.demand, now)?;
    resources.buckets.get(bucket)?.bucket.last_token_kept_until(key, now)
}

/// Reserves the next token of a retry bucket.
pub(crate) fn reserve(bucket: Option<BucketId>, resources: &mut Resources, now: Moment) -> Option<Reservation> {
    let bucket = bucket?;
    let (at, number) = resources.buckets.reserve(bucket, now);
    Some(Reservation { bucket, number, at })
}
