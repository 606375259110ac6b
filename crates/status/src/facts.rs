//! The facts about a gate in sentences, each with what to do about it. The page, the terminal,
//! `explain` and `doctor` say the same.

use std::cmp::Reverse;

use super::text::{ago, bytes, clock, count, duration, meaning, rejected_by, until};
use super::{GateStatus, Rejection, Status};

/// A fact about a gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// A sentence, without its full stop.
    pub says: String,
    /// What to do; empty if there is nothing to do, or if that depends on what only `doctor` finds.
    pub remedy: String,
    /// True if something is wrong, rather than worth knowing.
    pub is_wrong: bool,
}

// === impl Fact ===

impl Fact {
    /// Makes a fact worth knowing: nothing is wrong.
    pub(super) fn note(says: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { says: says.into(), remedy: remedy.into(), is_wrong: false }
    }

    fn wrong(says: String, remedy: &str) -> Self {
        Self { is_wrong: true, ..Self::note(says, remedy) }
    }
}

// === impl Status ===

impl Status {
    /// Describes a changed configuration that is not in force.
    pub fn reload_fact(&self) -> Option<Fact> {
        let reload = self.config.last_reload.as_ref().filter(|reload| !reload.reasons.is_empty())?;
        let when = ago(reload.at_ms, self.now_ms);
        let reasons = reload.reasons.join("; ");
        let remedy = match reload.result.as_str() {
            "restart_needed" => "restart the pod to take it over",
            _ => "correct the file; it is looked at again by itself",
        };
        let says =
            format!("The file has changed, and the change is not in force ({}, {when}): {reasons}", reload.result);
        Some(Fact::wrong(says, remedy))
    }
}

// === impl GateStatus ===

impl GateStatus {
    /// Returns the facts about the gate, roughly the worst first.
    pub fn facts(&self, now_ms: u64) -> Vec<Fact> {
        let held = count(self.held, "call is held", "calls are held");
        let held = (self.held > 0).then(|| Fact::note(format!("{held} by failing keys"), ""));
        let facts = self.shadow_fact().into_iter().chain(self.remarks(now_ms)).chain(self.waits()).chain(held);
        let facts = facts.chain(self.pause_fact(now_ms)).chain(self.refusals_fact()).chain(self.keys_fact(now_ms));
        facts.chain(self.hot_facts()).collect()
    }

    /// Describes the state of the gate in a sentence or more.
    pub(super) fn summary(&self, now_ms: u64) -> Vec<String> {
        let says: Vec<_> = self.facts(now_ms).into_iter().map(|fact| format!("{}.", fact.says)).collect();
        if says.is_empty() { vec!["Nothing waits and nothing fails.".to_owned()] } else { says }
    }

    /// Returns the facts besides waits, refusals, failing keys and hot objects.
    pub fn remarks(&self, now_ms: u64) -> Vec<Fact> {
        let mut facts = Vec::new();
        if let Some(bypass) = &self.bypass {
            let ends = until(bypass.until_ms, now_ms);
            let at = clock(bypass.until_ms);
            let calls = count(self.bypassed, "call", "calls");
            let says = format!("Bypass: everything is let through, {calls} so far; that ends by itself {ends} ({at})");
            facts.push(Fact::wrong(says, "tidegate bypass off"));
        }
        for group in &self.connections {
            let down =
                |why| Fact::note(format!("No connection for {} calls: {why}", group.group.replace('_', "-")), "");
            facts.extend(group.down.as_ref().map(down));
        }
        facts.extend(self.rejected_lately(now_ms).map(|rejection| rejection.fact(now_ms)));
        if self.revalidated > 0 {
            let calls = count(self.revalidated, "call was", "calls were");
            let kept = bytes(self.kept_bytes);
            let says =
                format!("{calls} answered from {kept} of kept answers, which the upstream said have not changed");
            facts.push(Fact::note(says, ""));
        }
        // Leases and health checks count as calls, and so do calls without a connection, or to another
        // host of the gate.
        let came = self.classes.iter().any(|class| class.calls > 0);
        if !came && self.admitted == 0 && self.refused == 0 && self.waiting == 0 && !self.is_cut_off() {
            let says =
                "No call has come yet: is the controller pointed here? tidegate doctor finds what goes past the gate";
            facts.push(Fact::note(says, ""));
        }
        facts
    }

