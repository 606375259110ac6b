//! Applies the outcome of a call: to its key, to the calls held for that key, to pauses and to the
//! rates of buckets.

use super::{
    Asked, Away, ClassId, Failure, Index, KeyGrant, KeyId, Lane, News, Origin, Owner, Parts, Paused, Reason, Receipt,
    Recorded, Resources, SharedPause, State, Strategy, Sweep, WaiterIndex, Why, resources,
};
use crate::key::Key;
use crate::moment::Moment;
use crate::outcome::{Answer, Gone, Outcome, Pause, Scope};

// === impl Parts ===

impl Parts {
    /// Records the outcome of a call. `key` replaces the receipt's key (for a name that is known
    /// only from the body). `name` is called if the key starts to fail.
    pub(crate) fn finish(
        &mut self,
        receipt: &Receipt,
        answer: Answer,
        key: Option<Key>,
        name: &dyn Fn() -> String,
        now: Moment,
    ) {
        let call = receipt.call();
        let grant = receipt.grant();
        self.feed_back(receipt, answer, now);
        if grant.key_grant.trial != 0 {
            self.open_or_close(receipt, answer.outcome, now);
        }
        if let Some(key) = key.or(call.key) {
            self.learn(key, self.rules.class_of(call), grant.left, answer, name, now);
        }
        // The token reserved on arrival stays spent: only the key's part of the grant ends.
        self.end_key_grant(call.key.as_ref().map(KeyId::from), KeyGrant { reserved: None, ..grant.key_grant });
    }

    /// Applies an outcome to its key.
    fn learn(&mut self, key: Key, class: ClassId, left: u64, answer: Answer, name: &dyn Fn() -> String, now: Moment) {
        let id = KeyId::from(&key);
        let after = match answer.outcome {
            Outcome::Abandoned | Outcome::Neutral => return self.forget_gone(id, answer.gone, now),
            Outcome::Success => {
                self.stage.table.forget(id, Some(Why::Recovered));
                self.work.dirty_keys.push(id);
                return self.forget_gone(id, answer.gone, now);
            }
            Outcome::Failure => None,
            Outcome::Throttled { after } => Some(after),
        };
        let class = self.rules.policy().class(class);
        if class.lane == Lane::Exempt || class.backoff.strategy == Strategy::Off {
            return;
        }
        let failure = Failure { key, backoff: &class.backoff, after, status: answer.status, left };
        if self.stage.table.record(&failure, name, now, &mut self.work.dirty_keys) == Recorded::Changed {
            self.recall(id, now);
            self.work.dirty_keys.push(id);
        }
    }

    /// Forgets what is remembered of an object or a key that is gone.
    fn forget_gone(&mut self, id: KeyId, gone: Gone, now: Moment) {
        match gone {
            Gone::Nothing => {}
            Gone::Key => self.stage.table.forget_gone(id, now, &mut self.work.dirty_keys),
            Gone::Object => self.stage.table.forget_gone_object(id.object, now, &mut self.work.dirty_keys),
        }
    }

    /// Ends every pause now, with `everywhere` also for the gates that share its buckets. Returns
    /// how many there were.
    pub(crate) fn lift_pauses(&mut self, everywhere: bool, now: Moment) -> usize {
        let lifted = self.resources.pauses.lift(now);
        if everywhere {
            self.resources.buckets.shared.tell_all(News::Lifted);
            self.resources.set_member_timer(now);
        }
        self.stage.keys().listen(false);
        self.work.begin_sweep(Sweep::Unpark { from: (Moment::ZERO, Index::FIRST) });
        lifted
    }

    /// Applies what an answer means beyond its key.
    pub(crate) fn feed_back(&mut self, of: &Receipt, answer: Answer, now: Moment) {
        let class = self.rules.class_of(of.call());
        let origin = Origin { class, credential: of.call().demand.credential, left: of.grant().number };
        if answer.throttled {
            self.slow_down(of, now);
        }
        // An exempt call ignores every pause, so its success says nothing about one.
        let exempt = self.rules.policy().class(class).lane == Lane::Exempt;
        if answer.outcome == Outcome::Success && !exempt && self.resources.pauses.grows {
            self.resources.pauses.succeeded(origin);
            self.stage.keys().listen(self.resources.pauses.grows);
        }
        // The last call of a quota may succeed and still ask for a pause.
        if let Some(pause) = answer.pause {
            self.begin_pause(pause, origin, now);
        }
    }

    /// Puts a granted but unclaimed call back into its queue if a pause has begun meanwhile.
    pub(crate) fn stop_if_paused(&mut self, index: WaiterIndex, now: Moment) {
        let Some(waiter) = self.queues.waiting.get(index) else { return };
        let call = waiter.call;
        let is_metered = matches!(&waiter.state, State::Granted(grant) if grant.needs.is_some());
        if !is_metered || self.resources.paused_until(&call.demand, now).is_none() {
            return;
        }
        let Some(waiter) = self.queues.waiting.get_mut(index) else { return };
        let State::Granted(grant) = std::mem::replace(&mut waiter.state, State::Held) else { return };
        waiter.key_grant = grant.key_grant;
        self.undo(index, &grant);
        let place = self.place_of(&call, grant.key_grant.trial != 0, now);
        let queue = self.queues.scheduler.open(place.id, &place.needs, || None, &mut self.resources);
        self.queues.scheduler.note_stopped(queue, now, Reason::Pause);
        self.queues.scheduler.join(queue, index, true, &mut self.queues.waiting.waiters);
        self.queues.waiting.count_in(index);
        self.queues.set_timer(index, &self.rules);
        if let Err(cause) = self.outlook(now).pause(&call) {
            self.refuse(index, cause, now);
        }
        self.dispatch(now);
    }

