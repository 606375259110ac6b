//! The files named by a configuration. They are checked before anything starts, so that `check` and
//! `run` report the same problems.

use std::fs;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::SystemTime;

use super::problems::Problem;

/// A file named by the configuration.
#[derive(Clone, Debug)]
pub(super) struct NamedFile {
    pub(super) path: PathBuf,
    pub(super) holds: FileContent,
    /// The problem to report at the file's key; its message is added later.
    pub(super) problem: Problem,
}

/// The validity of a certificate: its first and its last moment.
pub(super) type Life = RangeInclusive<SystemTime>;

/// What a file must contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileContent {
    /// PEM certificates of CAs.
    Certificate,
    /// A PEM certificate chain: first the certificate itself, then those between it and its root.
    Chain,
    /// A PEM private key.
    Key,
    /// A secret, such as a token.
    Secret,
}

impl NamedFile {
    /// Returns what is wrong with the file now, if anything. Its content is never shown.
    pub(super) fn problem(&self) -> Option<Problem> {
        let (expected, is_in): (_, fn(&[u8]) -> bool) = match self.holds {
            FileContent::Certificate | FileContent::Chain => {
                ("a PEM file with a certificate", |all| has(all, b"-----BEGIN CERTIFICATE-----"))
            }
            FileContent::Key => ("a PEM file with a private key", |all| has(all, b"PRIVATE KEY-----")),
            FileContent::Secret => ("a file with the secret in it", |all| !all.trim_ascii().is_empty()),
        };
        let shown = self.path.display();
        let message = match fs::read(&self.path) {
            Err(error) => format!("{shown} cannot be read: {error}; expected {expected}"),
            Ok(content) if !is_in(&content) => format!("{shown} has other content; expected {expected}"),
            Ok(_) => return None,
        };
        Some(self.problem.with_message(message))
    }

    /// Returns a problem if no certificate in the file is valid now. Of a chain, only the first
    /// counts.
    pub(super) fn expired(&self, now: SystemTime, lives: impl Fn(&[u8]) -> Vec<Life>) -> Option<Problem> {
        let of_file = match self.holds {
            FileContent::Chain => 1,
            FileContent::Certificate => usize::MAX,
            FileContent::Key | FileContent::Secret => return None,
        };
        let content = fs::read(&self.path).ok()?;
        let shown = self.path.display();
        let mut fault = None;
        for life in lives(&content).into_iter().take(of_file) {
            if life.contains(&now) {
                return None;
            }
            let is_early = now < *life.start();
            let (what, when) =
                if is_early { ("is not valid before", life.start()) } else { ("has expired at", life.end()) };
            let when = httpdate::fmt_http_date((*when).max(SystemTime::UNIX_EPOCH));
            fault.get_or_insert_with(|| {
                format!("the certificate in {shown} {what} {when}, so TLS fails; expected one that is valid now")
            });
        }
        Some(self.problem.with_message(fault?))
    }
}

fn has(content: &[u8], mark: &[u8]) -> bool {
    content.windows(mark.len()).any(|window| window == mark)
}
