//! The report on a hot object, as data and in words.

use std::time::Duration;

use crate::moment::Moment;

/// A loop that has begun or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It is named for the first time.
    Began(Report),
    /// It is over.
    Ended(Report),
}

/// A hot object, with the findings on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its name.
    pub object: Box<str>,
    /// Its kind, without any name.
    pub kind: Box<str>,
    /// Its path in its API; empty if that is not known.
    pub path: Box<str>,
    pub(super) habit: Habit,
    /// The calls of the last ten minutes, or in a row.
    pub calls: u64,
    /// The time in which they came.
    pub within: Duration,
    /// The moment of the first.
    pub since: Moment,
    /// The moment of the last.
    pub last: Moment,
    /// The callers that make them.
    pub callers: Vec<Caller>,
    /// True if the gate refuses its calls that come too soon.
    pub is_paced: bool,
}

/// A caller of a hot object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its name.
    pub name: Box<str>,
    /// Its calls since the beginning.
    pub calls: u64,
}

/// The act that is repeated on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Habit {
    /// It is called too often.
    Often { reads: bool, bodies: Bodies, take_turns: bool, denied: u64, failed: u64, refused: u64 },
    /// Each call gets the same 4xx.
    Denied { status: u16, verb: Box<str>, part: Box<str> },
}

/// The bodies of the writes of each caller, beside those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bodies {
    Same,
    Other,
    /// Now the one, now the other, or they cannot be compared.
    Mixed,
}

// === impl Bodies ===

impl Bodies {
    /// Judges from how many were the same as the one before, and how many were not.
    pub(super) fn of(same: u64, other: u64) -> Self {
        let all = same + other;
        match all {
            0..5 => Self::Mixed,
            _ if same * 20 >= all * 19 => Self::Same,
            _ if other * 20 >= all * 19 => Self::Other,
            _ => Self::Mixed,
        }
    }
}

// === impl Report ===

impl Report {
    /// Returns the status that every call gets, if that is what makes it a loop.
    pub fn status(&self) -> Option<u16> {
        match self.habit {
            Habit::Denied { status, .. } => Some(status),
            Habit::Often { .. } => None,
        }
    }

    /// Returns what is done to the object, as what follows its name in a sentence. Callers, and the
    /// part of the object, which may be any text, are in it only if `names` are shown.
    pub fn says(&self, names: bool) -> String {
        let calls = number(self.calls);
        let within = span(self.within);
        match &self.habit {
            Habit::Denied { status, verb, part } => {
                let of = if names && !part.is_empty() { format!(" of its {part}") } else { String::new() };
                let by = self.by(names);
                format!("{status} for ever: every {verb}{of}{by} got it, {calls} times in a row in {within}")
            }
            Habit::Often { reads, bodies, take_turns, denied, failed, refused } => {
                let done = if *reads { "read" } else { "written" };
                let mut text = format!("{done} {calls} times in {within}");
                text += &if *take_turns { self.fighters(*reads, names) } else { self.by(names) };
                text += match bodies {
                    Bodies::Same if *take_turns => ", each with the same body each time",
                    Bodies::Same => ", the same body each time",
                    Bodies::Other => ", another body each time",
                    Bodies::Mixed => "",
                };
                for (count, what) in [
                    (denied, "answered with a 4xx"),
                    (failed, "answered with a 5xx"),
                    (refused, "refused by this gate"),
                ] {
                    if *count > 0 {
                        text += &format!("; {} {what}", number(*count));
                    }
                }
                text
            }
        }
    }

    fn fighters(&self, reads: bool, names: bool) -> String {
        let mut callers: Vec<_> = self.callers.iter().collect();
        callers.sort_by_key(|caller| std::cmp::Reverse(caller.calls));
        callers.truncate(2);
        callers.sort_by(|one, other| one.name.cmp(&other.name));
        let who = if reads { "readers" } else { "writers" };
        match callers.as_slice() {
            [one, other] if names => format!(": two {who} take turns, {} and {}", one.name, other.name),
            _ => format!(": two {who} take turns"),
        }
    }

    fn by(&self, names: bool) -> String {
        let callers: Vec<_> = self.callers.iter().map(|caller| &*caller.name).filter(|name| !name.is_empty()).collect();
        match callers.as_slice() {
            _ if !names => String::new(),
            [] => String::new(),
            [one] => format!(" by {one}"),
            [one, other] => format!(" by {one} and {other}"),
            [one, others @ ..] => format!(" by {one} and {} others", others.len()),
        }
    }
}

/// Writes a number with commas.
fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Writes a time as people say it.
fn span(time: Duration) -> String {
    match time.as_secs() {
        0 | 1 => "a second".to_owned(),
        seconds @ 2..120 => format!("{seconds} seconds"),
        seconds @ 120..7200 => format!("{} minutes", (seconds + 30) / 60),
        seconds => format!("{} hours", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_as_people_write_them() {
        assert_eq!([7, 999, 1_000, 1_210_000].map(number), ["7", "999", "1,000", "1,210,000"]);
        let spans = [0, 41, 119, 120, 600, 7199, 7200].map(|seconds| span(Duration::from_secs(seconds)));
        let wanted = ["a second", "41 seconds", "119 seconds", "2 minutes", "10 minutes", "120 minutes", "2 hours"];
        assert_eq!(spans, wanted);
    }
}
