//! The effect on a member of the store's answer, and of its absence.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::{LastAnswer, Member, News, PendingAsk};
use crate::keys::mix;
use crate::moment::Moment;
use crate::policy::Per;
use crate::resources::shared::outage::{self, StoreAway};
use crate::resources::{StoreAnswer, StoreFailure};
use crate::{BucketPolicy, SharedId, SharedPolicy};

/// A shared bucket as one of its members sees it; of one that is split, all parts together.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedView {
    /// Its place in the policy.
    pub id: Option<SharedId>,
    /// Its name and its settings.
    pub policy: Arc<SharedPolicy>,
    /// The parts that are told apart now, if it is split.
    pub parts: Option<usize>,
    /// The number of members at the last answer, of the part that has most; zero if there was none.
    pub members: u32,
    /// The tokens left in the store at the last answer, of the part that has fewest.
    pub level: f64,
    /// The tokens held.
    pub held: usize,
    /// True while the store is away.
    pub away: bool,
    /// The rate in force now: while the store is away that of this gate alone, otherwise that of
    /// the strictest member; of the slowest part.
    pub rate: f64,
    /// The time until a call can have a token, as far as that is known.
    pub next: Option<Duration>,
    /// True if another member has stricter limits.
    pub differs: bool,
    /// The tokens granted so far.
    pub granted: u64,
    /// Those of them that were spent.
    pub spent: u64,
    /// Those of them that could not be spent in time.
    pub expired: u64,
    /// The calls that were sent while the store was away.
    pub fallback: u64,
}

/// The store's word on the pause of a shared bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedPause {
    /// There is one: its end, and a moment before which it does not end. What lies between is the
    /// time of the question and its answer.
    Paused { until: Moment, surely: Moment },
    /// The one that it told of is over.
    Lifted,
}

// === impl SharedView ===

impl SharedView {
    /// Adds another part.
    pub(in super::super) fn add(&mut self, other: &Self) {
        self.parts = self.parts.map(|parts| parts + 1);
        if other.members > 0 {
            self.level = if self.members > 0 { self.level.min(other.level) } else { other.level };
        }
        self.members = self.members.max(other.members);
        self.held += other.held;
        self.rate = self.rate.min(other.rate);
        self.next = self.next.into_iter().chain(other.next).min();
        self.away = self.away || other.away;
        self.differs = self.differs || other.differs;
        self.count(other);
    }

    /// Adds what became of another part's tokens.
    pub(in super::super) fn count(&mut self, other: &Self) {
        self.granted += other.granted;
        self.spent += other.spent;
        self.expired += other.expired;
        self.fallback += other.fallback;
    }
}

// === impl Member ===

impl Member {
    /// Takes in what came of ask `number`. An answer that comes too late is not used.
    /// Returns the end of a pause that another member told.
    pub(in super::super) fn answered(
        &mut self,
        number: u64,
        answer: Result<StoreAnswer, StoreFailure>,
        sent: Moment,
        now: Moment,
    ) -> Option<SharedPause> {
        let pending = self.schedule.pending.take_if(|asked| asked.number == number)?;
        match answer {
            Ok(answer) if answer.granted <= pending.need.saturating_add(pending.extra) => {
                self.heard(&answer, pending, sent, now);
                return self.pause_of(&answer, sent, now);
            }
            Ok(_) => self.lost(StoreFailure::Wrong, now),
            Err(away) => self.lost(away, now),
        }
        self.bulletin.news.take_if(|news| matches!(news, News::Paused(until) if *until <= now));
        None
    }

    /// Returns what the store told of a pause. What this member has not told yet is newer.
    fn pause_of(&mut self, answer: &StoreAnswer, sent: Moment, now: Moment) -> Option<SharedPause> {
        let longest = self.shared.pauses.filter(|_| self.bulletin.news.is_none())?;
        let left = answer.pause?.min(longest);
        if left.is_zero() {
            let is_new = self.bulletin.paused_until > now;
            self.pause_is_over();
            return is_new.then_some(SharedPause::Lifted);
        }
        self.bulletin.paused_until = now + left;
        Some(SharedPause::Paused { until: now + left, surely: sent + left })
    }

    fn heard(&mut self, answer: &StoreAnswer, pending: PendingAsk, sent: Moment, now: Moment) {
        let took = now - sent;
        self.schedule.round_trip =
            if self.answer.is_none() { took } else { self.schedule.round_trip.mul_f64(0.8) + took.mul_f64(0.2) };
        self.held.away = None;
        self.held.was_away = false;
        self.counters.fallback_before = self.counters.fallback;
        if self.bulletin.news == pending.news {
            self.bulletin.news = None;
        }
        if pending.news == Some(News::Lifted) {
            self.pause_is_over();
        }
        self.counters.epoch = answer.epoch;
        self.counters.total += u64::from(answer.granted);
        self.counters.granted += u64::from(answer.granted);
        self.held.tokens.add(answer, self.terms.lease, sent, now);
        let after = |tokens: u32| {
            let period = i64::try_from(answer.period.as_nanos()).unwrap_or(i64::MAX);
            let nanos = answer.first.saturating_add(period.saturating_mul(i64::from(tokens)));
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
        };
        self.held.promise = sent + after(answer.granted);
        if answer.granted < pending.need {
            self.schedule.early_from = self.held.tokens.last(now).unwrap_or(now) + self.terms.lease * IN_VAIN;
        }
        if pending.need > 0 && answer.granted == 0 {
            self.schedule.not_before = now + after(0).saturating_sub(pending.within) + SPREAD.mul_f64(self.spread());
        }
        self.answer = Some(LastAnswer { answer: *answer, at: now });
    }

