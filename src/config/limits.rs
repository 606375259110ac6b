//! Checks the numbers: buckets, backoff, queue, slots.

use std::{num::NonZeroU32, time::Duration};

use super::{
    field::{Field, Section},
    file::{self, Start, StrategyWord},
    leaf::{Or, Word},
    path::Path,
    problems::Report,
    settings::Failures,
};
use crate::limit::policy::{Adapt, Backoff, BucketPolicy, Combine, InFlight, Per, QueuePolicy, Strategy};

/// A bucket: `base` with what the section changes; none where it is off, or absent without a base.
pub(super) fn bucket(
    section: &Section<file::Bucket>,
    at: &Path,
    base: Option<BucketPolicy>,
    report: &mut Report<'_>,
) -> Option<BucketPolicy> {
    let keys = section.open_or_off(at, report, true);
    let rate = keys.rate.get(&at.key("rate"), report);
    let burst = keys.burst.get(&at.key("burst"), report);
    let per = keys.per.get(&at.key("per"), report);
    let start = keys.start.get(&at.key("start"), report);
    if section.is_off() || !section.is_present() {
        return base.filter(|_| !section.is_off());
    }
    let rate = given(&keys.rate, rate, base.map(|base| base.rate), &at.key("rate"), "the bucket needs a rate", report);
    let burst_base = base.map(|base| base.burst.get());
    let burst = given(&keys.burst, burst, burst_base, &at.key("burst"), "the bucket needs a burst", report);
    let rate = rate.and_then(|rate| checked_rate(rate, &at.key("rate"), report));
    let burst = burst.and_then(|burst| at_least_one(burst, &at.key("burst"), report));
    let (rate, burst) = (rate?, burst?);
    if f64::from(burst.get()) / rate > LONGEST_FILL {
        report.problem(
            &at.key("rate"),
            format!("is {rate}, too slow for a burst of {burst}: it would take centuries to fill"),
        );
        return None;
    }
    let per = per.map_or_else(|| base.map_or(Per::Gate, |base| base.per), |Word(per)| per);
    let starts_empty =
        start.map_or_else(|| base.is_some_and(|base| base.starts_empty), |Word(start)| start == Start::Empty);
    let adapt = adapt(&keys.adapt, &at.key("adapt"), rate, base.and_then(|base| base.adapt), report);
    Some(BucketPolicy { rate, burst, per, starts_empty, adapt })
}

/// A key's value, else the preset's; where neither gives one, that is a problem.
fn given<T>(
    field: &Field<T>,
    value: Option<T>,
    base: Option<T>,
    at: &Path,
    need: &str,
    report: &mut Report<'_>,
) -> Option<T>
where
    T: Clone,
{
    let value = value.or(base);
    if value.is_none() && !field.is_present() {
        report.problem(at, format!("is missing, and the preset gives none: {need}"));
    }
    value
}

fn checked_rate(rate: f64, at: &Path, report: &mut Report<'_>) -> Option<f64> {
    let fits = rate.is_finite() && rate > 0.0 && rate <= FASTEST;
    if !fits {
        report.problem(at, format!("is {rate:?}, expected calls per second above 0 and at most 1000000000"));
    }
    fits.then_some(rate)
}

/// A number that cannot be zero.
pub(super) fn at_least_one(number: u32, at: &Path, report: &mut Report<'_>) -> Option<NonZeroU32> {
    let checked = NonZeroU32::new(number);
    if checked.is_none() {
        report.problem(at, "is 0, expected at least 1");
    }
    checked
}

/// How far the rate gives way. A floor that comes from elsewhere is at most the rate.
fn adapt(
    section: &Section<file::Adapt>,
    at: &Path,
    rate: f64,
    base: Option<Adapt>,
    report: &mut Report<'_>,
) -> Option<Adapt> {
    let keys = section.open_or_off(at, report, true);
    let floor = keys.floor.get(&at.key("floor"), report);
    let inherited = base.map(|base| Adapt { floor: base.floor.min(rate) });
    if !section.is_table() {
        return inherited.filter(|_| !section.is_off());
    }
    let base = inherited.map(|inherited| inherited.floor);
    let floor = given(&keys.floor, floor, base, &at.key("floor"), "a rate that adapts needs one", report)?;
    let fits = floor > 0.0 && floor <= rate;
    if !fits {
        report.problem(
            &at.key("floor"),
            format!("is {floor:?}, expected calls per second above 0 and at most the rate, {rate:?}"),
        );
    }
    fits.then_some(Adapt { floor })
}

