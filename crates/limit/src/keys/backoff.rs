//! The delay after the n-th failure in a row, as client-go's item limiters compute it, and the
//! random numbers for its jitter.

use std::time::Duration;

use crate::key::Key;
use crate::{Backoff, Strategy};

/// A generator of random numbers (splitmix64). It is good enough for jitter, and the same seed
/// gives the same numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dice(pub(super) u64);

// === impl Strategy ===

impl Strategy {
    /// Returns the delay after this many failures in a row, without jitter.
    pub fn delay(&self, failures: u32) -> Duration {
        match *self {
            Self::Off => Duration::ZERO,
            Self::Exponential { base, max, .. } => exponential(base, max, failures),
            Self::FastSlow { fast, fast_attempts, .. } if failures <= fast_attempts => fast,
            Self::FastSlow { slow, .. } => slow,
        }
    }

    /// Returns the delay after this many failures in a row, with jitter.
    pub(crate) fn rolled_delay(&self, failures: u32, dice: &mut Dice) -> Duration {
        let delay = self.delay(failures);
        match *self {
            Self::Exponential { jitter, .. } if jitter > 0.0 => {
                let more = delay.as_secs_f64() * jitter * dice.roll();
                delay.saturating_add(Duration::try_from_secs_f64(more).unwrap_or(Duration::MAX))
            }
            Self::Off | Self::Exponential { .. } | Self::FastSlow { .. } => delay,
        }
    }
}

// === impl Backoff ===

impl Backoff {
    /// Returns the delay of a key after this many failures in a row, without jitter and within the
    /// key's own limit.
    pub(crate) fn delay_of(&self, key: &Key, failures: u32) -> Duration {
        self.strategy.delay(failures).min(key.longest_delay())
    }
}

// === impl Dice ===

impl Dice {
    /// Returns a random number of at least 0 and less than 1.
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Spreads a number over all bits (splitmix64's finalizer).
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the delay as client-go computes it, in float64 and with its guard: past the largest
/// `time.Duration` the delay is `max`.
fn exponential(base: Duration, max: Duration, failures: u32) -> Duration {
    let doublings = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX).min(1023);
    let base = base.as_nanos() as f64;
    let guard = i64::MAX as f64;
    let backoff = base * 2_f64.powi(doublings);
    if backoff > guard {
        return max;
    }
    #[expect(clippy::cast_possible_truncation, reason = "guarded above")]
    let backoff = Duration::from_nanos(backoff as u64);
    backoff.min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn exponential(base: Duration, max: Duration) -> Strategy {
        Strategy::Exponential { base, max, jitter: 0.0 }
    }

    fn delays(strategy: Strategy, n: u32) -> Vec<u128> {
        (1..=n).map(|failures| strategy.delay(failures).as_millis()).collect()
    }

    #[test]
    fn exponential_is_client_gos() {
        assert_eq!(delays(exponential(ms(1), ms(1000)), 5), [1, 2, 4, 8, 16]);
        assert_eq!(
            delays(exponential(ms(1000), ms(60_000)), 8),
            [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]
        );
        let default = exponential(ms(5), ms(1_000_000));
        assert_eq!(
            delays(default, 19),
            [
                5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10_240, 20_480, 40_960, 81_920, 163_840, 327_680,
                655_360, 1_000_000
            ]
        );
    }

    #[test]
    fn exponential_survives_its_own_overflow() {
        assert_eq!(exponential(ms(1), ms(1_000_000)).delay(6), ms(32));
        assert_eq!(exponential(ms(1), ms(1_000_000)).delay(1000), ms(1_000_000));
        let hours = exponential(ms(60_000), ms(3_600_000_000));
        assert_eq!(hours.delay(3), ms(240_000));
        assert_eq!(hours.delay(1000), ms(3_600_000_000));
        // The first exponent at which the guard and not the clamp decides.
        for (base, exponent) in [(1, 44), (5, 41), (1000, 34), (60_000, 28)] {
            let strategy = exponential(ms(base), Duration::MAX);
            assert!(strategy.delay(exponent) < Duration::MAX, "base {base} ms, exponent {}", exponent - 1);
            assert_eq!(strategy.delay(exponent + 1), Duration::MAX, "base {base} ms, exponent {exponent}");
        }
        assert_eq!(exponential(Duration::ZERO, ms(1)).delay(u32::MAX), Duration::ZERO);
    }

    #[test]
    fn fast_then_slow_is_client_gos() {
        let strategy = Strategy::FastSlow { fast: ms(5), slow: ms(10_000), fast_attempts: 3 };
        assert_eq!(delays(strategy, 5), [5, 5, 5, 10_000, 10_000]);
    }

    #[test]
    fn jitter_only_adds_and_by_no_more_than_its_fraction() {
        let strategy = Strategy::Exponential { base: ms(1000), max: ms(60_000), jitter: 0.5 };
        let mut dice = Dice(7);
        let rolled: Vec<_> = (0..1000).map(|_| strategy.rolled_delay(1, &mut dice)).collect();
        assert!(rolled.iter().all(|delay| (ms(1000)..ms(1500)).contains(delay)));
        assert!(rolled.iter().max().unwrap().saturating_sub(*rolled.iter().min().unwrap()) > ms(450));
    }
}
