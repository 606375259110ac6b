//! The reports that gates exchange through a shared bucket: pauses of the upstream, and the number
//! of calls left in its quota.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Member;
use crate::moment::Moment;
use crate::quota::QuotaId;
use crate::resources::shared::MOST_PAUSES;

/// A report about a pause, sent to the other gates or received from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The upstream asked for a pause.
    Paused {
        /// The paused quota.
        quota: QuotaId,
        /// The end of the pause.
        until: Moment,
        /// A moment certainly before the pause's end: earlier by the duration of the request to the
        /// store.
        surely: Moment,
    },
    /// A pause was ended early. Sent to the other gates, the report ends every pause.
    Lifted {
        /// The quota of the ended pause.
        quota: QuotaId,
    },
}

/// The reports to send to the other gates, and the pauses received from them.
#[derive(Debug, Default)]
pub(super) struct Bulletin {
    /// The reports to send, one with each request.
    pub(super) news: Vec<News>,
    /// The number of calls left in the upstream's quota.
    pub(super) left: QuotaRest,
    /// The ends of the pauses in the store.
    pub(super) heard: BTreeMap<QuotaId, Moment>,
}

/// The number of calls left in the upstream's quota, by its responses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QuotaRest {
    /// The lowest number of calls left since the last report, and the moment of the latest number.
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

    /// Records the number of calls left in the upstream's quota. Returns true if it is worth
    /// reporting: it is lower than the bucket's burst.
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
    /// Adds a report, in the place of older ones of the same quota. If there are too many, the
    /// pause that ends first is dropped, as in the store.
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

    /// Returns true while a pause in the store is in force.
    pub(super) fn is_paused(&self, now: Moment) -> bool {
        self.heard.values().any(|until| *until > now)
    }

    /// Returns the moment of the next request for the sake of reports: to send one, or to learn
    /// whether another gate's pause was ended.
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
    /// Returns the end of the pause; [`Moment::MAX`] for the report of an end.
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

    /// Returns the number of calls left in the quota, if it is to be reported now; `None` if it is
    /// outdated.
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

/// The least time between two reports of the number of calls left.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// The greatest age of a reported number of calls left, after an outage.
const OLD: Duration = Duration::from_secs(10);
/// How often to ask whether another gate's pause still holds.
const HEAR_AGAIN: Duration = Duration::from_secs(2);
