//! What a store's answers and failures change for a gate, and the gate's view of a shared bucket
//! for the status page.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::news::Bulletin;
use super::{LastAnswer, Member, News, PendingAsk, TokenTally};
use crate::keys::mix;
use crate::moment::Moment;
use crate::policy::Per;
use crate::quota::QuotaId;
use crate::resources::shared::ask::micros;
use crate::resources::shared::outage::{self, StoreOutage};
use crate::resources::shared::{AskId, MOST_PAUSES, PauseNotice, StoreAnswer, StoreFailure};
use crate::{BucketPolicy, SharedId, SharedPolicy};

/// A shared bucket as one of its gates sees it; of a split one, all parts together.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedView {
    /// The bucket's index in the policy.
    pub id: Option<SharedId>,
    /// The name and settings of the shared bucket.
    pub policy: Arc<SharedPolicy>,
    /// The number of parts in use, if it is split.
    pub parts: Option<usize>,
    /// The number of gates sharing the bucket, by the last answer; zero if there was none. Over
    /// several parts, the highest number.
    pub members: u32,
    /// The tokens left in the store at the last answer. Over several parts, the fewest.
    pub level: f64,
    /// The number of tokens this gate holds.
    pub held: usize,
    /// True while the store does not answer.
    pub away: bool,
    /// The rate in force: this gate's alone while the store is away, otherwise the lowest of all
    /// gates. Over several parts, the slowest.
    pub rate: f64,
    /// The time until a call can have a token, if it is known.
    pub next: Option<Duration>,
    /// True if another gate is configured with stricter limits.
    pub differs: bool,
    /// The numbers of tokens granted, spent and lost so far.
    pub tally: TokenTally,
}

// === impl SharedView ===

impl SharedView {
    /// Adds another part of the same bucket.
    pub(crate) fn add(&mut self, other: &Self) {
        self.parts = self.parts.map(|parts| parts + 1);
        if other.members > 0 {
            self.level = if self.members > 0 { self.level.min(other.level) } else { other.level };
        }
        self.members = self.members.max(other.members);
        self.held += other.held;
        self.rate = self.rate.min(other.rate);
        self.next = self.next.into_iter().chain(other.next).min();
        self.away |= other.away;
        self.differs |= other.differs;
        self.tally.add(other.tally);
    }
}

// === impl Member ===

impl Member {
    /// Applies the store's answer to a request, or its failure, unless it comes too late. Returns
    /// the pauses of other gates in the answer.
    pub(crate) fn answered(
        &mut self,
        asked: AskId,
        answer: Result<StoreAnswer, StoreFailure>,
        sent: Moment,
        now: Moment,
    ) -> Vec<News> {
        let pending = self.schedule.pending.take_if(|pending| pending.number == asked.number);
        let Some(pending) = pending else { return Vec::new() };
        match answer {
            Ok(answer) if answer.granted <= pending.wish.most() => {
                if self.account.epoch != answer.epoch {
                    self.bulletin.heard.clear(); // a store that forgets a pause ends none
                }
                self.heard(&answer, pending, sent, now);
                return self.pauses_of(&answer, sent, now);
            }
            Ok(_) => self.lost(StoreFailure::Wrong, now),
            Err(failure) => self.lost(failure, now),
        }
        self.bulletin.news.retain(|news| news.ends() > now);
        Vec::new()
    }

    /// Returns the pauses begun or ended by other gates, according to an answer. There are none
    /// while this gate has pauses of its own to report, as these are newer.
    fn pauses_of(&mut self, answer: &StoreAnswer, sent: Moment, now: Moment) -> Vec<News> {
        let longest = self.shared.pauses.filter(|_| self.bulletin.news.is_empty());
        let Some(longest) = longest else { return Vec::new() };
        let whole = answer.pause.map(|left| PauseNotice { quota: QuotaId::ALL, left });
        let told = whole.iter().chain(answer.quotas.iter().take(MOST_PAUSES)).filter(|told| !told.left.is_zero());
        let told: BTreeMap<QuotaId, Duration> = told.map(|told| (told.quota, told.left.min(longest))).collect();
        let paused =
            told.iter().map(|(quota, left)| News::Paused { quota: *quota, until: now + *left, surely: sent + *left });
        let mut news: Vec<News> = paused.collect();
        let Bulletin { heard, .. } = &mut self.bulletin;
        heard.retain(|quota, until| {
            let is_over = answer.pause.is_some() && !told.contains_key(quota);
            if is_over {
                // Waiting calls may ask again: the last answers had named the end of a pause.
                self.schedule.not_before = Moment::ZERO;
                news.extend((*until > now).then_some(News::Lifted { quota: *quota }));
            }
            !is_over && *until > now
        });
        heard.extend(told.iter().map(|(quota, left)| (*quota, now + *left)));
        news
    }

