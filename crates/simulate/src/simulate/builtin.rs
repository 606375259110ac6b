//! The built-in scenarios: common failures, each under several limits.

mod parameters;

use std::time::Duration;

use self::parameters::Parameters;
pub use self::parameters::WrongParameter;
use super::Limits;
use super::picture::Picture;
use crate::api::Verb;
use crate::chart::thousands;
use crate::config;
use crate::config::scenario::{
    Changes, ControllerModel, FailureSpan, Lease, Outage, Requeue, Scenario, StoreModel, Upstream, UpstreamQuota,
};

/// A built-in scenario.
#[derive(Debug)]
pub struct Builtin {
    /// The name of the scenario.
    pub name: &'static str,
    /// A sentence about what the scenario shows.
    pub about: &'static str,
    /// The settable numbers, with their defaults: `key=value`, separated by spaces.
    pub parameters: &'static str,
    set_up: fn(&Parameters) -> Result<Setup, WrongParameter>,
}

/// A scenario, the limits to compare, and a picture of the difference.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The scenario to play.
    pub scenario: Scenario,
    /// The limits to compare, the usual ones first.
    pub limits: Vec<Limits>,
    /// The picture to draw.
    pub picture: Picture,
}

/// All built-in scenarios.
pub const ALL: &[Builtin] = &[
    Builtin {
        name: "one-failing-object",
        about: "one object fails forever: how long before each retry",
        parameters: "length=2h base=5ms max=1000s",
        set_up: one_failing_object,
    },
    Builtin {
        name: "failing-together",
        about: "many objects fail together: backoff, bucket, and both",
        parameters: "objects=10000 length=3s base=5ms max=1000s rate=10 burst=100",
        set_up: failing_together,
    },
    Builtin {
        name: "recovery",
        about: "a webhook is down for a while: load, and recovery",
        parameters: "objects=600 workers=10 down=30s length=150s capacity=100 retry_rate=10",
        set_up: recovery,
    },
    Builtin {
        name: "noisy-neighbour",
        about: "one asks for 100 times its share; what another waits",
        parameters: "rate=50 burst=10 times=100 quiet=5 length=30s",
        set_up: noisy_neighbour,
    },
    Builtin {
        name: "lease-holder",
        about: "a leader's lease while its objects saturate the bucket",
        parameters: "objects=2000 rate=20 burst=30 every=2s length=120s",
        set_up: lease_holder,
    },
    Builtin {
        name: "shared-account",
        about: "gates with one account: each its own limits, or shared",
        parameters: "replicas=3 rate=50 burst=100 rtt=1ms length=60s",
        set_up: shared_account,
    },
    Builtin {
        name: "shared-outage",
        about: "the store of a shared bucket is away for a while",
        parameters: "replicas=3 rate=50 burst=100 rtt=1ms outage=10s length=60s",
        set_up: shared_outage,
    },
];

/// Returns the scenario of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Builtin> {
    ALL.iter().find(|builtin| builtin.name == name)
}

/// Returns the limits of a gate without configuration.
#[must_use]
pub fn usual() -> Limits {
    limits("sidecar", "").expect("it is the default")
}

// === impl Builtin ===

impl Builtin {
    /// Makes the scenario with these numbers, given as `key=value`.
    ///
    /// # Errors
    /// A key that the scenario does not have, or a value of the wrong type or range.
    pub fn set_up(&self, given: &[String]) -> Result<Setup, WrongParameter> {
        let parameters = Parameters::read(self.name, self.parameters, given)?;
        (self.set_up)(&parameters)
    }
}

fn one_failing_object(numbers: &Parameters) -> Result<Setup, WrongParameter> {
    let base = numbers.text("base");
    let max = numbers.text("max");
    let scenario = Scenario {
        upstream: failing(Duration::MAX, Duration::ZERO),
        controllers: vec![ControllerModel { requeue: Requeue::AtOnce, ..controller("objects", 1) }],
        ..scenario("How long one failing object waits before each retry", numbers)
    };
    let limits = vec![
        limits(&format!("{base} to {max}"), &format!("{UNLIMITED}{}", backoff(base, max)))?,
        limits("1s to 60s (sidecar)", &format!("{UNLIMITED}{}", backoff("1s", "60s")))?,
    ];
    Ok(Setup { scenario, limits, picture: Picture::Delays })
}