    /// Asks again for calls that wait: the last answers named the end of a pause.
    fn pause_is_over(&mut self) {
        if self.bulletin.paused_until > Moment::ZERO {
            self.bulletin.paused_until = Moment::ZERO;
            self.schedule.not_before = Moment::ZERO;
        }
    }

    fn lost(&mut self, why: StoreFailure, now: Moment) {
        let spread = self.spread();
        let mut away = self.held.away.take().unwrap_or_else(|| StoreAway::new(self.part_alone(now), now));
        away.failed(why, spread, now);
        self.held.away = Some(away);
        self.held.was_away = true;
    }

    /// Returns this member's limits if the store is away from now on; `None` if its calls wait.
    fn part_alone(&self, now: Moment) -> Option<BucketPolicy> {
        let recently = self.answer.filter(|heard| now - heard.at < MEMBERS_KNOWN);
        let members = recently.and_then(|heard| NonZeroU32::new(heard.answer.members));
        let rate = recently.map_or(self.limits.rate, |heard| self.rate_told(&heard.answer));
        let limits = BucketPolicy { rate, ..self.limits };
        let members = members.or(self.reckoned).unwrap_or(self.shared.members);
        outage::part(&limits, self.shared.outage, members)
    }

    /// Returns the rate that an answer puts in force.
    fn rate_told(&self, answer: &StoreAnswer) -> f64 {
        self.limits.rate.min(1.0 / answer.period.as_secs_f64().max(1e-9))
    }

    /// Returns the rate at which this member goes on without its store; zero if its calls wait.
    pub(in super::super) fn rate_alone(&self, now: Moment) -> f64 {
        let now_alone = || self.part_alone(now).map_or(0.0, |part| part.rate);
        self.held.away.as_ref().map_or_else(now_alone, StoreAway::rate)
    }

    /// Returns the calls that this member has sent without the store since its last answer.
    pub(in super::super) fn sent_alone(&self) -> u64 {
        self.counters.fallback.saturating_sub(self.counters.fallback_before)
    }

    /// Returns the moment at which a store that is away is asked again.
    pub(in super::super) fn away_until(&self) -> Option<Moment> {
        self.held.away.as_ref().map(|away| away.retry_at)
    }

    /// Goes on alone as another member of the gate does, which found the store away, if it has
    /// anything to send.
    pub(in super::super) fn hear_outage(&mut self, why: StoreFailure, retry_at: Moment, now: Moment) {
        if self.schedule.pending.is_none() && self.held.away.is_none() && self.held.demand.is_alive(now) {
            self.lost(why, now);
        }
        if let Some(away) = self.held.away.as_mut().filter(|_| self.schedule.pending.is_none()) {
            away.retry_at = retry_at;
        }
    }

    /// Returns a number from 0 to 1 that differs between members and asks.
    fn spread(&self) -> f64 {
        let mixed = mix(self.id ^ self.schedule.number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        f64::from(u32::try_from(mixed >> 32).unwrap_or(0)) / f64::from(u32::MAX)
    }

    /// Returns the number of members at the last answer, or before a restart; zero if that is not
    /// known.
    pub(crate) fn members(&self) -> u32 {
        self.answer.map_or_else(|| self.reckoned.map_or(0, NonZeroU32::get), |heard| heard.answer.members)
    }

    /// Reckons with this many members until the store has said how many there are.
    pub(crate) fn reckon_with(&mut self, members: Option<NonZeroU32>) {
        self.reckoned = members;
    }

    /// Returns what a status page shows.
    pub(crate) fn view(&self, now: Moment) -> SharedView {
        let answer = self.answer.map(|heard| heard.answer);
        SharedView {
            id: self.limits.shared,
            policy: Arc::clone(&self.shared),
            parts: self.part.filter(|part| part.per != Per::Gate).map(|_| 1),
            members: answer.map_or(0, |answer| answer.members),
            level: answer.map_or(0.0, |answer| answer.level - f64::from(answer.granted)),
            held: self.held.tokens.lasting(now),
            away: self.held.away.is_some(),
            rate: match (&self.held.away, &answer) {
                (Some(away), _) => away.rate(),
                (None, Some(answer)) => self.rate_told(answer),
                (None, None) => self.limits.rate,
            },
            next: Some(self.held.ready_at(now)).filter(|at| *at < Moment::MAX).map(|at| at - now),
            differs: answer.is_some_and(|answer| answer.period > self.terms.token()),
            granted: self.counters.granted,
            spent: self.counters.spent,
            expired: self.held.tokens.expired,
            fallback: self.counters.fallback,
        }
    }
}

/// The leases for which a member does not ask early again once it got fewer tokens than it needed.
const IN_VAIN: u32 = 8;
/// The most that is added at random to the time after which a member asks again without success.
const SPREAD: Duration = Duration::from_millis(20);
/// The time for which the number of members is believed.
const MEMBERS_KNOWN: Duration = Duration::from_secs(600);