/// Slots: `base` with what the section changes.
pub(super) fn in_flight(
    section: &Section<file::InFlight>,
    at: &Path,
    base: Option<InFlight>,
    report: &mut Report<'_>,
) -> Option<InFlight> {
    let keys = section.open_or_off(at, report, true);
    let max = keys.max.get(&at.key("max"), report);
    let per = keys.per.get(&at.key("per"), report).map(|Word(per)| per);
    if section.is_off() || !section.is_present() {
        return base.filter(|_| !section.is_off());
    }
    let max = given(
        &keys.max,
        max,
        base.map(|base| base.max.get()),
        &at.key("max"),
        "how many calls may be in flight",
        report,
    );
    let max = max.and_then(|max| at_least_one(max, &at.key("max"), report))?;
    Some(InFlight { max, per: per.or_else(|| base.map(|base| base.per)).unwrap_or(Per::Gate) })
}

/// The backoff of a gate or class, from `base` (the preset's, or the gate's).
pub(super) fn backoff(
    section: &Section<file::Backoff>,
    at: &Path,
    base: &(Backoff, Failures),
    report: &mut Report<'_>,
) -> (Backoff, Failures) {
    let keys = section.open_or_off(at, report, true);
    let failures = failures(&keys.failures, &at.key("failures"), report).unwrap_or_else(|| base.1.clone());
    let hold = keys.hold.get(&at.key("hold"), report).map_or(base.0.hold, |span| span.0);
    let strategy = if section.is_off() { Strategy::Off } else { strategy(keys, at, base.0.strategy, report) };
    let longest = longest(strategy);
    let forget_after = match keys.forget_after.get(&at.key("forget_after"), report).map(|or| or.0) {
        Some(Or::Value(after)) if after < longest => {
            report.problem(
                &at.key("forget_after"),
                format!("is {after:?}, expected at least the longest delay, {longest:?}"),
            );
            after
        }
        Some(Or::Value(after)) => after,
        Some(Or::Word) => longest.saturating_mul(2),
        // A value of the gate's own holds for its classes, unless they wait longer than that.
        None if strategy == base.0.strategy => base.0.forget_after,
        None => longest.saturating_mul(2),
    };
    (Backoff { strategy, hold, forget_after }, failures)
}

/// What a gate starts from: the preset's strategy.
pub(super) fn preset_backoff(strategy: Strategy, failures: Failures) -> (Backoff, Failures) {
    (Backoff { strategy, hold: HOLD, forget_after: longest(strategy).saturating_mul(2) }, failures)
}

fn strategy(keys: &file::Backoff, at: &Path, base: Strategy, report: &mut Report<'_>) -> Strategy {
    let own = keys.strategy.get(&at.key("strategy"), report).map(|Word(word)| word);
    let word = own.unwrap_or(match base {
        Strategy::Exponential { .. } => StrategyWord::Exponential,
        Strategy::FastSlow { .. } => StrategyWord::FastSlow,
        Strategy::Off => StrategyWord::Off,
    });
    let exponential =
        [("base", keys.base.is_present()), ("max", keys.max.is_present()), ("jitter", keys.jitter.is_present())];
    let fast_slow = [
        ("fast", keys.fast.is_present()),
        ("slow", keys.slow.is_present()),
        ("fast_attempts", keys.fast_attempts.is_present()),
    ];
    let idle = |keys: &[(&str, bool)], report: &mut Report<'_>| {
        for (key, _) in keys.iter().filter(|(_, is_present)| *is_present) {
            let strategy = file::word(word);
            report.key_problem(&at.key(key), format!("has no effect: the strategy is \"{strategy}\""));
        }
    };
    let strategy = match word {
        StrategyWord::Exponential => self::exponential(keys, at, base, report),
        StrategyWord::FastSlow => self::fast_slow(keys, at, base, report),
        StrategyWord::Off => Strategy::Off,
    };
    if word != StrategyWord::Exponential {
        idle(&exponential, report);
    }
    if word != StrategyWord::FastSlow {
        idle(&fast_slow, report);
    }
    strategy
}

fn exponential(keys: &file::Backoff, at: &Path, from: Strategy, report: &mut Report<'_>) -> Strategy {
    let from = match from {
        Strategy::Exponential { base, max, jitter } => (base, max, jitter),
        Strategy::FastSlow { .. } | Strategy::Off => (Duration::from_secs(1), Duration::from_secs(60), 0.0),
    };
    let base = keys.base.get(&at.key("base"), report).map_or(from.0, |span| span.0);
    let max = keys.max.get(&at.key("max"), report).map_or(from.1, |span| span.0);
    let jitter = keys.jitter.get(&at.key("jitter"), report).unwrap_or(from.2);
    if base.is_zero() {
        report.problem(&at.key("base"), "is 0, expected a delay; for none: strategy = \"off\"");
    }
    if max < base {
        let key = if keys.max.is_present() { "max" } else { "base" };
        report.problem(&at.key(key), format!("max {max:?} is less than base {base:?}"));
    }
    if !(0.0..=1.0).contains(&jitter) {
        report.problem(&at.key("jitter"), format!("is {jitter:?}, expected a fraction from 0 to 1"));
    }
    Strategy::Exponential { base, max, jitter }
}

