//! One member of a shared bucket: what it spends, and when it asks.

mod answers;
mod holdings;
mod moments;
mod news;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::answers::SharedPause;
pub use self::answers::SharedView;
use self::holdings::{Holdings, Source};
use self::news::Bulletin;
use super::demand::Allowance;
use super::{Ask, AskId, BucketPart, Fallback, SharedLimits, StoreAnswer, ledger};
use crate::moment::Moment;
use crate::{BucketPolicy, SharedPolicy};

/// A gate's use of a shared bucket.
#[derive(Debug)]
pub(crate) struct Member {
    limits: BucketPolicy,
    pub(crate) shared: Arc<SharedPolicy>,
    /// The part of it that this is, if it is split.
    pub(crate) part: Option<BucketPart>,
    terms: SharedLimits,
    /// Random, so that no two members are one to the store.
    id: u64,
    held: Holdings,
    schedule: Schedule,
    counters: Counters,
    bulletin: Bulletin,
    answer: Option<LastAnswer>,
    /// The number of members that the store said before a restart.
    reckoned: Option<NonZeroU32>,
}

/// The time of the last ask and of the next.
#[derive(Debug)]
struct Schedule {
    allowance: Allowance,
    /// The ask under way.
    pending: Option<PendingAsk>,
    /// The number of asks so far.
    number: u64,
    asked_at: Moment,
    /// The average time of a question and its answer.
    round_trip: Duration,
    /// The tokens beyond need that the next ask takes.
    extra: u32,
    /// The moment of the last ask for waiting calls.
    short_at: Moment,
    /// The moment from which it asks as calls come, and not only when its last token is about to
    /// be there: a gate of few callers needs fewer tokens than its turn has, and would miss the
    /// rest.
    early_from: Moment,
    /// The moment before which an ask would bring nothing.
    not_before: Moment,
    /// The moment before which the tokens held are enough for all that wait.
    enough_until: Moment,
    /// The moment of the last ask ahead of need.
    ahead_at: Moment,
}

/// What a member has been granted and has sent.
#[derive(Debug, Default)]
struct Counters {
    /// The tokens received since it became a member.
    total: u64,
    /// The life of the bucket in which that was.
    epoch: u64,
    granted: u64,
    spent: u64,
    /// The calls sent without the store.
    fallback: u64,
    /// Those of them that were sent before the store's last answer.
    fallback_before: u64,
}

/// The calls that wait for a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) calls: usize,
    /// The slots that are free for them.
    pub(crate) slots: usize,
    /// The time that the newest of them has left.
    pub(crate) within: Duration,
}

/// A member's news for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The upstream asked for a pause until then.
    Paused(Moment),
    /// The pause that was told is over.
    Lifted,
}

/// An ask under way.
#[derive(Clone, Copy, Debug)]
struct PendingAsk {
    number: u64,
    need: u32,
    extra: u32,
    within: Duration,
    news: Option<News>,
}

/// The last answer, and the moment it came.
#[derive(Clone, Copy, Debug)]
struct LastAnswer {
    answer: StoreAnswer,
    at: Moment,
}

// === impl Schedule ===

impl Schedule {
    fn new() -> Self {
        let never = Moment::ZERO;
        Self {
            allowance: Allowance::new(),
            pending: None,
            number: 0,
            asked_at: never,
            round_trip: Duration::ZERO,
            extra: 0,
            short_at: never,
            early_from: never,
            not_before: never,
            enough_until: never,
            ahead_at: never,
        }
    }
}

// === impl Member ===

impl Member {
    pub(super) fn new(limits: BucketPolicy, shared: Arc<SharedPolicy>, part: Option<BucketPart>, id: u64) -> Self {
        let terms = SharedLimits::new(&limits, &shared);
        Self {
            limits,
            shared,
            part,
            id,
            held: Holdings::new(terms.lease),
            terms,
            schedule: Schedule::new(),
            counters: Counters::default(),
            bulletin: Bulletin::default(),
            answer: None,
            reckoned: None,
        }
    }

    /// Applies new settings. The tokens held stay, unless they are of another bucket.
    pub(super) fn resize(&mut self, limits: BucketPolicy, shared: Arc<SharedPolicy>) {
        let is_other = |one: &SharedPolicy, other: &SharedPolicy| {
            (&one.name, &one.store, one.lease) != (&other.name, &other.store, other.lease)
        };
        if is_other(&self.shared, &shared) || self.terms.lease != SharedLimits::new(&limits, &shared).lease {
            self.held.tokens.clear();
            let Counters { granted, spent, fallback, .. } = self.counters;
            let expired = self.held.tokens.expired;
            let number = self.schedule.number;
            *self = Self::new(limits, shared, self.part, self.id);
            self.counters = Counters { granted, spent, fallback, fallback_before: fallback, ..Counters::default() };
            self.held.tokens.expired = expired;
            self.schedule.number = number;
        } else {
            self.terms = SharedLimits::new(&limits, &shared);
            self.limits = limits;
            self.shared = shared;
        }
    }

    // --- spending

    /// Returns what calls can have tokens of.
    #[inline]
    pub(super) fn held(&self) -> &Holdings {
        &self.held
    }

    /// Takes the token that is there at `at`, for a call that leaves now.
    pub(super) fn take(&mut self, at: Moment, now: Moment, number: u64) -> bool {
        let source = self.held.take(at, now, number);
        self.counters.spent += u64::from(source == Some(Source::Store));
        self.counters.fallback += u64::from(source == Some(Source::Alone));
        source.is_some()
    }

