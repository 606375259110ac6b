//! Reports problems and warnings at a position in the configuration.

use toml::Value;

use super::{Cursor, Effect};
use crate::config::report::Report;
use crate::config::shape::describe;

impl Cursor<'_> {
    /// Reports that the value here is wrong.
    pub(in crate::config) fn problem(&self, message: impl Into<String>) {
        self.tell(message.into(), false);
    }

    /// Reports that the key itself is wrong, whatever its value.
    pub(in crate::config) fn key_problem(&self, message: impl Into<String>) {
        self.tell(message.into(), true);
    }

    /// Reports that the key here is missing; `rest` follows the words "is missing".
    pub(in crate::config) fn missing(&self, rest: impl std::fmt::Display) {
        self.given(&[self]).problem(format!("is missing{rest}"));
    }

    pub(super) fn has_no_effect(&self) {
        if let Effect::None { why, because } = &self.effect {
            let at = Self { given: vec![because.clone()], ..self.clone() };
            at.key_problem(format!("has no effect: {why}"));
        }
    }

    /// Returns the report of the whole configuration.
    pub(in crate::config) fn report(&self) -> &Report<'_> {
        self.report
    }

    fn tell(&self, message: String, at_key: bool) {
        if !matches!(self.effect, Effect::NoneAsReported) {
            self.report.problem(&self.path, message, at_key, &self.given);
        }
    }

    /// Reports a warning: the configuration works, but the user should know about this.
    pub(in crate::config) fn warn(&self, message: impl Into<String>) {
        self.report.warn(&self.path, message);
    }

    /// Returns `found`; if it is `None`, reports `value` as different from `expected`.
    pub(in crate::config) fn expect<T>(&self, found: Option<T>, value: &Value, expected: &str) -> Option<T> {
        if found.is_none() {
            let or = match self.or {
                None => String::new(),
                Some(word) if expected.contains(", or ") => format!("{word:?}, "),
                Some(word) => format!("{word:?} or "),
            };
            self.problem(format!("is {}, expected {or}{expected}", self.describe(value)));
        }
        found
    }

    /// Returns the value of a successful read; an error is reported as a problem.
    pub(in crate::config) fn accept<T>(&self, read: Result<T, String>) -> Option<T> {
        read.map_err(|fault| self.problem(fault)).ok()
    }

    /// Formats a value for a message. Where it may be a secret put here by mistake, shows only its
    /// type.
    pub(super) fn describe(&self, value: &Value) -> String {
        if value.is_str() && self.path.may_hold_a_secret() { "text".to_owned() } else { describe(value) }
    }

    /// Checks each text in the list `name`, and reports what `fault` returns for it.
    pub(in crate::config) fn check_each(&self, name: &str, texts: &[String], fault: impl Fn(&str) -> Option<String>) {
        for (index, text) in texts.iter().enumerate() {
            if let Some(fault) = fault(text) {
                self.at(name).item(index).problem(format!("is {text:?}, {fault}"));
            }
        }
    }
}
