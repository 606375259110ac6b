//! The arithmetic of a shared bucket: what the store's script does, in Rust.
//!
//! Gates of one process share a bucket through a [`Ledger`], and so do gates in virtual time. It
//! keeps the moment at which the bucket was, or will be, empty (`zero`), in microseconds of the
//! store's clock, the only clock it knows. Each gate reports how many tokens it has received, so
//! that a ledger that has lost data is noticed.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Ask, MOST_PAUSES, PauseNotice, SharedLimits, StoreAnswer};
use crate::quota::QuotaId;

/// The state of one shared bucket.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    state: Option<LedgerState>,
    /// The end of the pause of each paused quota.
    quotas: BTreeMap<QuotaId, f64>,
    seats: BTreeMap<u64, Seat>,
}

#[derive(Clone, Copy, Debug)]
struct LedgerState {
    /// When the bucket is empty, in microseconds of the store's clock.
    zero: f64,
    /// The moment this life of the bucket began. A new life begins when the store has forgotten it.
    born: u64,
    /// The moment of the last request.
    last: u64,
    /// The end of a pause a gate reported; zero if there was none.
    paused: f64,
}

/// A gate sharing the bucket, as the ledger knows it.
#[derive(Clone, Copy, Debug)]
struct Seat {
    granted: u64,
    seen: u64,
    /// The time until which the gate counts as having waiting calls.
    till: u64,
    limits: SharedLimits,
    /// The part of a token left over from the gate's last turn.
    rest: f64,
}

/// What the bucket offers to a gate, given the other gates.
struct Offer {
    level: f64,
    /// The time until the next token.
    first: f64,
    /// The time per token, of the gate with the lowest rate.
    period: f64,
    burst: f64,
    /// The sum of the weights of all other gates with waiting calls.
    rivals: u32,
    /// The least weight among those gates and the requesting one.
    least: u32,
}

// === impl Ledger ===

impl Ledger {
    /// Answers a request at `now`, in microseconds of the store's clock.
    pub fn ask(&mut self, ask: &Ask, now: u64) -> StoreAnswer {
        if self.state.is_some_and(|state| state.last.saturating_add(KEPT) <= now) {
            *self = Self::default();
        }
        let time = now as f64;
        self.turn_back(now);
        let mut offer = self.offer(ask, now);
        let period = offer.period;
        let state = self.state.unwrap_or(LedgerState { zero: time, born: now, last: now, paused: 0.0 });
        let seat = self.seats.get(&ask.member).copied();
        let known = seat.is_some_and(|seat| ask.epoch == state.born && ask.total <= seat.granted);
        let mut zero = state.zero;
        if ask.away || (ask.total > 0 && !known) {
            // It has spent what this ledger does not know of.
            zero = zero.max(time) + f64::from(ask.ahead) * period;
        }
        if let Some(left) = ask.left {
            zero = zero.max(time - f64::from(left) * period); // others than the members spend, too
        }
        zero = zero.max(time - offer.burst * period);
        offer.level = (time - zero) / period;
        offer.first = zero + period - time;

        let paused = self.paused(ask.pause, state.paused, time);
        let mut granted = 0.0;
        let mut rest = seat.map_or(0.0, |seat| seat.rest);
        if paused > time {
            offer.first = offer.first.max(paused - time);
        } else {
            granted = offer.grant(ask, &mut rest);
        }
        zero += granted * period;

        let is_short = ask.wish.need > 0;
        let till =
            if is_short { whole(zero.max(time) + micros(ask.limits.lease)) } else { seat.map_or(0, |seat| seat.till) };
        let rest = rounded(rest, 3);
        let seat = Seat { granted: ask.total + whole(granted), seen: now, till, limits: ask.limits, rest };
        self.seats.insert(ask.member, seat);
        let members = self.seats.len();
        if ask.leave {
            self.seats.remove(&ask.member);
        }
        self.state = Some(LedgerState { zero: rounded(zero, 2), born: state.born, last: now, paused });
        StoreAnswer {
            granted: u32::try_from(whole(granted)).unwrap_or(u32::MAX),
            first: nanos(offer.first.ceil()),
            period: super::ask::micros(rounded(period, 2)),
            level: rounded(offer.level, 3),
            epoch: state.born,
            members: u32::try_from(members).unwrap_or(u32::MAX),
            rivals: offer.rivals,
            pause: (paused > 0.0 && paused != time).then(|| super::ask::micros((paused - time).max(0.0))),
            quotas: self.notices(time),
        }
    }

    /// Applies a gate's notice of a pause. Returns the end of the pause of the whole API.
    fn paused(&mut self, told: Option<PauseNotice>, known: f64, time: f64) -> f64 {
        self.quotas.retain(|_, end| *end > time);
        match told {
            None => known,
            Some(PauseNotice { left: Duration::ZERO, .. }) => {
                self.quotas.clear();
                time
            }
            Some(PauseNotice { quota: QuotaId::ALL, left }) => known.max(time + micros(left)),
            Some(PauseNotice { quota, left }) => {
                let end = self.quotas.entry(quota).or_default();
                *end = end.max(time + micros(left));
                if self.quotas.len() > MOST_PAUSES {
                    let first =
                        self.quotas.iter().min_by(|one, other| one.1.total_cmp(other.1)).map(|(quota, _)| *quota);
                    first.map(|first| self.quotas.remove(&first));
                }
                known
            }
        }
    }

