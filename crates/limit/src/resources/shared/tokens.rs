//! The tokens a gate holds of a shared bucket: rights to send one call each, from one moment until
//! another.

use std::collections::VecDeque;
use std::time::Duration;

use super::StoreAnswer;
use crate::moment::Moment;

/// The right to send one call, from one moment until another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) available: Moment,
    pub(super) expires: Moment,
}

/// The tokens a gate holds of a shared bucket, in the order of their times.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    held: VecDeque<Token>,
    /// The tokens spent last, each with its number for refunds.
    taken: VecDeque<(u64, Token)>,
    pub(super) tally: TokenTally,
}

/// Counts of a shared bucket's tokens so far, and of the calls sent without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenTally {
    /// The tokens granted.
    pub granted: u64,
    /// The granted tokens spent by calls.
    pub spent: u64,
    /// The granted tokens not spent in time.
    pub expired: u64,
    /// The calls sent while the store was away.
    pub fallback: u64,
}

// === impl Tokens ===

impl Tokens {
    /// Adds the tokens of an answer. None is valid earlier or later than the store counts, however
    /// long the answer took.
    pub(super) fn add(&mut self, answer: &StoreAnswer, lease: Duration, sent: Moment, received: Moment) {
        self.tally.granted += u64::from(answer.granted);
        for number in 0..answer.granted {
            let after = answer.until(number);
            let token = Token { available: received + after, expires: sent + lease + after };
            if token.available < token.expires {
                self.insert(token);
            } else {
                self.tally.expired += 1;
            }
        }
    }

    /// Drops the expired tokens.
    pub(super) fn expire(&mut self, now: Moment) {
        let before = self.held.len();
        self.held.retain(|token| token.expires >= now);
        self.tally.expired += (before - self.held.len()) as u64;
    }

    /// Drops all tokens, and returns the counts.
    pub(super) fn close(&mut self) -> TokenTally {
        self.tally.expired += self.held.len() as u64;
        std::mem::take(self).tally
    }

    /// Returns when the next token can be spent.
    #[inline]
    pub(super) fn ready_at(&self, now: Moment) -> Option<Moment> {
        self.ready_after(0, now)
    }

    /// Returns since when a token could be spent, if one can be now.
    pub(super) fn since(&self, now: Moment) -> Option<Moment> {
        self.valid(now).next().map(|token| token.available).filter(|available| *available <= now)
    }

    /// Returns when a call can spend a token, if `calls` other calls spend theirs first.
    #[inline]
    pub(super) fn ready_after(&self, calls: usize, now: Moment) -> Option<Moment> {
        self.valid(now).nth(calls).map(|token| token.available.max(now))
    }

    /// Returns when the last token can be spent.
    pub(super) fn last(&self, now: Moment) -> Option<Moment> {
        self.valid(now).last().map(|token| token.available)
    }

    /// Returns true if at least `count` tokens are valid until `end`. The latest tokens last
    /// longest, so the search begins with them.
    pub(super) fn lasts(&self, count: usize, end: Moment) -> bool {
        self.held.iter().rev().filter(|token| token.expires >= end).take(count).count() == count
    }

    /// Returns the number of tokens valid until `end`.
    pub(super) fn lasting(&self, end: Moment) -> usize {
        self.valid(end).count()
    }

    /// Returns the number of tokens spendable only after `by`.
    pub(super) fn later_than(&self, by: Moment) -> usize {
        self.held.iter().filter(|token| token.available > by).count()
    }

    /// Returns the number of tokens spendable now.
    pub(super) fn available(&self, now: Moment) -> usize {
        self.valid(now).take_while(|token| token.available <= now).count()
    }

    /// Spends a token available at `at` and still valid at `now`. Returns false if there is none.
    pub(super) fn take(&mut self, at: Moment, now: Moment, number: u64) -> bool {
        while self.held.front().is_some_and(|token| token.expires < now) {
            self.held.pop_front();
            self.tally.expired += 1;
        }
        let Some(token) = self.held.front().copied().filter(|token| token.available <= at) else { return false };
        self.held.pop_front();
        self.tally.spent += 1;
        if self.taken.len() >= REMEMBERED {
            self.taken.pop_front();
        }
        self.taken.push_back((number, token));
        true
    }

    /// Gives back the token taken under `number`. Returns false if it was taken too long ago.
    pub(super) fn give_back(&mut self, number: u64) -> bool {
        let place = self.taken.iter().position(|(other, _)| *other == number);
        let Some((_, token)) = place.and_then(|place| self.taken.remove(place)) else { return false };
        self.tally.spent = self.tally.spent.saturating_sub(1);
        self.insert(token);
        true
    }

    fn valid(&self, now: Moment) -> impl Iterator<Item = &Token> {
        self.held.iter().filter(move |token| token.expires >= now)
    }

    fn insert(&mut self, token: Token) {
        let later = self.held.iter().rev().take_while(|other| other.available > token.available).count();
        self.held.insert(self.held.len() - later, token);
    }
}

// === impl TokenTally ===

impl TokenTally {
    /// Adds the counts of another bucket or part.
    pub(crate) fn add(&mut self, other: Self) {
        self.granted += other.granted;
        self.spent += other.spent;
        self.expired += other.expired;
        self.fallback += other.fallback;
    }
}

/// How many of the latest spent tokens are remembered for refunds.
const REMEMBERED: usize = 64;
