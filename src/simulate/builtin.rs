//! The built-in scenarios: common failures in the field, each under the limits that people compare.

mod parameters;

use std::time::Duration;

use self::parameters::Parameters;
pub use self::parameters::WrongParameter;
use super::{Limits, picture::Picture};
use crate::{
    api::Verb,
    chart::thousands,
    config::{
        self,
        scenario::{Changes, Controller, Failure, Lease, Requeue, Scenario, Upstream},
    },
};

/// A scenario with a name.
#[derive(Debug)]
pub struct Builtin {
    /// Its name.
    pub name: &'static str,
    /// A sentence about what it shows.
    pub about: &'static str,
    /// Its numbers and their defaults.
    pub parameters: &'static [(&'static str, &'static str)],
    stage: fn(&Parameters) -> Staged,
}

/// A scenario, the limits to compare, and the picture that shows the difference.
#[derive(Clone, Debug)]
pub struct Staged {
    /// The scenario to play.
    pub scenario: Scenario,
    /// The limits to play it under, the usual ones first.
    pub limits: Vec<Limits>,
    /// The picture to draw.
    pub picture: Picture,
}

/// All built-in scenarios.
pub const ALL: &[Builtin] = &[
    Builtin {
        name: "one-failing-object",
        about: "one object fails for ever: how long before each retry",
        parameters: &[("length", "2h"), ("base", "5ms"), ("max", "1000s")],
        stage: one_failing_object,
    },
    Builtin {
        name: "failing-together",
        about: "many objects fail together: backoff, bucket, and both",
        parameters: &[
            ("objects", "10000"),
            ("length", "3s"),
            ("base", "5ms"),
            ("max", "1000s"),
            ("rate", "10"),
            ("burst", "100"),
        ],
        stage: failing_together,
    },
    Builtin {
        name: "recovery",
        about: "a webhook is down for a while: load, and recovery",
        parameters: &[
            ("objects", "600"),
            ("workers", "10"),
            ("down", "30s"),
            ("length", "150s"),
            ("capacity", "100"),
            ("retry_rate", "50"),
        ],
        stage: recovery,
    },
    Builtin {
        name: "noisy-neighbour",
        about: "one asks for 100 times its share; what another waits",
        parameters: &[("rate", "50"), ("burst", "10"), ("times", "100"), ("quiet", "5"), ("length", "30s")],
        stage: noisy_neighbour,
    },
    Builtin {
        name: "lease-holder",
        about: "a leader's lease while its objects saturate the bucket",
        parameters: &[("objects", "2000"), ("rate", "20"), ("burst", "30"), ("every", "2s"), ("length", "120s")],
        stage: lease_holder,
    },
];

/// Finds the scenario of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Builtin> {
    ALL.iter().find(|builtin| builtin.name == name)
}

/// Returns the limits of a gate without configuration.
#[must_use]
pub fn usual() -> Limits {
    limits("sidecar", "")
}

// === impl Builtin ===

impl Builtin {
    /// Stages the scenario with these numbers, given as `key=value`.
    ///
    /// # Errors
    /// A key that the scenario does not have, or a value of the wrong type or range.
    pub fn stage(&self, given: &[String]) -> Result<Staged, WrongParameter> {
        let parameters = Parameters::read(self.name, self.parameters, given)?;
        Ok((self.stage)(&parameters))
    }
}

fn one_failing_object(numbers: &Parameters) -> Staged {
    let length = numbers.duration("length");
    let (base, max) = (numbers.text("base"), numbers.text("max"));
    let scenario = Scenario {
        title: "How long one failing object waits before each retry".to_owned(),
        length,
        seed: 1,
        upstream: failing(None, Duration::ZERO),
        controllers: vec![Controller { requeue: Requeue::AtOnce, ..controller("objects", 1) }],
        leases: Vec::new(),
        limits: Vec::new(),
    };
    let limits = vec![
        limits(
            &format!("{base} to {max}"),
            &format!("{UNLIMITED}[gates.it.backoff]\nbase = \"{base}\"\nmax = \"{max}\"\n{HOLD}"),
        ),
        limits("1s to 60s (sidecar)", &format!("{UNLIMITED}[gates.it.backoff]\nbase = \"1s\"\nmax = \"60s\"\n{HOLD}")),
    ];
    Staged { scenario, limits, picture: Picture::Delays }
}

