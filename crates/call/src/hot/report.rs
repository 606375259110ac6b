//! The report on a hot object, as data and as a sentence.

use std::time::Duration;

use super::seen::CallNames;
use crate::moment::Moment;

/// A new or ended loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The loop began.
    Began(Report),
    /// The loop ended.
    Ended(Report),
}

/// A hot object: its callers, their calls, and the kind of loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The names in the first call.
    pub names: CallNames,
    pub(super) habit: Habit,
    /// The number of calls in the last ten minutes or, if all got the same 4xx, in a row.
    pub calls: u64,
    /// The time from the first to the last of these calls.
    pub within: Duration,
    /// The moment of the first call.
    pub since: Moment,
    /// The moment of the last call.
    pub last: Moment,
    /// The callers of the object.
    pub callers: Vec<HotCaller>,
    /// True if the gate refuses calls of the object for coming too soon.
    pub is_paced: bool,
}

/// A caller of a hot object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotCaller {
    /// The name of the caller.
    pub name: Box<str>,
    /// The number of the caller's calls since the loop began.
    pub calls: u64,
}

/// The kind of a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Habit {
    /// The object is called too often.
    Often { reads: bool, bodies: Bodies, take_turns: bool, counts: CallCounts },
    /// The calls all get the same 4xx.
    Denied { status: u16 },
}

/// Counts of an object's calls since it was first observed, by their answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CallCounts {
    pub(super) all: u64,
    /// Calls answered with a 4xx.
    pub(super) denied: u64,
    /// Calls answered with a 5xx.
    pub(super) failed: u64,
    /// Calls the gate refused.
    pub(super) refused: u64,
    /// Calls refused because they came too soon.
    pub(super) too_soon: u64,
    /// Refused calls with a failing key.
    pub(super) failing: u64,
}

/// Whether each caller writes the same body again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bodies {
    Same,
    Other,
    /// The bodies are sometimes the same and sometimes not, or too few were compared.
    Mixed,
}

// === impl Bodies ===

impl Bodies {
    /// Decides from how many bodies were the same as the caller's last one, and how many were not.
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
    /// Returns the status of all calls, for a loop of calls with the same 4xx.
    pub fn status(&self) -> Option<u16> {
        match self.habit {
            Habit::Denied { status } => Some(status),
            Habit::Often { .. } => None,
        }
    }

    /// Describes the loop, as the end of a sentence beginning with the object's name. Only with
    /// `names` are the callers and the part of the object in it, because these may be any text.
    pub fn says(&self, names: bool) -> String {
        let calls = number(self.calls);
        let within = span(self.within);
        match &self.habit {
            Habit::Denied { status } => {
                let CallNames { verb, part, .. } = &self.names;
                let of = if names && !part.is_empty() { format!(" of its {part}") } else { String::new() };
                let by = self.by(names);
                format!("{status} for ever: every {verb}{of}{by} got it, {calls} times in a row in {within}")
            }
            Habit::Often { reads, bodies, take_turns, counts } => {
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
                    (counts.denied, "answered with a 4xx"),
                    (counts.failed, "answered with a 5xx"),
                    (counts.refused, "refused by this gate"),
                ] {
                    if count > 0 {
                        text += &format!("; {} {what}", number(count));
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
            [] => String::new(),
            _ if !names => String::new(),
            [one] => format!(" by {one}"),
            [one, other] => format!(" by {one} and {other}"),
            [one, others @ ..] => format!(" by {one} and {} others", others.len()),
        }
    }
}

/// Writes a number with commas.
fn number(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
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
