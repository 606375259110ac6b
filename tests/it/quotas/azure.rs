//! Azure Resource Manager, counting as Microsoft documents it: a token bucket for each principal of
//! a subscription and kind of operation, and one of fifteen times as much for all principals.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method};
use testing::providers::{Bucket, Refill, Reply, Tool};

use super::town::{Job, Provider};

#[derive(Debug, Default)]
pub(super) struct Arm {
    /// The buckets of principals.
    principals: BTreeMap<String, Principal>,
    subscriptions: BTreeMap<String, Bucket>,
    /// True if another tool of the same principal takes half of what flows in.
    shared: bool,
}

#[derive(Debug)]
struct Principal {
    bucket: Bucket,
    tool: Option<Tool>,
    served: u32,
}

// === impl Job ===

impl Job {
    pub(super) fn arm(subscription: &'static str, method: &'static str) -> Self {
        let method = method.parse().expect("a method");
        let provider = "resourceGroups/g/providers/Microsoft.Compute/virtualMachines/v";
        let path = format!("/subscriptions/{subscription}/{provider}?api-version=2024-07-01");
        Self::new("management", method, &path, subscription)
    }
}

// === impl Arm ===

impl Arm {
    /// Azure with another tool that takes half.
    pub(super) fn shared() -> Self {
        Self { shared: true, ..Self::default() }
    }
}

impl Provider for Arm {
    fn serve(&mut self, job: &Job, at: Duration) -> Reply {
        let (kind, burst, rate) = match job.method {
            Method::GET => ("reads", 250.0, 25.0),
            Method::DELETE => ("deletes", 200.0, 10.0),
            _ => ("writes", 200.0, 10.0),
        };
        let seed = self.principals.len();
        let shared = self.shared;
        let new = || Principal {
            bucket: Bucket::new(burst, rate, Refill::EachSecond, seed),
            tool: shared.then(|| Tool::new(rate / 2.0, 1.0)),
            served: 0,
        };
        let name = format!("{} {} {kind}", job.account, job.action);
        let Principal { bucket, tool, served } = self.principals.entry(name).or_insert_with(new);
        let all = || Bucket::new(15.0 * burst, 15.0 * rate, Refill::EachSecond, seed);
        let of_all = self.subscriptions.entry(format!("{} {kind}", job.action)).or_insert_with(all);
        while let Some(at) = tool.as_mut().and_then(|tool| tool.due(at)) {
            if bucket.level(at) >= 1.0 && of_all.level(at) >= 1.0 {
                bucket.take();
                of_all.take();
            }
        }
        let takes = Duration::from_millis(40);
        let mut headers = HeaderMap::new();
        if bucket.level(at) < 1.0 || of_all.level(at) < 1.0 {
            headers.insert("retry-after", HeaderValue::from_static("1"));
            return Reply { status: 429, headers, body: "", takes };
        }
        bucket.take();
        of_all.take();
        *served += 1;
        let left = format!("{:.0}", bucket.level(at).floor());
        let left_of_all = format!("{:.0}", of_all.level(at).floor());
        for (scope, left) in [("", left), ("global-", left_of_all)] {
            let name = format!("x-ms-ratelimit-remaining-subscription-{scope}{kind}");
            let name = http::HeaderName::try_from(name).expect("a name");
            headers.insert(name, left.parse().expect("a number"));
        }
        Reply { status: 200, headers, body: "", takes }
    }

    /// The part that was used of what the bucket held and what flowed in, or of half of both.
    fn used(&self, last: Duration) -> Vec<(String, f64)> {
        let part = |of: &Principal| match of.tool {
            Some(_) => 2.0 * f64::from(of.served) / (of.bucket.capacity() + of.bucket.flow(last)),
            None => of.bucket.used(last),
        };
        self.principals.iter().map(|(name, of)| (name.clone(), part(of))).collect()
    }
}