    /// Describes why calls wait, the most common reason first, and a flow that has most of them.
    fn waits(&self) -> Vec<Fact> {
        let fact = |(reason, waiting): (&str, usize)| {
            let queues = || self.queues.iter().filter(|queue| queue.reason == *reason);
            let longest = queues().map(|queue| queue.oldest_seconds).fold(0.0, f64::max);
            let noisy = queues().max_by_key(|queue| queue.waiting).filter(|queue| !queue.flow.is_empty());
            let of = noisy.filter(|queue| queue.waiting * 2 > waiting).map(|queue| match queue.waiting {
                all if all == waiting => format!("; all of the flow {}", queue.flow),
                most => format!("; {most} of them of the flow {}", queue.flow),
            });
            let says = format!(
                "{}, the longest for {}: {}{}",
                count(waiting, "call waits", "calls wait"),
                duration(longest),
                self.meaning(reason),
                of.unwrap_or_default(),
            );
            if longest < LONG { Fact::note(says, "") } else { Fact::wrong(says, knob(reason)) }
        };
        let reasons = most_common(self.queues.iter().map(|queue| (queue.reason.as_str(), queue.waiting)));
        reasons.into_iter().map(fact).collect()
    }

    fn pause_fact(&self, now_ms: u64) -> Option<Fact> {
        let pause = self.pauses.iter().max_by_key(|pause| pause.until_ms)?;
        let held = if self.is_shadow() { ", and calls go all the same" } else { "" };
        let ends = until(pause.until_ms, now_ms);
        let remedy = match pause.left {
            Some(_) => "wait; or lower signals.reserve",
            None => "wait; if it takes calls again already, tidegate forget --pauses",
        };
        Some(Fact::note(format!("Paused ({}): {}; that ends {ends}{held}", pause.who, pause.because()), remedy))
    }

    fn refusals_fact(&self) -> Option<Fact> {
        let refused: u64 = self.history.refused.iter().rev().take(MINUTE).sum();
        let reason = &self.refusals.first().filter(|_| refused > 0)?.reason;
        let calls = count(refused, "call was", "calls were");
        let says = format!("{calls} refused in the last minute, the last because {}", meaning(reason));
        Some(Fact::note(says, knob(reason)))
    }

