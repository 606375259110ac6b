//! Axes with few ticks, at round numbers.

use super::figures::grouped;

/// An axis as it is drawn: its range and its ticks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    /// The value at the end of the axis; never zero.
    pub(super) end: f64,
    /// The value at the start of an axis with tenfold steps; `None` for an axis from zero.
    from: Option<f64>,
    /// The values with ticks, the lowest first.
    pub(super) ticks: Vec<f64>,
}

impl Scale {
    /// Creates a vertical axis, from zero to the first tick at or above `highest`.
    pub(super) fn past(highest: f64, wanted: u32) -> Self {
        let step = step(highest, wanted);
        let count = (highest / step).ceil().max(1.0);
        Self { end: count * step, from: None, ticks: ticks(count * step, step) }
    }

    /// Creates a horizontal axis, from zero to exactly `end`.
    pub(super) fn to(end: f64, wanted: u32) -> Self {
        let end = if end > 0.0 { end } else { 1.0 };
        Self { end, from: None, ticks: ticks(end, step(end, wanted)) }
    }

    /// Creates an axis with a tick at each power of ten, wide enough for `lowest` and `highest`.
    pub(super) fn tenfold(lowest: f64, highest: f64) -> Self {
        let exponent = |value: f64| if value > 0.0 { value.log10() } else { 0.0 };
        // A tiny rounding error must not cost a whole decade.
        let last = (exponent(highest) - 1e-9).ceil().min(300.0);
        let first = (exponent(lowest) + 1e-9).floor().clamp(-300.0, last - 1.0);
        let powers = std::iter::successors(Some(first), |power| Some(power + 1.0));
        let ticks = powers.take_while(|power| *power <= last + 0.5).map(|power| 10_f64.powf(power)).collect();
        Self { end: 10_f64.powf(last), from: Some(10_f64.powf(first)), ticks }
    }

    /// Returns the position of `value` on the axis, as a fraction of its length.
    pub(super) fn fraction(&self, value: f64) -> f64 {
        let fraction = match self.from {
            None => value / self.end,
            Some(from) if value > 0.0 => (value / from).log10() / (self.end / from).log10(),
            Some(_) => 0.0,
        };
        fraction.clamp(0.0, 1.0)
    }
}

/// Returns the smallest of 1, 2, 5, 10, 20, ... with at most `wanted` steps up to `highest`.
fn step(highest: f64, wanted: u32) -> f64 {
    let rough = if highest > 0.0 { highest } else { 1.0 } / f64::from(wanted.max(1));
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().map(|digit| digit * power).find(|step| *step >= rough * 0.999_999);
    step.unwrap_or(power * 10.0)
}

/// Returns the multiples of `step` up to `end`.
fn ticks(end: f64, step: f64) -> Vec<f64> {
    (0_u32..).map(|index| f64::from(index) * step).take_while(|tick| *tick <= end * 1.000_001).collect()
}

/// Formats a number with commas between thousands, and without trailing zeros.
pub(super) fn label(value: f64) -> String {
    if value != 0.0 && value.abs() < 10.0 && (value - value.round()).abs() > 1e-12 {
        let places = match value.abs() {
            least if least >= 0.001 => 3,
            least if least >= 1e-6 => 6,
            _ => 12,
        };
        let text = format!("{value:.places$}");
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let text = grouped(&format!("{:.0}", value.abs()));
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(Scale::past(1843.0, 5).ticks, [0.0, 500.0, 1000.0, 1500.0, 2000.0]);
        assert_eq!(Scale::past(1000.0, 5).ticks, [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!(Scale::to(20.0, 10).ticks.len(), 11);
        assert_eq!(Scale::to(7.0, 10).end, 7.0);
        for highest in [0.0, 1e-9, 0.3, 1.0, 9.99, 10.0, 12345.0, 1e12] {
            let scale = Scale::past(highest, 5);
            assert!(scale.end >= highest && scale.end > 0.0, "{highest}: {scale:?}");
            assert!((2..=7).contains(&scale.ticks.len()), "{highest}: {scale:?}");
        }
    }

    #[test]
    fn labels_are_short() {
        let labels = [0.0, 0.25, 2.5, 12.0, 999.0, 1000.0, 1_234_567.0].map(label);
        assert_eq!(labels, ["0", "0.25", "2.5", "12", "999", "1,000", "1,234,567"]);
    }
}
