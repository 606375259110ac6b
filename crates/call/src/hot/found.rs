//! A loop that was found, as data and as a sentence.

use std::time::Duration;

use super::seen::CallNames;
use crate::limit::words;
use crate::moment::Moment;

words! {
    /// The kind of a loop.
    #[derive(Default)]
    pub enum LoopKind {
        /// Most writes of one object change nothing, or repeat an earlier one.
        Unchanged = "unchanged",
        /// One object is called too often, and as far as it is known most writes change it.
        #[default]
        Fast = "fast",
        /// Many objects are written in turn, and most writes change nothing.
        Spread = "spread",
        /// Two callers write one object in turn.
        TwoWriters = "two_writers",
        /// All calls are refused with the same 4xx.
        Denied = "denied",
        /// Most creates are answered with 409, because the object is there.
        AlreadyThere = "already_there",
        /// Most deletes are answered with 404, because the object is gone.
        AlreadyGone = "already_gone",
        /// One caller creates many more Events than others.
        EventFlood = "event_flood",
    }
}

/// A loop: calls of one kind, repeated too often or in vain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundLoop {
    /// A number that stays the same while the loop goes on.
    pub id: u64,
    /// The kind of the loop.
    pub kind: LoopKind,
    /// The names in the first call.
    pub names: CallNames,
    /// The callers; both, if two write in turn.
    pub callers: Vec<HotCaller>,
    /// The number of objects.
    pub objects: usize,
    /// The number of calls that are remembered.
    pub calls: u64,
    /// The time from the first to the last of these calls.
    pub within: Duration,
    /// The moment of the first call.
    pub since: Moment,
    /// The moment of the last call.
    pub last: Moment,
    /// The number of calls in vain.
    pub in_vain: u64,
    /// The number of those that changed nothing.
    pub unchanged: u64,
    /// The number of calls known to be in vain or not.
    pub judged: u64,
    /// The status of refused calls.
    pub status: Option<u16>,
    /// More about an object called too often.
    pub(super) fast: Option<CallCounts>,
}

/// A caller in a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotCaller {
    /// The name of the caller.
    pub name: Box<str>,
    /// The number of the caller's calls.
    pub calls: u64,
}

/// A loop that began, or has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The loop began.
    Began(FoundLoop),
    /// The loop ended.
    Ended(FoundLoop),
}

/// Counts of an object's calls since it was first observed, by their answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CallCounts {
    /// True for reads, false for writes.
    pub(super) reads: bool,
    pub(super) all: u64,
    /// Calls with the same body as the caller's last one.
    pub(super) same: u64,
    /// Calls with another body.
    pub(super) other: u64,
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

// === impl FoundLoop ===

impl FoundLoop {
    /// Returns a loop of so many calls by one caller, of which nothing else is known.
    pub(super) fn of(id: u64, kind: LoopKind, names: CallNames, calls: u64) -> Self {
        Self {
            id,
            kind,
            callers: vec![HotCaller { name: names.caller.clone(), calls }],
            names,
            objects: 1,
            calls,
            ..Self::default()
        }
    }

    /// Returns true if the gate refuses calls of the object for coming too soon.
    pub fn is_paced(&self) -> bool {
        self.fast.as_ref().is_some_and(|fast| fast.too_soon > 0)
    }

    /// Describes the loop, as the end of a sentence beginning with the object's name. Only with
    /// `names` are the callers and the part of the object in it, because these may be any text.
    pub fn says(&self, names: bool) -> String {
        let calls = number(self.calls);
        let within = span(self.within);
        if let Some(status) = self.status {
            let CallNames { verb, part, .. } = &self.names;
            let of = if names && !part.is_empty() { format!(" of its {part}") } else { String::new() };
            let by = self.by(names);
            return format!("{status} for ever: every {verb}{of}{by} got it, {calls} times in a row in {within}");
        }
        let reads = self.fast.as_ref().is_some_and(|fast| fast.reads);
        let is_fight = self.kind == LoopKind::TwoWriters;
        let done = match self.kind {
            LoopKind::Spread => "objects written in turn,",
            LoopKind::AlreadyThere | LoopKind::EventFlood => "created",
            LoopKind::AlreadyGone => "deleted",
            _ if reads => "read",
            _ => "written",
        };
        let by = if is_fight { self.fighters(reads, names) } else { self.by(names) };
        let objects = if self.objects > 1 { number(self.objects as u64) + " " } else { String::new() };
        let mut text = format!("{objects}{done} {calls} times in {within}{by}");
        if let Some(CallCounts { same, other, .. }) = self.fast {
            let compared = same + other;
            text += match () {
                () if compared < COMPARED => "",
                () if same * 20 >= compared * 19 && is_fight => ", each with the same body each time",
                () if same * 20 >= compared * 19 => ", the same body each time",
                () if other * 20 >= compared * 19 => ", another body each time",
                () => "",
            };
        }
        let percent = self.in_vain * 100 / self.judged.max(1);
        text += &match self.kind {
            LoopKind::Unchanged | LoopKind::Spread => {
                let what = match self.unchanged {
                    0 => "repeated an earlier one, times aside",
                    unchanged if unchanged < self.in_vain => "changed nothing or repeated an earlier one, times aside",
                    _ => "changed nothing",
                };
                format!("; {percent}% of the writes {what}")
            }
            LoopKind::AlreadyThere => format!("; {percent}% of the creates got 409: the object is there"),
            LoopKind::AlreadyGone => format!("; {percent}% of the deletes got 404: the object is gone"),
            LoopKind::EventFlood => ", many more than by others".to_owned(),
            LoopKind::Fast | LoopKind::TwoWriters | LoopKind::Denied => String::new(),
        };
        let counts = self.fast.iter().flat_map(|fast| {
            let CallCounts { denied, failed, refused, .. } = *fast;
            [(denied, "answered with a 4xx"), (failed, "answered with a 5xx"), (refused, "refused by this gate")]
        });
        let counts = counts.filter(|(count, _)| *count > 0);
        counts.fold(text, |text, (count, what)| format!("{text}; {} {what}", number(count)))
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

/// So many bodies of an object tell whether they are the same.
const COMPARED: u64 = 5;

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
