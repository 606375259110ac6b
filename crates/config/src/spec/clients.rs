//! How the clients of a shared gate authenticate.

use std::time::Duration;

use super::Source;

words! {
    /// How clients' tokens are checked.
    pub enum Tokens {
        /// Tokens are not used.
        Off = "off",
        /// The API server checks the tokens, by its TokenReview.
        Review = "review",
    }
}

/// How clients must authenticate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clients {
    /// How tokens are checked.
    pub tokens: Tokens,
    /// The accepted audiences (a token must have one of them); if empty, those of the API server.
    pub audiences: Vec<String>,
    /// True if clients can authenticate with a certificate, by its common name.
    pub certificates: bool,
    /// How long an accepted token stays in the cache.
    pub cache: Duration,
    /// Patterns of accepted client names; `None` accepts every authenticated client.
    pub allowed: Option<Vec<String>>,
    /// The API server for token reviews.
    pub api: Source,
}

impl Clients {
    /// Returns true if every connection must have a client certificate, because clients can
    /// authenticate in no other way.
    pub fn need_certificates(&self) -> bool {
        self.certificates && self.tokens == Tokens::Off
    }
}
