//! A clock that a test sets, for a gate alone: libfaketime reads it from a file at every look.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::installed;

/// The clock of a gate, as the distance from the machine's.
pub(crate) struct FakeClock {
    library: PathBuf,
    folder: tempfile::TempDir,
}

impl FakeClock {
    /// A clock that agrees with the machine's; `None` if the test is skipped.
    pub(crate) fn or_skip(test: &str) -> Option<Self> {
        let library = installed::or_skip(test, installed::faketime())?;
        let clock = Self { library, folder: tempfile::tempdir().expect("a folder") };
        clock.set("+0");
        Some(clock)
    }

    /// Sets the distance, in libfaketime's words.
    pub(crate) fn set(&self, distance: &str) {
        let beside = self.folder.path().join("beside");
        fs::write(&beside, distance).expect("the folder is ours");
        fs::rename(beside, self.file()).expect("the folder is ours");
    }

    /// Puts a program under this clock.
    pub(crate) fn put_under(&self, run: &mut Command) {
        run.env("LD_PRELOAD", &self.library).env("FAKETIME_TIMESTAMP_FILE", self.file()).env("FAKETIME_NO_CACHE", "1");
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("clock")
    }
}
