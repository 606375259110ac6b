//! Azure Resource Manager, counting as Microsoft documents it: a token bucket for each subscription
//! and kind of operation.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method};

use super::tokens::{Bucket, Refill};
use super::town::{Job, Provider, Reply};

#[derive(Debug, Default)]
pub(super) struct Arm(BTreeMap<String, Bucket>);

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

impl Provider for Arm {
    fn serve(&mut self, job: &Job, at: Duration) -> Reply {
        let (kind, burst, rate) = match job.method {
            Method::GET => ("reads", 250.0, 25.0),
            Method::DELETE => ("deletes", 200.0, 10.0),
            _ => ("writes", 200.0, 10.0),
        };
        let seed = self.0.len();
        let new = || Bucket::new(burst, rate, Refill::EachSecond, seed);
        let bucket = self.0.entry(format!("{} {kind}", job.action)).or_insert_with(new);
        let takes = Duration::from_millis(40);
        let mut headers = HeaderMap::new();
        if bucket.level(at) < 1.0 {
            headers.insert("retry-after", HeaderValue::from_static("1"));
            return Reply { status: 429, headers, body: "", takes };
        }
        bucket.take();
        let left = format!("{:.0}", bucket.level(at).floor());
        let name = http::HeaderName::try_from(format!("x-ms-ratelimit-remaining-subscription-{kind}")).expect("a name");
        headers.insert(name, left.parse().expect("a number"));
        Reply { status: 200, headers, body: "", takes }
    }

    fn used(&self, last: Duration) -> Vec<(String, f64)> {
        self.0.iter().map(|(name, bucket)| (name.clone(), bucket.used(last))).collect()
    }
}
