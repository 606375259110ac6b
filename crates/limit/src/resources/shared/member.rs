//! A gate as a member of a shared bucket: what it spends, and when it requests tokens.

mod answers;
mod holdings;
mod news;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

pub use self::answers::SharedView;
use self::holdings::Holdings;
use self::news::Bulletin;
pub(crate) use self::news::News;
pub use super::tokens::TokenTally;
use super::{Ask, AskId, BucketPart, Fallback, PauseNotice, SharedLimits, StoreAnswer, Wish, ledger};
use crate::moment::Moment;
use crate::{BucketId, BucketPolicy, SharedPolicy};

/// A gate's use of a shared bucket, or of one part of it.
#[derive(Debug)]
pub(crate) struct Member {
    limits: BucketPolicy,
    shared: Arc<SharedPolicy>,
    /// The part of the bucket, if it is split.
    part: Option<BucketPart>,
    terms: SharedLimits,
    /// A random number for the store, so that no two gates count as one.
    id: u64,
    held: Holdings,
    schedule: Schedule,
    account: Account,
    bulletin: Bulletin,
    answer: Option<LastAnswer>,
    /// The number of gates that shared the bucket before a restart, assumed until the first answer.
    reckoned: Option<NonZeroU32>,
    /// The calls sent without the store before its last answer.
    fallback_before: u64,
}

/// The times of the last and next requests.
#[derive(Debug, Default)]
struct Schedule {
    /// The request without an answer so far.
    pending: Option<PendingAsk>,
    /// The number of requests so far.
    number: u64,
    asked_at: Moment,
    /// The average time from a request to its answer.
    round_trip: Duration,
    /// How many tokens the next request wants besides those needed for waiting calls.
    extra: u32,
    /// The moment of the last request for waiting calls.
    short_at: Moment,
    /// The moment to begin sending requests early: as calls come, and not only shortly before the
    /// time of the last token. Otherwise a gate of few callers would get fewer tokens than it may
    /// have.
    early_from: Moment,
    /// The earliest useful moment for a request.
    not_before: Moment,
    /// Until this time there are enough tokens for all waiting calls.
    enough_until: Moment,
    /// The moment of the last request without waiting calls.
    ahead_at: Moment,
}

/// The counts a gate exchanges with the store, so that each notices if the other has lost data.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// The tokens received since the gate became a member.
    total: u64,
    /// The number of the bucket's present life in the store. A new life begins when the store has
    /// lost the bucket.
    epoch: u64,
}

/// The calls waiting for tokens of a shared bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Want {
    pub(crate) calls: usize,
    /// How many of the waiting calls have a free slot under the limits on calls in flight.
    pub(crate) slots: usize,
    /// How long the newest waiting call can still wait.
    pub(crate) within: Duration,
}

/// A request without an answer so far.
#[derive(Clone, Copy, Debug)]
struct PendingAsk {
    number: u64,
    wish: Wish,
    news: Option<News>,
}

/// The last answer, and the moment it came.
#[derive(Clone, Debug)]
struct LastAnswer {
    answer: StoreAnswer,
    at: Moment,
}

// === impl Member ===

impl Member {
    pub(crate) fn new(limits: BucketPolicy, shared: Arc<SharedPolicy>, part: Option<BucketPart>, id: u64) -> Self {
        let terms = SharedLimits::new(&limits, &shared);
        Self {
            limits,
            shared,
            part,
            id,
            held: Holdings::new(terms.lease),
            terms,
            schedule: Schedule::default(),
            account: Account::default(),
            bulletin: Bulletin::default(),
            answer: None,
            reckoned: None,
            fallback_before: 0,
        }
    }

    /// Applies new settings. The tokens held stay, unless they belong to another bucket.
    pub(crate) fn resize(&mut self, limits: BucketPolicy, shared: Arc<SharedPolicy>) {
        let terms = SharedLimits::new(&limits, &shared);
        let is_same = (&*self.shared.name, &*self.shared.store) == (&*shared.name, &*shared.store);
        if is_same && self.shared.lease == shared.lease && self.terms.lease == terms.lease {
            self.terms = terms;
            self.limits = limits;
            self.shared = shared;
            return;
        }
        let tally = self.held.tokens.close();
        let number = self.schedule.number;
        *self = Self::new(limits, shared, self.part, self.id);
        self.held.tokens.tally = tally;
        self.fallback_before = tally.fallback;
        self.schedule.number = number;
    }

    pub(crate) fn shared(&self) -> &SharedPolicy {
        &self.shared
    }

    pub(crate) fn part(&self) -> Option<BucketPart> {
        self.part
    }

    /// Returns how many tokens were granted, spent and lost so far.
    pub(crate) fn tally(&self) -> TokenTally {
        self.held.tokens.tally
    }

    // --- spending

    /// Returns the tokens held for calls.
    #[inline]
    pub(crate) fn held(&self) -> &Holdings {
        &self.held
    }

