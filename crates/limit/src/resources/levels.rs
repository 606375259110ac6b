//! The upstream's quotas, as responses report them: their kind, their use, and the pace of calls.
//!
//! A paced quota is used evenly: its calls are spaced so that the rest of the quota lasts until it
//! is full again. Other tools may use the quota too: then the reported rest falls faster than by
//! the gate's own calls.

use std::collections::HashMap;
use std::time::Duration;

use crate::moment::Moment;
use crate::outcome::{PauseLength, QuotaReading};
use crate::quota::{QuotaId, QuotaKind, UseRate};

/// The quotas reported in the responses to a gate's calls.
#[derive(Debug, Default)]
pub(crate) struct QuotaLevels {
    levels: HashMap<QuotaId, TrackedQuota>,
    /// Set once a quota is paced, or tried because its kind is not known.
    slows: bool,
}

/// A quota, as the responses about it show it.
#[derive(Clone, Copy, Debug, Default)]
struct TrackedQuota {
    last: QuotaPoint,
    /// An earlier response, to find out the kind by comparison with later ones.
    first: QuotaPoint,
    kind: QuotaKind,
    /// The calls regained per second, if the quota refills steadily.
    refill: f64,
    /// The number of missing calls at the last measurement of `refill`: the more, the more exact.
    measured: f64,
    /// The use by this gate, and by everybody.
    own: UseRate,
    all: UseRate,
    paces: bool,
    /// The earliest moment to send the quota's next call, if it is paced.
    next: Moment,
}

/// An answer about a quota.
#[derive(Clone, Copy, Debug, Default)]
struct QuotaPoint {
    at: Moment,
    limit: f64,
    left: f64,
    /// The calls left without the reserve.
    ours: f64,
    resets_at: Moment,
}

// === impl QuotaLevels ===

impl QuotaLevels {
    /// Returns the earliest moment to send the next call of a paced quota.
    pub(crate) fn next(&self, quota: QuotaId) -> Moment {
        self.levels.get(&quota).map_or(Moment::ZERO, |level| level.next)
    }

    /// Returns true if each sent call must be reported here, because quotas are paced.
    pub(crate) fn slows(&self) -> bool {
        self.slows
    }

    /// Returns the length of a used-up quota's pause: until a window ends, or until a refill has
    /// one more call. A quota of unknown kind is tried again, after longer and longer pauses.
    pub(crate) fn pause(&self, quota: QuotaId, told: &QuotaReading, most: Duration) -> PauseLength {
        let level = self.levels.get(&quota);
        match level.map_or(told.kind, |level| level.kind) {
            QuotaKind::Window => PauseLength::Known(most),
            QuotaKind::Refill => PauseLength::Known(level.map_or(most, |level| gap(level.refill).min(most))),
            QuotaKind::Unknown => {
                let token = told.resets_in / u32::try_from(told.limit.max(1)).unwrap_or(u32::MAX);
                PauseLength::Growing { first: token.max(SECOND), most }.capped(most)
            }
        }
    }

    /// Records a reading of the quota. `went` is true if the call tried a used-up quota and
    /// succeeded.
    pub(crate) fn observe(&mut self, quota: QuotaId, told: &QuotaReading, went: bool, now: Moment) {
        let point = QuotaPoint::new(told, now);
        let level = self.levels.entry(quota).or_insert_with(|| TrackedQuota::new(point, told.kind));
        level.observe(point, told.kind, went);
        level.paces = told.paces && level.runs_out();
        self.slows |= level.paces || told.is_used_up() && level.kind == QuotaKind::Unknown;
        if self.levels.len() > MOST {
            let oldest = self.levels.iter().min_by_key(|(quota, level)| (level.last.at, **quota));
            let oldest = oldest.map(|(quota, _)| *quota);
            oldest.map(|oldest| self.levels.remove(&oldest));
        }
    }

    /// Records the sending of a call. `tried` is the length of the last pause, for a quota of
    /// unknown kind. Returns the earliest moment to send the next call.
    pub(crate) fn depart(&mut self, quota: QuotaId, tried: Duration, now: Moment) -> Moment {
        let Some(level) = self.levels.get_mut(&quota) else { return Moment::ZERO };
        if level.kind == QuotaKind::Unknown && !tried.is_zero() {
            level.next = now + tried;
        } else if level.paces {
            level.next = level.next.max(now) + level.gap(now);
        }
        level.next
    }

