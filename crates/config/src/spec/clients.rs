//! How the clients of a shared gate authenticate.

use std::time::Duration;

use super::Source;

words! {
    /// How clients' tokens are checked.
    pub enum Tokens {
        /// Clients send no tokens.
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
    /// The accepted audiences; a token must have one of them; empty for the API server's own.
    pub audiences: Vec<String>,
    /// True if clients can authenticate with a certificate, by its common name.
    pub certificates: bool,
    /// How long an accepted token stays in the cache.
    pub cache: Duration,
    /// Patterns for the names of clients to accept; `None` accepts every authenticated client.
    pub allowed: Option<Vec<String>>,
    /// The API server reviewing tokens.
    pub api: Source,
}

impl Clients {
    /// Returns true if the connection must come with a certificate, because nothing else identifies
    /// the caller.
    pub fn need_certificates(&self) -> bool {
        self.certificates && self.tokens == Tokens::Off
    }
}
