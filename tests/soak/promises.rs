//! The call log held against the promises: the rate (P1), the backoff (P2), one trial at a time
//! (P3), one end for each call, and leases that do not wait (P7).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use serde_json::Value;

use crate::process::{BACKOFF_MILLIS, BURST, FORGET_SECONDS, RATE};
use crate::window::worst_excess;

/// The numbers of what was checked.
pub(crate) struct Found {
    calls: usize,
    sent: usize,
    leases: usize,
    refused: BTreeMap<String, usize>,
    given_up: usize,
    trials: usize,
    excess: f64,
    slowest_lease: Duration,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, sent, leases, refused, given_up, trials, excess, slowest_lease } = self;
        write!(
            f,
            "{calls} calls, {sent} sent, {given_up} given up while waiting, refused {refused:?}; fullest window {excess:+.2} calls; {trials} trials \
             of failing keys, one at a time; {leases} lease calls, none held (slowest to leave {slowest_lease:.1?})"
        )
    }
}

fn nanos(line: &Value, field: &str) -> Option<Duration> {
    line[field].as_u64().map(Duration::from_nanos)
}

fn is_exempt(line: &Value) -> bool {
    line["lane"] == "exempt"
}

pub(crate) fn check(calls: &[Value]) -> Found {
    let mut found = Found {
        calls: calls.len(),
        sent: 0,
        leases: 0,
        refused: BTreeMap::new(),
        given_up: 0,
        trials: 0,
        excess: f64::NEG_INFINITY,
        slowest_lease: Duration::ZERO,
    };
    for line in calls {
        let ends = [line["sent_ns"].is_u64(), line["refused"].is_string()];
        assert!(ends != [true, true], "two ends: {line}");
        found.sent += usize::from(ends[0]);
        found.given_up += usize::from(!ends[0] && line["gave_up_ns"].is_u64());
        if let Some(reason) = line["refused"].as_str() {
            *found.refused.entry(reason.to_owned()).or_default() += 1;
        }
        if is_exempt(line) {
            found.leases += 1;
            assert!(line["waited_ns"].is_null() && line["refused"].is_null(), "a lease was held: {line}");
            if let (Some(came), Some(left)) = (nanos(line, "arrived_ns"), nanos(line, "sent_ns")) {
                found.slowest_lease = found.slowest_lease.max(left.saturating_sub(came));
            }
        }
    }
    for gate in ["plain", "encrypted"] {
        let of: Vec<&Value> = calls.iter().filter(|line| line["gate"] == gate && !is_exempt(line)).collect();
        assert!(of.len() > 100, "{gate}: only {} calls", of.len());
        let metered = of.iter().filter(|line| line["verb"] != "watch");
        let mut granted: Vec<Duration> = metered.filter_map(|line| nanos(line, "granted_ns")).collect();
        granted.sort_unstable();
        let excess = worst_excess(&granted, RATE, BURST, Duration::from_millis(2));
        assert!(excess <= 1e-6, "{gate}: {excess:.2} calls too many in one window");
        found.excess = found.excess.max(excess);
        found.trials += trials(&of);
    }
    assert!(found.leases > 10, "only {} lease calls", found.leases);
    found
}

/// A failure is logged when the head comes, and the limiter learns of it when its task has gone on.
/// On a busy machine, a call that leaves in between had been released before.
const ON_THE_WAY: Duration = Duration::from_millis(800);

/// The events of a key.
enum Happened {
    /// A call of this number was granted.
    Granted(usize),
    /// It was answered; with the moment of its grant.
    Answered(usize, End, Duration),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Success,
    Failure,
    /// Lost, or its client had left: the log does not show what this meant for the key.
    Unknown,
}

/// After a failure no call of the key leaves for the least backoff, and then one at a time until
/// one succeeds. Returns the number of these trials.
fn trials(calls: &[&Value]) -> usize {
    let mut keys: HashMap<(&str, &str), Vec<(Duration, Happened)>> = HashMap::new();
    for (number, line) in calls.iter().enumerate().filter(|(_, line)| line["verb"] != "watch") {
        let (Some(key), Some(facet), Some(granted)) =
            (line["key"].as_str(), line["facet"].as_str(), nanos(line, "granted_ns"))
        else {
            continue;
        };
        let sent = nanos(line, "sent_ns").expect("what was granted and logged was sent");
        let answered = nanos(line, "upstream_ns").map(|took| sent + took);
        let end = match line["status"].as_u64() {
            Some(200) => End::Success,
            Some(429 | 500 | 503) if answered.is_some() => End::Failure,
            _ => End::Unknown,
        };
        let of_key = keys.entry((key, facet)).or_default();
        of_key.push((granted, Happened::Granted(number)));
        of_key.push((answered.unwrap_or(sent), Happened::Answered(number, end, granted)));
    }
    keys.into_values().map(trials_of_key).sum()
}

fn trials_of_key(mut events: Vec<(Duration, Happened)>) -> usize {
    events.sort_by_key(|(at, _)| *at);
    // The time of its last failure, and its trial that is out.
    let (mut failed, mut trial, mut trials) = (None::<Duration>, None::<usize>, 0);
    for (at, happened) in events {
        match happened {
            Happened::Granted(number) => {
                failed.take_if(|since| at >= *since + Duration::from_secs(FORGET_SECONDS));
                let Some(since) = failed.filter(|since| at >= *since + ON_THE_WAY) else { continue };
                let least = Duration::from_millis(BACKOFF_MILLIS);
                assert!(at >= since + least, "a call left {:?} after its key had failed", at - since);
                assert!(trial.is_none(), "a second trial left while the first was out");
                (trial, trials) = (Some(number), trials + 1);
            }
            Happened::Answered(number, End::Failure, granted) => {
                trial.take_if(|trial| *trial == number);
                // A call that had left before the last failure says nothing new, and the backoff
                // stays as it is.
                if failed.is_none_or(|since| granted >= since + ON_THE_WAY) {
                    failed = Some(at);
                }
            }
            Happened::Answered(_, End::Success | End::Unknown, _) => (failed, trial) = (None, None),
        }
    }
    trials
}
