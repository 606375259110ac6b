//! Why something could not be done: the problems of a configuration, or an error of another kind.

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The configuration cannot work, for all these reasons.
    Config(Vec<String>),
    /// Anything else.
    Other(anyhow::Error),
}

// === impl Failure ===

impl Failure {
    /// Every reason, each one line.
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
