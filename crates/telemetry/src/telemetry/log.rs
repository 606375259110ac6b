//! The format and level of the log.
//!
//! There is one line per change of state, and nothing per call above `debug`. Values are fields, so
//! that a JSON reader needs no parsing. No client can forge a line or control a terminal: the
//! writer escapes every control character in a value.

use std::borrow::Cow;
use std::io::{self, Write};

use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use crate::controls::{json_escape, steers};

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The level is invalid.
    #[error(
        "log level {level:?} is not error, warn, info, debug, trace or a filter such as \"info,tidegate::proxy=debug\""
    )]
    Level {
        /// The level given.
        level: String,
        /// The error in the level.
        #[source]
        source: ParseError,
    },
    /// The log was set up before.
    #[error("cannot set up the log: this process has set it up already")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// The level of the log. It can be changed at run time.
#[derive(Debug)]
pub struct Level(reload::Handle<Targets, Registry>);

/// Sets up the process's log on standard error.
///
/// # Errors
/// The level is invalid, or a log is set up already.
pub fn start(json: bool, level: &str) -> Result<Level, LogError> {
    let (filter, handle) = reload::Layer::new(filter(level)?);
    let process = tracing_subscriber::registry().with(filter);
    let lines = fmt::layer().with_writer(move || LogWriter { json }).with_ansi(false);
    let started = if json {
        process.with(lines.json().flatten_event(true).with_current_span(false).with_span_list(false)).try_init()
    } else {
        process.with(lines.with_target(false)).try_init()
    };
    started.map_err(LogError::Twice)?;
    Ok(Level(handle))
}

fn filter(level: &str) -> Result<Targets, LogError> {
    level.parse().map_err(|source| LogError::Level { level: level.to_owned(), source })
}

// === impl Level ===

impl Level {
    /// Changes the level.
    ///
    /// # Errors
    /// The level is invalid; then nothing changes.
    pub fn set(&self, level: &str) -> Result<(), LogError> {
        // This fails only if the log is gone.
        drop(self.0.reload(filter(level)?));
        Ok(())
    }
}

/// Writes to standard error, with control characters escaped. Each event is written at once.
#[derive(Clone, Copy, Debug)]
struct LogWriter {
    json: bool,
}

// === impl LogWriter ===

impl Write for LogWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        io::stderr().lock().write_all(escaped(&text, self.json).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

/// Returns an event as one line without control characters. JSON stays JSON.
fn escaped(event: &str, is_json: bool) -> Cow<'_, str> {
    let line = event.strip_suffix('\n').unwrap_or(event);
    if !line.contains(steers) {
        return Cow::Borrowed(event);
    }
    let escaped = |c: char| match c {
        c if !steers(c) => c.to_string(),
        c if is_json => json_escape(c),
        c => c.escape_default().to_string(),
    };
    Cow::Owned(line.chars().map(escaped).chain(["\n".to_owned()]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_is_none_is_named() {
        let error = start(false, "info,tidegate=loud").expect_err("not a level");
        assert!(error.to_string().contains("info,tidegate=loud"), "{error}");
    }

    #[test]
    fn nothing_that_steers_gets_into_a_line() {
        assert_eq!(escaped("a line\n", false), "a line\n");
        assert_eq!(escaped("one\r\nINFO forged\n", false), "one\\r\\nINFO forged\n");
        assert_eq!(escaped("bell\u{7} clear\u{1b}[2J \u{85}next", false), "bell\\u{7} clear\\u{1b}[2J \\u{85}next\n");
        assert_eq!(escaped("\u{1b}[31mred", false), "\\u{1b}[31mred\n");
        assert_eq!(escaped("pod\u{202e}\u{2028}", false), "pod\\u{202e}\\u{2028}\n");
    }

    #[test]
    fn what_is_written_out_in_json_is_still_json() {
        // serde escapes what JSON forbids. DEL, C1 and characters that change the direction of text
        // are allowed in it, and steer a terminal all the same.
        let name = "web\u{7f}\u{85}\u{9b}2J\u{202e}\u{2028}";
        let line = escaped(&format!("{}\n", serde_json::json!({ "key": name })), true).into_owned();
        assert!(!line.trim_end().contains(steers), "{line}");
        let read: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(read["key"], name);
    }
}