fn failing_together(numbers: &Parameters) -> Result<Setup, WrongParameter> {
    let rate = numbers.text("rate");
    let burst = numbers.text("burst");
    let objects = numbers.count("objects");
    let scenario = Scenario {
        upstream: failing(Duration::MAX, Duration::ZERO),
        controllers: vec![ControllerModel { requeue: Requeue::AtOnce, ..controller("objects", objects) }],
        ..scenario(&format!("Retries of {} objects that fail together", thousands(objects)), numbers)
    };
    let exponential = backoff(numbers.text("base"), numbers.text("max"));
    let at_once = backoff("1ns", "1ns");
    let bucket = format!("retry_bucket = {{ rate = {rate}, burst = {burst} }}\n");
    let combine =
        |how: &str| UNLIMITED.replace("[gates.it.queue]", &format!("{bucket}[gates.it.queue]\ncombine = \"{how}\""));
    let limits = vec![
        limits("backoff only", &format!("{UNLIMITED}{exponential}"))?,
        limits("bucket only", &format!("{}{at_once}", combine("sequential")))?,
        limits("both, max_of", &format!("{}{exponential}", combine("max_of")))?,
        limits("both, sequential", &format!("{}{exponential}", combine("sequential")))?,
    ];
    Ok(Setup { scenario, limits, picture: Picture::TotalRetries })
}

fn recovery(numbers: &Parameters) -> Result<Setup, WrongParameter> {
    let upstream = Upstream {
        capacity: Some(numbers.number("capacity")),
        ..failing(numbers.duration("down"), Duration::from_millis(20))
    };
    let controllers = vec![ControllerModel {
        workers: Some(numbers.count("workers")),
        verbs: vec![Verb::Get, Verb::Update],
        ..controller("objects", numbers.count("objects"))
    }];
    let title = "Calls per second that reach the API while a webhook is down, and after";
    let scenario = Scenario { upstream, controllers, ..scenario(title, numbers) };
    // Retries take their tokens of both buckets, and healthy calls are to have half of the gate's.
    let rate = numbers.text("retry_rate");
    let bucket = (2.0 * numbers.number("retry_rate")).max(50.0);
    let larger = format!("bucket.rate = {bucket}\nretry_bucket = {{ rate = {rate}, burst = 100 }}\n");
    let limits = vec![
        limits("without a gate", "preset = \"none\"\n")?,
        limits("sidecar", "")?,
        limits(&format!("sidecar, retries {rate}/s"), &larger)?,
    ];
    Ok(Setup { scenario, limits, picture: Picture::Calls })
}

fn noisy_neighbour(numbers: &Parameters) -> Result<Setup, WrongParameter> {
    let rate = numbers.number("rate");
    let burst = numbers.text("burst");
    let steady = |name: &str, resource: &str, rate| ControllerModel {
        resource: resource.to_owned(),
        changes: Changes::Steadily { rate, from: Duration::ZERO, to: None },
        ..controller(name, 10_000)
    };
    let noisy = rate / 2.0 * numbers.number("times");
    let scenario = Scenario {
        controllers: vec![steady("quiet", "secrets", numbers.number("quiet")), steady("noisy", "configmaps", noisy)],
        ..scenario("What a quiet controller waits beside a noisy one", numbers)
    };
    let with = |fair_by: &str| {
        format!("bucket = {{ rate = {rate:?}, burst = {burst} }}\nqueue = {{ fair_by = \"{fair_by}\" }}\n")
    };
    let limits = vec![limits("first in, first out", &with("none"))?, limits("fair by resource", &with("resource"))?];
    Ok(Setup { scenario, limits, picture: Picture::Waits("quiet".to_owned()) })
}

fn lease_holder(numbers: &Parameters) -> Result<Setup, WrongParameter> {
    let lease = Lease { name: "leader".to_owned(), every: numbers.duration("every"), deadline: Lease::DEADLINE };
    let scenario = Scenario {
        controllers: vec![controller("objects", numbers.count("objects"))],
        leases: vec![lease],
        ..scenario("Age of a leader's lease while the bucket is saturated", numbers)
    };
    let bucket = format!("bucket = {{ rate = {}, burst = {} }}\n", numbers.text("rate"), numbers.text("burst"));
    // As one client-go limiter shared by all clients of a process: first come, first served, leases
    // included.
    let shared = format!("kind = \"http\"\n{bucket}queue = {{ fair_by = \"none\", max_wait = \"1000s\" }}\n");
    let limits = vec![limits("lease in the queue", &shared)?, limits("lease exempt", &bucket)?];
    Ok(Setup { scenario, limits, picture: Picture::LeaseAge })
}