    /// Opens or closes the retry bucket that let a trial through, as the trial succeeded or failed.
    fn open_or_close(&mut self, of: &Receipt, outcome: Outcome, now: Moment) {
        let charges = of.grant().needs.iter().flat_map(|needs| needs.charges.of_retry());
        for bucket in charges {
            match outcome {
                Outcome::Success => self.resources.buckets.succeeded(bucket, &mut self.resources.unblocked),
                Outcome::Failure | Outcome::Throttled { .. } => self.resources.buckets.failed(bucket, now),
                // The token stays spent.
                Outcome::Neutral | Outcome::Abandoned => {}
            }
        }
    }

    /// Slows down every bucket from which the call took a token.
    fn slow_down(&mut self, of: &Receipt, now: Moment) {
        let charges = of.grant().needs.iter().flat_map(|needs| needs.charges.iter().map(|charge| charge.bucket));
        let reserved = of.grant().key_grant.reserved.map(|reserved| reserved.bucket);
        for bucket in charges.chain(reserved) {
            self.resources.buckets.throttled(bucket, of.grant().number, now);
        }
    }

    fn begin_pause(&mut self, pause: Pause, origin: Origin, now: Moment) {
        let leaves = self.resources.buckets.takes;
        let until = self.resources.pauses.begin(pause, origin, leaves, now);
        self.stage.keys().listen(self.resources.pauses.grows);
        if let Some(until) = until {
            self.tell_of_pause(pause.scope, origin, until, now);
        }
        self.refuse_paused(until);
    }

    /// Tells the gates that share the bucket that a pause concerns.
    fn tell_of_pause(&mut self, scope: Scope, origin: Origin, until: Moment, now: Moment) {
        let Some(owner) = owner_in(scope, origin.class) else { return };
        let Resources { buckets, .. } = &mut self.resources;
        if let Some(bucket) = buckets.shared_of(owner, origin.credential) {
            buckets.shared.tell(bucket, News::Paused(until));
            self.resources.set_member_timer(now);
        }
    }

    /// Records what is left of a quota of the upstream's, as the answer to a call says. The quota
    /// is that of a shared bucket if the call has spent a token of it, and `scope` says that what
    /// the upstream asks for concerns the calls of that bucket. The gates that share it are told.
    pub(crate) fn note_left(&mut self, of: &Receipt, scope: Scope, left: u32, now: Moment) {
        let call = of.call();
        let Some(owner) = owner_in(scope, self.rules.class_of(call)) else { return };
        let mut spent = of.grant().needs.iter().flat_map(|needs| needs.charges.iter().map(|charge| charge.bucket));
        let Resources { buckets, .. } = &mut self.resources;
        let bucket = buckets.shared_of(owner, call.demand.credential).filter(|bucket| spent.any(|of| of == *bucket));
        if bucket.is_some_and(|bucket| buckets.shared.note_left(bucket, left, now)) {
            self.resources.set_member_timer(now);
        }
    }

    /// Takes in what came of questions that were asked together.
    pub(crate) fn all_answered(
        &mut self,
        answers: impl IntoIterator<Item = (Asked, Result<resources::Answer, Away>)>,
        sent: Moment,
        now: Moment,
    ) {
        let mut was_heard = false;
        let mut lost = None;
        for (asked, answer) in answers {
            was_heard |= answer.is_ok();
            lost = lost.or_else(|| answer.err().map(|why| (asked, why)));
            let Resources { buckets, unblocked, .. } = &mut self.resources;
            let pause = buckets.shared.answered(asked, answer, sent, now);
            unblocked.extend(buckets.users(asked.bucket()).into_iter().flatten().map(|user| *user));
            if let Some(pause) = pause {
                self.hear_pause(asked, pause, now);
            }
        }
        // What is wrong with one part is not wrong with the others.
        if let Some((from, why)) = lost.filter(|_| !was_heard) {
            self.resources.buckets.shared.spread_outage(from, why, now);
        }
        self.resources.set_member_timer(now);
    }

    /// Begins or ends a pause that another gate has told.
    fn hear_pause(&mut self, asked: Asked, pause: SharedPause, now: Moment) {
        let Resources { buckets, pauses, .. } = &mut self.resources;
        let who = match buckets.owner_of(asked.bucket()) {
            Some((Owner::Class(class), _)) => Paused::Class(class),
            Some((Owner::Gate, who)) => who.and_then(|who| pauses.own(who)).map_or(Paused::Gate, Paused::Credential),
            Some((Owner::Retries, _)) | None => return,
        };
        match pause {
            SharedPause::Paused { until, surely } => {
                let until = pauses.hear(who, until, surely, now);
                self.refuse_paused(until);
            }
            SharedPause::Lifted if pauses.end(who, now) => {
                self.work.begin_sweep(Sweep::Unpark { from: (Moment::ZERO, Index::FIRST) });
            }
            SharedPause::Lifted => {}
        }
    }

    fn refuse_paused(&mut self, until: Option<Moment>) {
        // Waiting calls whose wait ends before the pause are refused. A later end may still be
        // worth the wait.
        if let Some(until) = until.filter(|_| !self.queues.waiting.timers.is_empty()) {
            self.work.begin_sweep(Sweep::Paused { from: (Moment::ZERO, Index::FIRST), until });
        }
    }
}

/// Returns the owner of the bucket that what the upstream asks for concerns.
fn owner_in(scope: Scope, class: ClassId) -> Option<Owner> {
    match scope {
        Scope::Key => None,
        Scope::Class => Some(Owner::Class(class)),
        Scope::Credential | Scope::Gate => Some(Owner::Gate),
    }
}