    fn heard(&mut self, answer: &StoreAnswer, pending: PendingAsk, sent: Moment, now: Moment) {
        let took = now - sent;
        let before = self.schedule.round_trip;
        self.schedule.round_trip = if self.answer.is_none() { took } else { before.mul_f64(0.8) + took.mul_f64(0.2) };
        self.held.outage = None;
        self.held.was_away = false;
        self.fallback_before = self.tally().fallback;
        if self.bulletin.news.first() == pending.news.as_ref() && pending.news.is_some() {
            self.bulletin.news.remove(0);
        }
        if matches!(pending.news, Some(News::Lifted { .. })) {
            self.bulletin.heard.clear();
            self.schedule.not_before = Moment::ZERO;
        }
        self.account.epoch = answer.epoch;
        self.account.total += u64::from(answer.granted);
        self.held.tokens.add(answer, self.terms.lease, sent, now);
        self.held.promise = sent + answer.until(answer.granted);
        if answer.granted < pending.wish.need {
            self.schedule.early_from = self.held.tokens.last(now).unwrap_or(now) + self.terms.lease * IN_VAIN;
        }
        if pending.wish.need > 0 && answer.granted == 0 {
            let wait = answer.until(0).saturating_sub(pending.wish.within);
            self.schedule.not_before = now + wait + SPREAD.mul_f64(self.spread());
        }
        self.answer = Some(LastAnswer { answer: StoreAnswer { quotas: Vec::new(), ..*answer }, at: now });
    }

    fn lost(&mut self, why: StoreFailure, now: Moment) {
        let spread = self.spread();
        let mut outage = self.held.outage.take().unwrap_or_else(|| StoreOutage::new(self.part_alone(now), now));
        outage.failed(why, spread, now);
        self.held.outage = Some(outage);
        self.held.was_away = true;
    }

    /// Returns the limits of this gate alone, if the store is away from now on; `None` if its calls
    /// then wait.
    fn part_alone(&self, now: Moment) -> Option<BucketPolicy> {
        let recently = self.answer.as_ref().filter(|heard| now - heard.at < MEMBERS_KNOWN);
        let members = recently.and_then(|heard| NonZeroU32::new(heard.answer.members));
        let rate = recently.map_or(self.limits.rate, |heard| self.rate_told(&heard.answer));
        let limits = BucketPolicy { rate, ..self.limits };
        let members = members.or(self.reckoned).unwrap_or(self.shared.members);
        outage::part(&limits, self.shared.outage, members)
    }

    /// Returns the lower of an answer's rate and the gate's own.
    fn rate_told(&self, answer: &StoreAnswer) -> f64 {
        self.limits.rate.min(1.0 / answer.period.as_secs_f64().max(1e-9))
    }

    /// Returns this gate's calls per second without its store; zero if its calls wait.
    pub(super) fn rate_alone(&self, now: Moment) -> f64 {
        let from_now = || self.part_alone(now).map_or(0.0, |part| part.rate);
        self.held.outage.as_ref().map_or_else(from_now, StoreOutage::rate)
    }

    /// Returns the number of calls sent without the store since its last answer.
    pub(crate) fn sent_alone(&self) -> u64 {
        self.tally().fallback.saturating_sub(self.fallback_before)
    }

    /// Returns the moment of the next attempt, if the store is away.
    pub(crate) fn away_until(&self) -> Option<Moment> {
        self.held.outage.as_ref().map(|outage| outage.retry_at)
    }

    /// Records that a request for another bucket found the store away. If calls are being sent, the
    /// gate continues without the store; it sends no request before `retry_at`.
    pub(crate) fn hear_outage(&mut self, why: StoreFailure, retry_at: Moment, now: Moment) {
        if self.schedule.pending.is_some() {
            return;
        }
        if self.held.outage.is_none() && self.held.demand.is_alive(now) {
            self.lost(why, now);
        }
        if let Some(outage) = &mut self.held.outage {
            outage.retry_at = retry_at;
        }
    }

    /// Returns a random number from 0 to 1, different for each request.
    fn spread(&self) -> f64 {
        let mixed = mix(self.id ^ self.schedule.number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        f64::from(u32::try_from(mixed >> 32).unwrap_or(0)) / f64::from(u32::MAX)
    }

    /// Returns the number of gates sharing the bucket, at the last answer or before a restart;
    /// zero if unknown.
    pub(crate) fn members(&self) -> u32 {
        self.answer.as_ref().map_or_else(|| self.reckoned.map_or(0, NonZeroU32::get), |heard| heard.answer.members)
    }

    /// Assumes this many gates until the first answer.
    pub(crate) fn reckon_with(&mut self, members: Option<NonZeroU32>) {
        self.reckoned = members;
    }

    /// Returns the view for the status page.
    pub(crate) fn view(&self, now: Moment) -> SharedView {
        let answer = self.answer.as_ref().map(|heard| &heard.answer);
        SharedView {
            id: self.limits.shared,
            policy: Arc::clone(&self.shared),
            parts: self.part.filter(|part| part.per != Per::Gate).map(|_| 1),
            members: answer.map_or(0, |answer| answer.members),
            level: answer.map_or(0.0, |answer| answer.rest()),
            held: self.held.tokens.lasting(now),
            away: self.held.outage.is_some(),
            rate: match (&self.held.outage, &answer) {
                (Some(outage), _) => outage.rate(),
                (None, Some(answer)) => self.rate_told(answer),
                (None, None) => self.limits.rate,
            },
            next: Some(self.held.ready_at(now)).filter(|at| *at < Moment::MAX).map(|at| at - now),
            differs: answer.is_some_and(|answer| answer.period > micros(self.terms.period)),
            tally: self.tally(),
        }
    }
}

/// For how many leases (periods of validity of granted tokens) a gate stops sending requests early,
/// after it got fewer tokens than it needed.
const IN_VAIN: u32 = 8;
/// The longest random delay of a request after one without a grant.
const SPREAD: Duration = Duration::from_millis(20);
/// How long the last known number of gates is believed.
const MEMBERS_KNOWN: Duration = Duration::from_secs(600);
