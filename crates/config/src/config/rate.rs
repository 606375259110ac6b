//! Rates: a number per second, or text such as `"5000/h"`, as providers state their quotas.

use toml::Value;

use super::cursor::{Cursor, TomlValue};
use super::shape::{Shape, describe};

/// A rate as it was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    number: f64,
    /// The unit after the slash, with its length in seconds; `None` for a number per second.
    unit: Option<(&'static str, f64)>,
}

// === impl Rate ===

impl Rate {
    /// Creates a rate from a number per second.
    pub(super) const fn per_second(number: f64) -> Self {
        Self { number, unit: None }
    }

    /// Returns the rate per second.
    pub(super) fn in_a_second(self) -> f64 {
        self.unit.map_or(self.number, |(_, seconds)| self.number / seconds)
    }

    /// Formats the rate for a message.
    pub(super) fn describe(self) -> String {
        describe(&self.write())
    }
}

impl TomlValue for Rate {
    const SHAPE: Shape = Shape::Rate;

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        match value {
            Value::Float(number) => Some(Self::per_second(*number)),
            // A rate with more than 2^53 whole tokens is far past every bound.
            Value::Integer(number) => at
                .expect(i32::try_from(*number).ok(), value, "a number that fits")
                .map(|number| Self::per_second(number.into())),
            _ => at.expect(value.as_str().and_then(quota), value, A_RATE),
        }
    }

    fn write(&self) -> Value {
        match self.unit {
            None => self.number.into(),
            Some((unit, _)) => format!("{}/{unit}", self.number).into(),
        }
    }
}

/// Reads a quota such as `5000/h`: digits, perhaps with a fraction, a slash and the unit of time.
fn quota(text: &str) -> Option<Rate> {
    let (number, unit) = text.split_once('/')?;
    let is_plain = number.starts_with(|c: char| c.is_ascii_digit()) && number.ends_with(|c: char| c.is_ascii_digit());
    let number = number.parse().ok().filter(|_| is_plain && !number.contains(['e', 'E']))?;
    let unit = UNITS.iter().copied().find(|(name, _)| *name == unit)?;
    Some(Rate { number, unit: Some(unit) })
}

const UNITS: [(&str, f64); 4] = [("s", 1.0), ("min", 60.0), ("h", 3_600.0), ("d", 86_400.0)];
const A_RATE: &str = "a number per second, or text such as \"5000/h\" or \"900/min\" (units: s, min, h, d)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_have_a_unit_of_time() {
        for (text, expected) in [
            ("5000/h", Some(5000.0 / 3600.0)),
            ("900/min", Some(15.0)),
            ("2.5/s", Some(2.5)),
            ("86400/d", Some(1.0)),
            ("0/h", Some(0.0)),
            ("5000", None),
            ("5000/", None),
            ("/h", None),
            ("5000/H", None),
            ("5000/hour", None),
            ("5000 /h", None),
            ("5000/ h", None),
            ("-1/h", None),
            ("+1/h", None),
            ("1e3/h", None),
            (".5/s", None),
            ("5./s", None),
            ("nan/s", None),
            ("inf/s", None),
            ("1/1/s", None),
            ("", None),
        ] {
            assert_eq!(quota(text).map(Rate::in_a_second), expected, "{text}");
        }
    }
}
