//! The tokens that a member holds, each with the moment from which and the moment until which it
//! may be spent, and the last ones that it took.

use std::collections::VecDeque;
use std::time::Duration;

use super::StoreAnswer;
use crate::moment::Moment;

/// The right to send one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) available: Moment,
    pub(super) expires: Moment,
}

/// The tokens of a member, in the order in which they become available.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    held: VecDeque<Token>,
    /// The last tokens taken, by the number of the take, in case their calls are not sent.
    taken: VecDeque<(u64, Token)>,
    /// The tokens that were never spent.
    pub(super) expired: u64,
}

// === impl Tokens ===

impl Tokens {
    /// Adds what an answer granted: no token before the store means it, and none after it.
    pub(super) fn add(&mut self, answer: &StoreAnswer, lease: Duration, sent: Moment, received: Moment) {
        let period = i64::try_from(answer.period.as_nanos()).unwrap_or(i64::MAX);
        let later = |at: Moment, nanos| Moment::from_nanos(at.as_nanos().saturating_add(nanos));
        let mut after = answer.first;
        let expires = sent + lease;
        for _ in 0..answer.granted {
            let nanos = u64::try_from(after).unwrap_or(0);
            let token = Token { available: later(received, nanos), expires: later(expires, nanos) };
            if token.available < token.expires {
                self.insert(token);
            } else {
                self.expired += 1;
            }
            after = after.saturating_add(period);
        }
    }

    /// Drops the tokens that can no longer be spent.
    pub(super) fn expire(&mut self, now: Moment) {
        let before = self.held.len();
        self.held.retain(|token| token.expires >= now);
        self.expired += (before - self.held.len()) as u64;
    }

    /// Drops all of them.
    pub(super) fn clear(&mut self) {
        self.expired += self.held.len() as u64;
        self.held.clear();
        self.taken.clear();
    }

    /// Returns the moment at which the next token can be spent.
    #[inline]
    pub(super) fn ready_at(&self, now: Moment) -> Option<Moment> {
        self.valid(now).next().map(|token| token.available.max(now))
    }

    /// True if the first token can be spent now.
    #[inline]
    pub(super) fn is_next_there(&self, now: Moment) -> bool {
        self.held.front().is_some_and(|token| token.available <= now && token.expires >= now)
    }

    /// Returns the moment since when a token has been there that can be spent now.
    pub(super) fn since(&self, now: Moment) -> Option<Moment> {
        self.valid(now).next().map(|token| token.available).filter(|available| *available <= now)
    }

    /// Returns the moment at which a token can be spent once `calls` others have had theirs.
    pub(super) fn ready_after(&self, calls: usize, now: Moment) -> Option<Moment> {
        self.valid(now).nth(calls).map(|token| token.available.max(now))
    }

    /// Returns the moment at which the last token becomes available.
    pub(super) fn last(&self, now: Moment) -> Option<Moment> {
        self.valid(now).last().map(|token| token.available)
    }

    /// True if so many tokens are held that last until `end`. Those that come last also last
    /// longest, so that few are looked at.
    pub(super) fn lasts(&self, count: usize, end: Moment) -> bool {
        self.held.iter().rev().filter(|token| token.expires >= end).take(count).count() == count
    }

    /// Returns the number of tokens held that last until `end`.
    pub(super) fn lasting(&self, end: Moment) -> usize {
        self.valid(end).count()
    }

    /// Returns the number of tokens held that are not available by `by`.
    pub(super) fn later_than(&self, by: Moment) -> usize {
        self.held.iter().filter(|token| token.available > by).count()
    }

    /// Returns the number of tokens that can be spent now.
    pub(super) fn available(&self, now: Moment) -> usize {
        self.valid(now).take_while(|token| token.available <= now).count()
    }

    /// Spends a token that was available at `at` and has not expired by `now`.
    pub(super) fn take(&mut self, at: Moment, now: Moment, number: u64) -> bool {
        while let Some(token) = self.held.front().copied() {
            if token.expires >= now {
                if token.available > at {
                    return false;
                }
                self.held.pop_front();
                if self.taken.len() >= REMEMBERED {
                    self.taken.pop_front();
                }
                self.taken.push_back((number, token));
                return true;
            }
            self.held.pop_front();
            self.expired += 1;
        }
        false
    }

    /// Gives the token of a take back, unless that was too long ago. Returns true if it did.
    pub(super) fn give_back(&mut self, number: u64) -> bool {
        let place = self.taken.iter().position(|(other, _)| *other == number);
        let taken = place.and_then(|place| self.taken.remove(place));
        taken.map(|(_, token)| self.insert(token)).is_some()
    }

    fn valid(&self, now: Moment) -> impl Iterator<Item = &Token> {
        self.held.iter().filter(move |token| token.expires >= now)
    }

    fn insert(&mut self, token: Token) {
        if self.held.back().is_none_or(|last| last.available <= token.available) {
            self.held.push_back(token); // as nearly always
        } else {
            let later = self.held.iter().rev().take_while(|other| other.available > token.available).count();
            self.held.insert(self.held.len() - later, token);
        }
    }
}

/// The takes that can be given back.
const REMEMBERED: usize = 64;
