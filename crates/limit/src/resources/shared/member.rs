//! One member of a shared bucket: what it spends, and when it asks.

mod answers;
mod moments;
mod news;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::answers::SharedPause;
pub use self::answers::SharedView;
use self::news::Left;
use super::demand::{Allowance, Demand};
use super::outage::StoreAway;
use super::tokens::Tokens;
use super::{Alone, Answer, Ask, Asked, Part, SharedLimits, ledger};
use crate::moment::Moment;
use crate::{BucketPolicy, SharedPolicy};

/// A gate's use of a shared bucket.
#[derive(Debug)]
pub(crate) struct Member {
    limits: BucketPolicy,
    pub(crate) shared: Arc<SharedPolicy>,
    /// The part of it that this is, if it is split.
    pub(crate) part: Option<Part>,
    terms: SharedLimits,
    /// Random, so that no two members are one to the store.
    id: u64,
    tokens: Tokens,
    demand: Demand,
    allowance: Allowance,
    /// The ask under way.
    asked: Option<UnderWay>,
    /// The number of asks so far.
    number: u64,
    asked_at: Moment,
    total: u64,
    epoch: u64,
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
    /// The earliest moment at which the store has a token that nobody has.
    promise: Moment,
    heard: Option<Heard>,
    /// The number of members that the store said before a restart.
    reckoned: Option<NonZeroU32>,
    away: Option<StoreAway>,
    /// True if the store was away since its last answer.
    was_away: bool,
    /// News for the other members.
    news: Option<News>,
    /// The rest of the upstream's quota, to be told to the others.
    left: Left,
    /// The end of the pause that another member told.
    paused_until: Moment,
    granted: u64,
    spent: u64,
    fallback: u64,
    /// Those of the calls without the store that were sent before its last answer.
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
struct UnderWay {
    number: u64,
    need: u32,
    extra: u32,
    within: Duration,
    news: Option<News>,
}

/// The last answer, and the moment it came.
#[derive(Clone, Copy, Debug)]
struct Heard {
    answer: Answer,
    at: Moment,
}

// === impl Member ===

impl Member {
    pub(super) fn new(limits: BucketPolicy, (shared, part): (Arc<SharedPolicy>, Option<Part>), id: u64) -> Self {
        let terms = SharedLimits::new(&limits, &shared);
        Self {
            limits,
            shared,
            part,
            id,
            tokens: Tokens::default(),
            demand: Demand::new(terms.lease),
            terms,
            allowance: Allowance::new(),
            asked: None,
            number: 0,
            asked_at: Moment::ZERO,
            total: 0,
            epoch: 0,
            round_trip: Duration::ZERO,
            extra: 0,
            short_at: Moment::ZERO,
            early_from: Moment::ZERO,
            not_before: Moment::ZERO,
            enough_until: Moment::ZERO,
            ahead_at: Moment::ZERO,
            promise: Moment::ZERO,
            heard: None,
            reckoned: None,
            away: None,
            was_away: false,
            news: None,
            left: Left::default(),
            paused_until: Moment::ZERO,
            granted: 0,
            spent: 0,
            fallback: 0,
            fallback_before: 0,
        }
    }

    /// Applies new settings. The tokens held stay, unless they are of another bucket.
    pub(super) fn resize(&mut self, limits: BucketPolicy, shared: Arc<SharedPolicy>) {
        let is_other = |one: &SharedPolicy, other: &SharedPolicy| {
            (&one.name, &one.store, one.lease) != (&other.name, &other.store, other.lease)
        };
        if is_other(&self.shared, &shared) || self.terms.lease != SharedLimits::new(&limits, &shared).lease {
            let (number, id) = (self.number, self.id);
            let (granted, spent, fallback) = (self.granted, self.spent, self.fallback);
            self.tokens.clear();
            let expired = self.tokens.expired;
            *self = Self { number, granted, spent, fallback, ..Self::new(limits, (shared, self.part), id) };
            (self.tokens.expired, self.fallback_before) = (expired, fallback);
        } else {
            self.terms = SharedLimits::new(&limits, &shared);
            (self.limits, self.shared) = (limits, shared);
        }
    }

