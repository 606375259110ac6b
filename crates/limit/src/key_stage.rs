//! The key stage: what each key allows of its calls, without a place in a queue.
//!
//! At most one trial is past this stage at a time (P3). Where writes go one at a time, one write
//! is past it, whether the key fails or not.

use std::collections::HashSet;
use std::sync::Arc;

use super::{
    Arrival, AtKey, BucketId, Call, Cause, ClassId, Combine, KeyGrant, KeyId, KeyState, Keys, Origins, Policy, Reason,
    Reserved, Resources, Rules, Spread, Table, View, Waiting, Work,
};
use crate::moment::Moment;
use crate::sketch::Sketch;

/// What is remembered of keys, and which of their calls are past the stage.
#[derive(Debug)]
pub(crate) struct KeyStage {
    /// The failing keys.
    pub(crate) table: Table,
    /// Keys (as [`KeyId::written`]) of which a write is past the stage, where only one may be.
    writes: HashSet<KeyId, Spread>,
    /// The latest calls of each object, where a class enforces a rate per object.
    objects: Sketch,
}

// === impl KeyStage ===

impl KeyStage {
    pub(crate) fn new(max_keys: usize, seed: u64) -> Self {
        Self { table: Table::new(max_keys, seed), writes: HashSet::default(), objects: Sketch::default() }
    }

    #[inline]
    pub(crate) fn keys(&self) -> &Arc<Keys> {
        &self.table.keys
    }

    /// Returns the state of a call's key, if it is failing.
    #[inline]
    pub(crate) fn view(&self, call: &Call, now: Moment) -> Option<View> {
        self.keys().view(call.key.as_ref()?, now)
    }

    /// True if no call is past the stage that another waits for.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.writes.is_empty() && self.table.trials_out == 0
    }

    /// Returns the number of keys of which a write is past the stage.
    pub(crate) fn writes(&self) -> usize {
        self.writes.len()
    }

    /// Asks the key of a call that arrives.
    pub(crate) fn at_key(
        &self,
        call: &Call,
        rules: &Rules,
        waiting: &Waiting,
        resources: &mut Resources,
        now: Moment,
    ) -> AtKey {
        let Some(key) = &call.key else { return AtKey::healthy(false, now) };
        let id = KeyId::from(key);
        let alone = rules.goes_alone(call);
        let busy = alone && self.writes.contains(&id.written());
        let Some(view) = self.keys().view(key, now) else {
            return AtKey::healthy(busy || alone && waiting.first_held(id).is_some(), now);
        };
        let reserve = if rules.reserves(call) { resources.retry_bucket(&call.demand, now) } else { None };
        let reserved_at = reserve.map(|bucket| resources.buckets.ready_at(bucket, now));
        let token_at = reserved_at.or_else(|| gives_way_until(call, &view.state, rules, resources, now));
        let tried = view.trial != 0 || waiting.first_held(id).is_some();
        AtKey { reserve, ..AtKey::failing(view.state, tried, busy, token_at, now) }
    }

    /// Step 5, `per_key`: its object was called more often than its class lets one be called. A
    /// call that passes has taken its object's token, whatever becomes of it. One whose key fails
    /// takes none, because its backoff is slower, and neither does one whose body tells its object.
    #[inline(never)]
    pub(crate) fn per_key(&mut self, arrival: &Arrival<'_>, rules: &Rules, now: Moment) -> Result<(), Cause> {
        let class = rules.policy().classes.get(usize::from(arrival.class.0));
        let pace = class.and_then(|class| class.per_key).filter(|per_key| per_key.enforce);
        let Some(pace) = pace.and_then(|per_key| per_key.pace(arrival.reads)) else { return Ok(()) };
        let known = arrival.key.filter(|key| !arrival.key_in_body && !key.is_collection_read());
        let Some(key) = known else { return Ok(()) };
        if self.keys().view(&key, now).is_some() {
            return Ok(());
        }
        let taken = self.objects.take(rules.counted_as(&key, arrival), pace, now);
        taken.map_err(|retry_at| Cause::new(Reason::PerKey, retry_at))
    }

    /// Returns what is counted of an object.
    pub(crate) fn object_full_at(&self, object: u64) -> Option<Moment> {
        self.objects.full_at(object)
    }

    /// Forgets the calls of an object that were counted since.
    pub(crate) fn restore_object(&mut self, object: u64, full_at: Option<Moment>) {
        self.objects.restore(object, full_at);
    }

    /// Brings what is counted of each object to the new paces of its classes, which are adopted.
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

    /// True if a call is a write and another write of its key is on its way.
    pub(crate) fn waits_for_write(&self, call: &Call, rules: &Rules) -> bool {
        rules.goes_alone(call) && call.key.as_ref().is_some_and(|key| self.writes.contains(&KeyId::from(key).written()))
    }

    /// Records a call as the one write of its key, if that matters.
    pub(crate) fn begin_write(&mut self, call: &Call, rules: &Rules) -> bool {
        let key = call.key.as_ref().map(KeyId::from).filter(|_| rules.goes_alone(call));
        key.is_some_and(|key| {
            let is_only = self.writes.insert(key.written());
            debug_assert!(is_only, "one write at a time");
            is_only
        })
    }

    /// Gives a call that passes its key what it gets there.
    #[inline]
    pub(crate) fn begin_grant(
        &mut self,
        call: &Call,
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

    /// Gives a call the trial, the place of the one write, and a reserved retry token.
    #[inline(never)]
    fn take_key(
        &mut self,
        call: &Call,
        at_key: &AtKey,
        rules: &Rules,
        resources: &mut Resources,
        now: Moment,
    ) -> KeyGrant {
        let key = call.key.as_ref().filter(|_| at_key.state.is_some());
        let trial = key.map_or(0, |key| self.table.begin_trial(KeyId::from(key)));
        KeyGrant { trial, reserved: reserve(at_key.reserve, resources, now), alone: self.begin_write(call, rules) }
    }

    /// Takes back a key grant: the trial, the place of the one write, and a retry token reserved on
    /// arrival. Keys whose calls may now continue become dirty.
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
        if let Some(key) = key.filter(|_| key_grant.alone) {
            self.writes.remove(&key.written());
            // The last is looked at first: a delete that waits has its turn after a write, and a
            // write after a delete.
            work.dirty_keys.extend([key, key.neighbour()]);
        }
        if let Some(key) = key.filter(|_| key_grant.trial != 0) {
            self.table.end_trial(key, key_grant.trial);
            work.dirty_keys.push(key);
        }
    }

    /// Records that a call is refused for want of a retry token. Its key has no chance to fail
    /// again, so its time to be forgotten runs from now: otherwise objects that are tried less
    /// often than that would come back as healthy, and no retry bucket would hold them.
    #[inline(never)]
    pub(crate) fn pass_over(&mut self, call: &Call, rules: &Rules, resources: &mut Resources, now: Moment) {
        let Some(key) = call.key else { return };
        let Some(view) = self.keys().view(&key, now) else { return };
        self.table.keep(KeyId::from(&key), now + rules.class(call).backoff.forget_after);
        if let Some(bucket) = resources.retry_bucket(&call.demand, now) {
            resources.buckets.pass_over(bucket, view.state);
        }
    }
}

