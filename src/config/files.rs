//! The files that a configuration names, looked at before anything starts, so that `check` and
//! `run` say the same of them.

use std::fs;
use std::path::PathBuf;

use super::problems::Problem;

/// A file that the configuration names.
#[derive(Clone, Debug)]
pub(super) struct NamedFile {
    pub(super) path: PathBuf,
    pub(super) holds: Holds,
    /// The problem that it may turn out to have, located where its name stands.
    pub(super) problem: Problem,
}

/// The content that a file must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// PEM certificates.
    Certificate,
    /// A PEM private key.
    Key,
    /// A secret.
    Secret,
}

impl NamedFile {
    /// Returns what is wrong with the file now. Its content is never shown.
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