    // --- spending

    /// Returns the moment at which a call can have a token; `Moment::MAX` if that is not known.
    #[inline]
    pub(crate) fn ready_at(&self, now: Moment) -> Moment {
        let held = self.tokens.ready_at(now).unwrap_or(Moment::MAX);
        let part = self.away.as_ref().and_then(|away| away.bucket.as_ref());
        part.map_or(held, |bucket| bucket.ready_at(now).min(held))
    }

    /// True if a call can have a token now.
    #[inline]
    pub(super) fn has_token(&self, now: Moment) -> bool {
        self.tokens.is_next_there(now) || self.ready_at(now) <= now
    }

    /// Returns the moment since when the token has been there that a call can have now.
    pub(crate) fn there_since(&self, now: Moment) -> Moment {
        let held = self.tokens.since(now);
        let part = self.away.as_ref().and_then(|away| away.bucket.as_ref());
        held.or_else(|| part.map(|bucket| bucket.ready_at(Moment::ZERO))).unwrap_or(now)
    }

    /// Returns the earliest moment, `from` or later, at which a call can have a token once `calls`
    /// others have had theirs.
    pub(crate) fn ready_after(&self, calls: usize, from: Moment, now: Moment) -> Moment {
        let held = self.tokens.ready_after(calls, from).unwrap_or_else(|| self.promise.max(from));
        let part = self.away.as_ref().and_then(|away| away.bucket.as_ref());
        part.map_or(held, |bucket| bucket.ready_after(calls, from, now).min(held))
    }

    /// Returns the number of tokens that are there now.
    pub(crate) fn available(&self, now: Moment) -> u32 {
        let part = self.away.as_ref().and_then(|away| away.bucket.as_ref());
        let part = part.map_or(0, |bucket| bucket.whole_tokens(now).max(u32::from(bucket.ready_at(now) <= now)));
        part.saturating_add(u32::try_from(self.tokens.available(now)).unwrap_or(u32::MAX))
    }

    /// Takes the token that is there at `at`, for a call that leaves now.
    pub(super) fn take(&mut self, at: Moment, now: Moment, number: u64) -> bool {
        self.demand.note(now);
        if self.tokens.take(at, now, number) {
            self.spent += 1;
            return true;
        }
        let part = self.away.as_mut().and_then(|away| away.bucket.as_mut());
        let taken = part.is_some_and(|bucket| bucket.take(at, number, 1) > 0);
        self.fallback += u64::from(taken);
        taken
    }

    /// Gives the token of a take back.
    pub(super) fn give_back(&mut self, number: u64) {
        if self.tokens.give_back(number) {
            self.spent = self.spent.saturating_sub(1);
        } else if let Some(bucket) = self.away.as_mut().and_then(|away| away.bucket.as_mut()) {
            bucket.give_back(number);
        }
    }

    // --- asking

    /// Records that a call begins to wait.
    pub(super) fn note_short(&mut self) {
        self.enough_until = Moment::ZERO;
    }

