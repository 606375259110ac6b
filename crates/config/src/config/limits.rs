//! Reads the limits: buckets, backoff, queue, calls in flight.

use std::num::NonZeroU32;
use std::time::Duration;

use toml::Value;

use super::cost::Counts;
use super::cursor::{Cursor, TomlValue};
use super::rate::Rate;
use super::shape::Shape;
use super::values::{Bytes, OrAuto};
use super::words::{Start, StrategyWord};
use crate::api::Failures;
use crate::classify::{ApiKind, FairBy};
use crate::limit::policy::{Adapt, Backoff, BucketPolicy, Combine, InFlight, Per, QueuePolicy, Strategy};

/// Reads the table of a bucket.
pub(super) fn bucket(at: &Cursor<'_>) -> Option<BucketPolicy> {
    let written: Option<Rate> = at.needed("rate", None, "the bucket needs a rate");
    let written = written.filter(|rate| is_rate(*rate, &at.at("rate")));
    let bucket = sized(at, written.map(Rate::in_a_second), false);
    let counts_costs = at.get("counts", Counts::Tokens) == Counts::Tokens;
    bucket.map(|bucket| BucketPolicy { counts_costs, ..bucket })
}

/// Reads the retry bucket, an additional bucket for retries; `bucket` is the gate's own.
///
/// Its rate is a number or `auto`: a small part of the gate's rate, and more while retries succeed.
pub(super) fn retry_bucket(at: &Cursor<'_>, bucket: Option<BucketPolicy>) -> Option<BucketPolicy> {
    let written = at.needed("rate", None, "the bucket needs a rate");
    let opens = written == Some(OrAuto(None));
    let rate = match written {
        Some(OrAuto(Some(rate))) => Some(rate).filter(|rate| is_rate(*rate, &at.at("rate"))).map(Rate::in_a_second),
        Some(OrAuto(None)) => Some(bucket.map_or(CLOSED, |bucket| CLOSED.min(bucket.rate * CLOSED_SHARE))),
        None => None,
    };
    let bucket = sized(at, rate, opens);
    at.unused_if(true, "a retry bucket counts calls, not tokens", at).get("counts", Counts::Calls);
    bucket
}

/// Returns the retry bucket adapted to `combine`.
///
/// With `max_of`, tokens are reserved on arrival, before it is known whether calls succeed. So a
/// rate of `auto` becomes that of client-go.
pub(super) fn combined(retry_bucket: Option<BucketPolicy>, combine: Combine) -> Option<BucketPolicy> {
    retry_bucket.map(|bucket| match combine {
        Combine::MaxOf if bucket.opens => BucketPolicy { rate: CLIENT_GO, opens: false, ..bucket },
        Combine::MaxOf | Combine::Sequential => bucket,
    })
}

/// Reads all keys of a bucket except `rate` and `counts`.
fn sized(at: &Cursor<'_>, rate: Option<f64>, opens: bool) -> Option<BucketPolicy> {
    let burst: Option<NonZeroU32> = at.needed("burst", None, "the bucket needs a burst");
    let per = at.get("per", Per::Gate);
    let start = at.get("start", Start::Full);
    let adapt_at = at.limit("adapt");
    if opens && adapt_at.is_table() {
        adapt_at.key_problem("has no effect: the rate is \"auto\"");
    }
    let adapt = adapt(&adapt_at, rate, &at.at("rate"));
    let rate = rate?;
    let burst = burst?;
    if takes_centuries(rate, burst) {
        let message = format!("is {rate}, too slow to ever fill a burst of {burst}; expected a higher rate");
        at.at("rate").given(&[&at.at("rate"), &at.at("burst")]).problem(message);
        return None;
    }
    Some(BucketPolicy { per, starts_empty: start == Start::Empty, adapt, opens, ..BucketPolicy::new(rate, burst) })
}

