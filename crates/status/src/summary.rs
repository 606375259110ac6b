//! The state of a gate in a word and in sentences: what is wrong comes first.

use std::cmp::Reverse;

use super::text::{ago, bytes, count, duration, rejected_by, until};
use super::{GateStatus, Status};

/// The greatest age of a recent event, in milliseconds.
const LATELY_MS: u64 = 60_000;
/// The number of history steps in a minute.
const LATELY_STEPS: usize = 12;

/// How serious a state is: its CSS class on the page, and its colour in the terminal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Severity {
    /// The rank; the higher, the worse.
    rank: u8,
    pub(super) class: &'static str,
    pub(super) colour: &'static str,
}

/// The state of a gate.
#[derive(Debug)]
pub(super) struct GateState {
    /// The state in a word or two.
    pub(super) word: String,
    pub(super) severity: Severity,
}

const GOOD: Severity = Severity { rank: 0, class: "good", colour: "\u{1b}[32m" };
const WARN: Severity = Severity { rank: 1, class: "warn", colour: "\u{1b}[33m" };
pub(super) const BAD: Severity = Severity { rank: 2, class: "bad", colour: "\u{1b}[31m" };

// === impl Status ===

impl Status {
    /// Returns the gates, those in the worst state first; of equals the busiest.
    pub(super) fn worst_first(&self) -> Vec<&GateStatus> {
        let mut gates: Vec<&GateStatus> = self.gates.iter().collect();
        gates.sort_by_key(|gate| {
            let lately: u64 = gate.history.admitted.iter().rev().take(LATELY_STEPS).sum();
            Reverse((gate.state(self.now_ms).severity.rank, gate.waiting, gate.keys_failing, lately))
        });
        gates
    }
}

// === impl GateStatus ===

impl GateStatus {
    /// Returns true if connections of a group cannot be made.
    fn is_cut_off(&self) -> bool {
        self.connections.iter().any(|group| group.down.is_some())
    }

    /// Returns the calls the upstream rejected within the last minute, by kind of rejection.
    pub fn rejected_lately(&self, now_ms: u64) -> impl Iterator<Item = &super::Rejection> {
        self.rejections.iter().filter(move |rejection| now_ms.saturating_sub(rejection.at_ms) < LATELY_MS)
    }

    /// Returns sentences about what is wrong besides waits, refusals and failing keys, the worst
    /// first.
    pub fn remarks(&self, now_ms: u64) -> Vec<String> {
        let mut says = Vec::new();
        for group in &self.connections {
            let down = |why| format!("No connection for {} calls: {why}.", group.group.replace('_', "-"));
            says.extend(group.down.as_ref().map(down));
        }
        for rejection in self.rejected_lately(now_ms) {
            let calls = count(rejection.count, "call", "calls");
            let last = ago(rejection.at_ms, now_ms);
            says.push(match rejection.by.as_str() {
                "credentials" => format!(
                    "The upstream does not take the credentials: {calls} got 401, the last {last}. tidegate doctor says whose they are."
                ),
                by => format!("The upstream itself turned {calls} away, the last {last}: {}.", rejected_by(by)),
            });
        }
        if self.links_passed > 0 {
            let answers = count(self.links_passed, "answer had", "answers had");
            says.push(format!("{answers} links that lead past the gate and its limits: see rewrite_links."));
        }
        if self.revalidated > 0 {
            let calls = count(self.revalidated, "call was", "calls were");
            let kept = bytes(self.kept_bytes);
            says.push(format!(
                "{calls} answered from {kept} of kept answers, which the upstream said have not changed."
            ));
        }
        // Leases and health checks count as calls, and so do calls without a connection, or to another
        // host of the gate.
        let came = self.classes.iter().any(|class| class.calls > 0);
        if !came && self.admitted == 0 && self.refused == 0 && self.waiting == 0 && !self.is_cut_off() {
            says.push(
                "No call has come yet: is the controller pointed here? tidegate doctor finds what goes past the gate."
                    .to_owned(),
            );
        }
        says
    }

    /// Returns why calls of healthy keys were refused within the last minute, if they were.
    /// Refusals for a failing key are the key's state, not the gate's.
    fn refuses(&self, now_ms: u64) -> Option<&str> {
        let lately = |refusal: &&super::Refusal| now_ms.saturating_sub(refusal.at_ms) < LATELY_MS;
        let mut reasons = self.refusals.iter().filter(lately).map(|refusal| refusal.reason.as_str());
        reasons.find(|reason| !matches!(*reason, "backoff" | "one_at_a_time" | "per_key" | "retry_bucket" | "trial"))
    }

