//! The parameters of a built-in scenario, as typed by the user: `objects=500 length=1m`.

use std::time::Duration;

use crate::api::duration;
use crate::config::did_you_mean;

/// The parameters of a scenario: all are present and valid.
#[derive(Clone, Debug)]
pub(super) struct Parameters(Vec<(&'static str, String)>);

/// An error in the parameters given for a scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WrongParameter(pub(super) String);

// === impl Parameters ===

impl Parameters {
    /// Reads the given parameters. `known` lists all parameters with their defaults.
    pub(super) fn read(scenario: &str, known: &'static str, given: &[String]) -> Result<Self, WrongParameter> {
        let known = known.split(' ').filter_map(|one| one.split_once('='));
        let mut all: Vec<_> = known.map(|(key, value)| (key, value.to_owned())).collect();
        let keys: Vec<&str> = all.iter().map(|(key, _)| *key).collect();
        let example = all.first().map(|(key, value)| format!("{key}={value}")).unwrap_or_default();
        for one in given {
            let (key, value) = one.split_once('=').ok_or_else(|| {
                WrongParameter(format!("{one:?} is not a setting of {scenario}, expected one such as {example}"))
            })?;
            let Some(place) = all.iter_mut().find(|(known, _)| *known == key) else {
                let near = did_you_mean(key, &keys);
                let what = format!("{key:?} is not a setting of {scenario}, expected one of {}{near}", keys.join(", "));
                return Err(WrongParameter(what));
            };
            place.1 = checked(key, value)
                .map_err(|expected| WrongParameter(format!("the setting {key} is {value:?}, expected {expected}")))?;
        }
        Ok(Self(all))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.0.iter().cloned()
    }

    fn text(&self, key: &str) -> &str {
        self.0.iter().find(|(known, _)| *known == key).map_or("1", |(_, value)| value)
    }

    pub(super) fn count(&self, key: &str) -> usize {
        self.text(key).parse().unwrap_or(1)
    }

    pub(super) fn number(&self, key: &str) -> f64 {
        self.text(key).parse().unwrap_or(1.0)
    }

    pub(super) fn duration(&self, key: &str) -> Duration {
        duration::read(self.text(key)).unwrap_or(Duration::from_secs(1))
    }
}

/// Checks the value of a parameter, and returns it in the form for a configuration.
///
/// # Errors
/// The expected form, if the value has another.
fn checked(key: &str, value: &str) -> Result<String, &'static str> {
    let count = |most: u32| value.parse().ok().filter(|count: &u32| (1..=most).contains(count));
    let (read, expected) = match key {
        "replicas" => (count(1_000).map(|count| count.to_string()), "a whole number from 1 to 1000"),
        "objects" | "workers" | "burst" => {
            (count(1_000_000).map(|count| count.to_string()), "a whole number from 1 to 1000000")
        }
        "length" | "base" | "max" | "down" | "every" | "rtt" | "outage" => {
            let has_unit = value.ends_with(|c: char| c.is_ascii_lowercase());
            let fits = duration::read(value).is_some_and(|duration| !duration.is_zero() && duration <= LONGEST);
            let expected = "a duration with a unit, such as \"500ms\" or \"2h\", at most 8760h";
            ((has_unit && fits).then(|| value.to_owned()), expected)
        }
        _ => {
            let number = value.parse().ok().filter(|number: &f64| (0.001..=1e6).contains(number));
            (number.map(|number| number.to_string()), "a number from 0.001 to 1000000")
        }
    };
    read.ok_or(expected)
}

/// The longest simulated time: one year.
const LONGEST: Duration = Duration::from_secs(8760 * 3600);