    fn notices(&self, time: f64) -> Vec<PauseNotice> {
        let notice =
            |(quota, end): (&QuotaId, &f64)| PauseNotice { quota: *quota, left: super::ask::micros(end - time) };
        self.quotas.iter().map(notice).collect()
    }

    /// Returns true if the bucket is full and no gate shares it any more.
    #[must_use]
    pub fn is_idle(&self, now: u64) -> bool {
        let Some(state) = self.state else { return true };
        let full = self.seats.values().map(|seat| seat.limits.burst * seat.limits.period).fold(0.0, f64::max);
        state.last.saturating_add(MEMBER) < now && state.zero.max(state.paused) + full < now as f64
    }

    /// Moves all times back after the store's clock went back. Otherwise a gate that is gone would
    /// count for as long as the clock went back.
    fn turn_back(&mut self, now: u64) {
        let Some(state) = &mut self.state else { return };
        let back = state.last.saturating_sub(now);
        state.zero -= back as f64;
        state.paused = (state.paused - back as f64).max(0.0);
        self.quotas.values_mut().for_each(|end| *end -= back as f64);
        for seat in self.seats.values_mut() {
            seat.seen = seat.seen.saturating_sub(back);
            seat.till = seat.till.saturating_sub(back);
        }
    }

    /// Forgets gates without recent requests. Returns the limits for granting tokens: the strictest
    /// of all gates sharing the bucket.
    fn offer(&mut self, ask: &Ask, now: u64) -> Offer {
        let SharedLimits { period, burst, weight, .. } = ask.limits;
        let mut offer = Offer { level: 0.0, first: 0.0, period, burst, rivals: 0, least: weight };
        self.seats.retain(|member, seat| {
            *member == ask.member || seat.seen.saturating_add(MEMBER) >= now || seat.till >= now
        });
        for (_, Seat { limits, till, .. }) in self.seats.iter().filter(|(member, _)| **member != ask.member) {
            offer.period = offer.period.max(limits.period);
            offer.burst = offer.burst.min(limits.burst);
            if *till >= now {
                offer.rivals += limits.weight;
                offer.least = offer.least.min(limits.weight);
            }
        }
        offer
    }
}

// === impl Offer ===

impl Offer {
    /// Returns the number of tokens to grant. `rest` is the unused part of the gate's last turn,
    /// mostly a fraction of a token; it becomes the unused part of this turn.
    ///
    /// A turn is the gate's share of the tokens within the horizon: a whole number for the gate of
    /// least weight, and at least one token. Otherwise each gate would get one token, whatever its
    /// weight, and a gate of few callers would lose its fraction of a token to the other gates.
    fn grant(&self, ask: &Ask, rest: &mut f64) -> f64 {
        let need = f64::from(ask.wish.need);
        let ahead = f64::from(ask.ahead);
        let weight = f64::from(ask.limits.weight);
        let soon = micros(ask.limits.horizon) / self.period;
        let within = micros(ask.wish.within);
        let mut granted = 0.0_f64;
        if need > 0.0 && self.first <= within {
            let all = f64::from(self.rivals) + weight;
            let least = f64::from(self.least);
            let turn = (soon * least / all).floor().max(1.0) * weight / least;
            let share = self.level.max(0.0) * weight / all + turn + *rest - ahead;
            let most = (self.level + soon.max(all / least) + 1.0).min((within - self.first) / self.period + 1.0);
            granted = need.min(share.floor()).min(most.floor()).max(if ask.ahead == 0 { 1.0 } else { 0.0 });
            *rest = if granted < need { (share - granted).clamp(0.0, 2.0) } else { 0.0 };
        }
        if granted >= need && ask.wish.extra > 0 {
            let plenty = (self.level - granted - self.burst / 2.0).floor();
            granted += f64::from(ask.wish.extra).min(plenty).max(0.0);
        }
        granted
    }
}

/// Returns a time in whole microseconds.
fn micros(time: Duration) -> f64 {
    time.as_micros() as f64
}

#[expect(clippy::cast_possible_truncation, reason = "`as` saturates, as is wanted")]
fn whole(number: f64) -> u64 {
    number as u64
}

#[expect(clippy::cast_possible_truncation, reason = "`as` saturates, as is wanted")]
fn nanos(micros: f64) -> i64 {
    (micros * 1e3) as i64
}

/// Returns a number rounded as the store does, to this many digits after the point.
fn rounded(number: f64, digits: usize) -> f64 {
    format!("{number:.digits$}").parse().unwrap_or(number)
}

/// How long after its last request a gate is forgotten, in microseconds.
pub(super) const MEMBER: u64 = 60_000_000;
/// How long an unused bucket is remembered, in microseconds.
const KEPT: u64 = 86_400_000_000;
