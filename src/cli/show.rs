//! Prints without ever panicking: a reader that has left (`tidegate check | head`) is no failure.

use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::path::Path;

/// Prints `text` as it stands.
pub(super) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Prints one line on standard error.
pub(super) fn error(line: &str) {
    // If even standard error is gone, there is no other place to report it.
    drop(writeln!(io::stderr().lock(), "{line}"));
}

/// Writes a file; an error names it.
pub(super) fn file(path: &Path, content: &str) -> anyhow::Result<()> {
    use anyhow::Context as _;
    std::fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// The terminal that standard output is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Screen {
    /// Columns, if it is a terminal.
    pub(super) terminal: Option<usize>,
    /// True if colours may be used.
    pub(super) colour: bool,
}

// === impl Screen ===

impl Screen {
    pub(super) fn of_stdout() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let terminal = (io::stdout().is_terminal() && !dumb)
            .then(|| terminal_size::terminal_size().map_or(80, |(width, _)| usize::from(width.0)));
        let unwelcome = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { terminal, colour: terminal.is_some() && !unwelcome }
    }

    /// Returns the width that a picture may have.
    pub(super) fn width(&self) -> usize {
        self.terminal.unwrap_or(80).min(132)
    }
}

/// A progress line on standard error that is drawn over itself and shows how much of a file has
/// been read. Nothing is shown if standard error is no terminal.
#[derive(Debug)]
pub(super) struct Progress {
    what: &'static str,
    done: u64,
    all: u64,
    /// The percentage on the screen; `None` if nothing is shown.
    shown: Option<u64>,
}

// === impl Progress ===

impl Progress {
    /// Starts with nothing of `all` done.
    pub(super) fn new(what: &'static str, all: u64) -> Self {
        Self { what, done: 0, all, shown: io::stderr().is_terminal().then_some(u64::MAX) }
    }

    /// Adds `more` to what is done.
    pub(super) fn advance(&mut self, more: u64) {
        self.done = self.done.saturating_add(more);
        // A log that is being written may grow while it is read.
        let percent = (self.done.saturating_mul(100) / self.all.max(1)).min(100);
        if self.shown.is_some_and(|shown| shown != percent) {
            self.shown = Some(percent);
            let full = usize::try_from(percent * 40 / 100).unwrap_or(0);
            drop(write!(io::stderr().lock(), "\r{} {:<40} {percent:>3}%", self.what, "#".repeat(full)));
        }
    }

    /// Removes the line.
    pub(super) fn end(&self) {
        if self.shown.is_some() {
            drop(write!(io::stderr().lock(), "\r{:70}\r", ""));
        }
    }
}

/// Breaks `text` into lines that are no wider than `width`.
pub(super) fn wrapped(text: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a last line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn long_text_is_broken_between_words() {
        assert_eq!(wrapped("one two  three four", 9), "one two\nthree\nfour");
        assert_eq!(wrapped("", 9), "");
        assert_eq!(wrapped("incompressible", 4), "incompressible");
    }
}