fn failing_together(numbers: &Parameters) -> Staged {
    let length = numbers.duration("length");
    let (base, max) = (numbers.text("base"), numbers.text("max"));
    let (rate, burst) = (numbers.text("rate"), numbers.text("burst"));
    let objects = numbers.count("objects");
    let scenario = Scenario {
        title: format!("Retries of {} objects that fail together", thousands(objects as u64)),
        length,
        seed: 1,
        upstream: failing(None, Duration::ZERO),
        controllers: vec![Controller { requeue: Requeue::AtOnce, ..controller("objects", objects) }],
        leases: Vec::new(),
        limits: Vec::new(),
    };
    let bucket = format!("retry_bucket = {{ rate = {rate}, burst = {burst} }}\n");
    let backoff = format!("[gates.it.backoff]\nbase = \"{base}\"\nmax = \"{max}\"\n{HOLD}");
    let at_once = format!("[gates.it.backoff]\nbase = \"1ns\"\nmax = \"1ns\"\n{HOLD}");
    let combine =
        |how: &str| UNLIMITED.replace("[gates.it.queue]", &format!("{bucket}[gates.it.queue]\ncombine = \"{how}\""));
    let limits = vec![
        limits("backoff only", &format!("{UNLIMITED}{backoff}")),
        limits("bucket only", &format!("{}{at_once}", combine("sequential"))),
        limits("both, max_of", &format!("{}{backoff}", combine("max_of"))),
        limits("both, sequential", &format!("{}{backoff}", combine("sequential"))),
    ];
    Staged { scenario, limits, picture: Picture::TotalRetries }
}

fn recovery(numbers: &Parameters) -> Staged {
    let (down, rate) = (numbers.duration("down"), numbers.text("retry_rate"));
    let upstream =
        Upstream { capacity: Some(numbers.number("capacity")), ..failing(Some(down), Duration::from_millis(20)) };
    let controllers = vec![Controller {
        workers: Some(numbers.count("workers")),
        verbs: vec![Verb::Get, Verb::Update],
        ..controller("objects", numbers.count("objects"))
    }];
    let scenario = Scenario {
        title: "Calls per second that reach the API while a webhook is down, and after".to_owned(),
        length: numbers.duration("length"),
        seed: 1,
        upstream,
        controllers,
        leases: Vec::new(),
        limits: Vec::new(),
    };
    // Retries take their tokens of both buckets, and healthy calls are to have half of the gate's.
    let bucket = (2.0 * numbers.number("retry_rate")).max(50.0);
    let larger = format!("bucket.rate = {bucket}\nretry_bucket = {{ rate = {rate}, burst = 100 }}\n");
    let limits = vec![
        limits("without a gate", "preset = \"none\"\n"),
        limits("sidecar", ""),
        limits(&format!("sidecar, retries {rate}/s"), &larger),
    ];
    Staged { scenario, limits, picture: Picture::Calls }
}

fn noisy_neighbour(numbers: &Parameters) -> Staged {
    let (rate, burst) = (numbers.number("rate"), numbers.text("burst"));
    let share = rate / 2.0;
    let steady = |name: &str, resource: &str, rate| Controller {
        resource: resource.to_owned(),
        changes: Changes::Steadily { rate, from: Duration::ZERO, to: None },
        ..controller(name, 10_000)
    };
    let scenario = Scenario {
        title: "What a quiet controller waits beside a noisy one".to_owned(),
        length: numbers.duration("length"),
        seed: 1,
        upstream: Upstream::default(),
        controllers: vec![
            steady("quiet", "secrets", numbers.number("quiet")),
            steady("noisy", "configmaps", share * numbers.number("times")),
        ],
        leases: Vec::new(),
        limits: Vec::new(),
    };
    let with = |fair_by: &str| {
        format!("bucket = {{ rate = {rate:?}, burst = {burst} }}\nqueue = {{ fair_by = \"{fair_by}\" }}\n")
    };
    let limits = vec![limits("first in, first out", &with("none")), limits("fair by resource", &with("resource"))];
    Staged { scenario, limits, picture: Picture::Waits("quiet".to_owned()) }
}