fn shared_account(numbers: &Parameters) -> Result<Setup, WrongParameter> {
    let rate = numbers.number("rate");
    let burst = numbers.count("burst");
    let count = numbers.count("replicas");
    let title = "Calls per second of all gates that use one account";
    let part = |number: f64| number / f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let burst_part = (burst / count).max(1);
    let limits = vec![
        of_bucket("each the whole rate", &format!("rate = {rate:?}, burst = {burst}"))?,
        of_bucket(&format!("each 1/{count} of it"), &format!("rate = {:?}, burst = {burst_part}", part(rate)))?,
        of_bucket("shared", &format!("rate = {rate:?}, burst = {burst}, shared = \"account\""))?,
    ];
    Ok(Setup { scenario: account(title, numbers), limits, picture: Picture::Together })
}

fn shared_outage(numbers: &Parameters) -> Result<Setup, WrongParameter> {
    let rate = numbers.number("rate");
    let burst = numbers.count("burst");
    let mut scenario = account("Calls per second of all gates while their store is away", numbers);
    let from = scenario.length / 3;
    let to = (from + numbers.duration("outage")).min(scenario.length);
    scenario.store.outages.push(Outage { from, to, gates: Vec::new() });
    let shared = |outage: &str| {
        let shared = format!("shared = {{ name = \"account\", outage = \"{outage}\" }}");
        of_bucket(&format!("outage = \"{outage}\""), &format!("rate = {rate:?}, burst = {burst}, {shared}"))
    };
    let limits = vec![shared("share")?, shared("full")?, shared("stop")?];
    Ok(Setup { scenario, limits, picture: Picture::Together })
}

/// Returns a scenario of one busy and some quiet replicas of a controller, each with its own gate,
/// that together need a fifth more than their account's quota.
fn account(title: &str, numbers: &Parameters) -> Scenario {
    let rate = numbers.number("rate");
    let burst = numbers.count("burst");
    let count = numbers.count("replicas");
    let quiet = count.saturating_sub(1);
    let steadily = |rate| Changes::Steadily { rate, from: Duration::ZERO, to: None };
    let mut controllers = vec![ControllerModel { changes: steadily(rate * BUSY), ..controller("busy", 10_000) }];
    if let Some(share) = u32::try_from(quiet).ok().filter(|quiet| *quiet > 0) {
        let changes = steadily(rate * QUIET / f64::from(share));
        controllers.push(ControllerModel { changes, replicas: quiet, gate: 2, ..controller("quiet", 10_000) });
    }
    let quota = UpstreamQuota { rate, burst: u32::try_from(burst).unwrap_or(u32::MAX) };
    let upstream = Upstream { quota: Some(quota), ..Upstream::default() };
    let store = StoreModel { rtt: numbers.duration("rtt"), ..StoreModel::default() };
    Scenario { upstream, store, controllers, ..scenario(title, numbers) }
}

/// Returns limits of a bucket alone.
fn of_bucket(name: &str, bucket: &str) -> Result<Limits, WrongParameter> {
    let bucket = format!("bucket = {{ {bucket} }}\n[gates.it.queue]");
    limits(name, &format!("{}{STORE}", UNLIMITED.replace("[gates.it.queue]", &bucket)))
}

/// Returns an empty scenario of the given length.
fn scenario(title: &str, numbers: &Parameters) -> Scenario {
    Scenario {
        title: title.to_owned(),
        length: numbers.duration("length"),
        seed: 1,
        upstream: Upstream::default(),
        store: StoreModel::default(),
        controllers: Vec::new(),
        leases: Vec::new(),
        limits: Vec::new(),
    }
}

/// Returns a controller with a worker for each object; all objects change at the start.
fn controller(name: &str, objects: usize) -> ControllerModel {
    ControllerModel {
        name: name.to_owned(),
        group: String::new(),
        resource: "configmaps".to_owned(),
        namespace: "default".to_owned(),
        objects,
        workers: None,
        workers_of: None,
        changes: Changes::Together { at: Duration::ZERO },
        verbs: vec![Verb::Update],
        requeue: Requeue::default(),
        replicas: 1,
        gate: 1,
    }
}

/// Returns an API answering 503 up to a time.
fn failing(to: Duration, latency: Duration) -> Upstream {
    let failure = FailureSpan { from: Duration::ZERO, to, status: 503, controllers: Vec::new(), share: 1.0 };
    Upstream { latency, failures: vec![failure], ..Upstream::default() }
}

/// Returns configuration lines setting a backoff in the gate.
fn backoff(base: &str, max: &str) -> String {
    let delays = format!("base = \"{base}\"\nmax = \"{max}\"\n");
    format!("[gates.it.backoff]\n{delays}strategy = \"exponential\"\nhold = \"8760h\"\n")
}

