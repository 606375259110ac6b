//! The logs of `audit`, `recommend` and `simulate --replay`: files, folders of rotated files, and
//! standard input.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IsTerminal as _, Read, Write as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use flate2::bufread::MultiGzDecoder;

use crate::simulate::replay::{RecordedLog, first_call};
use crate::status::text;

/// Returns the logs, those with the earlier first call first. Files are opened when they are read.
pub(super) fn open(paths: &[PathBuf]) -> anyhow::Result<Vec<RecordedLog<'static>>> {
    let mut files = Vec::new();
    for path in paths {
        let found = files.len();
        add(path, &mut files)
            .with_context(|| format!("cannot read {}, expected a log, a folder of logs, or -", path.display()))?;
        if files.len() == found {
            return Err(anyhow!("{} is a folder without files, expected logs", path.display()));
        }
    }
    let size = |path: &PathBuf| fs::metadata(path).map_or(0, |file| file.len());
    let progress = Rc::new(Progress {
        total: files.iter().map(size).sum(),
        read: Cell::new(0),
        is_terminal: io::stderr().is_terminal(),
    });
    files.sort_by_cached_key(|path| (first(path), path.clone()));
    let log = |path: PathBuf| {
        let file = LogFile { path, input: None, progress: Rc::clone(&progress) };
        RecordedLog { name: file.path.display().to_string(), input: Box::new(file) }
    };
    Ok(files.into_iter().map(log).collect())
}

/// Returns true if the logs can be read again.
pub(super) fn are_files(paths: &[PathBuf]) -> bool {
    paths.iter().all(|path| is_kept(path))
}

/// Adds a file, or all files in a folder and in those below it.
fn add(path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if is_stdin(path) || !fs::metadata(path)?.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let inside = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    inside.iter().try_for_each(|path| add(path, files))
}

/// Returns the time of a file's first call.
fn first(path: &Path) -> Option<Duration> {
    if is_kept(path) { first_call(plain(path, |file| file).ok()?) } else { None }
}

/// Returns true if reading leaves the bytes there, unlike from a pipe.
fn is_kept(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() || file.is_dir())
}

/// Opens a file, compressed with gzip or not; `around` goes around the bytes of the file.
fn plain(path: &Path, around: impl FnOnce(Box<dyn Read>) -> Box<dyn Read>) -> io::Result<Box<dyn BufRead>> {
    let file: Box<dyn Read> = if is_stdin(path) { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
    let mut file = BufReader::with_capacity(BUFFER, around(file));
    let is_gzip = file.fill_buf()?.starts_with(b"\x1f\x8b");
    Ok(if is_gzip { Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(file))) } else { Box::new(file) })
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A file that is opened when it is read.
struct LogFile {
    path: PathBuf,
    input: Option<Box<dyn BufRead>>,
    progress: Rc<Progress>,
}

// === impl LogFile ===

impl LogFile {
    fn opened(&mut self) -> io::Result<&mut dyn BufRead> {
        if self.input.is_none() {
            let progress = Rc::clone(&self.progress);
            self.input = Some(plain(&self.path, |inner| Box::new(Counted { inner, progress }))?);
        }
        Ok(self.input.as_mut().expect("it was opened above"))
    }
}

impl Read for LogFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.opened()?.read(into)
    }
}

impl BufRead for LogFile {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.opened()?.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.input.iter_mut().for_each(|input| input.consume(bytes));
    }
}

/// The bytes of a file, counted.
struct Counted {
    inner: Box<dyn Read>,
    progress: Rc<Progress>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(into)?;
        self.progress.add(bytes as u64);
        Ok(bytes)
    }
}

/// How much of the logs is read. A terminal shows it.
struct Progress {
    /// Zero if it is unknown.
    total: u64,
    read: Cell<u64>,
    is_terminal: bool,
}

// === impl Progress ===

impl Progress {
    fn add(&self, bytes: u64) {
        let before = self.read.get();
        self.read.set(before + bytes);
        if self.is_terminal && before / STEP != self.read.get() / STEP {
            // Nobody misses a progress line that cannot be written.
            drop(write!(io::stderr(), "\r\x1b[K{}", self.line()));
        }
    }

    fn line(&self) -> String {
        let size = |bytes: u64| text::bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
        let read = size(self.read.get());
        if self.total == 0 { format!("{read} read") } else { format!("{read} of {} read", size(self.total)) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal && self.read.get() >= STEP {
            drop(write!(io::stderr(), "\r\x1b[K"));
        }
    }
}

const BUFFER: usize = 1 << 16;
/// The bytes between two lines of progress.
const STEP: u64 = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_names_what_is_read_and_how_much_there_is() {
        let line = |total| Progress { total, read: Cell::new(3 << 24), is_terminal: false }.line();
        assert_eq!([line(1 << 30), line(0)], ["48 MiB of 1024 MiB read", "48 MiB read"]);
    }
}
