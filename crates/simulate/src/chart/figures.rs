//! Formats numbers, durations and texts for people.

use std::time::Duration;

/// Formats a whole number with commas between thousands.
pub fn thousands(number: impl Copy + ToString) -> String {
    grouped(&number.to_string())
}

/// Adds a comma between each group of three digits.
pub(super) fn grouped(digits: &str) -> String {
    let comma = |index: usize| index > 0 && (digits.len() - index).is_multiple_of(3);
    let digit = |(index, digit): (usize, char)| comma(index).then_some(',').into_iter().chain([digit]);
    digits.chars().enumerate().flat_map(digit).collect()
}

/// Formats a duration with about three digits.
pub fn short(duration: Duration) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        let shorts = [0, 1, 949, 1000, 2_500, 12_400, 100_000, 1_260_000, 1_000_000_000];
        let shorts = shorts.map(|micros| short(Duration::from_micros(micros)));
        assert_eq!(shorts, ["0", "1 us", "949 us", "1 ms", "2.5 ms", "12 ms", "100 ms", "1.3 s", "1000 s"]);
    }
}
