//! Texts for readers: times, rates and reasons; and text of unknown origin, escaped.

use std::fmt::Display;

use tidegate_telemetry::controls::steers;

/// Formats a duration in at most two parts: `0.4 s`, `12 s`, `3 m 20 s`, `2 h 5 m`, `4 d 1 h`.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    if seconds < 0.0995 {
        return format!("{:.0} ms", seconds * 1000.0);
    }
    if seconds < 9.95 {
        return format!("{seconds:.1} s");
    }
    let whole = whole(seconds);
    match (whole / 86_400, whole / 3600 % 24, whole / 60 % 60, whole % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, 0) => format!("{minutes} m"),
        (0, 0, minutes, seconds) => format!("{minutes} m {seconds} s"),
        (0, hours, 0, _) => format!("{hours} h"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} m"),
        (days, 0, ..) => format!("{days} d"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

/// Formats the time until `at`, seen from `now`: `in 3 s`, or `now`.
pub fn until(at_ms: u64, now_ms: u64) -> String {
    match at_ms.saturating_sub(now_ms) {
        0 => "now".to_owned(),
        ms => format!("in {}", duration(seconds(ms))),
    }
}

/// Formats the time since `at`: `3 s ago`.
pub fn ago(at_ms: u64, now_ms: u64) -> String {
    format!("{} ago", duration(seconds(now_ms.saturating_sub(at_ms))))
}

/// Formats a number with its significant digits: `50`, `1.25`, `0.138`.
pub fn number(number: f64) -> String {
    let text = match number.abs() {
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.3}"),
    };
    let short = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if short == "-0" { "0".to_owned() } else { short.to_owned() }
}

/// Formats bytes: `512 B`, `3.2 KiB`, `16 MiB`.
pub fn bytes(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", number(bytes as f64 / 1024.0)),
        _ => format!("{} MiB", number(bytes as f64 / f64::from(0x10_0000))),
    }
}

/// Formats a count: `1 call`, `2 calls`.
pub fn count<N: Copy + Display + PartialEq + From<u8>>(count: N, one: &str, many: &str) -> String {
    format!("{count} {}", if count == N::from(1) { one } else { many })
}

/// Returns what a reason means, to follow "waits because" or "refused because".
pub fn meaning(reason: &str) -> &'static str {
    match reason {
        "backoff" => "the key failed, and its delay is not over",
        "bucket" => "the gate's bucket is empty",
        "bytes_full" => "the bodies of waiting calls fill the room",
        "class_bucket" => "the class's bucket is empty",
        "deadline" => "the turn would come too late for the client's own deadline",
        "one_at_a_time" => "another write of the same object is under way",
        "pause" => "the upstream asked for a pause",
        "per_key" => "the same object is called again and again",
        "queue_full" => "too many calls wait already",
        "retry_bucket" => "there is no token for a retry",
        "slot" => "there is no free slot, or no room on a connection",
        "trial" => "another call of the failing key is finding out",
        _ => "of another reason",
    }
}

/// Returns which part of the upstream rejected calls, as the end of a sentence such as "turned away
/// by".
pub fn rejected_by(by: &str) -> &'static str {
    match by {
        "credentials" => "it does not take the credentials",
        "disruption_budget" => "a PodDisruptionBudget",
        "priority_and_fairness" => "API priority and fairness",
        "rate_limit" => "a rate limit of its own",
        _ => "for another reason",
    }
}

/// Formats the time of day, in UTC.
pub fn clock(ms: u64) -> String {
    let seconds = ms / 1000;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

/// Escapes text for HTML, so that it can end neither an element nor a quoted attribute.
pub fn escaped(text: &str) -> String {
    let text = printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

/// Escapes text so that it cannot steer a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(visible).collect()
}

/// Escapes a control character.
fn visible(c: char) -> String {
    if steers(c) { c.escape_default().to_string() } else { c.to_string() }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

#[expect(clippy::cast_possible_truncation, reason = "not negative; saturates")]
fn whole(seconds: f64) -> u64 {
    seconds.round() as u64
}

/// Cuts a text to at most `width` characters; `end` replaces the rest.
pub fn cut(text: &str, width: usize, end: char) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain([end]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_numbers_are_short() {
        let durations = [0.0123, 0.5, 9.96, 59.6, 61.0, 3600.0, 7500.0, 90_000.0].map(duration);
        assert_eq!(durations, ["12 ms", "0.5 s", "10 s", "1 m", "1 m 1 s", "1 h", "2 h 5 m", "1 d 1 h"]);
        assert_eq!([50.0, 1.25, 0.138, 1234.5, 0.0, -0.0001].map(number), ["50", "1.25", "0.138", "1234", "0", "0"]);
        assert_eq!((until(5_000, 2_000), until(1, 2)), ("in 3.0 s".to_owned(), "now".to_owned()));
        assert_eq!([bytes(5), bytes(3000), bytes(16 << 20)], ["5 B", "2.93 KiB", "16 MiB"]);
        assert_eq!(clock(86_400_000 + 3_723_000), "01:02:03 UTC");
    }

    #[test]
    fn nothing_from_outside_breaks_out() {
        assert_eq!(escaped("<a href='x' \"y\">&"), "&lt;a href=&#39;x&#39; &quot;y&quot;&gt;&amp;");
        assert_eq!(printable("web\u{1b}[2J\r\n\u{202e}"), "web\\u{1b}[2J\\r\\n\\u{202e}");
    }

    #[test]
    fn every_reason_has_a_meaning() {
        for reason in tidegate_limit::Reason::ALL {
            assert_ne!(meaning(reason.word()), meaning("unknown"), "{reason}");
        }
    }
}
