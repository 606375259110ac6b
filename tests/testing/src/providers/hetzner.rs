//! Hetzner Cloud, counting as it documents it: 3,600 calls for each project, of which one comes
//! back each second.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};

use super::counting::{Bucket, Refill, Tool};
use super::{Provider, Reply, Scale};

/// The time of day at which the test starts: not at a whole second.
const EPOCH: Duration = Duration::from_millis(1_563_325_077_700);

/// Projects by token, with another tool that takes half of what comes back.
#[derive(Debug, Default)]
pub struct Hetzner {
    projects: BTreeMap<u64, Project>,
    scale: Scale,
}

#[derive(Debug)]
struct Project {
    bucket: Bucket,
    tool: Tool,
    served: u32,
}

// === impl Hetzner ===

impl Hetzner {
    pub fn scaled(scale: Scale) -> Self {
        Self { scale, ..Self::default() }
    }
}

impl Provider for Hetzner {
    fn serve(&mut self, account: u64, _kind: &str, at: Duration) -> Reply {
        let (limit, rate) = (f64::from(self.scale.calls(LIMIT)), self.scale.rate(1.0));
        let new = || Project {
            bucket: Bucket::new(limit, rate, Refill::Continuous, 0),
            tool: Tool::new(rate, 2.0),
            served: 0,
        };
        let Project { bucket, tool, served } = self.projects.entry(account).or_insert_with(new);
        while let Some(at) = tool.due(at) {
            if bucket.level(at) >= 1.0 {
                bucket.take();
            }
        }
        let is_served = bucket.level(at) >= 1.0;
        if is_served {
            bucket.take();
            *served += 1;
        }
        let left = bucket.level(at);
        let whole_at = (EPOCH + at).as_secs_f64() + (limit - left) / rate;
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("date", httpdate::fmt_http_date(std::time::UNIX_EPOCH + EPOCH + at)),
            ("ratelimit-limit", format!("{limit:.0}")),
            ("ratelimit-remaining", format!("{:.0}", left.floor())),
            ("ratelimit-reset", format!("{:.0}", whole_at.floor())),
        ] {
            headers.insert(name, HeaderValue::try_from(value).expect("a value"));
        }
        Reply { status: if is_served { 200 } else { 429 }, headers, body: "", takes: Duration::from_millis(200) }
    }

    /// Half of what comes back, and what the bucket held.
    fn used(&self, last: Duration) -> Vec<(String, f64)> {
        let ours = f64::from(self.scale.calls(LIMIT)) + last.as_secs_f64() * self.scale.rate(0.5);
        self.projects.iter().map(|(token, project)| (token.to_string(), f64::from(project.served) / ours)).collect()
    }
}

const LIMIT: u32 = 3600;
