//! Feedback: applies the outcome of a call to its key, to pauses, and to the rates of buckets.

use super::Parts;
use crate::key::Key;
use crate::moment::Moment;
use crate::outcome::{Answer, Charged, Outcome, Pause};
use crate::quota::{QuotaId, ResourceId};
use crate::{
    AskId, ClassId, KeyAnswer, KeyGrant, KeyId, Lane, News, Origin, Owner, QueuePlace, Reason, Receipt, Resources,
    StoreFailure, SweepNews, WaiterIndex, WaiterState, Withdrawal, resources,
};

// === impl Parts ===

impl Parts {
    /// Records the outcome of a call ([`Limiter::finish`](super::Limiter::finish)).
    pub(crate) fn finish(
        &mut self,
        receipt: &Receipt,
        mut answer: Answer,
        key: Option<Key>,
        name: &dyn Fn() -> String,
        now: Moment,
    ) {
        let call = receipt.call();
        let grant = receipt.grant();
        self.feed_back(receipt, &answer, now);
        if answer.quota.is_some() {
            self.resources.pauses.retime(&mut answer, self.origin_of(receipt), now);
        }
        if answer.outcome == Outcome::Failure {
            self.rules.note_failure(now - receipt.granted());
        }
        if grant.key_grant.trial != 0 {
            self.open_or_close(receipt, answer.outcome, now);
        }
        if let Some(key) = key.or(call.key) {
            let of = KeyAnswer { key, class: self.rules.class_of(call), left: grant.left, answer, name };
            if self.stage.learn(&of, &self.rules, &mut self.work, now) {
                let id = KeyId::from(&key);
                self.recall(id, now);
                self.work.dirty_keys.push(id);
            }
        }
        // The token reserved on arrival stays spent: only the key's part of the grant ends.
        self.end_key_grant(call.key_id(), KeyGrant { reserved: None, ..grant.key_grant });
    }

    /// Ends every pause now ([`Limiter::lift_pauses`](super::Limiter::lift_pauses)).
    pub(crate) fn lift_pauses(&mut self, everywhere: bool, now: Moment) -> usize {
        let lifted = self.resources.pauses.lift(now);
        if everywhere {
            self.resources.buckets.tell(None, News::Lifted { quota: QuotaId::ALL });
            self.resources.buckets.set_member_timer(now);
        }
        self.stage.keys().listen(false);
        self.queues.unpark_all();
        lifted
    }

    /// Applies an answer to everything except its key: pauses, and rates of buckets.
    pub(crate) fn feed_back(&mut self, of: &Receipt, answer: &Answer, now: Moment) {
        let origin = self.origin_of(of);
        if let Some(told) = &answer.quota {
            self.resources.pauses.observe(told, origin, answer.outcome, now);
            self.rules.set_slowed(self.resources.pauses.levels.slows());
        }
        if answer.throttled {
            self.slow_down(of, now);
        }
        // Such a call ignores every pause, so its success proves nothing.
        let passes = self.rules.policy().class(origin.class).lane == Lane::Exempt || origin.quota.is_free();
        if answer.outcome == Outcome::Success && !passes && self.resources.pauses.grows() {
            self.resources.pauses.succeeded(origin);
            self.stage.keys().listen(self.resources.pauses.grows());
        }
        // The last call of a quota may succeed and still ask for a pause.
        if let Some(pause) = answer.pause {
            let pause = self.resources.pauses.fitted(pause, answer.quota, origin);
            self.begin_pause(pause, origin, of.call().demand.credential, now);
        }
    }

    fn origin_of(&self, of: &Receipt) -> Origin {
        Origin { class: self.rules.class_of(of.call()), quota: of.call().demand.quota, left: of.grant().number }
    }

    /// Takes an unclaimed turn back, and returns the call to its queue, if a pause has begun
    /// meanwhile.
    pub(crate) fn stop_if_paused(&mut self, index: WaiterIndex, now: Moment) {
        let Some(waiter) = self.queues.get(index) else { return };
        let call = waiter.call;
        let is_metered = matches!(&waiter.state, WaiterState::Granted(grant) if grant.needs.is_some());
        if !is_metered || self.resources.pauses.asked_until(call.demand.class, call.demand.quota) <= now {
            return;
        }
        let recalled = self.queues.recall(index, &mut self.resources);
        let Some(Withdrawal { key_grant, grant: Some(grant), .. }) = recalled else { return };
        self.undo(index, &grant);
        let place = self.place_of(&call, key_grant.trial != 0, now);
        let place = QueuePlace { stopped: Some(Reason::Pause), ..place };
        self.queues.rejoin(index, key_grant, &place, &self.rules, &mut self.resources, now);
        if let Err(cause) = self.outlook(now).pause(&call) {
            self.refuse(index, cause, now);
        }
        self.dispatch(now);
    }

