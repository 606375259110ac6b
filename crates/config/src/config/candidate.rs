//! Reads a gate's candidate (`[gates.NAME.candidate]`): limits to compare with those in force.
//!
//! The whole gate is read again with the candidate's limits, as `tidegate promote` would write it.
//! So a candidate is checked as strictly as limits in force, and means the same once it is
//! promoted.

use std::sync::Arc;

use toml::{Table, Value};

use super::cursor::Cursor;
use super::layers::overlay;
use super::problems::did_you_mean;
use super::record::Grafted;
use super::shape::Shape;
use crate::spec::Gate;

/// Reads the candidate of a gate into `gate`. `read` reads a whole gate from its table.
pub(super) fn compare(at: &Cursor<'_>, gate: &mut Gate, read: impl FnOnce(&Cursor<'_>) -> Gate) {
    let Some(own) = at.table_alone(CANDIDATE) else { return };
    let other = read_with(at, &own, None, read);
    match gate.rules.joined(&other.rules) {
        Some(rules) => gate.rules = Arc::new(rules),
        None => own.problem(
            "has another `per` (client, credential, account or action) than the limits in force, expected the same: a call \
             arrives with one identity",
        ),
    }
    gate.candidate = Some(Arc::new(other.policy.alone()));
}

/// Reads the gate again with the limits in `own`, a table in the gate's. The key `beside` is none of
/// them.
pub(super) fn read_with(
    at: &Cursor<'_>,
    own: &Cursor<'_>,
    beside: Option<&str>,
    read: impl FnOnce(&Cursor<'_>) -> Gate,
) -> Gate {
    let limits = limits(own, beside);
    // Known even if their values are wrong, so that no key is reported twice.
    for key in own.as_table().into_iter().flat_map(Table::keys) {
        own.report().record().key(&own.path, key, Shape::Any);
    }
    let mut table = at.as_table().cloned().unwrap_or_default();
    put_in_force(&mut table, limits.clone());
    at.read_as(table, &limits, &Grafted { place: &own.path, keys: &LIMITS, hidden: &COMMON }, read)
}

/// Returns the limits in a table. Reports every other key but `beside` as a problem.
fn limits(own: &Cursor<'_>, beside: Option<&str>) -> Table {
    let mut limits = own.as_table().cloned().unwrap_or_default();
    beside.and_then(|key| limits.remove(key));
    limits.retain(|key, _| {
        let is_limit = LIMITS.contains(&key);
        if !is_limit {
            let near = did_you_mean(key, &LIMITS);
            own.at(key).key_problem(format!(
                "is not a limit, expected one of {}{near}; all other keys are the gate's, for these limits and its own alike",
                LIMITS.join(", ")
            ));
        }
        is_limit
    });
    for [table, key] in COMMON {
        let given = limits.get_mut(table).and_then(Value::as_table_mut).and_then(|table| table.remove(key));
        if given.is_some() {
            own.at(table).at(key).key_problem("cannot be set here: the gate's holds for these limits too");
        }
    }
    limits
}

/// Merges the candidate into a gate's table, in place of the limits in force.
///
/// Keys missing in the candidate keep the gate's values. But if the candidate names a backoff
/// strategy, the delays of the gate's old strategy are removed.
pub(super) fn put_in_force(gate: &mut Table, candidate: Table) {
    gate.remove(CANDIDATE);
    let has_strategy = candidate.get("backoff").is_some_and(|backoff| backoff.get("strategy").is_some());
    if let Some(backoff) = gate.get_mut("backoff").and_then(Value::as_table_mut).filter(|_| has_strategy) {
        backoff.retain(|key, _| !STRATEGY.contains(&key));
    }
    overlay(gate, candidate);
}

/// The name of a gate's key for its candidate.
pub(super) const CANDIDATE: &str = "candidate";
/// The keys of a gate for its limits; a candidate may have only these.
pub(super) const LIMITS: [&str; 6] = ["bucket", "retry_bucket", "backoff", "queue", "in_flight", "per_key"];
/// Keys of those limits not allowed in a candidate: gate and candidate have the same values.
const COMMON: [[&str; 2]; 4] =
    [["bucket", "shared"], ["retry_bucket", "shared"], ["backoff", "failures"], ["queue", "fair_by"]];
/// The keys of `backoff` about the strategy and its delays.
const STRATEGY: [&str; 7] = ["strategy", "base", "max", "jitter", "fast", "slow", "fast_attempts"];

#[cfg(test)]
mod tests {
    use crate::config::{Configuration, Problem, load_text, promoted};
    use crate::limit::Policy;
    use crate::limit::policy::Per;

    const GATE: &str = "[gates.k]\nupstream = \"https://x\"\nbucket = { rate = 50, burst = 100 }\n";

    fn load(text: &str, env: &[(String, String)]) -> Result<Configuration, String> {
        let lines = |problems: Vec<Problem>| problems.iter().map(|line| format!("{line}\n")).collect();
        load_text("f.toml".to_owned(), text.to_owned(), env).map_err(lines)
    }

    fn good(text: &str) -> Configuration {
        load(text, &[]).unwrap_or_else(|problems| panic!("{text}\n{problems}"))
    }

    fn problems(candidate: &str) -> String {
        load(&format!("{GATE}{candidate}"), &[]).expect_err(candidate)
    }

    #[test]
    fn a_candidate_is_what_its_promoted_file_has_in_force() {
        for candidate in [
            "",
            "bucket.rate = 80",
            "bucket = \"off\"\nretry_bucket = { rate = 5, burst = 9 }",
            "backoff = { strategy = \"fast_slow\", fast = \"1s\", slow = \"9s\", fast_attempts = 3 }",
            "queue = { max_wait = \"1s\", combine = \"max_of\" }\nin_flight = { max = 4 }",
            "per_key = { writes = 2, enforce = true }",
            "bucket = { rate = 5, burst = 9, per = \"credential\" }",
        ] {
            let text = format!("{GATE}backoff = {{ base = \"2s\" }}\n[gates.k.candidate]\n{candidate}\n");
            let both = good(&text);
            let compared = both.settings.gates["k"].candidate.clone().expect("a candidate");
            let promoted = good(&promoted(&text, Some("k")).expect("it has one"));
            let in_force = &promoted.settings.gates["k"];
            assert_eq!((&*compared, in_force.candidate.is_none()), (&in_force.policy, true), "{candidate}");
            // What is in force of the classes is written out, so that it is no longer by default.
            let of_gate = |policy: &Policy| Policy { classes: Vec::new(), ..policy.clone() };
            let again = good(&both.effective).settings.gates["k"].candidate.as_deref().map(of_gate);
            assert_eq!(again, Some(of_gate(&compared)), "{}", both.effective);
        }
    }

    #[test]
    fn the_limits_in_force_are_what_they_are_without_a_candidate() {
        let gate = |text: &str| good(text).settings.gates["k"].policy.clone();
        assert_eq!(gate(&format!("{GATE}candidate = {{ bucket = \"off\", in_flight = {{ max = 1 }} }}\n")), gate(GATE));
    }

    #[test]
    fn a_candidate_takes_no_token_of_a_shared_bucket() {
        let loaded = good("[gates.k]\nupstream = \"https://x\"\nbucket.shared = \"account\"\ncandidate = {}\n");
        let candidate = loaded.settings.gates["k"].candidate.clone().expect("a candidate");
        assert_eq!((candidate.shared.len(), candidate.bucket.and_then(|bucket| bucket.shared)), (0, None));
        assert_eq!(loaded.settings.gates["k"].policy.shared.len(), 1);
    }

    #[test]
    fn what_is_no_limit_is_named_with_what_is() {
        let told = problems("[gates.k.candidate]\nupstream = \"https://y\"\nclasses = []\nbuckte = {}\n");
        let limits = "expected one of bucket, retry_bucket, backoff, queue, in_flight, per_key";
        for line in [
            format!("f.toml:5:1: gates.k.candidate.upstream: is not a limit, {limits}"),
            format!("f.toml:6:1: gates.k.candidate.classes: is not a limit, {limits}"),
            format!("f.toml:7:1: gates.k.candidate.buckte: is not a limit, {limits} (did you mean \"bucket\"?)"),
        ] {
            assert!(told.contains(&line), "{line}\n{told}");
        }
        assert_eq!(told.lines().count(), 3, "{told}");
        let told = problems("candidate = { backoff = { failures = [] }, queue = { fair_by = \"none\" } }\n");
        assert!(
            told.contains("candidate.backoff.failures: cannot be set here: the gate's holds for these limits too"),
            "{told}"
        );
        assert!(problems("candidate = 5\n").contains("gates.k.candidate: is 5, expected a table"));
    }

    #[test]
    fn values_are_checked_as_those_of_the_gate() {
        let told = problems("candidate = { bucket = { rate = -1, brust = 9 }, in_flight = {} }\n");
        for line in [
            "gates.k.candidate.bucket.rate: is -1.0, expected calls per second above 0",
            "gates.k.candidate.bucket.brust: is not a valid key, expected one of rate, burst,",
            "gates.k.candidate.in_flight.max: is missing",
        ] {
            assert!(told.contains(line), "{line}\n{told}");
        }
        let told = problems("key = 5\ncandidate.bucket.burst = 200\n");
        assert_eq!(told.lines().count(), 1, "the gate's own mistake is told once: {told}");
    }

    #[test]
    fn limits_that_split_callers_in_two_ways_are_rejected() {
        let by = |per: &str| format!("bucket = {{ rate = 5, burst = 9, per = \"{per}\" }}");
        let gate = |own: &str, other: &str| {
            let (own, other) = (by(own), by(other));
            format!(
                "[gates.k]\nkind = \"http\"\ndialect = \"aws\"\nupstream = \"https://x\"\nhost = \"preserve\"\n{own}\ncandidate = {{ {other} }}\n"
            )
        };
        let told = load(&gate("account", "credential"), &[]).expect_err("one identity");
        assert!(told.contains("gates.k.candidate: has another `per` (client, credential"), "{told}");
        let rules = good(&gate("gate", "credential")).settings.gates["k"].candidate.clone();
        assert_eq!(rules.and_then(|policy| policy.bucket).map(|bucket| bucket.per), Some(Per::Credential));
    }

    #[test]
    fn a_variable_sets_a_key_of_a_candidate() {
        let env = [("TIDEGATE__GATES__K__CANDIDATE__BUCKET__RATE".to_owned(), "80".to_owned())];
        let loaded = load(GATE, &env).expect("it is right");
        let rate = |policy: &Policy| policy.bucket.map(|bucket| bucket.rate);
        let gate = &loaded.settings.gates["k"];
        assert_eq!((rate(&gate.policy), gate.candidate.as_deref().and_then(rate)), (Some(50.0), Some(80.0)));
    }
}
