//! The moments at which a member asks, and at which it is to be looked at.

use std::time::Duration;

use super::{LEAST_AHEAD, Member, RESERVED, whole};
use crate::moment::Moment;

// === impl Member ===

impl Member {
    /// Returns the moment at which to look again, for a call that finds no token now: when there
    /// is one, or when to ask. The gate asks nothing before `question_at`.
    pub(crate) fn look_at(&self, question_at: Moment, now: Moment) -> Moment {
        let ready = self.held.ready_at(now);
        if self.schedule.pending.is_some() || ready <= now {
            return ready;
        }
        let ask_at = self.short_ask_at(now).max(self.schedule.enough_until).max(question_at);
        // Later than now, or the call would seem to have its token.
        ready.min(ask_at.max(now + Duration::from_nanos(1)))
    }

    /// Returns the moment at which tokens may be asked for calls that wait.
    pub(super) fn short_ask_at(&self, now: Moment) -> Moment {
        let last =
            self.held.tokens.last(now).map_or(now, |last| last.back(self.short_look())).min(self.schedule.early_from);
        let retry = self.held.away.as_ref().map_or(now, |away| away.retry_at);
        last.max(retry).max(self.schedule.not_before).max(self.schedule.allowance.ready_at(0.0, now)).max(now)
    }

    /// Returns the time ahead of its last token at which a member asks.
    pub(super) fn look(&self) -> Duration {
        self.schedule.round_trip.mul_f64(1.5) + Duration::from_millis(2)
    }

    /// Returns the same for a member whose calls wait. Beside others it need not be early: the next
    /// token that nobody has comes after theirs. The store promises no more than a turn of all and
    /// one token, so that who asks earlier would have a part of its turn cut off, each time.
    fn short_look(&self) -> Duration {
        let look = self.look();
        let rivals = self.answer.filter(|heard| heard.answer.rivals > 0);
        rivals.map_or(look, |heard| look.min(heard.answer.period))
    }

    /// Returns the moment at which to ask though no call waits, if there is one: to have tokens
    /// ahead of need, or to learn if the store is back.
    pub(super) fn ahead_ask_at(&self, now: Moment) -> Option<Moment> {
        if let Some(away) = &self.held.away {
            // Without demand too: a call that came later would find the member's own bucket full,
            // and would spend a burst beside a store that has long been back.
            return Some(away.retry_at.max(self.schedule.allowance.ready_at(0.0, now)));
        }
        let heard = self.answer?;
        let left = heard.answer.level - f64::from(heard.answer.granted);
        let plenty = left > self.terms.burst / 2.0 + 2.0 && heard.answer.rivals == 0;
        if !plenty || self.in_a_lease(now) < 2.0 {
            return None;
        }
        let every = (self.terms.lease / 4).max(LEAST_AHEAD);
        let next = self.schedule.ahead_at.max(self.schedule.short_at) + every;
        let rate = self.held.demand.rate(now);
        let enough = rate.mul_add((self.schedule.round_trip + LEAST_AHEAD).as_secs_f64(), 1.0).min(self.target(now));
        let due = next.max(self.schedule.allowance.ready_at(RESERVED, now));
        let is_enough = self.held.tokens.lasts(whole(enough.ceil()) as usize, now + self.terms.lease / 4);
        Some(if is_enough { due.max(now + every) } else { due })
    }

    /// Returns the moment at which this member has something to do though no call waits.
    pub(in super::super) fn tend_at(&self, now: Moment) -> Option<Moment> {
        if self.schedule.pending.is_some() {
            return None;
        }
        [self.ahead_ask_at(now), self.tell_at(now)].into_iter().flatten().min()
    }
}
