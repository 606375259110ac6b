//! Providers of APIs that count calls as they document it, in virtual or real time.

mod cloudflare;
mod counting;
mod digitalocean;
mod github;
mod hetzner;

use std::time::Duration;

use http::HeaderMap;

pub use self::cloudflare::Cloudflare;
pub use self::counting::{Bucket, Refill, Tool, Window};
pub use self::digitalocean::DigitalOcean;
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

/// The parts to which a provider's times and its numbers of calls are made smaller, so that an hour
/// passes in real time.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub times: f64,
    pub calls: u32,
}

/// An answer, and the time that it takes.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: &'static str,
    pub takes: Duration,
}

// === impl Scale ===

impl Scale {
    pub fn time(self, of: Duration) -> Duration {
        of.div_f64(self.times)
    }

    pub fn calls(self, of: u32) -> u32 {
        (of / self.calls).max(1)
    }

    /// Returns the calls per second for a documented number of them.
    pub fn rate(self, of: f64) -> f64 {
        of * self.times / f64::from(self.calls)
    }
}

impl Default for Scale {
    fn default() -> Self {
        Self { times: 1.0, calls: 1 }
    }
}

/// Returns our rate from when half of a window is left, if the tool takes half of the quota evenly,
/// and we take `fast` calls a second until then.
pub fn second_half(quota: f64, seconds: f64, reserve: f64, fast: f64) -> f64 {
    let tool = quota / 2.0 / seconds;
    let rest = seconds - quota / 2.0 / (fast + tool);
    quota * (0.5 - reserve) / rest - tool
}
