//! DigitalOcean, counting as it documents it: 5,000 calls of a token in any hour, and 250 in any
//! minute. Its reset is the moment at which the oldest call is forgotten.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};

use super::counting::{Tool, Window};
use super::{Provider, Reply, Scale};

/// The time of day at which the test starts: not at a whole second.
const EPOCH: Duration = Duration::from_millis(1_563_325_077_700);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Tokens, each with another tool that takes half.
#[derive(Debug, Default)]
pub struct DigitalOcean {
    tokens: BTreeMap<u64, Token>,
    scale: Scale,
}

#[derive(Debug)]
struct Token {
    minute: Window,
    hour: Window,
    tool: Tool,
    served: u32,
}

// === impl Token ===

impl Token {
    /// Counts a call, and returns true if it is served.
    fn count(&mut self, scale: Scale, at: Duration) -> bool {
        let in_minute = self.minute.sum(scale.time(MINUTE), at);
        let in_hour = self.hour.sum(scale.time(HOUR), at);
        let is_served = in_minute < scale.calls(250) && in_hour < scale.calls(5000);
        if is_served {
            self.minute.add(at, 1);
            self.hour.add(at, 1);
        }
        is_served
    }
}

// === impl DigitalOcean ===

impl DigitalOcean {
    pub fn scaled(scale: Scale) -> Self {
        Self { scale, ..Self::default() }
    }
}

impl Provider for DigitalOcean {
    fn serve(&mut self, account: u64, _kind: &str, at: Duration) -> Reply {
        let scale = self.scale;
        let (limit, hour) = (scale.calls(5000), scale.time(HOUR));
        let tool = Tool::new(f64::from(limit) / 2.0, hour.as_secs_f64());
        let new = || Token { minute: Window::default(), hour: Window::default(), tool, served: 0 };
        let token = self.tokens.entry(account).or_insert_with(new);
        while let Some(at) = token.tool.due(at) {
            token.count(scale, at);
        }
        let is_served = token.count(scale, at);
        token.served += u32::from(is_served);
        let left = limit - token.hour.sum(hour, at);
        let whole_at = EPOCH + token.hour.oldest().unwrap_or(at) + hour;
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("date", httpdate::fmt_http_date(std::time::UNIX_EPOCH + EPOCH + at)),
            ("ratelimit-limit", limit.to_string()),
            ("ratelimit-remaining", left.to_string()),
            ("ratelimit-reset", whole_at.as_secs().to_string()),
        ] {
            headers.insert(name, HeaderValue::try_from(value).expect("a value"));
        }
        Reply { status: if is_served { 200 } else { 429 }, headers, body: "", takes: Duration::from_millis(200) }
    }

    fn used(&self, last: Duration) -> Vec<(String, f64)> {
        let hours = last.as_secs_f64() / self.scale.time(HOUR).as_secs_f64();
        let ours = f64::from(self.scale.calls(5000)) / 2.0 * hours;
        self.tokens.iter().map(|(token, of)| (token.to_string(), f64::from(of.served) / ours)).collect()
    }
}