fn fast_slow(keys: &file::Backoff, at: &Path, from: Strategy, report: &mut Report<'_>) -> Strategy {
    let from = match from {
        Strategy::FastSlow { fast, slow, fast_attempts } => Some((fast, slow, fast_attempts)),
        Strategy::Exponential { .. } | Strategy::Off => None,
    };
    let fast = keys.fast.get(&at.key("fast"), report).map(|span| span.0);
    let slow = keys.slow.get(&at.key("slow"), report).map(|span| span.0);
    let attempts = keys.fast_attempts.get(&at.key("fast_attempts"), report);
    let need = "strategy \"fast_slow\" needs it";
    let fast = given(
        &keys.fast,
        fast.map(super::leaf::Span),
        from.map(|from| super::leaf::Span(from.0)),
        &at.key("fast"),
        need,
        report,
    );
    let slow = given(
        &keys.slow,
        slow.map(super::leaf::Span),
        from.map(|from| super::leaf::Span(from.1)),
        &at.key("slow"),
        need,
        report,
    );
    let attempts =
        given(&keys.fast_attempts, attempts, from.map(|from| from.2), &at.key("fast_attempts"), need, report);
    let (Some(fast), Some(slow), Some(fast_attempts)) = (fast, slow, attempts) else { return Strategy::Off };
    if slow.0 < fast.0 {
        report.problem(&at.key("slow"), format!("slow {:?} is less than fast {:?}", slow.0, fast.0));
    }
    if fast.0.is_zero() {
        report.problem(&at.key("fast"), "is 0, expected a delay");
    }
    Strategy::FastSlow { fast: fast.0, slow: slow.0, fast_attempts }
}

/// The longest delay of a strategy, jitter included.
fn longest(strategy: Strategy) -> Duration {
    match strategy {
        Strategy::Off => Duration::ZERO,
        Strategy::Exponential { max, jitter, .. } if (0.0..=1.0).contains(&jitter) => {
            max.saturating_add(max.mul_f64(jitter))
        }
        Strategy::Exponential { max, .. } => max,
        Strategy::FastSlow { slow, .. } => slow,
    }
}

fn failures(field: &Field<super::leaf::List>, at: &Path, report: &mut Report<'_>) -> Option<Failures> {
    let list = field.get(at, report)?;
    let mut failures = Failures { statuses: Vec::new(), transport: false, left: false };
    for (index, word) in list.0.iter().enumerate() {
        match (word.as_str(), word.parse()) {
            ("transport", _) => failures.transport = true,
            ("left", _) => failures.left = true,
            (_, Ok(status @ 400..=599)) => failures.statuses.push(status),
            _ => report.problem(
                &at.index(index),
                format!("is {word:?}, expected a status from \"400\" to \"599\", \"transport\" or \"left\""),
            ),
        }
    }
    failures.statuses.sort_unstable();
    failures.statuses.dedup();
    Some(failures)
}

/// The waiting room.
pub(super) fn queue(keys: &file::Queue, at: &Path, report: &mut Report<'_>) -> QueuePolicy {
    let max_wait = keys.max_wait.get(&at.key("max_wait"), report).map_or(MAX_WAIT, |span| span.0);
    let max_waiting = keys.max_waiting.get(&at.key("max_waiting"), report).unwrap_or(10_000);
    let max_waiting_bytes =
        keys.max_waiting_bytes.get(&at.key("max_waiting_bytes"), report).map_or(16 << 20, |size| size.0);
    let combine = keys.combine.get(&at.key("combine"), report).map_or(Combine::Sequential, |Word(combine)| combine);
    let max_waiting = usize::try_from(max_waiting).unwrap_or(usize::MAX);
    QueuePolicy { max_wait, max_waiting, max_waiting_bytes, combine }
}

/// Faster than any server, and what governor counts in nanoseconds.
const FASTEST: f64 = 1e9;
/// Buckets count in 64-bit nanoseconds, which last 584 years; a bucket that takes longer to fill does not fit.
const LONGEST_FILL: f64 = 584.0 * 365.0 * 86_400.0;
/// More pins the controller's worker.
const HOLD: Duration = Duration::from_millis(100);
/// fabric8 gives up at 10 s, the API server's own queue at 15 s.
const MAX_WAIT: Duration = Duration::from_secs(8);