/// Returns the burst for a gate's bucket. If the user sets only the rate, the preset's burst is
/// reduced to at most two seconds of it.
pub(super) fn fit_burst(at: &Cursor<'_>, bucket: BucketPolicy) -> NonZeroU32 {
    if !at.has("rate") || at.has("burst") {
        return bucket.burst;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, as is wanted")]
    let twice = NonZeroU32::new((2.0 * bucket.rate).ceil() as u32).unwrap_or(NonZeroU32::MIN);
    let burst = bucket.burst.min(twice);
    at.in_force("burst", &burst);
    burst
}

/// Returns true if the bucket would take centuries to fill, too long for the limiter's arithmetic.
pub(super) fn takes_centuries(rate: f64, burst: NonZeroU32) -> bool {
    f64::from(burst.get()) / rate > LONGEST_FILL
}

pub(super) fn is_rate(written: Rate, at: &Cursor<'_>) -> bool {
    let rate = written.in_a_second();
    let fits = rate.is_finite() && rate > 0.0 && rate <= FASTEST;
    if !fits {
        at.problem(format!("is {}, expected calls per second above 0 and at most 1000000000", written.describe()));
    }
    fits
}

/// Reads `adapt`: the lowest rate (`floor`) of a bucket under throttling.
///
/// A floor from the preset is reduced to the bucket's normal rate if that is lower.
fn adapt(at: &Cursor<'_>, rate: Option<f64>, rate_at: &Cursor<'_>) -> Option<Adapt> {
    let written: Rate = at.needed("floor", None, "a rate that adapts needs a floor")?;
    let floor = written.in_a_second();
    let rate = rate?;
    if !at.has("floor") {
        let floor = floor.min(rate);
        at.in_force("floor", &Rate::per_second(floor));
        return Some(Adapt { floor });
    }
    let fits = floor > 0.0 && floor <= rate;
    if !fits {
        let message =
            format!("is {}, expected calls per second above 0 and at most the rate, {rate:?}", written.describe());
        at.at("floor").given(&[rate_at]).problem(message);
    }
    fits.then_some(Adapt { floor })
}

/// Reads the limit on concurrent calls.
pub(super) fn in_flight(at: &Cursor<'_>) -> Option<InFlight> {
    let max = at.needed("max", None, "expected how many calls may be in flight");
    let per = at.get("per", Per::Gate);
    Some(InFlight { max: max?, per })
}

/// Reads the backoff of a gate or class, and the kinds of failures to back off for.
///
/// `base` has the values for keys that neither the table nor the preset sets.
pub(super) fn backoff(at: &Cursor<'_>, base: &(Backoff, Failures)) -> (Backoff, Failures) {
    let strategy = strategy(at, base.0.strategy);
    let hold = at.get("hold", base.0.hold);
    let longest = longest(strategy);
    let forget_after = match at.read("forget_after") {
        Some(OrAuto(Some(after))) => {
            if after < longest {
                let message = format!("is {after:?}, expected at least the longest delay, {longest:?}");
                let keys = ["strategy", "base", "max", "jitter", "slow"].map(|key| at.at(key));
                at.at("forget_after").given(&keys.each_ref()).problem(message);
            }
            after
        }
        // A value of the gate's own holds for its classes, unless they wait longer than that.
        None if strategy == base.0.strategy => base.0.forget_after,
        Some(OrAuto(None)) | None => longest.saturating_mul(FORGOTTEN_AFTER),
    };
    at.in_force("forget_after", &forget_after);
    let failures = at.get("failures", base.1.clone());
    (Backoff { strategy, hold, forget_after }, failures)
}

/// Returns the defaults for a gate without a preset: no backoff, and the usual kinds of failures.
///
/// A client that hangs up counts as a failure of an API server, because it has lost patience. With
/// an external API it may simply have finished polling (docs/internals/design.md, "Outcomes").
pub(super) fn no_backoff(kind: ApiKind) -> (Backoff, Failures) {
    let failures =
        Failures { statuses: vec![429, 500, 502, 503, 504], transport: true, left: kind == ApiKind::Kubernetes };
    (Backoff { strategy: Strategy::Off, hold: HOLD, forget_after: Duration::ZERO }, failures)
}

fn strategy(at: &Cursor<'_>, base: Strategy) -> Strategy {
    let from = match base {
        Strategy::Exponential { .. } => StrategyWord::Exponential,
        Strategy::FastSlow { .. } => StrategyWord::FastSlow,
        Strategy::Off => StrategyWord::Off,
    };
    let word = if at.is_off() { StrategyWord::Off } else { at.get("strategy", from) };
    at.in_force("strategy", &word);
    let why = format!("the strategy is {}", word.write());
    let only = |strategy| at.unused_if(word != strategy, why.as_str(), &at.at("strategy"));
    let exponential = exponential(&only(StrategyWord::Exponential), base);
    let fast_slow = fast_slow(&only(StrategyWord::FastSlow), base);
    match word {
        StrategyWord::Exponential => exponential,
        StrategyWord::FastSlow => fast_slow.unwrap_or(Strategy::Off),
        StrategyWord::Off => Strategy::Off,
    }
}

fn exponential(at: &Cursor<'_>, from: Strategy) -> Strategy {
    let from = match from {
        Strategy::Exponential { base, max, jitter } => (base, max, jitter),
        Strategy::FastSlow { .. } | Strategy::Off => (Duration::from_secs(1), Duration::from_secs(60), 0.0),
    };
    let base = at.get("base", from.0);
    let max = at.get("max", from.1);
    let fits = |jitter: &f64| (0.0..=1.0).contains(jitter) || !at.is_present();
    let jitter = at.get_if("jitter", from.2, fits, "a fraction from 0 to 1");
    if !at.is_present() {
        return Strategy::Exponential { base, max, jitter }; // as checked where it comes from
    }
    if base.is_zero() {
        at.at("base").problem("is 0, expected a delay; for no delay: strategy = \"off\"");
    }
    if max < base {
        let key = if at.has("max") { "max" } else { "base" };
        at.at(key).given(&[&at.at("base"), &at.at("max")]).problem(format!("max {max:?} is less than base {base:?}"));
    }
    Strategy::Exponential { base, max, jitter }
}

fn fast_slow(at: &Cursor<'_>, from: Strategy) -> Option<Strategy> {
    let from = match from {
        Strategy::FastSlow { fast, slow, fast_attempts } => Some((fast, slow, fast_attempts)),
        Strategy::Exponential { .. } | Strategy::Off => None,
    };
    let need = "strategy \"fast_slow\" needs it";
    let fast: Option<Duration> = at.needed("fast", from.map(|from| from.0), need);
    let slow = at.needed("slow", from.map(|from| from.1), need);
    let fast_attempts = at.needed("fast_attempts", from.map(|from| from.2), need);
    let fast = fast?;
    let slow = slow?;
    let fast_attempts = fast_attempts?;
    if slow < fast && at.is_present() {
        let message = format!("slow {slow:?} is less than fast {fast:?}");
        at.at("slow").given(&[&at.at("fast"), &at.at("slow")]).problem(message);
    }
    if fast.is_zero() && at.is_present() {
        at.at("fast").problem("is 0, expected a delay such as \"1s\"");
    }
    Some(Strategy::FastSlow { fast, slow, fast_attempts })
}

/// Returns the longest delay of a backoff strategy, jitter included.
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

impl TomlValue for Failures {
    const SHAPE: Shape = Vec::<String>::SHAPE;

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        let mut failures = Self { statuses: Vec::new(), transport: false, left: false };
        for (index, word) in Vec::<String>::read(value, at)?.iter().enumerate() {
            match (word.as_str(), word.parse()) {
                ("transport", _) => failures.transport = true,
                ("left", _) => failures.left = true,
                (_, Ok(status @ 400..=599)) => failures.statuses.push(status),
                _ => at.item(index).problem(format!(
                    "is {word:?}, expected a status from \"400\" to \"599\", \"transport\" or \"left\""
                )),
            }
        }
        failures.statuses.sort_unstable();
        failures.statuses.dedup();
        Some(failures)
    }

    fn write(&self) -> Value {
        let mut words: Vec<String> = self.statuses.iter().map(ToString::to_string).collect();
        words.extend(self.transport.then(|| "transport".to_owned()));
        words.extend(self.left.then(|| "left".to_owned()));
        words.write()
    }
}

