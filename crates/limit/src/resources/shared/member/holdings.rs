//! The tokens a gate can spend on calls: those the store granted or, while it is away, the gate's
//! own.

use std::time::Duration;

use crate::moment::Moment;
use crate::resources::Bucket;
use crate::resources::shared::demand::CallRate;
use crate::resources::shared::outage::StoreOutage;
use crate::resources::shared::tokens::Tokens;

/// The tokens a gate holds of a shared bucket, and the demand for them.
#[derive(Debug)]
pub(crate) struct Holdings {
    pub(super) tokens: Tokens,
    pub(super) demand: CallRate,
    /// The earliest moment of the store's next grant.
    pub(super) promise: Moment,
    pub(super) outage: Option<StoreOutage>,
    /// True if the store did not answer some request since its last answer.
    pub(super) was_away: bool,
}

// === impl Holdings ===

impl Holdings {
    pub(super) fn new(lease: Duration) -> Self {
        Self {
            tokens: Tokens::default(),
            demand: CallRate::new(lease),
            promise: Moment::ZERO,
            outage: None,
            was_away: false,
        }
    }

    fn own_part(&self) -> Option<&Bucket> {
        self.outage.as_ref()?.bucket.as_ref()
    }

    fn own_part_mut(&mut self) -> Option<&mut Bucket> {
        self.outage.as_mut()?.bucket.as_mut()
    }

    /// Returns when a call can have a token; `Moment::MAX` if unknown.
    #[inline]
    pub(crate) fn ready_at(&self, now: Moment) -> Moment {
        let held = self.tokens.ready_at(now).unwrap_or(Moment::MAX);
        self.own_part().map_or(held, |bucket| bucket.ready_at(now).min(held))
    }

    /// Returns true if a call can have a token now.
    #[inline]
    pub(crate) fn has_token(&self, now: Moment) -> bool {
        self.ready_at(now) <= now
    }

    /// Returns since when a call could have had a token.
    pub(crate) fn there_since(&self, now: Moment) -> Moment {
        let own = || self.own_part().map(|bucket| bucket.ready_at(Moment::ZERO));
        self.tokens.since(now).or_else(own).unwrap_or(now)
    }

    /// Returns the earliest moment of a call's token, not before `from`, if `calls` other calls
    /// take theirs first.
    pub(crate) fn ready_after(&self, calls: usize, from: Moment, now: Moment) -> Moment {
        let held = self.tokens.ready_after(calls, from).unwrap_or_else(|| self.promise.max(from));
        self.own_part().map_or(held, |bucket| bucket.ready_after(calls, from, now).min(held))
    }

    /// Returns how many tokens calls can take now.
    pub(crate) fn available(&self, now: Moment) -> u32 {
        let own = self.own_part().map_or(0, |bucket| bucket.whole_calls(now));
        own.saturating_add(u32::try_from(self.tokens.available(now)).unwrap_or(u32::MAX))
    }

    /// Takes a token, as if at the moment `at`. Returns true if there was one.
    pub(super) fn take(&mut self, at: Moment, now: Moment, number: u64) -> bool {
        self.demand.note(now);
        if self.tokens.take(at, now, number) {
            return true;
        }
        let taken = self.own_part_mut().is_some_and(|bucket| bucket.take(at, number, 1) > 0);
        self.tokens.tally.fallback += u64::from(taken);
        taken
    }

    /// Gives back the token taken under `number`.
    pub(super) fn give_back(&mut self, number: u64) {
        if !self.tokens.give_back(number)
            && let Some(bucket) = self.own_part_mut()
        {
            bucket.give_back(number);
        }
    }
}
