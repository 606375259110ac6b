//! Cloudflare's API, counting as it documents it: 1,200 calls of a user in five minutes, which
//! answers tell in the IETF's lists; one more, and all calls of the next five minutes are refused.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};

use super::counting::Tool;
use super::{Provider, Reply, Scale};

/// Users by token, each with another tool that takes half.
#[derive(Debug, Default)]
pub struct Cloudflare {
    users: BTreeMap<u64, User>,
    scale: Scale,
}

#[derive(Debug)]
struct User {
    limit: u32,
    window: Duration,
    tool: Tool,
    window_ends: Duration,
    used: u32,
    blocked_until: Duration,
    served: u32,
}

// === impl User ===

impl User {
    /// Counts a call, and returns true if it is served.
    fn count(&mut self, at: Duration) -> bool {
        if at >= self.window_ends {
            (self.window_ends, self.used) = (at + self.window, 0);
        }
        if at >= self.blocked_until && self.used == self.limit {
            self.blocked_until = at + self.window;
        }
        let is_served = at >= self.blocked_until;
        self.used += u32::from(is_served);
        is_served
    }
}

// === impl Cloudflare ===

impl Cloudflare {
    pub fn scaled(scale: Scale) -> Self {
        Self { scale, ..Self::default() }
    }
}

impl Provider for Cloudflare {
    fn serve(&mut self, account: u64, _kind: &str, at: Duration) -> Reply {
        let (limit, window) = (self.scale.calls(LIMIT), self.scale.time(WINDOW));
        let new = || User {
            limit,
            window,
            tool: Tool::new(f64::from(limit) / 2.0, window.as_secs_f64()),
            window_ends: Duration::ZERO,
            used: 0,
            blocked_until: Duration::ZERO,
            served: 0,
        };
        let user = self.users.entry(account).or_insert_with(new);
        while let Some(at) = user.tool.due(at) {
            user.count(at);
        }
        let is_served = user.count(at);
        user.served += u32::from(is_served);
        // Seconds are "rounded up", as in `retry-after`.
        let whole_in = (user.window_ends - at).as_secs_f64().ceil();
        let mut headers = HeaderMap::new();
        let mut add = |name, value: String| headers.insert(name, HeaderValue::try_from(value).expect("a value"));
        add("ratelimit", format!("\"default\";r={};t={whole_in}", limit - user.used));
        add("ratelimit-policy", format!("\"default\";q={limit};w={}", window.as_secs()));
        if !is_served {
            add("retry-after", ((user.blocked_until - at).as_secs() + 1).to_string());
        }
        Reply { status: if is_served { 200 } else { 429 }, headers, body: "", takes: Duration::from_millis(200) }
    }

    fn used(&self, last: Duration) -> Vec<(String, f64)> {
        // A fiftieth is the reserve.
        let limit = f64::from(self.scale.calls(LIMIT));
        let ours = (limit / 2.0 - (limit / 50.0).floor()) * last.as_secs_f64() / self.scale.time(WINDOW).as_secs_f64();
        self.users.iter().map(|(token, user)| (token.to_string(), f64::from(user.served) / ours)).collect()
    }
}

const LIMIT: u32 = 1200;
const WINDOW: Duration = Duration::from_secs(300);