/// Returns the moment from which a held call may have a retry token: the one that is reserved for
/// it, or one that is not kept for another key.
pub(crate) fn token_at(
    call: &Call,
    key: &KeyState,
    reserved: Option<Reserved>,
    rules: &Rules,
    resources: &mut Resources,
    now: Moment,
) -> Option<Moment> {
    reserved.map(|reserved| reserved.at).or_else(|| gives_way_until(call, key, rules, resources, now))
}

/// Returns the moment until which a trial of a key leaves the last token of a retry bucket to
/// another key, which has been tried less often and not for longer. Without it the order in which a
/// controller tries its objects would decide: if the same come at each token, these alone are
/// tried, and their backoff becomes longer than the outage.
#[inline]
fn gives_way_until(
    call: &Call,
    key: &KeyState,
    rules: &Rules,
    resources: &mut Resources,
    now: Moment,
) -> Option<Moment> {
    // As nearly always: a key that is tried during its backoff.
    if key.ready_at > now { None } else { last_token_kept_until(call, key, rules, resources, now) }
}

#[inline(never)]
fn last_token_kept_until(
    call: &Call,
    key: &KeyState,
    rules: &Rules,
    resources: &mut Resources,
    now: Moment,
) -> Option<Moment> {
    if !rules.is_metered(call) || rules.policy().queue.combine != Combine::Sequential {
        return None;
    }
    let bucket = resources.retry_bucket(&call.demand, now)?;
    resources.buckets.get(bucket)?.last_token_kept_until(key, now)
}

/// Reserves the next token of a retry bucket.
pub(crate) fn reserve(bucket: Option<BucketId>, resources: &mut Resources, now: Moment) -> Option<Reserved> {
    let bucket = bucket?;
    let (at, number) = resources.buckets.reserve(bucket, now);
    Some(Reserved { bucket, number, at })
}