fn lease_holder(numbers: &Parameters) -> Staged {
    let (rate, burst) = (numbers.text("rate"), numbers.text("burst"));
    let lease = Lease { name: "leader".to_owned(), every: numbers.duration("every"), deadline: Lease::DEADLINE };
    let scenario = Scenario {
        title: "Age of a leader's lease while the bucket is saturated".to_owned(),
        length: numbers.duration("length"),
        seed: 1,
        upstream: Upstream::default(),
        controllers: vec![controller("objects", numbers.count("objects"))],
        leases: vec![lease],
        limits: Vec::new(),
    };
    // As one client-go limiter shared by all clients of a process: first come, first served, leases
    // included.
    let shared = format!(
        "kind = \"http\"\nbucket = {{ rate = {rate}, burst = {burst} }}\n\
         queue = {{ fair_by = \"none\", max_wait = \"1000s\" }}\n"
    );
    let exempt = format!("bucket = {{ rate = {rate}, burst = {burst} }}\n");
    let limits = vec![limits("lease in the queue", &shared), limits("lease exempt", &exempt)];
    Staged { scenario, limits, picture: Picture::LeaseAge }
}

/// Returns a controller whose objects all change at the start, and which works on all of them at
/// once.
fn controller(name: &str, objects: usize) -> Controller {
    Controller {
        name: name.to_owned(),
        group: String::new(),
        resource: "configmaps".to_owned(),
        namespace: "default".to_owned(),
        objects,
        workers: None,
        changes: Changes::Together { at: Duration::ZERO },
        verbs: vec![Verb::Update],
        requeue: Requeue::default(),
    }
}

/// Returns an API that answers 503 up to a time, or forever.
fn failing(to: Option<Duration>, latency: Duration) -> Upstream {
    let to = to.unwrap_or(Duration::MAX);
    let failure = Failure { from: Duration::ZERO, to, status: 503, controllers: Vec::new(), share: 1.0 };
    Upstream { latency, capacity: None, failures: vec![failure] }
}

/// Returns the limits of a gate that these lines configure.
fn limits(name: &str, lines: &str) -> Limits {
    let text = format!("[gates.it]\nupstream = \"http://simulated\"\n{lines}");
    let loaded = config::load_text(name.to_owned(), text, &[]);
    let gate = loaded.ok().and_then(|loaded| loaded.settings.gates.into_values().next());
    Limits { name: name.to_owned(), gate: gate.expect("built-in limits are checked by a test, their numbers before") }
}

/// Turns every limit off except for those in the lines that follow; a call waits as long as it
/// takes.
const UNLIMITED: &str = "preset = \"none\"\n[gates.it.queue]\nmax_wait = \"8760h\"\nmax_waiting = 1000000000\n";
/// Leaves the waiting to the gate.
const HOLD: &str = "strategy = \"exponential\"\nhold = \"8760h\"\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_can_be_staged_with_its_own_numbers_given() {
        for builtin in ALL {
            let given: Vec<String> = builtin.parameters.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let staged = builtin.stage(&given).unwrap_or_else(|wrong| panic!("{}: {wrong}", builtin.name));
            assert!(!staged.limits.is_empty() && !staged.scenario.controllers.is_empty(), "{}", builtin.name);
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
            let wrong = together.stage(&[given.to_owned()]).expect_err(given).to_string();
            assert!(wrong.contains(said), "{given}: {wrong}");
        }
    }
}
