//! The news between members: pauses of the upstream, and the rest of its quota.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Member;
use crate::moment::Moment;
use crate::quota::QuotaId;
use crate::resources::shared::MOST_PAUSES;

/// The news about a pause of a shared bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The upstream asked for one.
    Paused {
        /// The quota.
        quota: QuotaId,
        /// The end of the pause.
        until: Moment,
        /// A moment before its end: earlier by the time of the ask and its answer.
        surely: Moment,
    },
    /// A pause is over; told to the others, every pause.
    Lifted {
        /// The quota.
        quota: QuotaId,
    },
}

/// The news for the others, and from them.
#[derive(Debug, Default)]
pub(super) struct Bulletin {
    /// The news to tell, one with each ask.
    pub(super) news: Vec<News>,
    /// The rest of the upstream's quota.
    pub(super) left: QuotaRest,
    /// The ends of the pauses in the store.
    pub(super) heard: BTreeMap<QuotaId, Moment>,
}

/// The rest of the upstream's quota, as its answers say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QuotaRest {
    /// The least number since it was last told, and its moment.
    least: Option<(u32, Moment)>,
    told_at: Option<Moment>,
}

// === impl Member ===

impl Member {
    /// Tells the others the news of a pause with the next ask, if they share pauses.
    pub(crate) fn tell(&mut self, news: News) {
        if self.shared.pauses.is_some() {
            self.bulletin.add(news);
        }
    }

    /// Records what is left of the upstream's quota. Returns true if it is worth telling: the
    /// bucket could hold more.
    pub(crate) fn note_left(&mut self, left: u32, now: Moment) -> bool {
        let is_less = f64::from(left) < self.terms.burst;
        if is_less {
            self.bulletin.left.note(left, now);
        }
        is_less
    }
}

// === impl Bulletin ===

impl Bulletin {
    /// Adds news, in the place of older ones of the same quota. Of too many the one that ends first
    /// goes, as in the store.
    fn add(&mut self, news: News) {
        let News::Paused { quota, .. } = news else {
            self.news = vec![news];
            return;
        };
        self.news.retain(|old| !matches!(old, News::Paused { quota: of, .. } if *of == quota));
        self.news.push(news);
        if self.news.len() > MOST_PAUSES {
            let ends = |(_, news): &(usize, &News)| news.ends();
            let first = self.news.iter().enumerate().min_by_key(ends).map(|(place, _)| place);
            first.map(|first| self.news.remove(first));
        }
    }

    /// True while the store has a pause.
    pub(super) fn is_paused(&self, now: Moment) -> bool {
        self.heard.values().any(|until| *until > now)
    }

    /// Returns when to tell the news, or to ask if another's pause was lifted.
    pub(super) fn due(&self, asked_at: Moment, now: Moment) -> Option<Moment> {
        let news = match self.news.is_empty() {
            false => Some(now),
            true => self.is_paused(now).then_some(asked_at + HEAR_AGAIN),
        };
        news.into_iter().chain(self.left.due(now)).min()
    }
}

// === impl News ===

impl News {
    /// Returns the end of a pause.
    pub(super) fn ends(&self) -> Moment {
        match self {
            Self::Paused { until, .. } => *until,
            Self::Lifted { .. } => Moment::MAX,
        }
    }
}

// === impl QuotaRest ===

impl QuotaRest {
    fn note(&mut self, left: u32, now: Moment) {
        let least = self.least.map_or(left, |(least, _)| least.min(left));
        self.least = Some((least, now));
    }

    /// Returns when to tell it, if there is a number.
    fn due(&self, now: Moment) -> Option<Moment> {
        self.least.map(|_| self.told_at.map_or(now, |at| (at + TELL_EVERY).max(now)))
    }

    /// Returns the number to tell now. An old number is not true any more.
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

/// The least time between two numbers of what is left.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// The age of a number that is not told any more, after an outage.
const OLD: Duration = Duration::from_secs(10);
/// The time between two asks whether another's pause still holds.
const HEAR_AGAIN: Duration = Duration::from_secs(2);
