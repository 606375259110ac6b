//! Durations, in the configuration and in `?timeout=`, are read as Go's `time.ParseDuration` reads
//! them.

use std::time::Duration;

use serde::Deserialize;
use tidegate::api::duration;

#[derive(Deserialize)]
struct File {
    /// The text and Go's nanoseconds; `None` for an error.
    durations: Vec<(String, Option<i64>)>,
}

/// The text, our reading, and Go's. A negative duration counts as none here, because no deadline
/// lies in the past.
fn durations() -> Vec<(String, Option<Duration>, Option<Duration>)> {
    let rows = super::vectors::<File>("durations").durations;
    assert!(rows.len() > 300);
    let read = |(text, nanos): (String, Option<i64>)| {
        let theirs = nanos.filter(|_| !text.starts_with('-')).and_then(|nanos| u64::try_from(nanos).ok());
        (duration::read(&text), theirs.map(Duration::from_nanos), text)
    };
    rows.into_iter().map(read).map(|(ours, theirs, text)| (text, ours, theirs)).collect()
}

/// Go keeps a duration in an `i64` of nanoseconds.
const MOST: Duration = Duration::from_nanos(i64::MAX.unsigned_abs());

/// True for fractions that Go computes in floating point, and which may come out one nanosecond
/// off.
fn has_long_fraction(text: &str) -> bool {
    text.split('.').skip(1).any(|after| after.bytes().take_while(u8::is_ascii_digit).count() > 9)
}

#[test]
fn durations_are_read_as_go_reads_them() {
    let rows = durations();
    let of = rows.len();
    let differ = rows.iter().filter(|(text, ours, theirs)| {
        ours != theirs && ours.is_none_or(|ours| ours <= MOST) && !has_long_fraction(text)
    });
    let wrong: Vec<_> =
        differ.map(|(text, ours, theirs)| format!("{text:?}: ours {ours:?}, theirs {theirs:?}")).collect();
    super::none(&wrong, of);
}

#[test]
fn a_fraction_of_more_than_nine_digits_may_be_a_nanosecond_off() {
    for (text, ours, theirs) in durations().into_iter().filter(|(text, ..)| has_long_fraction(text)) {
        let apart = ours.unwrap_or_default().abs_diff(theirs.unwrap_or_default());
        let alike = ours.is_some() == theirs.is_some() && apart <= Duration::from_nanos(1);
        assert!(alike, "{text:?}: ours {ours:?}, theirs {theirs:?}");
    }
}

#[test]
fn a_duration_of_more_than_292_years_is_an_error_in_go_only() {
    for (text, ours, theirs) in durations().into_iter().filter(|(_, ours, _)| ours.is_some_and(|ours| ours > MOST)) {
        assert_eq!(theirs, None, "{text:?}: ours {ours:?}");
    }
}