    /// Returns when a call may be sent after `turns` other calls of a paced quota.
    pub(crate) fn after(&self, quota: QuotaId, turns: usize, now: Moment) -> Moment {
        let Some(level) = self.levels.get(&quota).filter(|level| level.paces) else { return Moment::ZERO };
        let turns = u32::try_from(turns).unwrap_or(u32::MAX);
        let at = level.next.max(now) + level.gap(now).saturating_mul(turns);
        at.min(level.last.resets_at.max(level.next))
    }
}

// === impl TrackedQuota ===

impl TrackedQuota {
    fn new(point: QuotaPoint, kind: QuotaKind) -> Self {
        Self { last: point, first: point, kind, ..Self::default() }
    }

    fn observe(&mut self, point: QuotaPoint, known: QuotaKind, went: bool) {
        let now = point.at;
        // One call went although nothing was left, long before the reset, and some are still missing.
        let went_early = went && self.last.left < 1.0 && (self.last.resets_at - now).as_secs_f64() > SECONDS;
        let refills = went_early && point.left < point.limit;
        self.kind = match known {
            QuotaKind::Unknown if refills => QuotaKind::Refill,
            QuotaKind::Unknown => self.first.kind(&point).unwrap_or(self.kind),
            known => known,
        };
        if now >= self.first.resets_at || point.limit != self.first.limit {
            self.first = point;
        }
        let mut came = 0.0;
        if self.kind == QuotaKind::Refill {
            let missing = point.limit - point.left;
            if missing * 2.0 >= self.measured && point.resets_in() > 0.0 {
                self.refill = missing / point.resets_in();
                self.measured = missing;
            }
            came = self.refill * (now - self.last.at).as_secs_f64();
            if refills {
                self.next = now + gap(self.refill);
            }
        }
        let is_new = self.kind != QuotaKind::Refill && point.left > self.last.left && point.moved(&self.last) > SECONDS;
        if is_new {
            self.next = Moment::ZERO;
        }
        let used = if is_new { point.limit - point.left } else { self.last.left - point.left + came };
        let resets_in = point.resets_at - now;
        self.own.add(1.0, resets_in, now);
        self.all.add(used, resets_in, now);
        self.last = point;
    }

    /// Returns true if the quota would be used up before it is full again.
    fn runs_out(&self) -> bool {
        let QuotaPoint { at, limit, left, ours, .. } = self.last;
        let used = self.all.per_second(at);
        // A paced one is used just so fast that it does not.
        let bar = if self.paces { STILL } else { 1.0 };
        left * 2.0 <= limit
            && match self.kind {
                QuotaKind::Refill => used * limit > self.refill * ours * 2.0 * bar,
                QuotaKind::Window | QuotaKind::Unknown => used * self.last.resets_in() > ours * bar,
            }
    }

    /// Returns the time between two calls for the rest of the quota to last until it is full again.
    fn gap(&self, now: Moment) -> Duration {
        let whole_in = (self.last.resets_at - now).as_secs_f64().max(1.0);
        // A little stays for what other tools use meanwhile, less and less towards the end.
        let kept = (self.last.limit / SPARE).floor().min(whole_in / 10.0);
        let spare = (self.last.ours - kept).max(0.0);
        let whole = match self.kind {
            QuotaKind::Refill => self.refill + spare / whole_in.min(SPENT_OVER),
            QuotaKind::Window | QuotaKind::Unknown => spare / whole_in,
        };
        let others = self.all.per_second(now) - self.own.per_second(now);
        let rate = (whole - others.max(0.0)).max(whole / 16.0);
        gap(rate).min(Duration::from_secs_f64(whole_in))
    }
}

// === impl QuotaPoint ===

impl QuotaPoint {
    fn new(told: &QuotaReading, at: Moment) -> Self {
        let QuotaReading { limit, left, kept, resets_in, .. } = *told;
        let ours = left.saturating_sub(kept) as f64;
        Self { at, limit: limit as f64, left: left as f64, ours, resets_at: at + resets_in }
    }

