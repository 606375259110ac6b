//! A limiter in virtual time, driven as the proxy drives it: never late, and with room on every
//! connection.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use tidegate::api::{Answer, Group, Key, Outcome};
use tidegate::limit::policy::{Backoff, BucketPolicy, ClassPolicy, QueuePolicy};
use tidegate::limit::refusal::KeyState;
use tidegate::limit::{Arrival, Claim, ClassId, Flow, Limiter, Permit, Policy, Receipt, Refusal, Ticket, Verdict};
use tidegate::moment::Moment;

/// Longer than anything here lasts; two of them still fit into a [`Moment`].
pub(super) const AGES: Duration = Duration::from_nanos(1 << 62);

/// x/time/rate computes in floating point and truncates: it may be one off.
pub(super) const NANO: Duration = Duration::from_nanos(1);

/// Numbered calls through one limiter.
pub(super) struct Gate {
    limiter: Limiter,
    waiting: HashMap<Ticket, usize>,
    /// The moment at which each call left, in that order.
    pub(super) left: Vec<(usize, Moment)>,
    /// The receipts of calls whose outcome is still owed.
    out: HashMap<usize, Receipt>,
}

/// One class without limits, in which no call gives up.
pub(super) fn policy() -> Policy {
    Policy {
        queue: QueuePolicy { max_wait: AGES, max_waiting: 1_000_000, ..QueuePolicy::default() },
        max_keys: 1_000_000,
        classes: vec![ClassPolicy {
            backoff: Backoff { forget_after: AGES, ..Backoff::default() },
            ..ClassPolicy::default()
        }],
        ..Policy::default()
    }
}

pub(super) fn bucket(rate: f64, burst: u32) -> BucketPolicy {
    BucketPolicy::new(rate, NonZeroU32::new(burst).expect("a burst"))
}

pub(super) fn key(item: usize) -> Key {
    Key { object: item as u64 + 1, collection: 0, facet: 0 }
}

impl Gate {
    pub(super) fn new(policy: Policy) -> Self {
        let mut limiter = Limiter::new(policy, 1, Moment::ZERO);
        limiter.add_room(Group::Short, 1 << 40, Moment::ZERO);
        Self { limiter, waiting: HashMap::new(), left: Vec::new(), out: HashMap::new() }
    }

    /// Call `call` arrives at `now`, after everything that was due before.
    pub(super) fn arrive(&mut self, call: usize, key: Option<Key>, now: Moment) -> Result<(), Refusal> {
        self.run_until(now);
        let arrival = Arrival { key, ..Arrival::new(ClassId(0), Flow { id: 0, name: &"flow" }) };
        match self.limiter.arrive(&arrival, now) {
            Verdict::Admit(permit) => self.leave(call, permit, now),
            Verdict::Wait(ticket) => {
                self.waiting.insert(ticket, call);
            }
            Verdict::Refuse(refusal) => return Err(refusal),
        }
        self.drain(now);
        Ok(())
    }

    /// Settles the outcome of call `call`, which has left.
    pub(super) fn finish(&mut self, call: usize, outcome: Outcome, now: Moment) {
        self.run_until(now);
        let receipt = self.out.remove(&call).unwrap_or_else(|| panic!("call {call} has not left at {now:?}"));
        let answer = Answer::new(outcome, Some(503));
        self.limiter.finish(receipt, answer, None, &|| call.to_string(), now);
        self.drain(now);
    }

    /// Runs everything that is due until then, each at its own time.
    pub(super) fn run_until(&mut self, now: Moment) {
        while let Some(due) = self.limiter.next_wakeup().filter(|due| *due <= now) {
            self.limiter.advance(due);
            self.drain(due);
        }
    }

    /// Runs until no call waits.
    pub(super) fn run_out(&mut self) {
        while !self.waiting.is_empty() {
            let due = self.limiter.next_wakeup().expect("somebody waits");
            self.run_until(due);
        }
    }

    /// The state that the limiter remembers of a key.
    pub(super) fn state(&self, of: Key, now: Moment) -> Option<KeyState> {
        self.limiter.keys().list(now).into_iter().find(|(_, key, _)| *key == of).map(|(.., state)| state)
    }

    fn drain(&mut self, now: Moment) {
        while let Some(ticket) = self.limiter.next_event() {
            match self.limiter.claim(ticket, now) {
                Claim::Permit(permit) => {
                    let call = self.waiting.remove(&ticket).expect("it waits");
                    self.leave(call, permit, now);
                }
                Claim::Waiting => {}
                other => panic!("call {:?} gave up at {now:?}: {other:?}", self.waiting.get(&ticket)),
            }
        }
    }

    fn leave(&mut self, call: usize, permit: Permit, now: Moment) {
        let ((), receipt, slot) = {
            let (request, receipt, slot) = permit.admit(());
            (request.into_inner(), receipt, slot)
        };
        self.limiter.release(slot, now);
        self.out.insert(call, receipt);
        self.left.push((call, now));
    }
}
