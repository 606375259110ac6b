//! GitHub, counting as it documents it: a quota for each resource, and the secondary limits in
//! points.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method};

use super::tokens::Window;
use super::town::{Job, Provider, Reply};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// The time of day at which the test starts: not at a whole second.
const EPOCH: Duration = Duration::from_millis(1_563_325_077_700);

#[derive(Debug, Default)]
pub(super) struct Github {
    resources: BTreeMap<&'static str, Resource>,
    rest: Window,
    graphql: Window,
    writes: Window,
    created: [Window; 2],
    under_way: usize,
}

/// The quota of a resource, in windows that begin with their first call.
#[derive(Debug, Default)]
struct Resource {
    window_ends: Duration,
    used: u32,
    served: u32,
}

// === impl Job ===

impl Job {
    pub(super) fn github(kind: &'static str) -> Self {
        let (method, path) = match kind {
            "reads" => (Method::GET, "/repos/a/b/issues/1"),
            "writes" => (Method::PATCH, "/repos/a/b/issues/1"),
            "creates" => (Method::POST, "/repos/a/b/issues"),
            "search" => (Method::GET, "/search/issues?q=x"),
            "code_search" => (Method::GET, "/search/code?q=x"),
            _ => (Method::POST, "/graphql"),
        };
        let form = match kind {
            "queries" => r#"{"query":"query { viewer { login } }"}"#,
            "mutations" => r#"{"query":"mutation { addStar(input: {starrableId: \"x\"}) { clientMutationId } }"}"#,
            _ => "",
        };
        Self { form: form.to_owned(), ..Self::new("github", method, path, kind) }
    }
}

/// The resource that a call is charged to: its quota, and the length of its window.
fn resource(kind: &str) -> (&'static str, u32, Duration) {
    match kind {
        "search" => ("search", 30, MINUTE),
        "code_search" => ("code_search", 10, MINUTE),
        "queries" | "mutations" => ("graphql", 5000, HOUR),
        _ => ("core", 5000, HOUR),
    }
}

// === impl Github ===

impl Github {
    /// True if a secondary limit allows one call more.
    fn bears(&mut self, kind: &str, at: Duration) -> bool {
        let is_write = matches!(kind, "writes" | "creates");
        let points = if is_write || kind == "mutations" { 5 } else { 1 };
        let [minute, hour] = &mut self.created;
        let fits = match kind {
            "queries" | "mutations" => self.graphql.sum(MINUTE, at) + points <= 2000,
            _ => self.rest.sum(MINUTE, at) + points <= 900,
        };
        let creates = kind != "creates" || minute.sum(MINUTE, at) < 80 && hour.sum(HOUR, at) < 500;
        // "Wait at least one second between each request" that changes something: its way there
        // makes the difference.
        let apart = !is_write || self.writes.sum(SECOND - MINUTE / 1000, at) == 0;
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
    fn serve(&mut self, job: &Job, at: Duration) -> Reply {
        let takes = Duration::from_millis(200);
        let (name, quota, length) = resource(job.action);
        let has_room = self.bears(job.action, at);
        self.under_way += 1;
        let resource = self.resources.entry(name).or_default();
        if at >= resource.window_ends {
            (resource.window_ends, resource.used) = (at + length, 0);
        }
        let is_served = has_room && resource.used < quota;
        resource.used += u32::from(is_served);
        resource.served += u32::from(is_served);
        let seconds = |of: Duration| (EPOCH + of).as_secs();
        let date = httpdate::fmt_http_date(std::time::UNIX_EPOCH + EPOCH + at);
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("date", date),
            ("x-ratelimit-limit", quota.to_string()),
            ("x-ratelimit-remaining", (quota - resource.used).to_string()),
            ("x-ratelimit-reset", (seconds(resource.window_ends) + 1).to_string()),
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

    fn end(&mut self, _job: &Job, _status: u16) {
        self.under_way -= 1;
    }

    /// A tenth of each quota is left to other tools.
    fn used(&self, last: Duration) -> Vec<(String, f64)> {
        let of = |(name, resource): (&&str, &Resource)| {
            let (quota, length) = match *name {
                "search" => (27.0, MINUTE),
                "code_search" => (9.0, MINUTE),
                _ => (4500.0, HOUR),
            };
            let windows = last.as_secs_f64() / length.as_secs_f64();
            ((*name).to_owned(), (f64::from(resource.served) / (quota * windows)).min(1.0))
        };
        self.resources.iter().map(of).collect()
    }
}