    /// Returns the ask to make now, if there is one; for calls that wait if the gate's questions do
    /// not leave it `plenty`.
    pub(super) fn ask(
        &mut self,
        (want, plenty): (Option<Want>, bool),
        now: Moment,
        asked: impl FnOnce(u64) -> Asked,
    ) -> Option<Ask> {
        self.tokens.expire(now);
        if self.asked.is_some() {
            return None;
        }
        // A call without a slot can leave only in place of another: more tokens would expire.
        let in_turn = whole(self.in_a_lease(now)) as usize + 1;
        let calls = want.map_or(0, |want| want.calls.min(want.slots.max(in_turn)));
        let held = self.tokens.lasting(now);
        let short = calls > held;
        if !short && calls > 0 {
            self.enough_until = self.tokens.ready_at(now).unwrap_or(now);
        }
        let (need, extra) = if short && self.short_ask_at(now) <= now {
            (u32::try_from(calls - held).unwrap_or(MOST).min(MOST), self.grown_extra(now))
        } else if !short && (plenty || self.away.is_some()) && self.ahead_ask_at(now).is_some_and(|at| at <= now) {
            // A member without demand asks for no token: it only wants to know.
            (u32::from(self.away.is_some() && self.demand.is_alive(now)), self.missing_ahead(now))
        } else if self.tell_at(now).is_some_and(|at| at <= now) {
            (0, 0)
        } else {
            return None;
        };
        match (need, extra) {
            (0, 0) => {}
            (0, _) => self.ahead_at = now,
            _ => self.short_at = now,
        }
        let within = want.map_or(Duration::ZERO, |want| want.within);
        let under_way = UnderWay { number: self.number + 1, need, extra, within, news: self.news };
        Some(self.begin(under_way, now, asked))
    }

    fn begin(&mut self, under_way: UnderWay, now: Moment, asked: impl FnOnce(u64) -> Asked) -> Ask {
        if (now - self.asked_at).as_micros() > u128::from(ledger::MEMBER) {
            (self.total, self.epoch) = (0, 0); // it is no member any more
        }
        self.allowance.take(now);
        (self.number, self.asked_at, self.asked) = (under_way.number, now, Some(under_way));
        Ask {
            asked: asked(under_way.number),
            shared: Arc::clone(&self.shared),
            part: self.part,
            member: self.id,
            limits: self.terms,
            need: under_way.need,
            extra: under_way.extra,
            total: self.total,
            epoch: self.epoch,
            ahead: u32::try_from(self.tokens.later_than(now + self.look())).unwrap_or(u32::MAX),
            away: self.was_away,
            within: under_way.within,
            pause: under_way.news.map(|news| match news {
                News::Paused(until) => (until - now).max(Duration::from_micros(1)),
                News::Lifted => Duration::ZERO,
            }),
            left: self.left.take(now),
            leave: false,
            alone: Alone { rate: self.rate_alone(now), sent: 0 },
        }
    }

    /// Returns the tokens to take beyond need: more and more while asks follow each other quickly.
    fn grown_extra(&mut self, now: Moment) -> u32 {
        let in_a_lease = self.in_a_lease(now);
        let follows = now - self.short_at < self.terms.lease && self.short_at > Moment::ZERO;
        self.extra = if follows { (self.extra * 2).clamp(1, MOST_EXTRA) } else { self.extra / 2 };
        if in_a_lease < 2.0 { 0 } else { self.extra.min(whole(in_a_lease)) }
    }

    /// Returns the calls that the demand makes in a lease.
    fn in_a_lease(&self, now: Moment) -> f64 {
        self.demand.rate(now) * self.terms.lease.as_secs_f64()
    }

    fn target(&self, now: Moment) -> f64 {
        self.in_a_lease(now) / 2.0 + 1.0
    }

    fn missing_ahead(&self, now: Moment) -> u32 {
        if self.away.is_some() {
            return 0;
        }
        let lasting = self.tokens.lasting(now + self.terms.lease / 4);
        whole(self.target(now)).saturating_sub(u32::try_from(lasting).unwrap_or(u32::MAX)).max(1)
    }

    /// True if nothing is lost with it: it holds no token, sends no calls, and has nothing to tell.
    /// What it sent while the store was away has come again if its gate's own bucket is full.
    pub(super) fn is_idle(&self, now: Moment) -> bool {
        let has_news = self.news.is_some() || self.paused_until > now;
        self.asked.is_none() && !has_news && !self.demand.is_alive(now) && !self.tokens.lasts(1, now)
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
