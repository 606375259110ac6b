//! The arithmetic of a shared bucket: what the script in the store does, in Rust.
//!
//! Gates of one process share a bucket by it, and so do gates in virtual time. It keeps `zero`, the
//! moment at which the bucket held, or will hold, no token, in microseconds of the store's clock,
//! which is the only clock it knows. Members notice a ledger that has forgotten something: they
//! bring the number of tokens that they have received.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Ask, SharedLimits, StoreAnswer};

/// The state of one shared bucket.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    state: Option<LedgerState>,
    seats: BTreeMap<u64, Seat>,
}

#[derive(Clone, Copy, Debug)]
struct LedgerState {
    /// The moment at which there is no token.
    zero: f64,
    /// The moment at which this life of the bucket began.
    born: u64,
    /// The moment of the last ask.
    last: u64,
    /// The moment at which the pause that a member told is over.
    paused: f64,
}

/// A member as the ledger knows it.
#[derive(Clone, Copy, Debug)]
struct Seat {
    granted: u64,
    seen: u64,
    /// The moment until which it counts as having waiting calls.
    till: u64,
    weight: u32,
    period: f64,
    burst: f64,
    /// The tokens that are left of its last turn.
    rest: f64,
}

/// The other members, and the limits of the strictest of all.
struct Others {
    period: f64,
    burst: f64,
    /// The sum of the weights of those that have waiting calls.
    rivals: u32,
    /// The lightest of those and the one that asks.
    least: u32,
}

// === impl Ledger ===

impl Ledger {
    /// Answers an ask at `now`, in microseconds of the store's clock.
    #[expect(clippy::cast_precision_loss, reason = "microseconds of this century are exact in a double")]
    pub fn ask(&mut self, ask: &Ask, now: u64) -> StoreAnswer {
        if self.state.is_some_and(|state| state.last.saturating_add(KEPT) <= now) {
            *self = Self::default();
        }
        let time = now as f64;
        let terms = &ask.limits;
        // How far the clock has gone back.
        let back = self.state.map_or(0, |state| state.last.saturating_sub(now));
        if back > 0 {
            self.shift_seats(back);
        }
        let others = self.others(ask, now);
        let Others { period, burst, rivals, .. } = others;
        let state = self.state.unwrap_or(LedgerState { zero: time, born: now, last: now, paused: 0.0 });
        let back = back as f64;
        let mut zero = state.zero - back;
        let seat = self.seats.get(&ask.member).copied();
        let known = seat.is_some_and(|seat| ask.epoch == state.born && ask.total <= seat.granted);
        if ask.away || (ask.total > 0 && !known) {
            // It has spent what this ledger does not know of.
            zero = zero.max(time) + f64::from(ask.ahead) * period;
        }
        if let Some(left) = ask.left {
            zero = zero.max(time - f64::from(left) * period); // others than the members spend, too
        }
        zero = zero.max(time - burst * period);

        let told = ask.pause.filter(|pause| !pause.is_zero()).map_or(0.0, |pause| time + micros(pause));
        let lifts = ask.pause.is_some_and(|pause| pause.is_zero());
        let paused = if lifts { time } else { (state.paused - back).max(told) };
        let level = (time - zero) / period;
        let mut first = zero + period - time;
        let mut granted = 0.0;
        let mut rest = seat.map_or(0.0, |seat| seat.rest);
        if paused > time {
            first = first.max(paused - time);
        } else {
            granted = grant(ask, &Level { level, first, others }, &mut rest);
        }
        zero += granted * period;

        let lease = micros(terms.lease);
        let seen = now;
        let till = if ask.need > 0 { whole(zero.max(time) + lease) } else { seat.map_or(0, |seat| seat.till) };
        let sum = ask.total + whole(granted);
        let weight = terms.weight;
        let period_of = terms.period;
        let burst_of = terms.burst;
        let rest = thousandths(rest);
        let seat = Seat { granted: sum, seen, till, weight, period: period_of, burst: burst_of, rest };
        let members = self.seats.len() + usize::from(!self.seats.contains_key(&ask.member));
        if ask.leave {
            self.seats.remove(&ask.member);
        } else {
            self.seats.insert(ask.member, seat);
        }
        self.state = Some(LedgerState { zero: hundredths(zero), born: state.born, last: now, paused: paused.max(0.0) });
        StoreAnswer {
            granted: u32::try_from(whole(granted)).unwrap_or(u32::MAX),
            first: nanos(first.ceil()),
            period: super::ask::micros(hundredths(period)),
            level: thousandths(level),
            epoch: state.born,
            members: u32::try_from(members).unwrap_or(u32::MAX),
            rivals,
            pause: (paused > 0.0 && paused != time).then(|| super::ask::micros((paused - time).max(0.0))),
        }
    }

