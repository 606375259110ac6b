//! The published limits of providers, and how a gate's bucket is computed from them.
//!
//! The provider counts a call some time after the gate sends it, and this delay differs between
//! calls. So calls may reach the provider closer together than the gate sent them, and overdraw a
//! bucket as large as the gate's. Providers also refill their buckets once a second, while the
//! gate's fills continuously.
//!
//! So even for the whole of a limit the gate uses a little less. No call then arrives before its
//! token exists, as long as the delays of calls differ by at most [`SPREAD`].

use std::fmt;

use serde::Deserialize;

/// A limit, as its provider publishes it.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub(super) enum Figure {
    /// A token bucket: its size in tokens, and the tokens added each second.
    Bucket { burst: u32, rate: f64 },
    /// A number of calls in any time window of this many seconds.
    Window { calls: u32, seconds: u32 },
}

/// The document stating a provider's limits.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FigureSource {
    name: String,
    /// The day the provider's page was read.
    read: String,
    url: String,
    /// Whose calls its limits count: `account and region`.
    pub(super) each: String,
}

// === impl Figure ===

impl Figure {
    /// Returns the rate and burst of a bucket within a share of the limit, at whatever moment the
    /// provider's window begins. `dearest` is the most tokens of a call.
    pub(super) fn held(self, share: f64, dearest: u16) -> (f64, u32) {
        match self {
            Self::Bucket { burst, rate } => held_bucket(burst.into(), rate, share),
            Self::Window { calls, seconds } => held_window(calls.into(), seconds.into(), share, dearest.into()),
        }
    }
}

/// Returns the rate and burst for a share of a provider's token bucket.
///
/// The provider adds the tokens of a second up to a second late. Within that second, the calls of
/// another [`SPREAD`] may arrive. So the burst is smaller by both amounts. If this leaves no burst,
/// calls are sent one by one, slowly enough that each finds a token.
fn held_bucket(burst: f64, rate: f64, share: f64) -> (f64, u32) {
    let wanted = rate * share;
    let room = burst - wanted * (1.0 + SPREAD);
    if room >= 1.0 {
        return (wanted, whole(burst * share).min(whole(room)).max(1));
    }
    (wanted.min(1.0 / longest_period(burst, rate)), 1)
}

/// Returns the least time between calls, sent one by one, for each of them to find a token.
///
/// Call `n` arrives after `(n - 1) * period - SPREAD` at the earliest. By then `n - burst` tokens
/// must have been added, which takes whole seconds.
fn longest_period(burst: f64, rate: f64) -> f64 {
    let exact = |n: f64| (((n - burst) / rate).ceil() + SPREAD) / (n - 1.0);
    let first = (1..=LOOKED_AT).map(|n| exact(burst + f64::from(n)));
    // A bound for all later calls, which gets ever smaller.
    let later = (f64::from(LOOKED_AT) + rate * (1.0 + SPREAD)) / (rate * (burst + f64::from(LOOKED_AT) - 1.0));
    first.fold(later, f64::max)
}

/// Returns the rate and burst for a share of a limit per time window.
///
/// A burst and the tokens added during a window are together at most the limit of the window. The
/// burst is at least `dearest`, the tokens of the most expensive call.
fn held_window(calls: f64, length: f64, share: f64, dearest: f64) -> (f64, u32) {
    let wanted = calls * share;
    let calls = wanted.floor().max(dearest);
    let burst = (1.0 + (calls / IN_A_BURST).floor()).max(dearest);
    let rate = (calls + 1.0 - burst) / (length + SPREAD);
    (rate.min(wanted / length), whole(burst))
}

/// Returns a number of calls, rounded down to a whole number.
pub(super) fn whole(calls: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, as is wanted")]
    let whole = calls as u32;
    whole
}

/// The largest difference between the travel times of two calls to the provider, in seconds.
const SPREAD: f64 = 0.05;
/// The number of calls checked one by one in [`longest_period`].
const LOOKED_AT: u32 = 1000;
/// The most calls of a window in one burst, as a divisor: one call and a 25th of them. The rest are
/// spread evenly, so that most of any window is used.
const IN_A_BURST: f64 = 25.0;

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bucket { burst, rate } => write!(f, "{rate}/s, burst {burst}"),
            Self::Window { calls, seconds } => match seconds {
                1 => write!(f, "{calls} a second"),
                60 => write!(f, "{calls} a minute"),
                3600 => write!(f, "{calls} an hour"),
                seconds => write!(f, "{calls} in {seconds} s"),
            },
        }
    }
}

impl fmt::Display for FigureSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, read on {}: {}", self.name, self.read, self.url)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The earliest arrivals, in nanoseconds, of a gate's calls in a window beginning with the
    /// first: the first of them were slow, the others fast.
    fn earliest(call: u32, (rate, burst): (f64, u32)) -> f64 {
        (f64::from(call.saturating_sub(burst)) / rate - SPREAD).max(0.0)
    }

    /// True if a provider's bucket refilled every `refill` seconds, at the worst moment,
    /// has a token for each of the first calls.
    fn bears(burst: u32, rate: f64, refill: Option<f64>, held: (f64, u32)) -> bool {
        (1..5000).all(|call| {
            let after = earliest(call, held) + 1e-9;
            let added = match refill {
                None => rate * after,
                Some(every) => rate * every * (after / every).floor(),
            };
            f64::from(call) <= f64::from(burst) + added + 1e-6
        })
    }

    fn window_bears(calls: u32, length: f64, held: (f64, u32)) -> bool {
        earliest(calls + 1, held) >= length - 1e-9
    }

    proptest! {
        #[test]
        fn no_call_arrives_before_its_token(
            burst in 1_u32..200, tenths in 1_u32..300, share in prop_oneof![Just(1.0), 0.01..1.0_f64],
        ) {
            let rate = f64::from(tenths.min(burst * 10)) / 10.0;
            let held = Figure::Bucket { burst, rate }.held(share, 1);
            prop_assert!(held.0 <= rate * share + 1e-9 && f64::from(held.1) <= (f64::from(burst) * share).max(1.0));
            prop_assert!(bears(burst, rate, None, held), "continuously: {held:?}");
            prop_assert!(bears(burst, rate, Some(1.0), held), "each second: {held:?}");
        }

        #[test]
        fn no_window_has_more_calls_than_its_figure(
            calls in 1_u32..6000, seconds in 1_u32..4000, share in prop_oneof![Just(1.0), 0.01..1.0_f64],
            dearest in prop_oneof![Just(1_u16), 1..20_u16],
        ) {
            let held = Figure::Window { calls, seconds }.held(share, dearest);
            prop_assert!(held.1 >= u32::from(dearest) && held.0 > 0.0, "{held:?}");
            // `earliest` takes tokens for calls that cost one each.
            let most = whole((f64::from(calls) * share).max(f64::from(dearest)));
            prop_assert!(window_bears(most, seconds.into(), held), "{held:?}");
        }
    }

    #[test]
    fn a_share_scales_rate_and_burst_and_leaves_one_call() {
        let held = |burst, rate, share| Figure::Bucket { burst, rate }.held(share, 1);
        assert_eq!(held(100, 20.0, 1.0), (20.0, 79));
        assert_eq!(held(100, 20.0, 0.5), (10.0, 50));
        assert_eq!(held(5, 2.0, 0.5), (1.0, 2));
        assert_eq!(held(1, 0.1, 0.5), (0.05, 1));
        assert_eq!(held(100, 20.0, 0.001), (0.02, 1));
    }
}