/// Returns the limits of a gate with these configuration lines, or an error if they do not fit
/// together.
fn limits(name: &str, lines: &str) -> Result<Limits, WrongParameter> {
    let text = format!("[gates.it]\nupstream = \"http://simulated\"\n{lines}");
    let loaded = config::load_text("limits".to_owned(), text, &[]).map_err(|problems| {
        let first = problems.first().map(ToString::to_string).unwrap_or_default();
        let what = first.split_once(": ").map_or(&*first, |(_, what)| what);
        WrongParameter(format!("the limits {name:?} cannot be used: {what}"))
    })?;
    let gate = loaded.settings.gates.into_values().next();
    Ok(Limits { name: name.to_owned(), gate: gate.expect("there is one above") })
}

/// The configuration of a store that is never connected to: the scenario simulates its own.
const STORE: &str = "[stores.simulated]\nurl = \"unix:/simulated\"\n";
/// How much the busy gate needs, as a share of the account's rate.
const BUSY: f64 = 0.9;
const QUIET: f64 = 0.3;
/// Configuration lines that turn all limits off, and let calls wait as long as it takes.
const UNLIMITED: &str = "preset = \"none\"\n[gates.it.queue]\nmax_wait = \"8760h\"\nmax_waiting = 1000000000\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_can_be_set_up_with_its_own_numbers_given() {
        for builtin in ALL {
            let given: Vec<String> = builtin.parameters.split(' ').map(str::to_owned).collect();
            let setup = builtin.set_up(&given).unwrap_or_else(|wrong| panic!("{}: {wrong}", builtin.name));
            assert!(!setup.limits.is_empty() && !setup.scenario.controllers.is_empty(), "{}", builtin.name);
        }
    }

    #[test]
    fn wrong_numbers_are_named() {
        let together = find("failing-together").expect("there is one");
        for (given, said) in [
            ("object=5", "did you mean \"objects\"?"),
            ("objects=many", "\"many\""),
            ("objects=0", "1 to 1000000"),
            ("length=5", "a duration with a unit"),
            ("rate=-1", "\"-1\""),
            ("burst=0.5", "\"0.5\""),
            ("length", "expected KEY=VALUE"),
        ] {
            let wrong = together.set_up(&[given.to_owned()]).expect_err(given).to_string();
            assert!(wrong.contains(said), "{given}: {wrong}");
        }
    }

    #[test]
    fn numbers_that_are_wrong_only_together_are_named() {
        for (name, given, said) in [
            (
                "one-failing-object",
                "base=2000s",
                "the limits \"2000s to 1000s\" cannot be used: gates.it.backoff.max: max 1000s is less than base 2000s",
            ),
            (
                "one-failing-object",
                "base=10s max=1s",
                "the limits \"10s to 1s\" cannot be used: gates.it.backoff.max: max 1s is less than base 10s",
            ),
            (
                "shared-account",
                "rate=1000000",
                "the limits \"shared\" cannot be used: gates.it.bucket.rate: is 1000000.0, expected at most 10000.0 for a shared bucket",
            ),
            (
                "failing-together",
                "max=1ms",
                "the limits \"backoff only\" cannot be used: gates.it.backoff.max: max 1ms is less than base 5ms",
            ),
        ] {
            let given: Vec<String> = given.split(' ').map(str::to_owned).collect();
            let wrong = find(name).expect("there is one").set_up(&given).expect_err(name);
            assert_eq!(wrong.to_string(), said);
        }
    }

    #[test]
    fn no_pair_of_numbers_makes_limits_that_cannot_be() {
        let extremes = |key: &str| match key {
            "replicas" => ["1", "100", "007"],
            "objects" | "workers" | "burst" => ["1", "1000000", "+007"],
            "length" | "base" | "max" | "down" | "every" | "rtt" | "outage" => ["1ns", "8760h", "90m"],
            _ => ["0.001", "1e6", "+07."],
        };
        for builtin in ALL {
            let keys: Vec<_> = builtin.parameters.split(' ').filter_map(|one| Some(one.split_once('=')?.0)).collect();
            let pairs = keys.iter().flat_map(|one| keys.iter().map(move |other| (*one, *other)));
            for (one, other) in pairs.filter(|(one, other)| one < other) {
                for (value, beside) in extremes(one).into_iter().flat_map(|a| extremes(other).map(|b| (a, b))) {
                    let given = [format!("{one}={value}"), format!("{other}={beside}")];
                    if let Err(wrong) = builtin.set_up(&given) {
                        let is_known = ["is less than base", "for a shared bucket", "per second"];
                        let wrong = wrong.to_string();
                        assert!(is_known.iter().any(|words| wrong.contains(words)), "{given:?}: {wrong}");
                    }
                }
            }
        }
    }
}
