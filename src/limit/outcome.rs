//! What the outcome of a call does to its key, and to those who wait for it.

#![expect(
    clippy::indexing_slicing,
    reason = "classes and lanes are numbered by the policy that made both the number and the table"
)]

use super::{
    limiter::Limiter,
    permit::Receipt,
    policy::{Lane, Strategy},
    table::{Failure, KeyId, Recorded},
    verdict::Why,
};
use crate::{
    api::{Answer, Gone, Key, Outcome},
    moment::Moment,
};

// === impl Limiter ===

impl Limiter {
    /// The outcome of a call. `key` replaces the receipt's (a name that was only known from the body); `name` is called when it starts
    /// to fail.
    #[expect(clippy::needless_pass_by_value, reason = "a receipt is settled once: it is used up")]
    pub fn finish(
        &mut self,
        receipt: Receipt,
        answer: Answer,
        key: Option<Key>,
        name: &dyn Fn() -> String,
        now: Moment,
    ) {
        let now = self.catch_up(now);
        let tried = receipt.call().key.as_ref().map(KeyId::from);
        // The token that was reckoned on arrival is spent: only what concerns the key ends.
        let trial = super::waiter::Pass { paid: None, ..receipt.grant().pass };
        self.heed(&receipt, answer, now);
        if let Some(key) = key.or_else(|| receipt.key()) {
            self.learn(key, receipt.call().serial, receipt.grant().left, answer, name, now);
        }
        self.end_pass(tried, trial);
        self.run(now);
    }

    fn learn(&mut self, key: Key, serial: u32, left: u64, answer: Answer, name: &dyn Fn() -> String, now: Moment) {
        let id = KeyId::from(&key);
        let after = match answer.outcome {
            Outcome::Abandoned | Outcome::Neutral => return self.part_with(id, answer.gone, now),
            Outcome::Success => {
                self.table.forget(id, Some(Why::Recovered));
                self.stirred.push(id);
                return self.part_with(id, answer.gone, now);
            }
            Outcome::Failure => None,
            Outcome::Throttled { after } => Some(after),
        };
        let class = &self.policy.classes[self.class_of(serial)];
        if class.lane == Lane::Exempt || class.backoff.strategy == Strategy::Off {
            return;
        }
        let failure = Failure { key, backoff: &class.backoff, after, status: answer.status, left };
        if self.table.record(&failure, name, now, &mut self.stirred) == Recorded::Changed {
            self.recall(id, now);
            self.stirred.push(id);
        }
    }

    /// Lets go what is remembered of what is gone.
    fn part_with(&mut self, id: KeyId, gone: Gone, now: Moment) {
        match gone {
            Gone::Nothing => {}
            Gone::Key => self.table.part_with(id, now, &mut self.stirred),
            Gone::Object => self.table.part_with_object(id.object, now, &mut self.stirred),
        }
    }
}
