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
        let (expected, is_in): (_, fn(&[u8]) -> bool) = match self.holds {
            Holds::Certificate => ("a PEM file with a certificate", |all| has(all, b"-----BEGIN CERTIFICATE-----")),
            Holds::Key => ("a PEM file with a private key", |all| has(all, b"PRIVATE KEY-----")),
            Holds::Secret => ("a file with the secret in it", |all| !all.trim_ascii().is_empty()),
        };
        let shown = self.path.display();
        let message = match fs::read(&self.path) {
            Err(error) => format!("{shown} cannot be read: {error}; expected {expected}"),
            Ok(content) if !is_in(&content) => format!("{shown} holds none, expected {expected}"),
            Ok(_) => return None,
        };
        Some(self.problem.with_message(message))
    }
}

fn has(content: &[u8], mark: &[u8]) -> bool {
    content.windows(mark.len()).any(|window| window == mark)
}