    fn keys_fact(&self, now_ms: u64) -> Option<Fact> {
        let answers = self.last_answers();
        let says = if self.keys_failing == 0 {
            return None;
        } else if self.is_shadow() {
            format!("{}{answers}; their calls go all the same", count(self.keys_failing, "key fails", "keys fail"))
        } else {
            let keys = count(self.keys_failing, "key is backing", "keys are backing");
            let next = self.keys.iter().find(|key| key.next_at_ms > now_ms);
            let next = next.map(|key| format!("; the next may be tried {}", until(key.next_at_ms, now_ms)));
            format!("{keys} off{answers}{}", next.unwrap_or_default())
        };
        Some(Fact::note(says, "tidegate top shows what they got; when the cause is healed, tidegate forget --all"))
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

// === impl Rejection ===

impl Rejection {
    fn fact(&self, now_ms: u64) -> Fact {
        let calls = count(self.count, "call", "calls");
        let last = ago(self.at_ms, now_ms);
        if self.by == "credentials" {
            let says = format!("The upstream does not take the credentials: {calls} got 401, the last {last}");
            let remedy = "renew the token: the gate's own where credentials = \"inject\", else the controller's";
            return Fact::wrong(says, remedy);
        }
        let remedy = match self.by.as_str() {
            "disruption_budget" => "that budget forbids the eviction now; the gate has no part in it",
            _ => "lower bucket.rate to what the upstream bears; bucket.adapt does that by itself",
        };
        let by = rejected_by(&self.by);
        Fact::note(format!("The upstream itself turned {calls} away, the last {last}: {by}"), remedy)
    }
}

/// Returns the configuration key to change if calls wait or are refused for this reason.
fn knob(reason: &str) -> &'static str {
    match reason {
        "bucket" => {
            "raise bucket.rate if the API server has room, or find who calls so much: tidegate top shows the flows"
        }
        "class_bucket" => "raise the class's bucket.rate, or narrow what it matches",
        "slot" => "raise in_flight.max, or find out why answers take so long: tidegate_upstream_seconds",
        "pause" => "the upstream asked for it; lower bucket.rate below its quota",
        "queue_full" | "bytes_full" => "raise queue.max_waiting or queue.max_waiting_bytes, or bucket.rate",
        "per_key" => "mend the loop that is named here, or raise per_key for the class of these calls",
        "retry_bucket" => {
            "heal what fails; with retry_bucket.rate = \"auto\", the default, retries go again as soon as some of them succeed"
        }
        "backoff" | "deadline" | "one_at_a_time" | "trial" => {
            "heal what fails: tidegate top shows the keys and what they got"
        }
        _ => "",
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

/// The number of history steps in a minute.
pub(super) const MINUTE: usize = 12;
/// A wait, in seconds, too long to be caused by a burst alone.
const LONG: f64 = 1.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HotObject;

    #[test]
    fn a_hot_object_is_told_of_with_what_ends_its_loop() {
        let hot = |status, says: &str| HotObject {
            object: "configmaps default/a".to_owned(),
            kind: "configmaps".to_owned(),
            says: says.to_owned(),
            status,
            ..HotObject::default()
        };
        let written = "written 1,210 times in 10 minutes by manager/1.2, the same body each time";
        for (status, says, advice) in [
            (None, written, "mend the loop in the controller; until then per_key.enforce = true"),
            (Some(401), "gets 401 each time", "renew its credentials"),
            (Some(403), "gets 403 each time", "give it the right that it lacks"),
            (Some(404), "gets 404 each time", "make what it looks for"),
            (Some(422), "gets 422 each time", "no retry changes a 422"),
        ] {
            let gate = GateStatus { hot: vec![hot(status, says)], ..Default::default() };
            let facts = gate.facts(0);
            let fact = facts.iter().find(|fact| fact.says.contains(" is hot: ")).expect("it is told of");
            assert_eq!((fact.is_wrong, &*fact.says), (false, &*format!("configmaps default/a is hot: {says}")));
            assert!(fact.remedy.contains(advice), "{}", fact.remedy);
        }
    }

    #[test]
    fn every_reason_has_a_remedy() {
        for reason in tidegate_limit::Reason::ALL {
            assert_ne!(knob(reason.word()), "", "{reason}");
        }
    }

    #[test]
    fn one_key_is_not_told_as_many() {
        let gate = GateStatus { admitted: 1, keys_failing: 1, ..Default::default() };
        assert_eq!(gate.facts(0)[0].says, "1 key is backing off");
    }

    #[test]
    fn a_pace_is_not_advised_where_it_is_enforced_or_kept() {
        let enforced = HotObject { enforced: true, ..HotObject::default() };
        let slow = HotObject { calls: 1200, seconds: 3600.0, ..HotObject::default() };
        for hot in [enforced, slow] {
            let gate = GateStatus { admitted: 1, hot: vec![hot], ..Default::default() };
            let remedy = &gate.facts(0)[0].remedy;
            assert!(!remedy.contains("enforce") && remedy.contains("mend the loop"), "{remedy}");
        }
    }
}
