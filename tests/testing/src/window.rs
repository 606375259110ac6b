//! P1 held against a record: the fullest window of a list of moments.

use std::time::Duration;

/// The amount by which the fullest window, of any length t, exceeds `burst + rate * (t + slack)`:
/// at most 0 is within the bound.
///
/// Arrivals are in order. For a window from the i-th to the j-th it is
/// `j - i + 1 - burst - rate * (a_j - a_i + slack)`. The best i for a j is the one with the
/// smallest `i - rate * a_i`, so one pass is enough.
pub fn worst_excess(arrivals: &[Duration], rate: f64, burst: f64, slack: Duration) -> f64 {
    let Some(first) = arrivals.first() else { return -burst };
    let mut best_start = f64::INFINITY;
    let mut worst = f64::NEG_INFINITY;
    let mut index = 0.0;
    for arrival in arrivals {
        let at = (*arrival - *first).as_secs_f64();
        best_start = best_start.min(index - rate * at);
        let held = index - rate * at - best_start + 1.0;
        worst = worst.max(held - burst - rate * slack.as_secs_f64());
        index += 1.0;
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_window_is_found() {
        let at = |millis: &[u64]| millis.iter().map(|m| Duration::from_millis(*m)).collect::<Vec<_>>();
        // Burst 2 at 10/s: two at once, then one every 100 ms, is exactly the bound.
        let exact = worst_excess(&at(&[0, 0, 100, 200, 300]), 10.0, 2.0, Duration::ZERO);
        assert!(exact.abs() < 1e-9, "{exact}");
        // After a pause of 5 s three together are one too many.
        let over = worst_excess(&at(&[0, 5_000, 5_000, 5_000]), 10.0, 2.0, Duration::ZERO);
        assert!((over - 1.0).abs() < 1e-9, "{over}");
        assert!(worst_excess(&[], 1.0, 2.0, Duration::ZERO) < 0.0);
    }
}
