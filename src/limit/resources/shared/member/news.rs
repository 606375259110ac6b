//! What a member tells the others: that the upstream asked for a pause, that it is over, and that
//! the member leaves.

use std::time::Duration;

use super::{Member, News, UnderWay};
use crate::limit::resources::{Ask, Asked};
use crate::moment::Moment;

// === impl Member ===

impl Member {
    /// Returns the last ask of this member, if the store knows it.
    pub(in super::super) fn farewell(&mut self, now: Moment, asked: impl FnOnce(u64) -> Asked) -> Option<Ask> {
        self.heard.filter(|_| self.away.is_none())?;
        let under_way =
            UnderWay { number: self.number + 1, need: 0, extra: 0, within: Duration::ZERO, news: self.news };
        Some(Ask { leave: true, ..self.begin(under_way, now, asked) })
    }

    /// Tells the others what is new, as soon as no other ask is under way.
    pub(in super::super) fn tell(&mut self, news: News) {
        self.news = Some(news);
    }

    /// Returns the moment at which to tell what is new, or to hear if the pause that another told
    /// has been lifted.
    pub(super) fn tell_at(&self, now: Moment) -> Option<Moment> {
        let due = match self.news {
            Some(_) => now,
            None if self.paused_until > now => self.asked_at + HEAR_AGAIN,
            None => return None,
        };
        let retry = self.away.as_ref().map_or(now, |away| away.retry_at);
        Some(due.max(retry).max(self.allowance.ready_at(0.0, now)))
    }
}

/// The time after which a member that keeps a pause of another's asks if it still holds.
const HEAR_AGAIN: Duration = Duration::from_secs(2);