    /// Gives the token of a take back.
    pub(super) fn give_back(&mut self, number: u64) {
        if self.held.give_back(number) == Source::Store {
            self.counters.spent = self.counters.spent.saturating_sub(1);
        }
    }

    // --- asking

    /// Records that a call begins to wait.
    pub(super) fn note_short(&mut self) {
        self.schedule.enough_until = Moment::ZERO;
    }

    /// Returns the ask to make now, if there is one; for calls that wait if the gate's questions do
    /// not leave it `plenty`.
    pub(super) fn ask(
        &mut self,
        want: Option<Want>,
        plenty: bool,
        now: Moment,
        asked: impl FnOnce(u64) -> AskId,
    ) -> Option<Ask> {
        self.held.tokens.expire(now);
        if self.schedule.pending.is_some() {
            return None;
        }
        // A call without a slot can leave only in place of another: more tokens would expire.
        let in_turn = whole(self.in_a_lease(now)) as usize + 1;
        let calls = want.map_or(0, |want| want.calls.min(want.slots.max(in_turn)));
        let held = self.held.tokens.lasting(now);
        let short = calls > held;
        if !short && calls > 0 {
            self.schedule.enough_until = self.held.tokens.ready_at(now).unwrap_or(now);
        }
        let (need, extra) = if short && self.short_ask_at(now) <= now {
            (u32::try_from(calls - held).unwrap_or(MOST).min(MOST), self.grown_extra(now))
        } else if !short && (plenty || self.held.away.is_some()) && self.ahead_ask_at(now).is_some_and(|at| at <= now) {
            // A member without demand asks for no token: it only wants to know.
            (u32::from(self.held.away.is_some() && self.held.demand.is_alive(now)), self.missing_ahead(now))
        } else if self.tell_at(now).is_some_and(|at| at <= now) {
            (0, 0)
        } else {
            return None;
        };
        match (need, extra) {
            (0, 0) => {}
            (0, _) => self.schedule.ahead_at = now,
            _ => self.schedule.short_at = now,
        }
        let within = want.map_or(Duration::ZERO, |want| want.within);
        let pending = PendingAsk { number: self.schedule.number + 1, need, extra, within, news: self.bulletin.news };
        Some(self.begin(pending, now, asked))
    }

    fn begin(&mut self, pending: PendingAsk, now: Moment, asked: impl FnOnce(u64) -> AskId) -> Ask {
        if (now - self.schedule.asked_at).as_micros() > u128::from(ledger::MEMBER) {
            self.counters.total = 0; // it is no member any more
            self.counters.epoch = 0;
        }
        self.schedule.allowance.take(now);
        self.schedule.number = pending.number;
        self.schedule.asked_at = now;
        self.schedule.pending = Some(pending);
        Ask {
            asked: asked(pending.number),
            shared: Arc::clone(&self.shared),
            part: self.part,
            member: self.id,
            limits: self.terms,
            need: pending.need,
            extra: pending.extra,
            total: self.counters.total,
            epoch: self.counters.epoch,
            ahead: u32::try_from(self.held.tokens.later_than(now + self.look())).unwrap_or(u32::MAX),
            away: self.held.was_away,
            within: pending.within,
            pause: pending.news.map(|news| match news {
                News::Paused(until) => (until - now).max(Duration::from_micros(1)),
                News::Lifted => Duration::ZERO,
            }),
            left: self.bulletin.left.take(now),
            leave: false,
            alone: Fallback { rate: self.rate_alone(now), sent: 0 },
        }
    }

    /// Returns the tokens to take beyond need: more and more while asks follow each other quickly.
    fn grown_extra(&mut self, now: Moment) -> u32 {
        let in_a_lease = self.in_a_lease(now);
        let follows = now - self.schedule.short_at < self.terms.lease && self.schedule.short_at > Moment::ZERO;
        self.schedule.extra =
            if follows { (self.schedule.extra * 2).clamp(1, MOST_EXTRA) } else { self.schedule.extra / 2 };
        if in_a_lease < 2.0 { 0 } else { self.schedule.extra.min(whole(in_a_lease)) }
    }

    /// Returns the calls that the demand makes in a lease.
    fn in_a_lease(&self, now: Moment) -> f64 {
        self.held.demand.rate(now) * self.terms.lease.as_secs_f64()
    }

    fn target(&self, now: Moment) -> f64 {
        self.in_a_lease(now) / 2.0 + 1.0
    }

    fn missing_ahead(&self, now: Moment) -> u32 {
        if self.held.away.is_some() {
            return 0;
        }
        let lasting = self.held.tokens.lasting(now + self.terms.lease / 4);
        whole(self.target(now)).saturating_sub(u32::try_from(lasting).unwrap_or(u32::MAX)).max(1)
    }

    /// True if nothing is lost with it: it holds no token, sends no calls, and has nothing to tell.
    /// What it sent while the store was away has come again if its gate's own bucket is full.
    pub(super) fn is_idle(&self, now: Moment) -> bool {
        let has_news = self.bulletin.news.is_some() || self.bulletin.paused_until > now;
        self.schedule.pending.is_none()
            && !has_news
            && !self.held.demand.is_alive(now)
            && !self.held.tokens.lasts(1, now)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, as is wanted")]
fn whole(number: f64) -> u32 {
    number as u32
}

/// The most tokens in one ask for calls that wait.
const MOST: u32 = 200;
/// The most tokens beyond need.
const MOST_EXTRA: u32 = 64;
/// The asks that are kept for calls that wait.
pub(super) const RESERVED: f64 = 5.0;
/// The least time between two asks ahead of need, and how far ahead they look.
const LEAST_AHEAD: Duration = Duration::from_millis(50);
