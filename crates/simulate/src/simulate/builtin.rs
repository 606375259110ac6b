//! The built-in scenarios: common failures, each under several limits, in a file of its own.

mod parameters;

use std::path::Path;

use serde::Deserialize;

use self::parameters::Parameters;
pub use self::parameters::WrongParameter;
use super::Limits;
use super::picture::Picture;
use crate::api::duration;
use crate::chart::thousands;
use crate::config::scenario::{self, Scenario};
use crate::config::{self, Problem};

/// A built-in scenario.
#[derive(Debug)]
pub struct Builtin {
    /// The name of the scenario.
    pub name: &'static str,
    /// A sentence about what the scenario shows.
    pub about: &'static str,
    /// The settable parameters, with their defaults: `key=value`, separated by spaces.
    pub parameters: &'static str,
    picture: Picture,
    /// The text of the scenario and its limits, with placeholders such as `{name}` for its numbers.
    text: &'static str,
}

/// A scenario, the limits to compare, and a picture of the difference.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The scenario to play.
    pub scenario: Scenario,
    /// The limits to compare; the default limits come first.
    pub limits: Vec<Limits>,
    /// The picture to draw.
    pub picture: Picture,
}

/// The file of a built-in scenario: a scenario, together with the limits to compare.
#[derive(Deserialize)]
struct BuiltinFile {
    limits: Vec<LimitsText>,
    #[serde(flatten)]
    scenario: toml::Table,
}

/// Named limits to compare. `gate` has the keys of one gate's configuration, as TOML.
#[derive(Deserialize)]
struct LimitsText {
    name: String,
    gate: String,
}

/// All built-in scenarios.
pub const ALL: &[Builtin] = &[
    Builtin {
        name: "one-failing-object",
        about: "one object fails forever: how long before each retry",
        parameters: "length=2h base=5ms max=1000s",
        picture: Picture::Delays,
        text: include_str!("builtin/one_failing_object.toml"),
    },
    Builtin {
        name: "failing-together",
        about: "many objects fail together: backoff, bucket, and both",
        parameters: "objects=10000 length=3s base=5ms max=1000s rate=10 burst=100",
        picture: Picture::TotalRetries,
        text: include_str!("builtin/failing_together.toml"),
    },
    Builtin {
        name: "recovery",
        about: "a webhook is down for a while: load, and recovery",
        parameters: "objects=600 workers=10 down=30s length=150s capacity=100 retry_rate=10",
        picture: Picture::Calls,
        text: include_str!("builtin/recovery.toml"),
    },
    Builtin {
        name: "noisy-neighbour",
        about: "one asks for 100 times its share; what another waits",
        parameters: "rate=50 burst=10 times=100 quiet=5 length=30s",
        picture: Picture::Waits("quiet"),
        text: include_str!("builtin/noisy_neighbour.toml"),
    },
    Builtin {
        name: "lease-holder",
        about: "a leader's lease while its objects saturate the bucket",
        parameters: "objects=2000 rate=20 burst=30 every=2s length=120s",
        picture: Picture::LeaseAge,
        text: include_str!("builtin/lease_holder.toml"),
    },
    Builtin {
        name: "shared-account",
        about: "gates with one account: each its own limits, or shared",
        parameters: "replicas=3 rate=50 burst=100 rtt=1ms length=60s",
        picture: Picture::Together,
        text: include_str!("builtin/shared_account.toml"),
    },
    Builtin {
        name: "shared-outage",
        about: "the store of a shared bucket is away for a while",
        parameters: "replicas=3 rate=50 burst=100 rtt=1ms outage=10s length=60s",
        picture: Picture::Together,
        text: include_str!("builtin/shared_outage.toml"),
    },
];

/// Returns the scenario of this name.
pub fn find(name: &str) -> Option<&'static Builtin> {
    ALL.iter().find(|builtin| builtin.name == name)
}

/// Returns the limits of a gate with an empty configuration.
pub fn usual() -> Limits {
    limits("sidecar", "").expect("it is the default")
}

// === impl Builtin ===

impl Builtin {
    /// Creates the scenario with these parameters, given as `key=value`.
    ///
    /// # Errors
    /// A parameter is unknown in this scenario, or its value is of the wrong type or range.
    pub fn set_up(&self, given: &[String]) -> Result<Setup, WrongParameter> {
        let numbers = Parameters::read(self.name, self.parameters, given)?;
        let fill = |text: String, (key, value): (&str, String)| text.replace(&format!("{{{key}}}"), &value);
        let text = numbers.all().chain(derived(&numbers)).fold(self.text.to_owned(), fill);
        let file: BuiltinFile = toml::from_str(&text).map_err(|error| WrongParameter(error.to_string()))?;
        let text = file.scenario.to_string();
        let mut scenario = scenario::load_text(self.name.to_owned(), text, Path::new(self.name))
            .map_err(|problems| WrongParameter(format!("the scenario cannot be played: {}", first(&problems))))?;
        // A single gate has no others beside it, and a lease may be renewed too late.
        scenario.controllers.retain(|one| one.gate <= numbers.count("replicas"));
        scenario.leases.iter_mut().for_each(|lease| lease.every = numbers.duration("every"));
        let limits = file.limits.iter().map(|one| limits(&one.name, &one.gate)).collect::<Result<_, _>>()?;
        Ok(Setup { scenario, limits, picture: self.picture.clone() })
    }
}

/// Returns values for scenarios, computed from the parameters.
fn derived(numbers: &Parameters) -> impl Iterator<Item = (&'static str, String)> {
    let rate = numbers.number("rate");
    let gates = numbers.number("replicas");
    let others = (gates - 1.0).max(1.0);
    let from = numbers.duration("length") / 3;
    let to = (from + numbers.duration("outage")).min(numbers.duration("length"));
    [
        ("many", thousands(numbers.count("objects"))),
        ("bucket", (2.0 * numbers.number("retry_rate")).max(50.0).to_string()),
        ("noisy", format!("{:?}", rate / 2.0 * numbers.number("times"))),
        ("busy", format!("{:?}", rate * BUSY)),
        ("quiet", format!("{:?}", rate * QUIET / others)),
        ("others", others.to_string()),
        ("part", format!("{:?}", rate / gates)),
        ("burst_part", (numbers.count("burst") / numbers.count("replicas")).max(1).to_string()),
        ("from", duration::write(from)),
        ("to", duration::write(to)),
    ]
    .into_iter()
}

/// Returns the limits of a gate with these configuration lines. An error if they do not fit
/// together.
fn limits(name: &str, lines: &str) -> Result<Limits, WrongParameter> {
    let text = format!("[gates.it]\nupstream = \"http://simulated\"\n{lines}");
    let loaded = config::load_text("limits".to_owned(), text, &[])
        .map_err(|problems| WrongParameter(format!("the limits {name:?} cannot be used: {}", first(&problems))))?;
    let gate = loaded.settings.gates.into_values().next();
    Ok(Limits { name: name.to_owned(), gate: gate.expect("there is one above") })
}

/// Returns the first problem, without its position in the configuration.
fn first(problems: &[Problem]) -> String {
    let first = problems.first().map(ToString::to_string).unwrap_or_default();
    first.split_once(": ").map_or(&*first, |(_, what)| what).to_owned()
}

/// How much the busy gate needs, as a share of the account's rate.
const BUSY: f64 = 0.9;
const QUIET: f64 = 0.3;

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
            ("length", "expected one such as"),
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
            "replicas" => ["1", "1000", "007"],
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