/// Reads the limits on waiting calls, and their division into flows (`fair_by`).
pub(super) fn queue(at: &Cursor<'_>, kind: ApiKind) -> (QueuePolicy, FairBy) {
    let max_wait = at.get("max_wait", MAX_WAIT);
    let max_waiting = at.get("max_waiting", 10_000);
    let Bytes(max_waiting_bytes) = at.get("max_waiting_bytes", Bytes(16 << 20));
    let fair_by = at.get("fair_by", FairBy::Resource);
    if kind == ApiKind::Http && fair_by == FairBy::Namespace {
        at.at("fair_by").problem("is \"namespace\", which external APIs do not have");
    }
    let combine = at.get("combine", Combine::Sequential);
    (QueuePolicy { max_wait, max_waiting, max_waiting_bytes, combine }, fair_by)
}

/// The default rate of the retry bucket while retries fail, in calls per second.
const CLOSED: f64 = 0.5;
const CLOSED_SHARE: f64 = 0.05;
/// How long failures are remembered, as a multiple of the longest backoff delay. A controller with
/// thousands of failing objects retries each only once in minutes.
const FORGOTTEN_AFTER: u32 = 5;
/// The rate of client-go's own bucket for retries, in calls per second.
const CLIENT_GO: f64 = 10.0;
/// The highest rate, in calls per second: governor counts whole nanoseconds.
const FASTEST: f64 = 1e9;
/// The longest time to fill a bucket, in seconds: the 584 years of a 64-bit count of nanoseconds.
const LONGEST_FILL: f64 = 584.0 * 365.0 * 86_400.0;
/// The default `max_wait`: fabric8 stops waiting after 10 s, and the API server's own queue after
/// 15 s.
const MAX_WAIT: Duration = Duration::from_secs(8);
/// The default `hold`, kept short because the waiting call blocks a worker of the controller.
const HOLD: Duration = Duration::from_millis(100);
