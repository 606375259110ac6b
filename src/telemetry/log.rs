//! The log's form and level.
//!
//! One line per change of state; nothing per call above `debug`. Everything is a field, so that a JSON reader needs no parsing and a client
//! cannot forge a line: values are escaped by the formatter.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, util::SubscriberInitExt};

/// The log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The level is not one.
    #[error(
        "log level {level:?} is not error, warn, info, debug, trace or a filter such as \"info,tidegate::proxy=debug\""
    )]
    Level {
        /// As given.
        level: String,
        /// What is wrong with it.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// A log is set up already.
    #[error("a log is set up already")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Sets the process's log up, on standard error.
///
/// # Errors
/// When the level is not one, or a log is set up already.
pub fn start(json: bool, level: &str) -> Result<(), LogError> {
    let filter = EnvFilter::try_new(level).map_err(|source| LogError::Level { level: level.to_owned(), source })?;
    let base = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = if json {
        base.json().flatten_event(true).with_current_span(false).with_span_list(false).finish().try_init()
    } else {
        base.with_ansi(std::io::stderr().is_terminal()).with_target(false).finish().try_init()
    };
    started.map_err(LogError::Twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_is_none_is_named() {
        let error = start(false, "info,=,").expect_err("not a level");
        assert!(error.to_string().contains("info,=,"), "{error}");
    }
}
