//! Durations in the form of Go, Kubernetes clients and the configuration: `90s`, `1m30s`, `1.5h`,
//! `100ms`.

use std::time::Duration;

/// Reads a duration as Go's `time.ParseDuration` does; `None` if it is malformed, negative, or too
/// large.
///
/// The sum is in nanoseconds, with fractions truncated as in Go. A bare `0` needs no unit.
pub fn read(text: &str) -> Option<Duration> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if unsigned == "0" {
        return Some(Duration::ZERO);
    }
    let (mut nanos, mut rest) = number_with_unit(unsigned)?;
    while !rest.is_empty() {
        let (more, after) = number_with_unit(rest)?;
        (nanos, rest) = (nanos.checked_add(more)?, after);
    }
    Some(Duration::from_nanos(nanos))
}

/// Writes a duration in whole units so that [`read`] can read it: `1h5s`.
pub fn write(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for unit in ["h", "m", "s", "ms", "us", "ns"] {
        let nanos = nanos_of(unit).unwrap_or(1);
        if rest >= nanos {
            text.push_str(&(rest / nanos).to_string());
            text.push_str(unit);
            rest %= nanos;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Returns a duration in whole seconds, rounded up, as Retry-After has it.
pub fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// Reads one number with its unit; returns its nanoseconds and the rest of the text.
fn number_with_unit(text: &str) -> Option<(u64, &str)> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), digits);
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
    let (unit, rest) = rest.split_at_checked(end)?;
    let unit = nanos_of(unit)?;
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
    Some((whole.checked_mul(unit)?.checked_add(share(fraction, unit))?, rest))
}

/// Returns `0.fraction` of a unit, truncated.
fn share(fraction: &str, unit: u64) -> u64 {
    let digits = fraction.get(..18).unwrap_or(fraction);
    let scale: u128 = digits.bytes().map(|_| 10).product();
    u64::try_from(digits.parse().unwrap_or(0) * u128::from(unit) / scale).unwrap_or(u64::MAX)
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

fn nanos_of(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, nanos) in [
            ("0", 0),
            ("5s", 5_000_000_000),
            ("+5s", 5_000_000_000),
            ("32s", 32_000_000_000),
            ("1m0s", 60_000_000_000),
            ("1h2m3s4ms5us6ns", 3_723_004_005_006),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("5.s", 5_000_000_000),
            ("100ms", 100_000_000),
            ("39h9m14.425s", 140_954_425_000_000),
            ("1\u{b5}s", 1_000),
            ("0.3333333333333333333h", 1_200_000_000_000 - 1),
            ("0s", 0),
        ] {
            assert_eq!(read(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_none() {
        for text in [
            "",
            "3",
            "-5s",
            "s",
            ".",
            ".s",
            "1",
            "1d",
            "1 s",
            "1h-2m",
            "1s1",
            "99999999999h",
            "18446744073709551616ns",
            "+",
            "\u{e9}",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,24}") {
            prop_assert!(read(&text).is_none_or(|read| read < Duration::MAX));
        }

        #[test]
        fn what_is_written_is_read_again(nanos in any::<u64>(), shift in 0_u32..64) {
            let duration = Duration::from_nanos(nanos >> shift);
            prop_assert_eq!(read(&write(duration)), Some(duration));
        }
    }
}
