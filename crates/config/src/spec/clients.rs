//! The clients of a shared gate, and their proof of identity.

use std::time::Duration;

use super::Source;

words! {
    /// The judge of clients' tokens.
    pub enum Tokens {
        /// They show none.
        Off = "off",
        /// The API server, by its TokenReview.
        Review = "review",
    }
}

/// The proof of identity asked of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clients {
    /// The judge of tokens.
    pub tokens: Tokens,
    /// The audiences of tokens, one of them required; empty for the API server's own.
    pub audiences: Vec<String>,
    /// True if a client certificate identifies a client, by its common name.
    pub certificates: bool,
    /// The lifetime of an accepted token in the cache.
    pub cache: Duration,
    /// Patterns of the names to let in; `None` for every known client.
    pub allowed: Option<Vec<String>>,
    /// The API server for reviews.
    pub api: Source,
}

impl Clients {
    /// True if the connection must come with a certificate: nothing else identifies the caller.
    pub fn need_certificates(&self) -> bool {
        self.certificates && self.tokens == Tokens::Off
    }
}