    /// Takes a token, as if at the moment `at`. Returns true if there was one.
    pub(crate) fn take(&mut self, at: Moment, now: Moment, number: u64) -> bool {
        self.held.take(at, now, number)
    }

    /// Gives back the token taken under `number`.
    pub(crate) fn give_back(&mut self, number: u64) {
        self.held.give_back(number);
    }

    // --- asking

    /// Records that a call begins to wait for a token.
    pub(crate) fn note_short(&mut self) {
        self.schedule.enough_until = Moment::ZERO;
    }

    /// Returns the request to send now, if one is due. Without `plenty` of requests left in the
    /// allowance, no tokens are requested in advance of calls.
    pub(crate) fn ask(&mut self, bucket: BucketId, want: Want, plenty: bool, now: Moment) -> Option<Ask> {
        self.held.tokens.expire(now);
        if self.schedule.pending.is_some() {
            return None;
        }
        // A call without a slot can leave only in place of another: more tokens would expire.
        let in_turn = whole(self.in_a_lease(now)) as usize + 1;
        let calls = want.calls.min(want.slots.max(in_turn));
        let held = self.held.tokens.lasting(now);
        let short = calls > held;
        if !short && calls > 0 {
            self.schedule.enough_until = self.held.tokens.ready_at(now).unwrap_or(now);
        }
        let is_away = self.held.outage.is_some();
        let within = want.within;
        let wish = if short && self.short_ask_at(now) <= now {
            let need = u32::try_from(calls - held).unwrap_or(MOST).min(MOST);
            Wish { need, extra: self.grown_extra(now), within }
        } else if !short && (plenty || is_away) && self.ahead_ask_at(now).is_some_and(|at| at <= now) {
            // A member without demand asks for no token: it only wants to know.
            let need = u32::from(is_away && self.held.demand.is_alive(now));
            Wish { need, extra: if is_away { 0 } else { self.missing_ahead(now) }, within }
        } else if self.tell_at(now).is_some_and(|at| at <= now) {
            Wish { within, ..Wish::default() }
        } else {
            return None;
        };
        match wish {
            Wish { need: 0, extra: 0, .. } => {}
            Wish { need: 0, .. } => self.schedule.ahead_at = now,
            Wish { .. } => self.schedule.short_at = now,
        }
        Some(self.begin(bucket, wish, now))
    }

    /// Returns the last request of a stopping gate, if the store knows it.
    pub(crate) fn farewell(&mut self, bucket: BucketId, now: Moment) -> Option<Ask> {
        self.answer.as_ref().filter(|_| self.held.outage.is_none())?;
        Some(Ask { leave: true, ..self.begin(bucket, Wish::default(), now) })
    }

    fn begin(&mut self, bucket: BucketId, wish: Wish, now: Moment) -> Ask {
        if (now - self.schedule.asked_at).as_micros() > u128::from(ledger::MEMBER) {
            self.account = Account::default(); // it is no member any more
        }
        let number = self.schedule.number + 1;
        let news = self.bulletin.news.first().copied();
        self.schedule.number = number;
        self.schedule.asked_at = now;
        self.schedule.pending = Some(PendingAsk { number, wish, news });
        Ask {
            asked: AskId { bucket, number },
            part: self.part,
            wish,
            total: self.account.total,
            epoch: self.account.epoch,
            ahead: u32::try_from(self.held.tokens.later_than(now + self.look())).unwrap_or(u32::MAX),
            away: self.held.was_away,
            pause: news.map(|news| match news {
                News::Paused { quota, until, .. } => {
                    PauseNotice { quota, left: (until - now).max(Duration::from_micros(1)) }
                }
                News::Lifted { quota } => PauseNotice { quota, left: Duration::ZERO },
            }),
            left: self.bulletin.left.take(now),
            fallback: Fallback { rate: self.rate_alone(now), sent: 0 },
            ..Ask::new(self.id, self.terms, Arc::clone(&self.shared))
        }
    }

    /// Returns how many tokens to want besides those for waiting calls: more and more while
    /// requests follow each other quickly.
    fn grown_extra(&mut self, now: Moment) -> u32 {
        let in_a_lease = self.in_a_lease(now);
        let follows = now - self.schedule.short_at < self.terms.lease && self.schedule.short_at > Moment::ZERO;
        let extra = self.schedule.extra;
        self.schedule.extra = if follows { (extra * 2).clamp(1, MOST_EXTRA) } else { extra / 2 };
        if in_a_lease < 2.0 { 0 } else { self.schedule.extra.min(whole(in_a_lease)) }
    }

    /// Returns how many calls the gate sends while granted tokens are valid (one lease).
    fn in_a_lease(&self, now: Moment) -> f64 {
        self.held.demand.per_second(now) * self.terms.lease.as_secs_f64()
    }

    /// Returns how many tokens to hold for calls to come.
    fn target(&self, now: Moment) -> f64 {
        self.in_a_lease(now) / 2.0 + 1.0
    }

