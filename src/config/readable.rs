//! The files that a configuration names, looked at before anything starts: `check` and `run` say the same of them.

use std::{fs, path::PathBuf};

use super::{
    path::Path,
    problems::{Problem, Report},
};

/// A file that will be read.
#[derive(Debug)]
pub(super) struct FileUse {
    path: PathBuf,
    holds: Holds,
    at: Path,
}

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// PEM certificates.
    Certificate,
    /// A PEM private key.
    Key,
    /// A secret.
    Secret,
}

/// A file with the problems that it may turn out to have: where its name stands is only known while the configuration is read.
#[derive(Clone, Debug)]
pub(super) struct Named {
    path: PathBuf,
    holds: Holds,
    problem: Problem,
}

impl FileUse {
    pub(super) fn new(path: PathBuf, holds: Holds, at: Path) -> Self {
        Self { path, holds, at }
    }

    pub(super) fn named(self, report: &Report<'_>) -> Named {
        Named { problem: report.locate(&self.at, String::new(), false), path: self.path, holds: self.holds }
    }
}

impl Named {
    /// What is wrong with the file now. Its content is never shown.
    pub(super) fn problem(&self) -> Option<Problem> {
        let expected = match self.holds {
            Holds::Certificate => "a PEM file with a certificate",
            Holds::Key => "a PEM file with a private key",
            Holds::Secret => "a file with the secret in it",
        };
        let shown = self.path.display();
        let message = match fs::read(&self.path) {
            Err(error) => format!("{shown} cannot be read: {error}; expected {expected}"),
            Ok(content) if !self.holds.is_in(&content) => format!("{shown} holds none, expected {expected}"),
            Ok(_) => return None,
        };
        Some(self.problem.with_message(message))
    }
}

impl Holds {
    fn is_in(self, content: &[u8]) -> bool {
        let has = |mark: &[u8]| content.windows(mark.len()).any(|window| window == mark);
        match self {
            Self::Certificate => has(b"-----BEGIN CERTIFICATE-----"),
            Self::Key => has(b"PRIVATE KEY-----"),
            Self::Secret => !content.trim_ascii().is_empty(),
        }
    }
}