    /// Makes the retry bucket let more or fewer retries through, depending on the outcome of one.
    fn open_or_close(&mut self, of: &Receipt, outcome: Outcome, now: Moment) {
        for bucket in of.grant().needs.iter().flat_map(|needs| needs.charges.of_retry()) {
            match outcome {
                Outcome::Success => self.resources.buckets.succeeded(bucket, &mut self.resources.unblocked),
                Outcome::Failure | Outcome::Throttled { .. } => self.resources.buckets.failed(bucket, now),
                // The token stays spent.
                Outcome::Neutral | Outcome::Abandoned => {}
            }
        }
    }

    /// Slows down every adaptive bucket the call took tokens of.
    fn slow_down(&mut self, of: &Receipt, now: Moment) {
        let reserved = of.grant().key_grant.reserved.map(|reserved| reserved.bucket);
        for bucket in of.grant().buckets().chain(reserved) {
            self.resources.buckets.throttled(bucket, of.grant().number, now);
        }
    }

    fn begin_pause(&mut self, pause: Pause, origin: Origin, credential: u64, now: Moment) {
        let leaves = self.resources.buckets.takes;
        let until = self.resources.pauses.begin(pause, origin, leaves, now);
        self.stage.keys().listen(self.resources.pauses.grows());
        if let Some((until, quota)) = until.zip(self.resources.pauses.quota_of(pause, origin)) {
            let news = News::Paused { quota, until, surely: until };
            self.tell_of_pause(news, quota.resource, origin.class, credential, now);
        }
        self.sweep_paused(until);
    }

    /// Reports a pause to the other gates sharing a bucket: the gate's bucket and, if the pause is
    /// for a part of the API only, the bucket of the call's class.
    fn tell_of_pause(&mut self, news: News, resource: ResourceId, class: ClassId, credential: u64, now: Moment) {
        let buckets = &mut self.resources.buckets;
        let of_class = Some(Owner::Class(class)).filter(|_| resource != ResourceId::ALL);
        for owner in of_class.into_iter().chain([Owner::Gate]) {
            if let Some(bucket) = buckets.shared_of(owner, credential) {
                buckets.tell(Some(bucket), news);
                buckets.set_member_timer(now);
            }
        }
    }

    /// Records the number of calls left in the upstream's quota, as an answer says
    /// ([`Limiter::note_left`](super::Limiter::note_left)).
    pub(crate) fn note_left(&mut self, of: &Receipt, charged: Charged, left: u32, now: Moment) {
        let call = of.call();
        let owner = match charged {
            Charged::Class => Owner::Class(self.rules.class_of(call)),
            Charged::All | Charged::Named(_) | Charged::Predicted => Owner::Gate,
        };
        let buckets = &mut self.resources.buckets;
        let bucket = buckets
            .shared_of(owner, call.demand.credential)
            .filter(|bucket| of.grant().buckets().any(|spent| spent == *bucket));
        if bucket.is_some_and(|bucket| buckets.note_left(bucket, left, now)) {
            buckets.set_member_timer(now);
        }
    }

    /// Applies the answers of a store to a batch of requests.
    pub(crate) fn all_answered(
        &mut self,
        answers: impl IntoIterator<Item = (AskId, Result<resources::StoreAnswer, StoreFailure>)>,
        sent: Moment,
        now: Moment,
    ) {
        let mut was_heard = false;
        let mut lost = None;
        for (asked, answer) in answers {
            was_heard |= answer.is_ok();
            lost = lost.or_else(|| answer.as_ref().err().map(|why| (asked, *why)));
            let Resources { buckets, unblocked, .. } = &mut self.resources;
            let news = buckets.answered(asked, answer, sent, now);
            unblocked.extend(buckets.users(asked.bucket()).into_iter().flatten().map(|user| *user));
            news.into_iter().for_each(|news| self.hear_pause(asked, news, now));
        }
        // If any part was answered, the store is there for the others too.
        if let Some((from, why)) = lost.filter(|_| !was_heard) {
            self.resources.buckets.spread_outage(from, why, now);
        }
        self.resources.buckets.set_member_timer(now);
    }

    /// Begins or ends a pause reported by another gate.
    fn hear_pause(&mut self, asked: AskId, news: News, now: Moment) {
        let Resources { buckets, pauses, .. } = &mut self.resources;
        let of_bucket = match buckets.owner_of(asked.bucket()) {
            Some(Owner::Class(class)) => pauses.of_class(class),
            Some(Owner::Gate) => QuotaId::ALL,
            Some(Owner::Retries) | None => return,
        };
        match news {
            News::Paused { quota, until, surely } => {
                let quota = if quota == QuotaId::ALL { of_bucket } else { quota };
                let until = pauses.hear(quota, until, surely, now);
                self.sweep_paused(until);
            }
            News::Lifted { quota } => {
                let quota = if quota == QuotaId::ALL { of_bucket } else { quota };
                if pauses.end(quota, now) {
                    self.queues.unpark_all();
                }
            }
        }
    }

    /// Begins to refuse the waiting calls with too little time to wait for the end of a pause.
    fn sweep_paused(&mut self, until: Option<Moment>) {
        let first = self.queues.first_timer();
        if until.zip(first).is_some_and(|(until, first)| first < until) {
            self.begin_sweep(SweepNews::Pause);
        }
    }
}
