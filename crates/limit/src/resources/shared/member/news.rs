//! What a member tells the others: that the upstream asked for a pause, that it is over, and that
//! the member leaves.

use std::time::Duration;

use super::{Member, News, PendingAsk};
use crate::moment::Moment;
use crate::resources::{Ask, AskId};

/// What a member has to tell the others, and what they told it.
#[derive(Debug, Default)]
pub(super) struct Bulletin {
    pub(super) news: Option<News>,
    /// The rest of the upstream's quota.
    pub(super) left: QuotaRest,
    /// The end of the pause that another member told.
    pub(super) paused_until: Moment,
}

/// The rest of the upstream's quota, by the upstream's own word.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QuotaRest {
    /// The least that was said since it was told to the others, and when.
    least: Option<(u32, Moment)>,
    /// The moment at which something was told last.
    told_at: Option<Moment>,
}

// === impl Member ===

impl Member {
    /// Returns the last ask of this member, if the store knows it.
    pub(in super::super) fn farewell(&mut self, now: Moment, asked: impl FnOnce(u64) -> AskId) -> Option<Ask> {
        self.answer.filter(|_| self.held.away.is_none())?;
        let pending = PendingAsk {
            number: self.schedule.number + 1,
            need: 0,
            extra: 0,
            within: Duration::ZERO,
            news: self.bulletin.news,
        };
        Some(Ask { leave: true, ..self.begin(pending, now, asked) })
    }

    /// Tells the others what is new, as soon as no other ask is under way.
    pub(in super::super) fn tell(&mut self, news: News) {
        self.bulletin.news = Some(news);
    }

    /// Records what is left of the upstream's quota. Returns true if it is worth telling: the
    /// bucket could hold more.
    pub(in super::super) fn note_left(&mut self, left: u32, now: Moment) -> bool {
        let is_less = f64::from(left) < self.terms.burst;
        if is_less {
            self.bulletin.left.note(left, now);
        }
        is_less
    }

    /// Returns the moment at which to tell what is new, or to hear if the pause that another told
    /// has been lifted.
    pub(super) fn tell_at(&self, now: Moment) -> Option<Moment> {
        let news = match self.bulletin.news {
            Some(_) => Some(now),
            None => (self.bulletin.paused_until > now).then_some(self.schedule.asked_at + HEAR_AGAIN),
        };
        let due = news.into_iter().chain(self.bulletin.left.due(now)).min()?;
        let retry = self.held.away.as_ref().map_or(now, |away| away.retry_at);
        Some(due.max(retry).max(self.schedule.allowance.ready_at(0.0, now)))
    }
}

// === impl QuotaRest ===

impl QuotaRest {
    fn note(&mut self, left: u32, now: Moment) {
        let least = self.least.map_or(left, |(least, _)| least.min(left));
        self.least = Some((least, now));
    }

    /// Returns the moment at which to tell it, if there is something.
    fn due(&self, now: Moment) -> Option<Moment> {
        self.least.map(|_| self.told_at.map_or(now, |at| (at + TELL_EVERY).max(now)))
    }

    /// Returns what is to be told now. What was said long ago is not true any more.
    pub(super) fn take(&mut self, now: Moment) -> Option<u32> {
        self.due(now).filter(|due| *due <= now)?;
        let (left, at) = self.least.take()?;
        let is_new = now - at < OLD;
        if is_new {
            self.told_at = Some(now);
        }
        is_new.then_some(left)
    }
}

/// The time between two words of what is left.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// The time after which what was said to be left is not told any more: the store was away.
const OLD: Duration = Duration::from_secs(10);
/// The time after which a member that keeps a pause of another's asks if it still holds.
const HEAR_AGAIN: Duration = Duration::from_secs(2);
