//! The error of a command: problems of the configuration, or any other error.

use crate::config::Problem;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The configuration has these problems.
    Config(Vec<String>),
    /// Part of the input cannot be read; what the rest says was printed.
    Unread(anyhow::Error),
    /// Any other error.
    Other(anyhow::Error),
}

// === impl Failure ===

impl Failure {
    /// Makes the error for these problems of the configuration.
    pub(crate) fn of_config(problems: &[Problem]) -> Self {
        Self::Config(problems.iter().map(Problem::to_string).collect())
    }

    /// Returns the reasons, one line each.
    pub(crate) fn problems(self) -> Vec<String> {
        match self {
            Self::Config(problems) => problems,
            Self::Unread(error) | Self::Other(error) => vec![format!("{error:#}")],
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}
