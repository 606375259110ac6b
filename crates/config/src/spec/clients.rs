//! The clients of a gate that many workloads share: how they show who they are.

use std::time::Duration;

use super::Source;

words! {
    /// The judge of the tokens that clients show.
    pub enum Tokens {
        /// They show none.
        Off = "off",
        /// The API server, by its TokenReview.
        Review = "review",
    }
}

/// The proof of identity that a gate asks of its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clients {
    /// The judge of tokens.
    pub tokens: Tokens,
    /// The audiences of which a token must have one; empty for the API server's own.
    pub audiences: Vec<String>,
    /// True if a client certificate shows who a client is: its common name is the client's.
    pub certificates: bool,
    /// The time for which the answer to a token that is right is used again.
    pub cache: Duration,
    /// Patterns of the names that are let in; `None` for every client that is known.
    pub allowed: Option<Vec<String>>,
    /// The API server that is asked.
    pub api: Source,
}

impl Clients {
    /// True if the connection must come with a certificate, because nothing else tells who calls.
    pub fn need_certificates(&self) -> bool {
        self.certificates && self.tokens == Tokens::Off
    }
}
