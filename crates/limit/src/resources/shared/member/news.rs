//! What gates tell each other through a shared bucket: pauses of the upstream, and what is left of
//! its quota.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Member;
use crate::moment::Moment;
use crate::quota::QuotaId;
use crate::resources::shared::MOST_PAUSES;

/// What another gate reports about a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The upstream asked for a pause.
    Paused {
        /// The quota.
        quota: QuotaId,
        /// The end of the pause.
        until: Moment,
        /// A moment certain to be before the pause's end: earlier by the time the request to the
        /// store took.
        surely: Moment,
    },
    /// A pause is over; told to the others, every pause.
    Lifted {
        /// The quota.
        quota: QuotaId,
    },
}

/// What is to be told to the other gates, and what they told.
#[derive(Debug, Default)]
pub(super) struct Bulletin {
    /// The news to tell, one with each ask.
    pub(super) news: Vec<News>,
    /// The rest of the upstream's quota.
    pub(super) left: QuotaRest,
    /// The ends of the pauses in the store.
    pub(super) heard: BTreeMap<QuotaId, Moment>,
}

/// What is left of the upstream's quota, by its responses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QuotaRest {
    /// The least number since the last report, and its moment.
    least: Option<(u32, Moment)>,
    told_at: Option<Moment>,
}

// === impl Member ===

impl Member {
    /// Reports a pause to the other gates with the next request, if they share pauses.
    pub(crate) fn tell(&mut self, news: News) {
        if self.shared.pauses.is_some() {
            self.bulletin.add(news);
        }
    }

    /// Records what is left of the upstream's quota. Returns true if it is worth reporting: the
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

    /// Returns the moment to report the number of calls left, if there is one.
    fn due(&self, now: Moment) -> Option<Moment> {
        self.least.map(|_| self.told_at.map_or(now, |at| (at + TELL_EVERY).max(now)))
    }

    /// Returns the number of calls left to report now; `None` if it is too old to be true.
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

/// The least time between two reports of what is left.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// The greatest age of a number to report, after an outage.
const OLD: Duration = Duration::from_secs(10);
/// How often to ask whether another gate's pause still holds.
const HEAR_AGAIN: Duration = Duration::from_secs(2);
