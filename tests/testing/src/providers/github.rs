//! GitHub, counting as it documents it: a quota for each resource, and the secondary limits in
//! points.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};

use super::counting::{Tool, Window};
use super::{Provider, Reply, Scale};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// The time of day at which the test starts: not at a whole second.
const EPOCH: Duration = Duration::from_millis(1_563_325_077_700);

#[derive(Debug, Default)]
pub struct Github {
    users: BTreeMap<u64, User>,
    /// True if another tool takes half of each quota.
    shared: bool,
    /// True if resets are cut to a second, and not rounded up to one: GitHub does not say which.
    cuts: bool,
    scale: Scale,
}

#[derive(Debug, Default)]
struct User {
    resources: BTreeMap<&'static str, Resource>,
    rest: Window,
    graphql: Window,
    writes: Window,
    created: [Window; 2],
    under_way: usize,
}

/// The quota of a resource, in windows that begin with their first call.
#[derive(Debug)]
struct Resource {
    quota: u32,
    length: Duration,
    tool: Option<Tool>,
    window_ends: Duration,
    used: u32,
    served: u32,
}

/// The resource that a call is charged to: its quota, and the length of its window.
fn resource(kind: &str) -> (&'static str, u32, Duration) {
    match kind {
        "search" => ("search", 30, MINUTE),
        "code_search" => ("code_search", 10, MINUTE),
        "queries" | "mutations" => ("graphql", 5000, HOUR),
        "manifests" => ("integration_manifest", 5000, HOUR),
        "snapshots" => ("dependency_snapshots", 100, MINUTE),
        "sboms" => ("dependency_sbom", 100, MINUTE),
        "sarifs" => ("code_scanning_upload", 1000, HOUR),
        "autofixes" => ("code_scanning_autofix", 10, MINUTE),
        "runners" => ("actions_runner_registration", 10_000, HOUR),
        "audits" => ("audit_log", 1750, HOUR),
        _ => ("core", 5000, HOUR),
    }
}

// === impl Resource ===

impl Resource {
    fn new(kind: &str, shared: bool, scale: Scale) -> Self {
        let (_, quota, length) = resource(kind);
        let (quota, length) = (scale.calls(quota), scale.time(length));
        let tool = shared.then(|| Tool::new(f64::from(quota) / 2.0, length.as_secs_f64()));
        Self { quota, length, tool, window_ends: Duration::ZERO, used: 0, served: 0 }
    }

    /// Counts the calls of the other tool until now.
    fn pass_to(&mut self, now: Duration) {
        while let Some(at) = self.tool.as_mut().and_then(|tool| tool.due(now)) {
            self.begin(at);
            self.used = (self.used + 1).min(self.quota);
        }
        self.begin(now);
    }

    fn begin(&mut self, at: Duration) {
        if at >= self.window_ends {
            (self.window_ends, self.used) = (at + self.length, 0);
        }
    }

    /// The calls of a window that are left to us: a tenth of each quota is for other tools anyway.
    fn ours(&self) -> f64 {
        let quota = f64::from(self.quota);
        quota - (quota * 0.1).floor() - if self.tool.is_some() { quota / 2.0 } else { 0.0 }
    }
}

// === impl Github ===

impl Github {
    /// GitHub with another tool that takes half of each quota.
    pub fn shared() -> Self {
        Self { shared: true, ..Self::default() }
    }

    pub fn scaled(scale: Scale) -> Self {
        Self { scale, cuts: true, ..Self::shared() }
    }
}

// === impl User ===

impl User {
    /// True if a secondary limit allows one call more.
    fn bears(&mut self, kind: &str, scale: Scale, at: Duration) -> bool {
        let length = scale.time(MINUTE);
        let is_write = matches!(kind, "writes" | "creates");
        let points = if is_write || kind == "mutations" { 5 } else { 1 };
        let [minute, hour] = &mut self.created;
        let fits = match kind {
            "queries" | "mutations" => self.graphql.sum(length, at) + points <= scale.calls(2000),
            _ => self.rest.sum(length, at) + points <= scale.calls(900),
        };
        let creates = kind != "creates"
            || minute.sum(length, at) < scale.calls(80) && hour.sum(scale.time(HOUR), at) < scale.calls(500);
        // "Wait at least one second between each request" that changes something: its way there
        // makes the difference.
        let apart = !is_write || self.writes.sum(scale.time(SECOND - MINUTE / 1000), at) == 0;
        let bears = fits && creates && apart && self.under_way < 100;
        if bears {
            match kind {
                "queries" | "mutations" => self.graphql.add(at, points),
                _ => self.rest.add(at, points),
            }
            if kind == "creates" {
                self.created.iter_mut().for_each(|window| window.add(at, 1));
            }
            if is_write {
                self.writes.add(at, 1);
            }
        }
        bears
    }
}

impl Provider for Github {
    fn serve(&mut self, account: u64, kind: &str, at: Duration) -> Reply {
        let takes = Duration::from_millis(200);
        let Self { shared, cuts, scale, .. } = *self;
        let user = self.users.entry(account).or_default();
        let has_room = user.bears(kind, scale, at);
        user.under_way += 1;
        let (name, ..) = resource(kind);
        let resource = user.resources.entry(name).or_insert_with(|| Resource::new(kind, shared, scale));
        let quota = resource.quota;
        resource.pass_to(at);
        let is_served = has_room && resource.used < quota;
        resource.used += u32::from(is_served);
        resource.served += u32::from(is_served);
        let date = httpdate::fmt_http_date(std::time::UNIX_EPOCH + EPOCH + at);
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("date", date),
            ("x-ratelimit-limit", quota.to_string()),
            ("x-ratelimit-remaining", (quota - resource.used).to_string()),
            ("x-ratelimit-reset", ((EPOCH + resource.window_ends).as_secs() + u64::from(!cuts)).to_string()),
            ("x-ratelimit-resource", name.to_owned()),
        ] {
            headers.insert(name, HeaderValue::try_from(value).expect("a value"));
        }
        if is_served {
            return Reply { status: 200, headers, body: "", takes };
        }
        headers.insert("retry-after", HeaderValue::from_static("60"));
        Reply { status: 403, headers, body: "", takes }
    }

    fn end(&mut self, account: u64) {
        self.users.get_mut(&account).expect("it called").under_way -= 1;
    }

    fn used(&self, last: Duration) -> Vec<(String, f64)> {
        let all = self.users.iter().flat_map(|(user, of)| of.resources.iter().map(move |resource| (user, resource)));
        let part = |(user, (name, resource)): (&u64, (&&str, &Resource))| {
            let windows = last.as_secs_f64() / resource.length.as_secs_f64();
            (format!("{user} {name}"), f64::from(resource.served) / (resource.ours() * windows))
        };
        all.map(part).collect()
    }
}
