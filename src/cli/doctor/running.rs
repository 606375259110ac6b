//! Checks the running process, and the state of its gates.

use super::{Finding, Verdict};
use crate::cli::running;
use crate::spec::Settings;
use crate::status::text::{ago, count, duration, meaning, rejected_by, until};
use crate::status::{self, Status};

/// Returns the status of the process, and findings about it and its listeners.
pub(super) async fn findings(settings: &Settings) -> (Option<Status>, Vec<Finding>) {
    let status = running::status(settings).await;
    let mut findings = vec![match &status {
        Ok((at, status)) => {
            Finding::fine("process", format!("answers at {at}, up {}", duration(status.uptime_seconds)))
        }
        Err(error) => {
            let advice = "start it with tidegate run and this configuration, and look at its log";
            Finding::wrong("process", format!("{error:#}"), advice)
        }
    }];
    for gate in settings.gates.values() {
        for listen in &gate.listen {
            let about = format!("gate {}", gate.name);
            findings.push(Finding::of_listener(&about, listen, &format!("gates.{}.listen", gate.name)).await);
        }
    }
    let status = status.ok().map(|(_, status)| status);
    if let Some(status) = &status {
        findings.extend(configuration(status));
        findings.extend(status.gates.iter().flat_map(|gate| gate_findings(gate, status.now_ms)));
    }
    (status, findings)
}

/// Reports that the configuration file was changed, but the change is not in force.
fn configuration(status: &Status) -> Option<Finding> {
    let reload = status.config.last_reload.as_ref().filter(|reload| !reload.reasons.is_empty())?;
    let says = format!(
        "the file has changed, and the change is not in force ({}, {}): {}",
        reload.result,
        ago(reload.at_ms, status.now_ms),
        reload.reasons.join("; ")
    );
    let remedy = if reload.result == "restart_needed" {
        "restart the pod to take it over"
    } else {
        "correct the file; it is looked at again by itself"
    };
    Some(Finding::wrong("reload", says, remedy))
}

/// Reports what is wrong at a gate now.
fn gate_findings(gate: &status::GateStatus, now_ms: u64) -> Vec<Finding> {
    let about = format!("gate {}", gate.name);
    let mut findings = Vec::new();
    if let Some(bypass) = &gate.bypass {
        let says = format!("everything is let through; that ends {}", until(bypass.until_ms, now_ms));
        findings.push(Finding::wrong(&about, says, "tidegate bypass off"));
    }
    if let Some(says) = gate.shadow_says() {
        let advice = match gate.is_shadow() {
            true => format!("when that is what you want, set gates.{}.shadow = false and restart", gate.name),
            false => "when that is what you want, set shadow = false in these classes".to_owned(),
        };
        findings.push(Finding::note(&about, says, advice));
    }
    for rejection in gate.rejected_lately(now_ms) {
        let calls = count(rejection.count, "call", "calls");
        let last = ago(rejection.at_ms, now_ms);
        let says = format!("the upstream turned {calls} away, the last {last}: {}", rejected_by(&rejection.by));
        let advice = match rejection.by.as_str() {
            "credentials" => "renew the token: the gate's own where credentials = \"inject\", else the controller's",
            "disruption_budget" => "that budget forbids the eviction now; the gate has no part in it",
            _ => "lower bucket.rate to what the upstream bears; bucket.adapt does that by itself",
        };
        let verdict = if rejection.by == "credentials" { Verdict::Wrong } else { Verdict::Note };
        findings.push(Finding { verdict, ..Finding::note(&about, says, advice) });
    }
    if gate.links_passed > 0 {
        let answers = count(gate.links_passed, "answer", "answers");
        let says = format!(
            "{answers} had links to the upstream itself: clients that follow them go past the gate and its limits"
        );
        let advice =
            format!("set gates.{}.rewrite_links = true; docs/external-apis.md has what else there is", gate.name);
        findings.push(Finding::note(&about, says, advice));
    }
    let longest = gate.queues.iter().max_by(|one, other| one.oldest_seconds.total_cmp(&other.oldest_seconds));
    if let Some(queue) = longest.filter(|queue| queue.oldest_seconds >= LONG) {
        let says = format!(
            "is saturated: {}, the longest for {}, because {}",
            count(gate.waiting, "call waits", "calls wait"),
            duration(queue.oldest_seconds),
            meaning(&queue.reason)
        );
        findings.push(Finding::wrong(&about, says, knob(&queue.reason)));
    }
    if let Some(pause) = gate.pauses.iter().max_by_key(|pause| pause.until_ms) {
        let who = &pause.who;
        let ends = until(pause.until_ms, now_ms);
        let (says, advice) = match pause.left {
            Some(_) => (pause.because(), "wait; or lower signals.reserve"),
            None => (
                "the upstream asked for a pause".to_owned(),
                "wait; if it takes calls again already, tidegate forget --pauses",
            ),
        };
        findings.push(Finding::note(&about, format!("{says}: {who} pauses; that ends {ends}"), advice));
    }
    let refused: u64 = gate.history.refused.iter().rev().take(MINUTE).sum();
    if let Some(latest) = gate.refusals.first().filter(|_| refused > 0) {
        let says = format!(
            "refused {} in the last minute, the last because {}",
            count(refused, "call", "calls"),
            meaning(&latest.reason)
        );
        findings.push(Finding::note(&about, says, knob(&latest.reason)));
    }
    for hot in gate.hot.iter().take(FEW) {
        let says = format!("{} is hot: {}", hot.title(), hot.says);
        findings.push(Finding::note(&about, says, remedy(hot)));
    }
    if gate.keys_failing > 0 {
        let says = match gate.is_shadow() {
            true => count(gate.keys_failing, "key fails", "keys fail"),
            false => count(gate.keys_failing, "key is backing off", "keys are backing off"),
        };
        let advice = "tidegate top shows what they got; when the cause is healed, tidegate forget --all";
        findings.push(Finding::note(&about, says, advice));
    }
    findings
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
        _ => "heal what fails: tidegate top shows the keys and what they got",
    }
}