    /// True if nobody has asked for as long as makes a member none, and it is full by now.
    #[expect(clippy::cast_precision_loss, reason = "microseconds of this century are exact in a double")]
    #[must_use]
    pub fn is_idle(&self, now: u64) -> bool {
        let Some(state) = self.state else { return true };
        let full = self.seats.values().map(|seat| seat.burst * seat.period).fold(0.0, f64::max);
        state.last.saturating_add(MEMBER) < now && state.zero.max(state.paused) + full < now as f64
    }

    /// Moves all moments of members to those of a clock that has gone back: otherwise one that is
    /// gone would count as a member for as long as the clock went back.
    fn shift_seats(&mut self, back: u64) {
        for seat in self.seats.values_mut() {
            seat.seen = seat.seen.saturating_sub(back);
            seat.till = seat.till.saturating_sub(back);
        }
    }

    /// Forgets the members that are gone. Returns the others.
    fn others(&mut self, ask: &Ask, now: u64) -> Others {
        let SharedLimits { period, burst, weight, .. } = ask.limits;
        let mut others = Others { period, burst, rivals: 0, least: weight };
        self.seats.retain(|member, seat| {
            *member == ask.member || seat.seen.saturating_add(MEMBER) >= now || seat.till >= now
        });
        for seat in self.seats.iter().filter(|(member, _)| **member != ask.member).map(|(_, seat)| seat) {
            others.period = others.period.max(seat.period);
            others.burst = others.burst.min(seat.burst);
            if seat.till >= now {
                others.rivals += seat.weight;
                others.least = others.least.min(seat.weight);
            }
        }
        others
    }
}

/// The bucket as an ask finds it.
struct Level {
    level: f64,
    first: f64,
    others: Others,
}

/// Returns the number of tokens for an ask. `rest` is what is left of the member's last turn,
/// and then of this one: parts of a token, mostly.
///
/// A turn is the member's share of the horizon, in whole tokens for the lightest of all, which gets
/// one at least: otherwise each would get one, whatever its weight, or whoever has few callers, and
/// needs less than is left of a token, would lose it to the others.
fn grant(ask: &Ask, Level { level, first, others }: &Level, rest: &mut f64) -> f64 {
    let Others { period, burst, rivals, least } = others;
    let need = f64::from(ask.need);
    let ahead = f64::from(ask.ahead);
    let weight = f64::from(ask.limits.weight);
    let soon = micros(ask.limits.horizon) / period;
    let within = micros(ask.within);
    let mut granted = 0.0_f64;
    if need > 0.0 && *first <= within {
        let all = f64::from(*rivals) + weight;
        let least = f64::from(*least);
        let turn = (soon * least / all).floor().max(1.0) * weight / least;
        let share = level.max(0.0) * weight / all + turn + *rest - ahead;
        let most = (level + soon.max(all / least) + 1.0).min((within - first) / period + 1.0);
        granted = need.min(share.floor()).min(most.floor()).max(if ask.ahead == 0 { 1.0 } else { 0.0 });
        *rest = if granted < need { (share - granted).clamp(0.0, 2.0) } else { 0.0 };
    }
    if granted >= need && ask.extra > 0 {
        let plenty = (level - granted - burst / 2.0).floor();
        granted += f64::from(ask.extra).min(plenty).max(0.0);
    }
    granted
}

/// Returns a time in whole microseconds.
#[expect(clippy::cast_precision_loss, reason = "times of configuration are exact in a double")]
fn micros(time: Duration) -> f64 {
    time.as_micros() as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, as is wanted")]
fn whole(number: f64) -> u64 {
    number as u64
}

#[expect(clippy::cast_possible_truncation, reason = "`as` saturates, as is wanted")]
fn nanos(micros: f64) -> i64 {
    (micros * 1e3) as i64
}

/// Returns a number as the store keeps it.
fn hundredths(number: f64) -> f64 {
    format!("{number:.2}").parse().unwrap_or(number)
}

fn thousandths(number: f64) -> f64 {
    format!("{number:.3}").parse().unwrap_or(number)
}

/// The time after which a member that does not ask is none any more.
pub(super) const MEMBER: u64 = 60_000_000;
/// The time after which a bucket that nobody asks is forgotten.
const KEPT: u64 = 86_400_000_000;