    fn missing_ahead(&self, now: Moment) -> u32 {
        let lasting = self.held.tokens.lasting(now + self.terms.lease / 4);
        whole(self.target(now)).saturating_sub(u32::try_from(lasting).unwrap_or(u32::MAX)).max(1)
    }

    /// Returns true if dropping the member loses nothing: it holds no token, sends no calls, and
    /// has nothing to report. Calls sent while the store was away no longer matter once the gate's
    /// own bucket is full.
    pub(crate) fn is_idle(&self, now: Moment) -> bool {
        let has_news = !self.bulletin.news.is_empty() || self.bulletin.is_paused(now);
        self.schedule.pending.is_none()
            && !has_news
            && !self.held.demand.is_alive(now)
            && !self.held.tokens.lasts(1, now)
    }

    // --- times

    /// Returns the moment to check again for a call without a token: when there is one, or when to
    /// request one. No request is sent before `question_at`.
    pub(crate) fn look_at(&self, question_at: Moment, now: Moment) -> Moment {
        let ready = self.held.ready_at(now);
        if self.schedule.pending.is_some() || ready <= now {
            return ready;
        }
        let ask_at = self.short_ask_at(now).max(self.schedule.enough_until).max(question_at);
        // Later than now, or the call would seem to have its token.
        ready.min(ask_at.max(now + Duration::from_nanos(1)))
    }

    /// Returns from when on a request may be sent.
    fn retry_at(&self, now: Moment) -> Moment {
        self.held.outage.as_ref().map_or(now, |outage| outage.retry_at.max(now))
    }

    /// Returns the moment of the next request for waiting calls.
    fn short_ask_at(&self, now: Moment) -> Moment {
        let last = self.held.tokens.last(now).map_or(now, |last| last.back(self.short_look()));
        last.min(self.schedule.early_from).max(self.schedule.not_before).max(self.retry_at(now))
    }

    /// Returns how long before the time of its last token a gate requests more.
    fn look(&self) -> Duration {
        self.schedule.round_trip.mul_f64(1.5) + Duration::from_millis(2)
    }

    /// Returns how long before its last token a gate with waiting calls requests more. If calls of
    /// other gates wait too, the request need not be early, because the next free token comes after
    /// theirs. The store promises no more than one turn of all and one token, so a gate that asked
    /// earlier would lose a part of its turn each time.
    fn short_look(&self) -> Duration {
        let look = self.look();
        let rivals = self.answer.as_ref().filter(|heard| heard.answer.rivals > 0);
        rivals.map_or(look, |heard| look.min(heard.answer.period))
    }

    /// Returns the moment of the next request without waiting calls: in advance of calls while the
    /// store has plenty, or to learn whether the store is back.
    fn ahead_ask_at(&self, now: Moment) -> Option<Moment> {
        if let Some(outage) = &self.held.outage {
            // Without demand too: a call that came later would find the member's own bucket full,
            // and would spend a burst beside a store that has long been back.
            return Some(outage.retry_at);
        }
        let answer = &self.answer.as_ref()?.answer;
        let plenty = answer.rest() > self.terms.burst / 2.0 + 2.0 && answer.rivals == 0;
        if !plenty || self.in_a_lease(now) < 2.0 {
            return None;
        }
        let every = (self.terms.lease / 4).max(LEAST_AHEAD);
        let next = self.schedule.ahead_at.max(self.schedule.short_at) + every;
        let rate = self.held.demand.per_second(now);
        let enough = rate.mul_add((self.schedule.round_trip + LEAST_AHEAD).as_secs_f64(), 1.0).min(self.target(now));
        let is_enough = self.held.tokens.lasts(whole(enough.ceil()) as usize, now + self.terms.lease / 4);
        Some(if is_enough { next.max(now + every) } else { next })
    }

    fn tell_at(&self, now: Moment) -> Option<Moment> {
        let due = self.bulletin.due(self.schedule.asked_at, now)?;
        Some(due.max(self.retry_at(now)))
    }

    /// Returns the moment of the next request while no call waits. Until `plenty_at`, no tokens are
    /// requested in advance of calls.
    pub(crate) fn tend_at(&self, plenty_at: Moment, now: Moment) -> Option<Moment> {
        if self.schedule.pending.is_some() {
            return None;
        }
        let is_away = self.held.outage.is_some();
        let ahead = self.ahead_ask_at(now).map(|at| if is_away { at } else { at.max(plenty_at) });
        ahead.into_iter().chain(self.tell_at(now)).min()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "`as` saturates, as is wanted")]
fn whole(number: f64) -> u32 {
    number as u32
}

/// The most tokens in one request for waiting calls.
const MOST: u32 = 200;
/// The most tokens to request besides those for waiting calls.
const MOST_EXTRA: u32 = 64;
/// The least time between two requests for calls to come, and the time that they must suffice for.
const LEAST_AHEAD: Duration = Duration::from_millis(50);