/// Returns advice about an object that is called too often.
fn remedy(hot: &status::HotObject) -> String {
    match hot.status {
        Some(401) => "renew its credentials".to_owned(),
        Some(403) => "give it the right that it lacks, or take the call out of the controller".to_owned(),
        Some(404) => "make what it looks for, or let the controller stop looking: the name may be wrong".to_owned(),
        Some(status) => format!("correct what it sends: no retry changes a {status}"),
        None if hot.enforced => {
            "mend the loop in the controller; until then the gate holds the object to its pace".to_owned()
        }
        None => {
            "mend the loop in the controller; until then per_key.enforce = true holds the object to its pace".to_owned()
        }
    }
}

/// The most hot objects to report.
const FEW: usize = 5;
/// The seconds of waiting a burst alone cannot cause.
const LONG: f64 = 1.0;
/// The number of history steps in one minute.
const MINUTE: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hot_object_is_told_of_with_what_ends_its_loop() {
        let hot = |status, says: &str| status::HotObject {
            object: "configmaps default/a".to_owned(),
            kind: "configmaps".to_owned(),
            says: says.to_owned(),
            status,
            ..status::HotObject::default()
        };
        let written = "written 1,210 times in 10 minutes by manager/1.2, the same body each time";
        for (status, says, advice) in [
            (None, written, "mend the loop in the controller; until then per_key.enforce = true"),
            (Some(401), "gets 401 each time", "renew its credentials"),
            (Some(403), "gets 403 each time", "give it the right that it lacks"),
            (Some(404), "gets 404 each time", "make what it looks for"),
            (Some(422), "gets 422 each time", "no retry changes a 422"),
        ] {
            let gate =
                status::GateStatus { name: "kubernetes".into(), hot: vec![hot(status, says)], ..Default::default() };
            let findings = gate_findings(&gate, 0);
            let finding = findings.iter().find(|finding| finding.says.contains(" is hot: ")).expect("it is told of");
            assert_eq!((finding.verdict, &*finding.about), (Verdict::Note, "gate kubernetes"));
            assert_eq!(finding.says, format!("configmaps default/a is hot: {says}"));
            assert!(finding.remedy.contains(advice), "{}", finding.remedy);
        }
    }

    #[test]
    fn one_key_is_not_told_as_many() {
        let gate = status::GateStatus { keys_failing: 1, ..Default::default() };
        assert_eq!(gate_findings(&gate, 0)[0].says, "1 key is backing off");
    }

    #[test]
    fn what_is_enforced_already_is_not_advised() {
        let hot = status::HotObject { enforced: true, ..status::HotObject::default() };
        assert!(!remedy(&hot).contains("enforce") && remedy(&hot).contains("mend the loop"), "{}", remedy(&hot));
    }

    #[test]
    fn a_few_of_many_hot_objects_are_told_of() {
        let gate = status::GateStatus { hot: vec![status::HotObject::default(); 20], ..Default::default() };
        assert_eq!(gate_findings(&gate, 0).iter().filter(|finding| finding.says.contains(" is hot: ")).count(), FEW);
    }
}
