//! Printing to standard output. A closed pipe (`tidegate check | head`) is not an error.

use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::path::Path;

/// Prints `text` unchanged.
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

/// Writes a file.
///
/// # Errors
/// The error names the file and the cause.
pub(super) fn file(path: &Path, content: &str) -> anyhow::Result<()> {
    use anyhow::Context as _;
    std::fs::write(path, content).with_context(|| format!("cannot write the file {}", path.display()))
}

/// The abilities of standard output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Screen {
    /// The number of columns, if it is a terminal.
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

    /// Returns the width of text.
    pub(super) fn width(&self) -> usize {
        self.terminal.unwrap_or(80).min(132)
    }
}

/// Returns `text` as lines that fit on the screen.
pub(super) fn paragraph(text: &str) -> String {
    wrapped(text, Screen::of_stdout().width()) + "\n"
}

/// Breaks `text` into lines of at most `width` columns.
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