    /// Returns the state of the gate in a word or two.
    pub(super) fn state(&self, now_ms: u64) -> GateState {
        let state = |word: &str, severity| GateState { word: word.to_owned(), severity };
        match self.refuses(now_ms) {
            _ if self.bypass.is_some() => state("bypassed", BAD),
            _ if self.is_cut_off() => state("cut off", BAD),
            Some(reason) => state(&format!("refusing: {reason}"), BAD),
            _ if self.rejected_lately(now_ms).any(|by| by.by == "credentials") => state("unauthorized", BAD),
            _ if self.is_shadow() => state("shadow", GOOD),
            _ if self.pauses.iter().any(|pause| pause.who == "gate") => state("paused", WARN),
            _ if self.waiting > 0 => state("holding back", WARN),
            _ if self.keys_failing > 0 => state("keys failing", WARN),
            _ if !self.hot.is_empty() => state("hot objects", WARN),
            _ => state("open", GOOD),
        }
    }

    /// Describes the state of the gate in a sentence or two.
    pub(super) fn summary(&self, now_ms: u64) -> Vec<String> {
        let mut says = self.shadow_sentence().into_iter().collect::<Vec<_>>();
        says.extend(self.remarks(now_ms));
        says.extend(self.waits());
        if self.held > 0 {
            says.push(format!("{} by failing keys.", count(self.held, "call is held", "calls are held")));
        }
        if let Some(pause) = self.pauses.iter().max_by_key(|pause| pause.until_ms) {
            let held = if self.is_shadow() { ", and calls go all the same" } else { "" };
            let ends = until(pause.until_ms, now_ms);
            says.push(match pause.left {
                Some(_) => format!("Paused: {}; that ends {ends}{held}.", pause.because()),
                None => format!("The upstream asked for a pause that ends {ends}{held}."),
            });
        }
        if self.keys_failing > 0 && self.is_shadow() {
            let keys = count(self.keys_failing, "key fails", "keys fail");
            says.push(format!("{keys}{}; their calls go all the same.", self.last_answers()));
        } else if self.keys_failing > 0 {
            let keys = count(self.keys_failing, "key is backing", "keys are backing");
            let next = self.keys.iter().find(|key| key.next_at_ms > now_ms);
            let next = next.map(|key| format!("; the next may be tried {}", until(key.next_at_ms, now_ms)));
            says.push(format!("{keys} off{}{}.", self.last_answers(), next.unwrap_or_default()));
        }
        says.extend(self.hot_sentences());
        if says.is_empty() {
            says.push("Nothing waits and nothing fails.".to_owned());
        }
        says
    }

    /// Describes what the limits would have done in shadow mode.
    fn shadow_sentence(&self) -> Option<String> {
        let says = self.shadow_says()?;
        Some(format!("S{}.", says.strip_prefix('s')?))
    }

    /// Describes why calls wait, the most common reason first, and a flow that has most of them.
    fn waits(&self) -> Vec<String> {
        let sentence = |(reason, waiting): (&str, usize)| {
            let queues = || self.queues.iter().filter(|queue| queue.reason == *reason);
            let longest = queues().map(|queue| queue.oldest_seconds).fold(0.0, f64::max);
            let noisy = queues().max_by_key(|queue| queue.waiting).filter(|queue| !queue.flow.is_empty());
            let of = noisy.filter(|queue| queue.waiting * 2 > waiting).map(|queue| match queue.waiting {
                all if all == waiting => format!("; all of the flow {}", queue.flow),
                most => format!("; {most} of them of the flow {}", queue.flow),
            });
            format!(
                "{}, the longest for {}: {}{}.",
                count(waiting, "call waits", "calls wait"),
                duration(longest),
                self.meaning(reason),
                of.unwrap_or_default(),
            )
        };
        let reasons = most_common(self.queues.iter().map(|queue| (queue.reason.as_str(), queue.waiting)));
        reasons.into_iter().map(sentence).collect()
    }

    /// Describes the last responses to the failing keys, because a repair begins with their status.
    fn last_answers(&self) -> String {
        let word = |status: Option<u16>| status.map_or_else(|| "no answer".to_owned(), |status| status.to_string());
        match most_common(self.keys.iter().map(|key| (key.status, 1))).as_slice() {
            [] => String::new(),
            [(status, _)] => format!(" (last answer {})", word(*status)),
            several => {
                let each = several.iter().take(3).map(|(status, count)| format!("{count} with {}", word(*status)));
                format!(" ({})", each.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// Adds up the counts of equal things, and sorts by the sums, largest first.
fn most_common<T: PartialEq>(counts: impl Iterator<Item = (T, usize)>) -> Vec<(T, usize)> {
    let mut sums: Vec<(T, usize)> = Vec::new();
    for (thing, count) in counts {
        match sums.iter_mut().find(|(other, _)| *other == thing) {
            Some((_, sum)) => *sum += count,
            None => sums.push((thing, count)),
        }
    }
    sums.sort_by_key(|(_, sum)| Reverse(*sum));
    sums
}
