//! The failure of a command: the problems of a configuration, or another error.

use crate::config::Problem;

/// The reason why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The problems of the configuration.
    Config(Vec<String>),
    /// Any other error.
    Other(anyhow::Error),
}

// === impl Failure ===

impl Failure {
    /// Returns the failure of a configuration.
    pub(crate) fn of_config(problems: &[Problem]) -> Self {
        Self::Config(problems.iter().map(Problem::to_string).collect())
    }

    /// Returns every reason, one line each.
    pub(crate) fn problems(self) -> Vec<String> {
        match self {
            Self::Config(problems) => problems,
            Self::Other(error) => vec![format!("{error:#}")],
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}
