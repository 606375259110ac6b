//! Numbers as people write them.

use std::time::Duration;

/// Formats a whole number with separators between thousands.
pub(crate) fn thousands(number: impl Copy + ToString) -> String {
    grouped(&number.to_string())
}

/// Puts a comma between each three digits.
pub(super) fn grouped(digits: &str) -> String {
    let comma = |index: usize| index > 0 && (digits.len() - index).is_multiple_of(3);
    let digit = |(index, digit): (usize, char)| comma(index).then_some(',').into_iter().chain([digit]);
    digits.chars().enumerate().flat_map(digit).collect()
}

/// Cuts a text to at most `width` characters, of which the last is then `end`.
pub(crate) fn cut(text: &str, width: usize, end: char) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain([end]).collect()
}

/// Formats a duration in about three digits.
pub(crate) fn short(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match duration {
        Duration::ZERO => "0".to_owned(),
        it if it < Duration::from_micros(950) => format!("{} us", it.as_micros().max(1)),
        it if it < Duration::from_millis(10) && it.subsec_micros() % 1000 >= 50 => format!("{:.1} ms", seconds * 1e3),
        it if it < Duration::from_millis(950) => format!("{:.0} ms", seconds * 1e3),
        it if it < Duration::from_secs(100) => format!("{seconds:.1} s"),
        _ => format!("{seconds:.0} s"),
    }
}

/// Draws the last `width` values as a row of small bars, the greatest of them at full height. A
/// value above zero is always visible.
pub(crate) fn sparkline(values: &[u64], width: usize) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shown = &values[values.len().saturating_sub(width)..];
    let most = shown.iter().max().copied().unwrap_or_default().max(1);
    let level = |value: &u64| usize::try_from((value * 8).div_ceil(most)).unwrap_or_default().min(8);
    shown.iter().map(|value| BARS[level(value)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        let shorts = [0, 1, 949, 1000, 2_500, 12_400, 100_000, 1_260_000, 1_000_000_000];
        let shorts = shorts.map(|micros| short(Duration::from_micros(micros)));
        assert_eq!(shorts, ["0", "1 us", "949 us", "1 ms", "2.5 ms", "12 ms", "100 ms", "1.3 s", "1000 s"]);
    }

    #[test]
    fn in_a_row_of_bars_whatever_happened_is_seen() {
        assert_eq!(sparkline(&[0, 1, 1000], 8), " ▁█");
        assert_eq!(sparkline(&[9, 9, 1, 2], 2), "▄█");
        assert_eq!(sparkline(&[0, 0], 8), "  ");
    }
}
