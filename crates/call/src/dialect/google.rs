//! Google Cloud's REST: `/compute/v1/projects/NAME/zones/ZONE/instances/NAME/start`.
//!
//! A path alternates collections and names below its version; a method may follow them, as a
//! segment or behind a colon. The action is the collection and the method as Google's own names
//! have them: `instances.start`.

use http::Method;

use super::{Head, Words, header, host, is_read};

pub(super) fn read(head: &Head<'_>) -> Words {
    let host = host(head);
    let segments: Vec<&str> = head.uri.path().split('/').filter(|segment| !segment.is_empty()).collect();
    // Behind a base URL the host is the gate's; many services begin their paths with their name.
    let service = match host.strip_suffix(".googleapis.com") {
        Some(name) => name.split('.').next().unwrap_or(name),
        None => segments.first().copied().filter(|segment| !is_version(segment)).unwrap_or_default(),
    };
    let after = |word: &str| {
        let at = segments.iter().position(|segment| *segment == word)?;
        segments.get(at + 1).map(|name| name.split(':').next().unwrap_or(name))
    };
    let project = after("projects").or_else(|| header(head.headers, "x-goog-user-project"));
    let region = after("regions").or_else(|| after("locations")).map(str::to_owned);
    let region = region.or_else(|| after("zones").and_then(|zone| Some(zone.rsplit_once('-')?.0.to_owned())));
    let (collection, method) = named(&segments, head.method);
    let reads = is_read(head.method) || READS.iter().any(|read| method.starts_with(read));
    Words {
        service: service.into(),
        region: region.unwrap_or_default(),
        account: project.unwrap_or_default().into(),
        action: if collection.is_empty() { method.into() } else { format!("{collection}.{method}") },
        reads,
        ..Words::default()
    }
}

/// Returns the last collection in a path, and the method called on it or on one of its members.
fn named<'a>(segments: &[&'a str], method: &Method) -> (&'a str, &'a str) {
    let version = segments.iter().position(|segment| is_version(segment));
    let mut rest = version.map_or(segments, |at| segments.get(at + 1..).unwrap_or_default()).iter().copied().peekable();
    let mut collection = "";
    let mut is_member = false;
    while let Some(segment) = rest.next() {
        if matches!(segment, "global" | "aggregated") {
            continue;
        }
        if let Some(both) = segment.split_once(':') {
            return both;
        }
        if rest.peek().is_none() && is_member && is_method(segment) {
            return (collection, segment);
        }
        collection = segment;
        let member = rest.next();
        is_member = member.is_some();
        if let Some((_, verb)) = member.and_then(|member| member.split_once(':')) {
            return (collection, verb);
        }
    }
    let does = match *method {
        Method::GET | Method::HEAD if is_member => "get",
        Method::GET | Method::HEAD => "list",
        Method::POST => "insert",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    };
    (collection, does)
}

/// Returns true for `v1`, `v1beta1`, `v2alpha`, and Compute's `beta` and `alpha`.
fn is_version(segment: &str) -> bool {
    let is_numbered = |rest: &str| rest.starts_with(|first: char| first.is_ascii_digit());
    segment.strip_prefix('v').is_some_and(is_numbered) || matches!(segment, "beta" | "alpha")
}

/// Returns true if the segment at a path's end is a method, and not one more collection:
/// collections are plural nouns.
fn is_method(segment: &str) -> bool {
    let verbs = ["set", "add", "remove", "attach", "detach", "get", "delete", "test", "update", "move", "list"];
    let leads = |verb: &str| {
        segment.strip_prefix(verb).is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_uppercase()))
    };
    !segment.ends_with('s') || verbs.into_iter().any(leads)
}

/// The beginnings of the names of methods without changes.
const READS: [&str; 7] = ["get", "list", "search", "query", "test", "aggregated", "lookup"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Dialect;
    use crate::dialect::tests::words;

    #[test]
    fn a_path_is_read_as_googles_names_have_it() {
        let compute = [("host", "compute.googleapis.com")];
        for (method, target, account, region, action, reads) in [
            (
                Method::GET,
                "/compute/v1/projects/p/zones/europe-west1-b/instances",
                "p",
                "europe-west1",
                "instances.list",
                true,
            ),
            (Method::POST, "/compute/v1/projects/p/zones/z-1-a/instances", "p", "z-1", "instances.insert", false),
            (Method::GET, "/compute/v1/projects/p/zones/z-1-a/instances/i", "p", "z-1", "instances.get", true),
            (
                Method::POST,
                "/compute/v1/projects/p/zones/z-1-a/instances/i/start",
                "p",
                "z-1",
                "instances.start",
                false,
            ),
            (
                Method::POST,
                "/compute/v1/projects/p/zones/z-1-a/instances/i/setLabels",
                "p",
                "z-1",
                "instances.setLabels",
                false,
            ),
            (Method::GET, "/compute/v1/projects/p/regions/r1/operations/o", "p", "r1", "operations.get", true),
            (Method::GET, "/compute/v1/projects/p/global/networks/n", "p", "", "networks.get", true),
            (Method::GET, "/compute/beta/projects/p/aggregated/disks", "p", "", "disks.list", true),
            (Method::POST, "/v1/projects/p:getIamPolicy", "p", "", "projects.getIamPolicy", true),
            (Method::PATCH, "/v1/projects/p/locations/l/clusters/c", "p", "l", "clusters.patch", false),
            (Method::DELETE, "/v1/projects/p/topics/t", "p", "", "topics.delete", false),
            (Method::GET, "/", "", "", "list", true),
        ] {
            let words = words(Dialect::Google, &method, target, &compute, b"");
            let read = (words.account.as_str(), words.region.as_str(), words.action.as_str(), words.reads);
            assert_eq!(read, (account, region, action, reads), "{method} {target}");
            assert_eq!(words.service, "compute");
        }
    }

    #[test]
    fn behind_a_base_url_the_service_is_the_paths() {
        let service =
            |target: &str| words(Dialect::Google, &Method::GET, target, &[("host", "127.0.0.1:8002")], b"").service;
        assert_eq!(service("/storage/v1/b?project=p"), "storage");
        assert_eq!(service("/v1/projects/p/topics"), "");
    }

    #[test]
    fn the_project_of_a_header_counts_where_the_path_has_none() {
        let headers = [("host", "dns.googleapis.com:443"), ("x-goog-user-project", "billing")];
        assert_eq!(words(Dialect::Google, &Method::GET, "/v1/operations/o", &headers, b"").account, "billing");
    }
}
