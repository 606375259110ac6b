//! Providers of APIs that count calls as they document it, in virtual or real time.

mod cloudflare;
mod counting;
mod github;
mod hetzner;

use std::time::Duration;

use http::HeaderMap;

pub use self::cloudflare::Cloudflare;
pub use self::counting::{Bucket, Refill, Tool, Window};
pub use self::github::Github;
pub use self::hetzner::Hetzner;

/// A provider that counts.
pub trait Provider {
    /// Counts a call of an account on its arrival, and answers it.
    fn serve(&mut self, account: u64, kind: &str, at: Duration) -> Reply;

    /// Ends a call of an account.
    fn end(&mut self, _account: u64) {}

    /// The part that was used of each quota that there was a call for.
    fn used(&self, last: Duration) -> Vec<(String, f64)>;
}

/// An answer, and the time that it takes.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: &'static str,
    pub takes: Duration,
}
