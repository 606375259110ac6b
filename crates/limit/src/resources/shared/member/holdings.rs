//! The tokens that a member can spend: those of the store, and while it is away those of its own.

use std::time::Duration;

use crate::moment::Moment;
use crate::resources::Bucket;
use crate::resources::shared::demand::Demand;
use crate::resources::shared::outage::StoreAway;
use crate::resources::shared::tokens::Tokens;

/// The tokens of a member, and the demand for them.
#[derive(Debug)]
pub(in super::super) struct Holdings {
    pub(super) tokens: Tokens,
    pub(super) demand: Demand,
    /// The earliest moment at which the store has a token that nobody has.
    pub(super) promise: Moment,
    pub(super) away: Option<StoreAway>,
    /// True if the store was away since its last answer.
    pub(super) was_away: bool,
}

/// The source of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Store,
    /// The member's own part, while the store is away.
    Alone,
}

// === impl Holdings ===

impl Holdings {
    pub(super) fn new(lease: Duration) -> Self {
        Self {
            tokens: Tokens::default(),
            demand: Demand::new(lease),
            promise: Moment::ZERO,
            away: None,
            was_away: false,
        }
    }

    fn alone(&self) -> Option<&Bucket> {
        self.away.as_ref()?.bucket.as_ref()
    }

    /// Returns the moment at which a call can have a token; `Moment::MAX` if that is not known.
    #[inline]
    pub(in super::super) fn ready_at(&self, now: Moment) -> Moment {
        let held = self.tokens.ready_at(now).unwrap_or(Moment::MAX);
        let part = self.alone();
        part.map_or(held, |bucket| bucket.ready_at(now).min(held))
    }

    /// True if a call can have a token now.
    #[inline]
    pub(in super::super) fn has_token(&self, now: Moment) -> bool {
        self.tokens.is_next_there(now) || self.ready_at(now) <= now
    }

    /// Returns the moment since when the token has been there that a call can have now.
    pub(in super::super) fn there_since(&self, now: Moment) -> Moment {
        let held = self.tokens.since(now);
        let part = self.alone();
        held.or_else(|| part.map(|bucket| bucket.ready_at(Moment::ZERO))).unwrap_or(now)
    }

    /// Returns the earliest moment, `from` or later, at which a call can have a token once `calls`
    /// others have had theirs.
    pub(in super::super) fn ready_after(&self, calls: usize, from: Moment, now: Moment) -> Moment {
        let held = self.tokens.ready_after(calls, from).unwrap_or_else(|| self.promise.max(from));
        let part = self.alone();
        part.map_or(held, |bucket| bucket.ready_after(calls, from, now).min(held))
    }

    /// Returns the number of tokens that are there now.
    pub(in super::super) fn available(&self, now: Moment) -> u32 {
        let part = self.alone();
        let part = part.map_or(0, |bucket| bucket.whole_tokens(now).max(u32::from(bucket.ready_at(now) <= now)));
        part.saturating_add(u32::try_from(self.tokens.available(now)).unwrap_or(u32::MAX))
    }

    /// Takes the token that is there at `at`, for a call that leaves now. Returns where it came
    /// from, if there was one.
    pub(super) fn take(&mut self, at: Moment, now: Moment, number: u64) -> Option<Source> {
        self.demand.note(now);
        if self.tokens.take(at, now, number) {
            return Some(Source::Store);
        }
        let alone = self.away.as_mut()?.bucket.as_mut()?;
        (alone.take(at, number, 1) > 0).then_some(Source::Alone)
    }

    /// Gives the token of a take back. Returns where it came from.
    pub(super) fn give_back(&mut self, number: u64) -> Source {
        if self.tokens.give_back(number) {
            return Source::Store;
        }
        if let Some(bucket) = self.away.as_mut().and_then(|away| away.bucket.as_mut()) {
            bucket.give_back(number);
        }
        Source::Alone
    }
}