    /// Returns the seconds until the quota is full again.
    fn resets_in(&self) -> f64 {
        (self.resets_at - self.at).as_secs_f64()
    }

    /// Returns by how many seconds the reset has moved ahead since another answer.
    fn moved(&self, since: &Self) -> f64 {
        (self.resets_at - since.resets_at).as_secs_f64() - (since.resets_at - self.resets_at).as_secs_f64()
    }

    /// Returns the kind of the quota, by this response and a later one: the reset of a window
    /// stays, the reset of a refill moves ahead with each spent call.
    fn kind(&self, later: &Self) -> Option<QuotaKind> {
        let used = later.limit - later.left;
        let spent = (self.left - later.left) * later.resets_in() / used.max(1.0);
        let expected = spent + (later.at - self.at).as_secs_f64();
        let moved = later.moved(self);
        // The reset of a refill that is spent slowly hardly moves.
        if spent.abs() <= SECONDS * 2.0 || self.limit != later.limit {
            return None;
        }
        if moved.abs() <= SECONDS {
            return (spent > 0.0).then_some(QuotaKind::Window);
        }
        let differs = (moved - expected).abs();
        (differs <= SECONDS.max(expected.abs() / 4.0)).then_some(QuotaKind::Refill)
    }
}

fn gap(rate: f64) -> Duration {
    Duration::try_from_secs_f64(1.0 / rate).unwrap_or(LONGEST)
}

/// The most quotas with a level or a pause, and the most learned words.
pub(crate) const MOST: usize = 1024;
/// How many seconds two readings of one reset may differ: upstreams send whole ones.
const SECONDS: f64 = 2.0;
/// The least time until a used-up quota is tried.
const SECOND: Duration = Duration::from_secs(1);
/// The part of a paced quota's rate below which it is no longer paced.
const STILL: f64 = 0.8;
/// The part of a quota's limit left for other tools: one call in so many.
const SPARE: f64 = 200.0;
/// The seconds for spending the rest of a refilling quota.
const SPENT_OVER: f64 = 60.0;
/// The gap of a rate of zero.
const LONGEST: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Charged;

    fn told(limit: u64, left: u64, resets_in: u64) -> QuotaReading {
        let resets_in = Duration::from_secs(resets_in);
        QuotaReading { charged: Charged::All, limit, left, kept: 0, resets_in, kind: QuotaKind::Unknown, paces: true }
    }

    fn kind(first: (u64, u64), later: (u64, u64), after: u64) -> Option<QuotaKind> {
        let point =
            |(left, resets): (u64, u64), at| QuotaPoint::new(&told(3600, left, resets), Moment::from_millis(at));
        point(first, 1000).kind(&point(later, 1000 + after * 1000))
    }

    #[test]
    fn two_answers_tell_a_window_from_a_refill() {
        // As users posted of Hetzner's.
        assert_eq!(kind((3591, 9), (3576, 19), 0), Some(QuotaKind::Refill));
        assert_eq!(kind((3576, 19), (0, 3600), 0), Some(QuotaKind::Refill));
        assert_eq!(kind((0, 3600), (50, 3550), 60), Some(QuotaKind::Refill), "it comes back");
        assert_eq!(kind((3000, 1800), (2900, 1740), 60), Some(QuotaKind::Window));
        assert_eq!(kind((3000, 1800), (2999, 1800), 0), None, "a refill of 3 s would not have moved by more");
        assert_eq!(kind((3591, 9), (3590, 10), 0), None, "nor has one of 1 s");
        assert_eq!(kind((100, 20), (3500, 3600), 21), None, "a window ended");
    }

    #[test]
    fn q5_quotas_that_clients_make_up_are_bounded() {
        let mut levels = QuotaLevels::default();
        for holder in 0..4000 {
            let quota = QuotaId { holder, resource: crate::quota::ResourceId::ALL };
            levels.observe(quota, &told(100, 50, 60), false, Moment::from_millis(holder));
        }
        assert_eq!(levels.levels.len(), MOST);
        assert!(levels.levels.keys().all(|quota| quota.holder >= 4000 - MOST as u64), "the oldest go first");
    }
}
